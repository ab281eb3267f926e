"""Attention as buggy kernels compute it: models with one thing wrong each, which a failing kernel is compared with.

Three kinds, each made by a decorator. `reads`: what is computed is attention, of something else than was asked for; a
function of a `Reading` that returns another, which holds for the forward and for the backward pass. `computes`: the softmax
itself goes wrong; a function of a `Question` that returns O and log-sum-exp. `derives`: the backward pass goes wrong; a
function of `Backward` that returns dq, dk, dv. With `over`, the function has a parameter, and is a suspect for each value.
"""

from __future__ import annotations

from flashsim.testing.spec import Spec
from flashsim.testing.suspects import dropout, gradients, log_sum_exp, masking, operands, scaling, softmax, tiles
from flashsim.testing.suspects.family import FA, Family, Suspect
from flashsim.testing.suspects.reading import Answer, Arrays, Backward, Question, Reading

MODULES = (masking, scaling, operands, tiles, dropout, softmax, log_sum_exp, gradients)  # the simplest bugs first
FAMILIES = [family for module in MODULES for family in vars(module).values() if isinstance(family, Family)]
FAMILIES.sort(key=lambda family: not family.name.startswith("empty_row"))  # those of empty rows alone before all

__all__ = ["FA", "FAMILIES", "Answer", "Arrays", "Backward", "Question", "Reading", "Suspect", "suspects"]


def suspects(spec: Spec) -> list[Suspect]:
    """Return all suspects for kernels of that spec, the simplest first."""
    return [suspect for family in FAMILIES for suspect in family.suspects(spec)]

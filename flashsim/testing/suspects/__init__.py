"""Attention as buggy kernels compute it: models with one thing wrong each, which a failing kernel is compared with.

Three kinds, a table each: a name, what a user reads, and the model, a function. `reads`: what is computed is attention, of
something else than was asked for; of a `Reading` it makes another, which holds for the forward and for the backward pass.
`computes`: the softmax itself goes wrong; of a `Question` it makes O and log-sum-exp. `derives`: the backward pass goes wrong;
of a `Backward` it makes dq, dk, dv. With `over`, the function has a parameter, and there is a suspect for each value.
"""

from flashsim.testing.spec import Spec
from flashsim.testing.suspects.family import FA, Suspect
from flashsim.testing.suspects.gradients import GRADIENTS
from flashsim.testing.suspects.misreadings import MISREADINGS
from flashsim.testing.suspects.reading import Answer, Arrays, Backward, Question, Reading
from flashsim.testing.suspects.softmax import SOFTMAX

FAMILIES = [*MISREADINGS, *SOFTMAX, *GRADIENTS]  # the simplest bugs first
FAMILIES.sort(key=lambda family: not family.name.startswith("empty_row"))  # those of empty rows alone before all

__all__ = ["FA", "FAMILIES", "Answer", "Arrays", "Backward", "Question", "Reading", "Suspect", "suspects"]


def suspects(spec: Spec) -> list[Suspect]:
    """Return all suspects for kernels of that spec, the simplest first."""
    return [suspect for family in FAMILIES for suspect in family.suspects(spec)]

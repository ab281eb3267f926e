"""Attention as buggy kernels compute it: models with one bug each, to compare a failing kernel
with.

Each of the three kinds has a table with a name, the sentence for users, and the model, a function.
`reads`: the kernel computes attention of other inputs than it was given; the function changes a
`Reading`, for both passes. `computes`: the softmax is wrong; the function makes O and the
log-sum-exp of a `Question`. `derives`: the backward pass is wrong; the function makes dq, dk, dv of
a `Backward`. With `over`, the function has a parameter, and there is a suspect for each value.
"""

from flashsim.testing.spec import Spec
from flashsim.testing.suspects.family import FA, Suspect
from flashsim.testing.suspects.gradients import GRADIENTS
from flashsim.testing.suspects.misreadings import MISREADINGS
from flashsim.testing.suspects.reading import Answer, Arrays, Backward, Question, Reading
from flashsim.testing.suspects.softmax import SOFTMAX

FAMILIES = [*MISREADINGS, *SOFTMAX, *GRADIENTS]  # the simplest bugs first
# first of all, those of empty rows alone
FAMILIES.sort(key=lambda family: not family.name.startswith("empty_row"))

__all__ = [
    "FA",
    "FAMILIES",
    "Answer",
    "Arrays",
    "Backward",
    "Question",
    "Reading",
    "Suspect",
    "suspects",
]


def suspects(spec: Spec) -> list[Suspect]:
    """Return all suspects for kernels of that spec, the simplest first."""
    return [suspect for family in FAMILIES for suspect in family.suspects(spec)]

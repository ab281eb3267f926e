"""Bug models: attention as buggy kernels compute it, with one bug each. A diagnosis compares a
failing kernel with them.

There are three kinds of families, each with a table of names, sentences for users, and functions.
`INPUT_BUGS`: the kernel computes attention of other inputs than it was given; the function changes
an `Interpretation`, for both passes. `SOFTMAX_BUGS`: the softmax is wrong; the function makes O and
the log-sum-exp of `Inputs`. `GRADIENT_BUGS`: the backward pass is wrong; the function makes dq, dk,
dv of a `Backward`. If the function has a parameter, there is a model for each of its values.
"""

from flashsim.testing.bug_models.family import FA, Bug, BugModel
from flashsim.testing.bug_models.gradient_bugs import GRADIENT_BUGS
from flashsim.testing.bug_models.input_bugs import INPUT_BUGS
from flashsim.testing.bug_models.interpretation import (
    Answer,
    Arrays,
    Backward,
    Inputs,
    Interpretation,
)
from flashsim.testing.bug_models.softmax_bugs import SOFTMAX_BUGS
from flashsim.testing.spec import Spec

BUGS: list[Bug] = [*INPUT_BUGS, *SOFTMAX_BUGS, *GRADIENT_BUGS]  # the simplest first
# those of empty rows before all others
BUGS.sort(key=lambda bug: not bug.name.startswith("empty_row"))

__all__ = [
    "BUGS",
    "FA",
    "Answer",
    "Arrays",
    "Backward",
    "Bug",
    "BugModel",
    "Inputs",
    "Interpretation",
    "models_for",
]


def models_for(spec: Spec) -> list[BugModel]:
    """Return the bug models for kernels of that spec, the simplest first."""
    models = []
    for bug in BUGS:
        models += bug.models(spec)
    return models

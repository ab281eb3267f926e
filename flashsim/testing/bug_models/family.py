"""Families of bug models. A family is one known bug; it has a model for each value of the bug's
parameter, or a single model. There are three kinds: `InputBug`, `SoftmaxBug` and `GradientBug`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flashsim.testing.bug_models.interpretation import Answer, Arrays, Backward, Inputs
from flashsim.testing.spec import Spec

FA = "Dao-AILab/flash-attention#"

Parameters = Callable[[Spec], Sequence[Any]]
Changes = dict[str, Any] | None
CORNERS = ("the top left (j ≤ i)", "the bottom right (j ≤ i + N_k − N_q)")


@dataclass(frozen=True)
class BugModel:
    """A known bug with the value of its parameter: `says` is a sentence about it."""

    bug: "Bug"
    says: str
    arguments: tuple[Any, ...]

    @property
    def family(self) -> str:
        """The name of its family."""
        return self.bug.name

    @property
    def threads(self) -> tuple[str, ...]:
        """Public threads about such a bug, each as owner/repository#number."""
        return self.bug.threads

    def answers(self, inputs: Inputs) -> list[Arrays]:
        """Return the results that a kernel with this bug may have; none if the bug does not
        concern these inputs.
        """
        return self.bug.answers(inputs, *self.arguments)


@dataclass(frozen=True)
class Bug:
    """A family of models: one known bug.

    name        of the family
    says        a sentence about the bug. {0}, {1}, … stand for the arguments; {here} and {there}
                for the corner at which the spec aligns causal masks, and the other one
    threads     public threads about such a bug, each as owner/repository#number
    parameters  spec -> for each model a value of the parameter, or a tuple of values. None: there
                is no parameter
    """

    name: str
    says: str
    threads: tuple[str, ...]
    parameters: Parameters | None

    def models(self, spec: Spec) -> list[BugModel]:
        """Return the models for kernels of that spec."""
        there, here = CORNERS if spec.causal != "top_left" else CORNERS[::-1]
        models = []
        for value in [()] if self.parameters is None else self.parameters(spec):
            arguments = value if isinstance(value, tuple) else (value,)
            says = self.says.format(*arguments, there=there, here=here)
            models.append(BugModel(self, says, arguments))
        return models

    def answers(self, inputs: Inputs, *arguments: Any) -> list[Arrays]:
        """Return the results that a kernel with this bug may have."""
        raise NotImplementedError


def always(inputs: Inputs) -> bool:
    """The bug concerns all inputs."""
    return True


@dataclass(frozen=True)
class InputBug(Bug):
    """Both passes compute attention of other inputs than they were given.

    change  (inputs, the right interpretation, …) -> the fields that the kernel interprets in
            another way, or None
    when    the inputs that the bug concerns
    """

    change: Callable[..., Changes]
    when: Callable[[Inputs], bool]

    def answers(self, inputs: Inputs, *arguments: Any) -> list[Arrays]:
        """Return the results that a kernel with this bug may have."""
        right = inputs.interpretation
        changes = self.change(inputs, right, *arguments) if self.when(inputs) else None
        if changes is None:
            return []
        wrong = replace(right, **changes)
        if inputs.aspect != "gradients":
            return inputs.forward(wrong.answer)
        both_passes = Backward(wrong, inputs).gradients()
        only_backward = Backward(wrong, inputs, forward=right).gradients()
        return [inputs.backward(both_passes), inputs.backward(only_backward)]


@dataclass(frozen=True)
class SoftmaxBug(Bug):
    """The softmax is wrong.

    compute   (inputs, …) -> Answer, or None
    keep_nan  see `Inputs.forward`
    """

    compute: Callable[..., Answer | None]
    keep_nan: bool

    def answers(self, inputs: Inputs, *arguments: Any) -> list[Arrays]:
        """Return the results that a kernel with this bug may have."""
        if inputs.aspect == "gradients":
            return []
        answer = self.compute(inputs, *arguments)
        return [] if answer is None else inputs.forward(answer, self.keep_nan)


@dataclass(frozen=True)
class GradientBug(Bug):
    """The backward pass is wrong. `derive` is (backward, …) -> dq, dk, dv, or None."""

    derive: Callable[..., Arrays | None]

    def answers(self, inputs: Inputs, *arguments: Any) -> list[Arrays]:
        """Return the results that a kernel with this bug may have."""
        if inputs.aspect != "gradients":
            return []
        gradients = self.derive(Backward(inputs.interpretation, inputs), *arguments)
        return [] if gradients is None else [inputs.backward(gradients)]


def input_bug(
    name: str,
    says: str,
    change: Callable[..., Changes],
    *threads: str,
    when: Callable[[Inputs], bool] = always,
    parameters: Parameters | None = None,
) -> InputBug:
    """Return a family of `InputBug`."""
    return InputBug(name, says, threads, parameters, change, when)


def softmax_bug(
    name: str,
    says: str,
    compute: Callable[..., Answer | None],
    *threads: str,
    parameters: Parameters | None = None,
    keep_nan: bool = False,
) -> SoftmaxBug:
    """Return a family of `SoftmaxBug`."""
    return SoftmaxBug(name, says, threads, parameters, compute, keep_nan)


def gradient_bug(
    name: str,
    says: str,
    derive: Callable[..., Arrays | None],
    *threads: str,
    parameters: Parameters | None = None,
) -> GradientBug:
    """Return a family of `GradientBug`."""
    return GradientBug(name, says, threads, parameters, derive)


def query_blocks(spec: Spec) -> list[int]:
    """Return likely numbers of queries of a block, the spec's first."""
    return _likely_blocks(spec.block[0])


def key_blocks(spec: Spec) -> list[int]:
    """Return likely numbers of keys of a block, the spec's first."""
    return _likely_blocks(spec.block[1])


def _likely_blocks(block: int) -> list[int]:
    return list(dict.fromkeys((block, 4, 8, 16, 32, 64, 128, 256)))

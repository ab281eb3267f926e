"""A family of suspects is one known bug, with each value of its parameter. There are three kinds
of families.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flashsim.testing.spec import Spec
from flashsim.testing.suspects.reading import Answer, Arrays, Backward, Question

FA = "Dao-AILab/flash-attention#"

Over = Callable[[Spec], Sequence[Any]]
Changes = dict[str, Any] | None


@dataclass(frozen=True)
class Suspect:
    """A known bug: a sentence about it, where it was seen, and the possible answers of a kernel
    that has it.
    """

    family: str
    says: str
    threads: tuple[str, ...]
    answers: Callable[[Question], list[Arrays]]


@dataclass(frozen=True)
class Family:
    """A suspect for each value of `over`. `says` and `answers` take the value."""

    name: str
    says: str
    threads: tuple[str, ...]
    answers: Callable[..., list[Arrays]]
    over: Over | None

    def suspects(self, spec: Spec) -> list[Suspect]:
        """Return the suspects for kernels of that spec."""
        corners = ("the top left (j ≤ i)", "the bottom right (j ≤ i + N_k − N_q)")
        there, here = corners if spec.causal != "top_left" else corners[::-1]
        values = [()] if self.over is None else self.over(spec)

        def suspect(*given: Any) -> Suspect:
            says = self.says.format(*given, there=there, here=here)
            return Suspect(
                self.name, says, self.threads, lambda question: self.answers(question, *given)
            )

        return [suspect(*value) if isinstance(value, tuple) else suspect(value) for value in values]


def reads(
    name: str, says: str, change: Callable[..., Changes], *threads: str, over: Over | None = None
) -> Family:
    """Return bugs of what is read. `change` is (question, reading, ...) -> changes to the
    reading, or None.
    """

    def answers(question: Question, *given: Any) -> list[Arrays]:
        right = question.reading
        changes = change(question, right, *given)
        if changes is None:
            return []
        wrong = replace(right, **changes)
        if question.aspect != "gradients":
            return question.forward(wrong.answer)
        inherited = (None, right)  # both passes are wrong, or only the backward pass
        return [question.backward(Backward(wrong, question, of).done()) for of in inherited]

    return Family(name, says, threads, answers, over)


def computes(
    name: str,
    says: str,
    compute: Callable[..., Answer | None],
    *threads: str,
    over: Over | None = None,
    literally: bool = False,
) -> Family:
    """Return bugs of the softmax. `compute` is (question, ...) -> Answer, or None. `literally`:
    see `Question.forward`.
    """

    def answers(question: Question, *given: Any) -> list[Arrays]:
        answer = None if question.aspect == "gradients" else compute(question, *given)
        return [] if answer is None else question.forward(answer, literally)

    return Family(name, says, threads, answers, over)


def derives(
    name: str,
    says: str,
    derive: Callable[..., Arrays | None],
    *threads: str,
    over: Over | None = None,
) -> Family:
    """Return bugs of the backward pass. `derive` is (backward, ...) -> dq, dk, dv, or None."""

    def answers(question: Question, *given: Any) -> list[Arrays]:
        three = (
            derive(Backward(question.reading, question), *given)
            if question.aspect == "gradients"
            else None
        )
        return [] if three is None else [question.backward(three)]

    return Family(name, says, threads, answers, over)


def _blocks(axis: int, spec: Spec) -> list[int]:
    return list(dict.fromkeys((spec.block[axis], 4, 8, 16, 32, 64, 128, 256)))


query_blocks = partial(_blocks, 0)
key_blocks = partial(_blocks, 1)

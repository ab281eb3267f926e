"""A family of suspects: one known bug, for each value of its parameter; and the three kinds of families."""

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
    """A known bug: what to say of it, where it was seen, and how a kernel that has it answers, in the one way or another."""

    family: str
    says: str
    threads: tuple[str, ...]
    answers: Callable[[Question], list[Arrays]]


@dataclass(frozen=True)
class Family:
    """Suspects that differ in the values `over` which there is one each; `says` and `answers` take the value."""

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
            return Suspect(self.name, says, self.threads, lambda question: self.answers(question, *given))

        return [suspect(*value) if isinstance(value, tuple) else suspect(value) for value in values]


def reads(name: str, says: str, change: Callable[..., Changes], *threads: str, over: Over | None = None) -> Family:
    """Return bugs of what is read: (question, reading, ...) -> changes to the reading, or None where it has none."""

    def answers(question: Question, *given: Any) -> list[Arrays]:
        right = question.reading
        changes = change(question, right, *given)
        if changes is None:
            return []
        wrong = replace(right, **changes)
        if question.aspect != "gradients":
            return question.forward(wrong.answer)
        inherited = (None, right)  # both passes wrong; or the backward pass alone
        return [question.backward(Backward(wrong, question, of).done()) for of in inherited]

    return Family(name, says, threads, answers, over)


def computes(
    name: str, says: str, compute: Callable[..., Answer | None], *threads: str, over: Over | None = None, literally: bool = False
) -> Family:
    """Return bugs of the softmax: (question, ...) -> Answer, or None where it has none. `literally`: see `Question.forward`."""

    def answers(question: Question, *given: Any) -> list[Arrays]:
        answer = None if question.aspect == "gradients" else compute(question, *given)
        return [] if answer is None else question.forward(answer, literally)

    return Family(name, says, threads, answers, over)


def derives(name: str, says: str, derive: Callable[..., Arrays | None], *threads: str, over: Over | None = None) -> Family:
    """Return bugs of the backward pass: (backward, ...) -> dq, dk, dv, or None where it has none."""

    def answers(question: Question, *given: Any) -> list[Arrays]:
        three = derive(Backward(question.reading, question), *given) if question.aspect == "gradients" else None
        return [] if three is None else [question.backward(three)]

    return Family(name, says, threads, answers, over)


def _blocks(axis: int, spec: Spec) -> list[int]:
    return list(dict.fromkeys((spec.block[axis], 4, 8, 16, 32, 64, 128, 256)))


query_blocks, key_blocks = partial(_blocks, 0), partial(_blocks, 1)

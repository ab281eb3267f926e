"""A family of suspects: one known bug, for each value of its parameter. The decorators make it of a function."""

from __future__ import annotations

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
        return [
            Suspect(
                self.name,
                self.says.format(*given, there=there, here=here),
                self.threads,
                partial(lambda given, question: self.answers(question, *given), given),
            )
            for given in (value if isinstance(value, tuple) else (value,) for value in values)
        ]


def _kind(answers: Callable[..., list[Arrays]]) -> Callable[..., Callable[[Callable[..., Any]], Family]]:
    """Return a decorator `kind(says, *threads, over=None, **how)` that makes a family of a function.

    answers  (the function, question, the value of `over`, **how) -> the suspect's answers, none where it has none
    """

    def kind(says: str, *threads: str, over: Over | None = None, **how: Any) -> Callable[[Callable[..., Any]], Family]:
        return lambda bug: Family(bug.__name__, says, threads, partial(answers, bug, **how), over)

    return kind


@_kind
def reads(change: Callable[..., Changes], question: Question, *given: Any) -> list[Arrays]:
    """Of a function (question, reading, ...) -> the changes to the reading, or None where it has none."""
    right = question.reading
    changes = change(question, right, *given)
    if changes is None:
        return []
    wrong = replace(right, **changes)
    if question.aspect != "gradients":
        return question.forward(wrong.answer)
    inherited = (None, right)  # both passes wrong; or the backward pass alone
    return [question.backward(Backward(wrong, question, of).done()) for of in inherited]


@_kind
def computes(
    compute: Callable[..., Answer | None], question: Question, *given: Any, literally: bool = False
) -> list[Arrays]:
    """Of a function (question, ...) -> Answer, or None where it has none; `literally` as in `Question.forward`."""
    answer = None if question.aspect == "gradients" else compute(question, *given)
    return [] if answer is None else question.forward(answer, literally)


@_kind
def derives(derive: Callable[..., Arrays | None], question: Question, *given: Any) -> list[Arrays]:
    """Of a function (backward, ...) -> dq, dk, dv, or None where it has none."""
    three = derive(Backward(question.reading, question), *given) if question.aspect == "gradients" else None
    return [] if three is None else [question.backward(three)]


def _blocks(axis: int, spec: Spec) -> list[int]:
    return list(dict.fromkeys((spec.block[axis], 4, 8, 16, 32, 64, 128)))


query_blocks, key_blocks = partial(_blocks, 0), partial(_blocks, 1)


def tiles(spec: Spec) -> list[tuple[int, int]]:
    """Return sizes (B_r, B_c) that kernels are often made with."""
    return list(dict.fromkeys((spec.block, *((b, b) for b in key_blocks(spec)))))

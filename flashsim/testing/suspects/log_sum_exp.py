"""The log-sum-exp, and rows without keys."""

from __future__ import annotations

import math

import numpy as np

from flashsim.inputs import Array
from flashsim.testing.suspects.family import FA, computes
from flashsim.testing.suspects.reading import Answer, Question


@computes("The log-sum-exp is {0}.", FA + "2573", "pytorch/pytorch#181645", "flashinfer-ai/flashinfer#4452",
          over=lambda spec: [("a natural logarithm, not one to base 2", math.log(2)), ("too large by 1/ln 2", 1 / math.log(2))]
          if spec.lse == "base2" else [("a logarithm to base 2, not a natural one", 1 / math.log(2)),
                                       ("multiplied by ln 2, as if it had been to base 2", math.log(2))])  # fmt: skip
def lse_in_other_base(q: Question, says: str, factor: float) -> Answer | None:
    O, lse, l = q.reading.answer
    return Answer(O, lse * factor, l) if q.aspect == "lse" else None


@computes("The log-sum-exp {0}.", over=lambda spec: [
          ("is log ℓ: the row maximum is not added", 0), ("is m + ℓ: the logarithm is missing", 1),
          ("is ℓ: the logarithm and the maximum are missing", 2), ("is the row maximum: log ℓ is missing", 3),
          ("has the wrong sign", 4)])  # fmt: skip
def lse_lacks(q: Question, says: str, which: int) -> Answer | None:
    if q.aspect != "lse":
        return None
    O, lse, _ = q.reading.answer
    m = q.reading.m[..., 0]
    l = np.exp(lse - m)
    wrong = (lse - m, m + l, l, m, -lse)[which]
    return Answer(O, np.where(q.problem.empty, -np.inf, wrong))


def _in_empty_rows(q: Question, aspect: str, values: Array) -> Answer | None:
    """Return the right answer, but for what empty rows give."""
    if q.aspect != aspect:
        return None
    O, lse, l = q.reading.answer
    empty = q.problem.empty
    if aspect == "O":
        return Answer(np.where(empty[..., None], values, O), lse, l)
    return Answer(O, np.where(empty, values, lse), l)


@computes("A row in which every key is masked is NaN (−∞ − (−∞), or 0/0).", "pytorch/pytorch#103963",
          "tracel-ai/burn#4697", "ml-explore/mlx#2608", literally=True)  # fmt: skip
def empty_row_nan(q: Question) -> Answer | None:
    return _in_empty_rows(q, "O", np.array(np.nan))


@computes("A row in which every key is masked is the mean of all values.", FA + "1778", literally=True)
def empty_row_mean(q: Question) -> Answer | None:
    return _in_empty_rows(q, "O", q.reading.V.mean(axis=-2, keepdims=True))


@computes("A row in which every key is masked is 0.", literally=True)
def empty_row_zero(q: Question) -> Answer | None:
    return _in_empty_rows(q, "O", np.array(0.0))


@computes("The log-sum-exp of a row in which every key is masked is {0}, not −∞.", FA + "978",
          over=lambda spec: [("+∞", np.inf), ("NaN", np.nan), ("0", 0.0)])  # fmt: skip
def lse_of_empty_row(q: Question, says: str, value: float) -> Answer | None:
    return _in_empty_rows(q, "lse", np.array(value))


@computes("The log-sum-exp of a row in which every key is masked is a finite number, not −∞.", FA + "978")
def lse_of_empty_row_finite(q: Question) -> Answer | None:
    got = q.got[0] * (math.log(2) if q.spec.lse == "base2" else 1)
    return _in_empty_rows(q, "lse", np.where(np.isfinite(got), got, -np.inf)) if q.aspect == "lse" else None

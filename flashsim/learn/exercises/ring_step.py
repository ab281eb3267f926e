"""Exercise 14: the inner step of a ring of devices."""

from collections.abc import Callable
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.judging import expect, expect_count, pair
from flashsim.learn.exercises.work import Work

NUMBER = 14
TITLE = "the ring's inner step"
TEXT = '''
P devices share a sequence: device r has rows r n to (r + 1) n - 1 of Q, K and
V. Queries stay. In each of P steps, K and V go to the next device, r + 1, in a
ring. Meanwhile a device attends to the keys that it has. Write what device
`rank` does in step s (from 0), under a causal mask.

K and V are those that are there in this step. O (n, d), and the columns l, m
(n, 1), hold what is known so far, as in the online softmax. O is divided by l
only after the last step.
"""

import numpy as np

from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum


def step(rank, P, s, Q, K, V, O, l, m):
    n = len(Q)
    right, left = ..., ...  # where K and V go, and where others come from
    src = ...  # whose K and V are here in this step
    rows = ...  # positions in the sequence of these queries, a column (n, 1)
    cols = ...  # and of these keys, (n,)
    S = np.where(cols <= rows, Q @ K.T, -np.inf)
    m_new = ...
    P_tilde = ...
    l_new = ...
    O_new = ...
    return right, left, src, O_new, l_new, m_new
'''
HINTS = (
    "A ring closes: after device P - 1 comes device 0, as (rank + 1) % P does.",
    "What is here after s steps began s devices to the left: src = (rank - s) % P.",
    "rows = rank * n + np.arange(n)[:, None];  cols = src * n + np.arange(n)",
    "m_new = maximum(m, rowmax(S));  P_tilde = exp(S - m_new)",
    "l_new = exp(m - m_new) * l + rowsum(P_tilde), and O_new likewise, with P_tilde @ V",
)


def grade(work: Work) -> str:
    step = work.function("step")
    for P, n in ((2, 3), (4, 2), (5, 3)):
        _ring(step, P, n)
    return (
        "every step of every device in rings of 2, 4 and 5 leaves m, l and O of the keys that it "
        "has met"
    )


def _ring(step: Callable[..., Any], P: int, n: int) -> None:
    rng = np.random.default_rng(P)
    Q = 1.5 * rng.normal(size=(P, n, 3))
    K = rng.normal(size=(P, n, 3))
    V = rng.normal(size=(P, n, 2))
    for rank in range(P):
        O = np.zeros((n, 2))
        l = np.zeros((n, 1))
        m = np.full((n, 1), -np.inf)
        for s in range(P):
            src = (rank - s) % P
            at = f"rank {rank} of {P}, step {s}"
            given = [x.copy() for x in (Q[rank], K[src], V[src], O, l, m)]
            right, left, whose, O_new, l_new, m_new = pair(
                "step", step(rank, P, s, *given), "right, left, src, O, l, m"
            )
            swapped = (
                "It is exchanged with the other: K and V go to the right, to rank + 1, and come "
                "from the left."
            )
            closes = "A ring closes: after device P - 1 comes device 0. Take the rest, % P."
            expect_count(
                f"{at}: right", right, (rank + 1) % P, {closes: rank + 1, swapped: (rank - 1) % P}
            )
            expect_count(
                f"{at}: left", left, (rank - 1) % P, {closes: rank - 1, swapped: (rank + 1) % P}
            )
            others = {
                "Keys come from the left: after s steps those of rank - s are here.": (rank + s)
                % P,
                closes: rank - s,
                "These are its own keys. They are here in step 0 alone.": rank,
            }
            expect_count(f"{at}: src", whose, src, others)
            O, l, m = _judged(
                at, (Q[rank], K[src], V[src], O, l, m), (rank * n, src * n), (O_new, l_new, m_new)
            )


def _judged(
    at: str, given: tuple[Array, ...], first: tuple[int, int], got: tuple[Any, ...]
) -> tuple[Array, ...]:
    Q, K, V, O, l, m = given
    n = len(Q)

    def after(rows: int, cols: int, masked: bool = True) -> dict[str, Array]:
        allowed = cols + np.arange(n) <= rows + np.arange(n)[:, None]
        S = np.where(allowed | (not masked), Q @ K.T, -np.inf)
        m_new = np.maximum(m, S.max(1, keepdims=True))
        with np.errstate(all="ignore"):
            P_tilde = np.exp(S - m_new)
            factor = np.exp(m - m_new)
            own = np.exp(S - S.max(1, keepdims=True))
        now = {
            "m": m_new,
            "l": factor * l + P_tilde.sum(1, keepdims=True),
            "O": factor * O + P_tilde @ V,
        }
        wrong = {
            "own m": S.max(1, keepdims=True),
            "l kept": l + P_tilde.sum(1, keepdims=True),
            "O kept": O + P_tilde @ V,
        }
        return (
            now
            | wrong
            | {
                "own l": factor * l + own.sum(1, keepdims=True),
                "new l": P_tilde.sum(1, keepdims=True),
            }
        )

    right = after(*first)
    local = after(0, 0)
    open_ = after(*first, masked=False)
    places = (
        "Rows and keys have positions in the whole sequence: rank n and src n are added to their "
        "numbers."
    )
    forgets = "Keys after the query count here: the mask is by positions, cols <= rows."
    for name, value in zip("mlO", (got[2], got[1], got[0]), strict=True):
        mistakes = {places: local[name], forgets: open_[name]}
        if name == "m":
            mistakes["This is the maximum of these keys alone. The old one counts, too."] = right[
                "own m"
            ]
        elif name == "l":
            mistakes["The old l is not scaled by exp(m - m_new)."] = right["l kept"]
            mistakes["P_tilde is taken with these keys' own maximum, not with m_new."] = right[
                "own l"
            ]
            mistakes["The old l is missing."] = right["new l"]
        else:
            mistakes["The old O is not scaled by exp(m - m_new)."] = right["O kept"]
            mistakes["It is divided by l, which is for after the last step."] = (
                right["O"] / right["l"]
            )
        expect(f"{at}: {name}", value, right[name], mistakes)
    return right["O"], right["l"], right["m"]

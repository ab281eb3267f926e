"""Exercise 14: the inner step of a ring of devices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.learn.exercises.checks import check_results, expect, expect_count
from flashsim.learn.exercises.submission import Submission

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


def grade(submission: Submission) -> str:
    step = submission.function("step")
    for P, n in ((2, 3), (4, 2), (5, 3)):
        _ring(step, P, n)
    return (
        "every step of every device in rings of 2, 4 and 5 leaves m, l and O of the keys that it "
        "has met"
    )


class State(NamedTuple):
    """O (n, d_v), and the columns l and m (n, 1), over the keys so far."""

    O: Array
    l: Array
    m: Array


class StepInputs(NamedTuple):
    """What a device has in a step. K and V began on device `src`."""

    rank: int
    src: int
    Q: Array
    K: Array
    V: Array
    state: State


def _ring(step: Callable[..., Any], P: int, n: int) -> None:
    """Check all steps of all devices. Raises Mistake."""
    rng = np.random.default_rng(P)
    Q = 1.5 * rng.normal(size=(P, n, 3))
    K = rng.normal(size=(P, n, 3))
    V = rng.normal(size=(P, n, 2))
    for rank in range(P):
        state = State(np.zeros((n, 2)), np.zeros((n, 1)), np.full((n, 1), -np.inf))
        for s in range(P):
            src = (rank - s) % P
            label = f"rank {rank} of {P}, step {s}"
            arrays = [a.copy() for a in (Q[rank], K[src], V[src], *state)]
            result = step(rank, P, s, *arrays)
            right, left, source, O, l, m = check_results(
                "step", result, "right, left, src, O, l, m"
            )
            _check_neighbours(label, rank, P, right, left)
            closes = "A ring closes: after device P - 1 comes device 0. Take the rest, % P."
            mistakes = {
                "Keys come from the left: after s steps those of rank - s are here.": (
                    (rank + s) % P
                ),
                closes: rank - s,
                "These are its own keys. They are here in step 0 alone.": rank,
            }
            expect_count(f"{label}: src", source, src, mistakes)
            inputs = StepInputs(rank, src, Q[rank], K[src], V[src], state)
            state = _check_state(label, inputs, {"m": m, "l": l, "O": O})


def _check_neighbours(label: str, rank: int, P: int, right: Any, left: Any) -> None:
    exchanged = (
        "It is exchanged with the other: K and V go to the right, to rank + 1, and come from the "
        "left."
    )
    closes = "A ring closes: after device P - 1 comes device 0. Take the rest, % P."
    after = (rank + 1) % P
    before = (rank - 1) % P
    expect_count(f"{label}: right", right, after, {closes: rank + 1, exchanged: before})
    expect_count(f"{label}: left", left, before, {closes: rank - 1, exchanged: after})


def _check_state(label: str, inputs: StepInputs, results: dict[str, Any]) -> State:
    """Check m, l and O after a step, and return the right ones. Raises Mistake."""
    n = len(inputs.Q)
    rows = np.arange(n)[:, None]
    cols = np.arange(n)
    first_row = inputs.rank * n
    first_col = inputs.src * n
    S = inputs.Q @ inputs.K.T
    masked = np.where(first_col + cols <= first_row + rows, S, -np.inf)
    masked_by_index = np.where(cols <= rows, S, -np.inf)
    right = _state_after(inputs, masked)
    by_index = _state_after(inputs, masked_by_index)
    unmasked = _state_after(inputs, S)
    positions = (
        "Rows and keys have positions in the whole sequence: rank n and src n are added to their "
        "numbers."
    )
    future = "Keys after the query count here: the mask is by positions, cols <= rows."
    mistakes = _mistakes(inputs, masked, right)
    for name in ("m", "l", "O"):
        by_name = {positions: getattr(by_index, name), future: getattr(unmasked, name)}
        expected = getattr(right, name)
        expect(f"{label}: {name}", results[name], expected, {**by_name, **mistakes[name]})
    return right


def _state_after(inputs: StepInputs, S: Array) -> State:
    """Return the state after a step with these scores."""
    O, l, m = inputs.state
    m_new = np.maximum(m, S.max(1, keepdims=True))
    with np.errstate(all="ignore"):
        P_tilde = np.exp(S - m_new)
        factor = np.exp(m - m_new)
    l_new = factor * l + P_tilde.sum(1, keepdims=True)
    return State(factor * O + P_tilde @ inputs.V, l_new, m_new)


def _mistakes(inputs: StepInputs, S: Array, right: State) -> dict[str, dict[str, Array]]:
    """Return hints for m, l and O, each with the numbers that a mistake leads to."""
    O, l, m = inputs.state
    m_of_keys = S.max(1, keepdims=True)
    with np.errstate(all="ignore"):
        P_tilde = np.exp(S - right.m)
        factor = np.exp(m - right.m)
        P_of_keys = np.exp(S - m_of_keys)
    sums = P_tilde.sum(1, keepdims=True)
    return {
        "m": {"This is the maximum of these keys alone. The old one counts, too.": m_of_keys},
        "l": {
            "The old l is not scaled by exp(m - m_new).": l + sums,
            "P_tilde is taken with these keys' own maximum, not with m_new.": (
                factor * l + P_of_keys.sum(1, keepdims=True)
            ),
            "The old l is missing.": sums,
        },
        "O": {
            "The old O is not scaled by exp(m - m_new).": O + P_tilde @ inputs.V,
            "It is divided by l, which is for after the last step.": right.O / right.l,
        },
    }

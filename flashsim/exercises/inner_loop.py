"""Exercise 5: Algorithm 1, lines 9 to 13, judged by Theorem 1's induction."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flashsim.exercises.judging import Stage, Turns, expect, expect_count, expect_turns
from flashsim.exercises.record import Exercise
from flashsim.exercises.work import Work, Wrong
from flashsim.inputs import Array
from flashsim.records import Blocks

LINES = """\
 9  S_ij = Q_i K_j^T
10  m~_ij = rowmax(S_ij), P~_ij = exp(S_ij - m~_ij), l~_ij = rowsum(P~_ij)
11  m_i_new = max(m_i, m~_ij)
    l_i_new = exp(m_i - m_i_new) l_i + exp(m~_ij - m_i_new) l~_ij
12  O_i <- (l_i exp(m_i - m_i_new) O_i + exp(m~_ij - m_i_new) P~_ij V_j)
           / l_i_new"""
TEXT = f'''
Algorithm 1, but for the lines that do the work. Line 12 keeps O_i divided by
l_i at all times, so the old sum is l_i * O_i:

{LINES}
13  l_i <- l_i_new, m_i <- m_i_new; all three are written to HBM

It is judged by the paper's own induction: after the turn (j, i), the rows of
block i hold m, l and O of attention over the keys of blocks 0 to j.
"""

from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum


def flash(hbm, sram, Q, K, V, O, l, m, blocks):
    on_chip = sram.on_chip
    for j in sram.loop(blocks.T_c):  # line 5
        K_j, V_j = sram.load(K[j], V[j])  # line 6
        for i in sram.loop(blocks.T_r):  # line 7
            Q_i, O_i, l_i, m_i = sram.load(Q[i], O[i], l[i], m[i])  # line 8
            S_ij = ...  # line 9
            m_tilde = ...  # line 10, on chip as all that follow
            P_tilde = ...
            l_tilde = ...
            m_new = ...  # line 11
            l_new = ...
            O_new = ...  # line 12
            ...  # lines 12 and 13: store all three
'''
HINTS = (
    "Each line of the algorithm is a line of code: products are @, what is on chip is wrapped in on_chip(…).",
    "P_tilde = on_chip(exp(S_ij - m_tilde)), and l_tilde = on_chip(rowsum(P_tilde)).",
    "m_new = on_chip(maximum(m_i, m_tilde)); l_new has the two factors exp(m_i - m_new) and exp(m_tilde - m_new).",
    "O_new = on_chip((l_i * exp(m_i - m_new) * O_i + exp(m_tilde - m_new) * (P_tilde @ V_j)) / l_new), then three stores",
)


class State(NamedTuple):
    """m, l (rows, 1) and O (rows, d_v) of some rows, over some keys."""

    m: Array
    l: Array
    O: Array


Update = Callable[[State, Array, Array], State]


def over(Q: Array, K: Array, V: Array) -> State:
    """Return the state that attention over these keys has; no key: −∞, 0, 0."""
    if not len(K):
        return State(np.full((len(Q), 1), -np.inf), np.zeros((len(Q), 1)), np.zeros((len(Q), V.shape[1])))
    S = Q @ K.T
    m = S.max(1, keepdims=True)
    l = np.exp(S - m).sum(1, keepdims=True)
    return State(m, l, np.exp(S - m) @ V / l)


def grade(work: Work) -> str:
    """Judge each inner turn, then the counts."""
    flash = work.function("flash")
    turns = 0
    for N_q, N_k, d, B_r, B_c in ((6, 12, 4, 2, 4), (5, 10, 3, 2, 3)):
        turns += run(flash, N_q, N_k, d, B_r, B_c)
    return f"m, l and O were right after each of {turns} inner turns, at two sizes, one ragged; reads and writes =="


def run(flash: Callable[..., object], N_q: int, N_k: int, d: int, B_r: int, B_c: int) -> int:
    """Run a student's Algorithm 1 once and judge it; return the number of inner turns."""
    rng = np.random.default_rng(N_k)
    Q, K, V = 1.5 * rng.normal(size=(N_q, d)), rng.normal(size=(N_k, d)), rng.normal(size=(N_k, d))
    blocks = Blocks(B_r, B_c, -(-N_q // B_r), -(-N_k // B_c))
    watched = Turns(depth=2, matrices=("m", "l", "O"))
    stage = Stage({"Q": Q, "K": K, "V": V}, observers=[watched])
    O, l = stage.output("O", (N_q, d), B_r, 0.0), stage.output("l", (N_q, 1), B_r, 0.0)
    m = stage.output("m", (N_q, 1), B_r, -np.inf)
    error = None
    divided = (stage.divided("Q", B_r), stage.divided("K", B_c), stage.divided("V", B_c))
    try:
        flash(stage.hbm, stage.sram, *divided, O, l, m, blocks)
    except Wrong as raised:
        error = raised  # the turns before it may show why
    for turn in watched.seen:
        _judge(turn.values, [index for _, index in turn.loops], Q, K, V, blocks)
    if error is not None:
        raise error
    expect_turns(watched, blocks.T_r * blocks.T_c)
    T_r, T_c = blocks.T_r, blocks.T_c
    for name, reads, writes in (
        ("Q", T_c * N_q * d, 0),
        ("K", N_k * d, 0),
        ("V", N_k * d, 0),
        ("O", T_c * N_q * d, (T_c + 1) * N_q * d),
        ("l", T_c * N_q, (T_c + 1) * N_q),
        ("m", T_c * N_q, (T_c + 1) * N_q),
    ):
        got = stage.moved(name)
        inside = f"{name}[j] is loaded in the inner loop, {T_r} times as often: line 6 stands outside it."
        again = f"{name} is loaded more often than line 8 says: the tile is on chip already."
        more = (
            {inside: 2 * reads if T_r == 1 else T_r * reads, again + " ": reads + N_k * d * T_r} if name in "KV" else {}
        )
        expect_count(f"Elements of {name} read", got[0], reads, more or {again: 2 * reads})
        stored = f"{name} is stored twice a turn. Line 2 writes it once, and then each turn once."
        twice = {stored: writes + writes * T_c // (T_c + 1)}
        expect_count(f"Elements of {name} written, line 2 included", got[1], writes, twice)
    return T_r * T_c


def _judge(values: dict[str, Array], at: list[int], Q: Array, K: Array, V: Array, blocks: Blocks) -> None:
    j, i = at
    rows, keys = slice(i * blocks.B_r, (i + 1) * blocks.B_r), slice(j * blocks.B_c, (j + 1) * blocks.B_c)
    before, want = over(Q[rows], K[: keys.start], V[: keys.start]), over(Q[rows], K[: keys.stop], V[: keys.stop])
    S = Q[rows] @ K[keys].T
    last = min(keys.stop, len(K)) - 1
    for name in ("m", "l", "O"):
        with np.errstate(all="ignore"):
            wrongs = {hint: getattr(wrong(before, S, V[keys]), name) for hint, wrong in MISTAKES.items()}
        stays = f"{name} in HBM stayed as it was before the turn. Is {name}_new stored to {name}[i]?"
        mistakes = {stays: getattr(before, name), **wrongs}
        said = f"After turn j = {j}, i = {i} (keys 0 to {last}), {name}_i"
        expect(said, values[name][rows], getattr(want, name), mistakes)


def _update(
    m_new: Callable[[Array, Array], Array] = np.maximum,
    l_new: Callable[..., Array] = lambda a, l, b, l_tilde: a * l + b * l_tilde,
    O_new: Callable[..., Array] = lambda a, l, O, b, PV, l_new: (l * a * O + b * PV) / l_new,
    tau: float = 1.0,
) -> Update:
    def update(before: State, S: Array, V: Array) -> State:
        m, l, O = before
        m_tilde = (tau * S).max(1, keepdims=True)
        P = np.exp(tau * S - m_tilde)
        new = m_new(m, m_tilde)
        a, b = np.exp(m - new), np.exp(m_tilde - new)
        total = l_new(a, l, b, P.sum(1, keepdims=True))
        return State(new, total, O_new(a, l, O, b, P @ V, total))

    return update


MISTAKES: dict[str, Update] = {
    "This is the block's maximum alone. Line 11 takes the larger of m_i and m~_ij.": _update(
        m_new=lambda m, m_tilde: m_tilde
    ),
    "The old l_i is not rescaled: where the maximum rose, its terms are too large. The factor is exp(m_i - m_new).": (
        _update(l_new=lambda a, l, b, l_tilde: l + b * l_tilde)
    ),
    "l~_ij was summed against the block's own maximum. The factor exp(m~_ij - m_new) brings it to m_new.": (
        _update(l_new=lambda a, l, b, l_tilde: a * l + l_tilde)
    ),
    "l_new is l~_ij alone, so the keys before are forgotten.": _update(l_new=lambda a, l, b, l_tilde: b * l_tilde),
    "The old O_i is not rescaled: it was summed against the old maximum. The factor is exp(m_i - m_new), as for l_i.": (
        _update(O_new=lambda a, l, O, b, PV, l_new: (l * O + b * PV) / l_new)
    ),
    "O_i comes from HBM divided by l_i. Multiply by l_i to have the old sum back.": (
        _update(O_new=lambda a, l, O, b, PV, l_new: (a * O + b * PV) / l_new)
    ),
    "P~_ij V_j was summed against the block's own maximum. Its factor is exp(m~_ij - m_new).": (
        _update(O_new=lambda a, l, O, b, PV, l_new: (l * a * O + PV) / l_new)
    ),
    "O is not divided by l_new.": _update(O_new=lambda a, l, O, b, PV, l_new: l * a * O + b * PV),
    "O is divided by l_new twice.": _update(O_new=lambda a, l, O, b, PV, l_new: (l * a * O + b * PV) / l_new**2),
    "O is divided by the old l_i, and it should be by l_new.": _update(
        O_new=lambda a, l, O, b, PV, l_new: (l * a * O + b * PV) / l
    ),
    "Only the new block's part is divided by l_new. Both are.": _update(
        O_new=lambda a, l, O, b, PV, l_new: l * a * O + b * PV / l_new
    ),
}

EXERCISE = Exercise(5, "inner_loop", "Algorithm 1, lines 9 to 13", TEXT, HINTS, grade)

"""Exercise 5: Algorithm 1, lines 9 to 13, checked by Theorem 1's induction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from flashsim.algorithms.notation import rowmax, rowsum
from flashsim.attention.inputs import Array
from flashsim.attention.shapes import Blocks
from flashsim.learn.exercises.checks import ExerciseMemory, TurnRecorder, expect, expect_count
from flashsim.learn.exercises.submission import Submission
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM
from flashsim.simulate.api import count

NUMBER = 5
TITLE = "Algorithm 1, lines 9 to 13"
ALGORITHM = "flash_basic"
LINES = """\
 9  S_ij = Q_i K_j^T
10  m~_ij = rowmax(S_ij), P~_ij = exp(S_ij - m~_ij), l~_ij = rowsum(P~_ij)
11  m_i_new = max(m_i, m~_ij)
    l_i_new = exp(m_i - m_i_new) l_i + exp(m~_ij - m_i_new) l~_ij
12  O_i <- (l_i exp(m_i - m_i_new) O_i + exp(m~_ij - m_i_new) P~_ij V_j)
           / l_i_new"""
TEXT = f'''
Algorithm 1, without the lines that do the work. Q is scaled by 1/sqrt(d)
already. Line 12 keeps O_i divided by l_i at all times, so the old sum is
l_i * O_i:

{LINES}
13  l_i <- l_i_new, m_i <- m_i_new; all three are written to HBM

It is judged by the paper's own induction: after the turn (j, i), the rows of
block i hold m, l and O of attention over the keys of the blocks up to j. The
check names turns from 1, as the paper does; j and i below count from 0.
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
    (
        "Each line of the algorithm is a line of code: products are @, what is on chip is wrapped "
        "in on_chip(…)."
    ),
    "P_tilde = on_chip(exp(S_ij - m_tilde)), and l_tilde = on_chip(rowsum(P_tilde)).",
    (
        "m_new = on_chip(maximum(m_i, m_tilde)); l_new has the two factors exp(m_i - m_new) and "
        "exp(m_tilde - m_new)."
    ),
    (
        "O_new = on_chip((l_i * exp(m_i - m_new) * O_i + exp(m_tilde - m_new) * (P_tilde @ V_j)) / "
        "l_new), then three stores"
    ),
)


class State(NamedTuple):
    """m, l (rows, 1) and O (rows, d_v) of some rows, over some keys."""

    m: Array
    l: Array
    O: Array


def state_over(Q: Array, K: Array, V: Array) -> State:
    """Return the state of attention over these keys; without keys: −∞, 0, 0."""
    rows = len(Q)
    if len(K) == 0:
        return State(np.full((rows, 1), -np.inf), np.zeros((rows, 1)), np.zeros((rows, V.shape[1])))
    S = Q @ K.T
    m = S.max(1, keepdims=True)
    l = np.exp(S - m).sum(1, keepdims=True)
    return State(m, l, np.exp(S - m) @ V / l)


class Turn(NamedTuple):
    """A turn of the inner loop: the rows of its block of queries, the keys of its block, and the
    rows' states before the turn and after it.
    """

    rows: slice
    keys: slice
    before: State
    after: State


class ExerciseProblem(NamedTuple):
    """Random Q, K and V, and their blocks."""

    Q: Array
    K: Array
    V: Array
    blocks: Blocks

    @classmethod
    def of(cls, N_q: int, N_k: int, d: int, B_r: int, B_c: int) -> ExerciseProblem:
        """Return a problem of this size."""
        rng = np.random.default_rng(N_k)
        Q = 1.5 * rng.normal(size=(N_q, d))
        K = rng.normal(size=(N_k, d))
        V = rng.normal(size=(N_k, d))
        return cls(Q, K, V, Blocks(B_r, B_c, N_q=N_q, N_k=N_k))

    def in_memory(self, recorder: TurnRecorder) -> tuple[ExerciseMemory, list[Matrix]]:
        """Return a memory with Q, K and V, and these matrices in blocks."""
        memory = ExerciseMemory({"Q": self.Q, "K": self.K, "V": self.V}, observers=[recorder])
        Q = memory.in_blocks("Q", self.blocks.B_r)
        K = memory.in_blocks("K", self.blocks.B_c)
        V = memory.in_blocks("V", self.blocks.B_c)
        return memory, [Q, K, V]

    def turn(self, i: int, j: int) -> Turn:
        """Return the turn of block i of queries and block j of keys."""
        B_r = self.blocks.B_r
        B_c = self.blocks.B_c
        rows = slice(i * B_r, (i + 1) * B_r)
        begin = j * B_c
        end = min((j + 1) * B_c, len(self.K))
        Q_i = self.Q[rows]
        before = state_over(Q_i, self.K[:begin], self.V[:begin])
        after = state_over(Q_i, self.K[:end], self.V[:end])
        return Turn(rows, slice(begin, end), before, after)


PROBLEMS = ExerciseProblem.of(6, 12, 4, 2, 4), ExerciseProblem.of(5, 10, 3, 2, 3)


def as_algorithm(flash: Callable[..., object]) -> Callable[..., tuple[Matrix, ...]]:
    """Return a student's loops with the lines around them, as a forward pass."""

    def flash_basic(
        hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Blocks
    ) -> tuple[Matrix, ...]:
        N = Q.shape[0]
        d_v = V.shape[1]
        B_r = blocks.B_r
        B_c = blocks.B_c
        O = hbm.full("O", (N, d_v), 0.0, V.dtype, "output")  # line 2
        l = hbm.full("l", (N, 1), 0.0, sram.dtype)  # line 2
        m = hbm.full("m", (N, 1), float("-inf"), sram.dtype)  # line 2
        inputs = [Q.divide(B_r), K.divide(B_c), V.divide(B_c)]
        outputs = [O.divide(B_r), l.divide(B_r), m.divide(B_r)]
        flash(hbm, sram, *inputs, *outputs, blocks)
        return O, l, m

    return flash_basic


def grade(submission: Submission) -> str:
    flash = submission.function("flash")
    turns = sum(run(flash, problem) for problem in PROBLEMS)
    return (
        f"m, l and O were right after each of {turns} inner turns, at two sizes, one ragged; reads "
        "and writes =="
    )


def run(flash: Callable[..., object], problem: ExerciseProblem) -> int:
    """Run a student's Algorithm 1 once and check it. Return the number of inner turns."""
    N_q, d = problem.Q.shape
    N_k = len(problem.K)
    blocks = problem.blocks
    T_r = blocks.T_r
    T_c = blocks.T_c
    recorder = TurnRecorder(matrices=("m", "l", "O"))
    memory, matrices = problem.in_memory(recorder)
    for name, columns, value in (("O", d, 0.0), ("l", 1, 0.0), ("m", 1, -np.inf)):
        matrices.append(memory.output(name, (N_q, columns), blocks.B_r, value))
    recorder.check(
        lambda: flash(memory.hbm, memory.sram, *matrices, blocks),
        partial(_check_turn, problem),
        T_r * T_c,
    )
    sizes = (blocks.B_r, blocks.B_c)
    traffic = count("flash_basic", N_q=N_q, N_k=N_k, d=d, M=10**6, blocks=sizes).hbm.by_array
    for name, expected in traffic.items():
        actual_reads, actual_writes = memory.accesses(name)
        reads = expected.reads
        writes = expected.writes
        inside = (
            f"{name}[j] is loaded in the inner loop, {T_r} times as often: line 6 stands outside "
            "it."
        )
        twice = f"{name} is loaded more often than line 8 says: the tile is on chip already."
        if name in "KV":
            read_mistakes = {inside: T_r * reads, f"{twice} ": reads + N_k * d * T_r}
        else:
            read_mistakes = {twice: 2 * reads}
        expect_count(f"Elements of {name} read", actual_reads, reads, read_mistakes)
        stored = f"{name} is stored twice a turn. Line 2 writes it once, and then each turn once."
        write_mistakes = {stored: writes + writes * T_c // (T_c + 1)}
        label = f"Elements of {name} written, line 2 included"
        expect_count(label, actual_writes, writes, write_mistakes)
    return T_r * T_c


def _check_turn(problem: ExerciseProblem, values: dict[str, Array], j: int, i: int) -> None:
    """Check m, l and O in HBM after a turn. Raises Mistake."""
    turn = problem.turn(i, j)
    with np.errstate(all="ignore"):
        mistakes = _mistakes(problem, turn)
    label = f"After turn j = {j + 1}, i = {i + 1} (keys 0 to {turn.keys.stop - 1})"
    for name, wrong in mistakes.items():
        before = getattr(turn.before, name)
        after = getattr(turn.after, name)
        unchanged = (
            f"{name} in HBM stayed as it was before the turn. Is {name}_new stored to {name}[i]?"
        )
        expect(f"{label}, {name}_i", values[name][turn.rows], after, {unchanged: before, **wrong})


def _mistakes(problem: ExerciseProblem, turn: Turn) -> dict[str, dict[str, Array]]:
    """Return hints for m, l and O, each with the numbers that a mistake leads to."""
    Q_i = problem.Q[turn.rows]
    K_j = problem.K[turn.keys]
    m, l, O = turn.before
    m_new = turn.after.m
    l_new = turn.after.l
    S = Q_i @ K_j.T
    m_tilde = rowmax(S)
    P_tilde = np.exp(S - m_tilde)
    l_tilde = rowsum(P_tilde)
    PV = P_tilde @ problem.V[turn.keys]
    a = np.exp(m - m_new)  # the factor of the old sums
    b = np.exp(m_tilde - m_new)  # the factor of the block's sums
    m_mistakes = {
        "This is the block's maximum alone. Line 11 takes the larger of m_i and m~_ij.": m_tilde,
        **scaled(m_new, problem),
    }
    if S.shape == Q_i.shape:
        m_mistakes["K_j is not transposed: line 9 is Q_i K_j^T."] = rowmax(Q_i @ K_j)
    l_mistakes = {
        f"The old l_i is not rescaled: where the maximum rose, its terms are too large. {FACTOR}.": (
            l + b * l_tilde
        ),
        f"l~_ij was summed {OWN_MAXIMUM}. The factor exp(m~_ij - m_new) brings it to m_new.": (
            a * l + l_tilde
        ),
        "Neither l_i nor l~_ij is rescaled. Each has a factor that brings it to m_new.": (
            l + l_tilde
        ),
        "l_new is l~_ij alone, so the keys before are forgotten.": b * l_tilde,
        "P~_ij is against the old m_i. It is against the block's own maximum, m~_ij.": (
            a * l + b * rowsum(np.exp(S - m))
        ),
        f"The old l_i is {INVERSE}. {FACTOR}.": l / a + b * l_tilde,
        f"l~_ij is {INVERSE}. The factor is exp(m~_ij - m_new).": a * l + l_tilde / b,
        SCALED_P: a * l + b * scaled_sum(S - m_tilde, problem),
    }
    sums = l * a * O + b * PV
    O_mistakes = {
        (
            "The old O_i is not rescaled: it was summed against the old maximum. "
            f"{FACTOR}, as for l_i."
        ): (l * O + b * PV) / l_new,
        "O_i comes from HBM divided by l_i. Multiply by l_i to have the old sum back.": (
            (a * O + b * PV) / l_new
        ),
        f"P~_ij V_j was summed {OWN_MAXIMUM}. Its factor is exp(m~_ij - m_new).": (
            (l * a * O + PV) / l_new
        ),
        f"The old O_i is {INVERSE}. {FACTOR}, as for l_i.": (l / a * O + b * PV) / l_new,
        f"P~_ij V_j is {INVERSE}. Its factor is exp(m~_ij - m_new).": (
            (l * a * O + PV / b) / l_new
        ),
        "O is not divided by l_new.": sums,
        "O is divided by l_new twice.": sums / l_new**2,
        "O is divided by the old l_i, and it should be by l_new.": sums / l,
        "Only the new block's part is divided by l_new. Both are.": l * a * O + b * PV / l_new,
    }
    return {"m": m_mistakes, "l": l_mistakes, "O": O_mistakes}


def scaled(m: Array, problem: ExerciseProblem) -> dict[str, Array]:
    """Return hints for scores that the student scaled again, each with the row maxima that they
    lead to.
    """
    d = problem.Q.shape[1]
    return {
        f"The scores are divided by √d. {NO_SCALE}.": d**-0.5 * m,
        f"The scores are divided by d, which is √d twice. {NO_SCALE}.": 1 / d * m,
        f"The scores are multiplied by √d. {NO_SCALE}.": d**0.5 * m,
    }


def scaled_sum(exponents: Array, problem: ExerciseProblem) -> Array:
    """Return the row sums of weights whose exponents the student divided by √d."""
    d = problem.Q.shape[1]
    return np.asarray(np.exp(exponents * d**-0.5).sum(axis=1, keepdims=True))


NO_SCALE = "Q is scaled by 1/√d already, before it is loaded"
SCALED_P = f"The argument of exp is divided by √d. {NO_SCALE}."
OWN_MAXIMUM = "against the block's own maximum"
INVERSE = "rescaled by the inverse of what it should be"
FACTOR = "The factor is exp(m_i - m_new)"

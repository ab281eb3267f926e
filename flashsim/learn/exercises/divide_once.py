"""Exercise 6: queries outside, O in SRAM, divided at the end."""

from collections.abc import Callable
from functools import partial

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.attention.shapes import Blocks
from flashsim.learn.exercises.checks import TurnRecorder, expect, expect_count
from flashsim.learn.exercises.inner_loop import (
    FACTOR,
    INVERSE,
    PROBLEMS,
    SCALED_P,
    ExerciseProblem,
    Turn,
    scaled,
    scaled_sum,
    state_over,
)
from flashsim.learn.exercises.submission import Mistake, Submission
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM

NUMBER = 6
TITLE = "the loops exchanged, and one division"
ALGORITHM = "q_outer"
TEXT = '''
Algorithm 1 writes O to HBM and reads it again for each block of keys. With the
loops exchanged, queries outside and keys inside, O_i, l_i and m_i stay in SRAM
until row block i is done: O is written once and never read.

Then O_i need not be divided at every turn. Keep the sum itself,

    O_i = sum over the keys so far of exp(score - m_i) V

and divide by l_i once, after the inner loop. O_i and l_i both take the step of
the online softmax.

on_chip(result, over=tile) puts a result in the place of a tile that is no
longer needed. What is overwritten lives on in the next turn of the loop.
"""

from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum


def attention(hbm, sram, Q, K, V, O, blocks):
    on_chip = sram.on_chip
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        rows = Q_i.shape[0]
        m_i = sram.full((rows, 1), -float("inf"))
        l_i = sram.full((rows, 1), 0.0)
        O_i = sram.full(O[i].shape, 0.0)
        for j in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[j], V[j])
            S_ij = on_chip(Q_i @ K_j.T)
            m_new = on_chip(maximum(m_i, rowmax(S_ij)))
            P_ij = on_chip(exp(S_ij - m_new), over=S_ij)
            l_i = on_chip(..., over=l_i)
            O_i = on_chip(..., over=O_i)
            m_i = on_chip(..., over=m_i)
        ...  # divide, once, and store
'''
HINTS = (
    (
        "l_i and O_i are mended by the same factor, exp(m_i - m_new), and then something is added "
        "to each."
    ),
    "To l_i the sum of each row of P_ij is added; to O_i the product P_ij @ V_j.",
    (
        "l_i: exp(m_i - m_new) * l_i + rowsum(P_ij);  O_i: exp(m_i - m_new) * O_i + P_ij @ V_j;  "
        "m_i: m_new"
    ),
    "At the end: O_i = on_chip(O_i / l_i, over=O_i), then sram.store(O[i], O_i).",
)


def as_algorithm(attention: Callable[..., object]) -> Callable[..., tuple[Matrix, ...]]:
    """Return a student's loops with the lines around them, as a forward pass."""

    def q_outer(
        hbm: HBM, sram: SRAM, Q: Matrix, K: Matrix, V: Matrix, blocks: Blocks
    ) -> tuple[Matrix, ...]:
        B_r = blocks.B_r
        B_c = blocks.B_c
        O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output")
        attention(hbm, sram, Q.divide(B_r), K.divide(B_c), V.divide(B_c), O.divide(B_r), blocks)
        return (O,)

    return q_outer


def grade(submission: Submission) -> str:
    attention = submission.function("attention")
    turns = sum(_run(attention, problem) for problem in PROBLEMS)
    return (
        f"m, l and O were right after each of {turns} inner turns; O was written once and never "
        "read: counts =="
    )


def _run(attention: Callable[..., object], problem: ExerciseProblem) -> int:
    """Run a student's loops once and check them. Return the number of inner turns."""
    N_q, d = problem.Q.shape
    N_k = len(problem.K)
    blocks = problem.blocks
    T_r = blocks.T_r
    T_c = blocks.T_c
    recorder = TurnRecorder(tiles=("m_i", "l_i", "O_i"))
    memory, matrices = problem.in_memory(recorder)
    matrices.append(memory.output("O", (N_q, d), blocks.B_r))
    recorder.check(
        lambda: attention(memory.hbm, memory.sram, *matrices, blocks),
        partial(_check_turn, problem),
        T_r * T_c,
    )
    right = state_over(problem.Q, problem.K, problem.V)
    in_last_block = np.arange(N_q)[:, None] >= (T_r - 1) * blocks.B_r
    mistakes = {
        "O was never stored: what HBM has not been given reads as NaN.": (
            np.full_like(right.O, np.nan)
        ),
        "O is not divided by l_i: the sum itself was stored.": right.O * right.l,
        "O is divided by l_i twice.": right.O / right.l,
        (
            "Only the last row block was stored, and the rest is NaN: the store is outside the "
            "loop of i."
        ): np.where(in_last_block, right.O, np.nan),
    }
    expect("O", memory.hbm.peek("O"), right.O, mistakes)
    inside = (
        "O is stored in the inner loop, once for each block of keys. Store it once, after that "
        "loop."
    )
    both = "O is stored in the inner loop and once more after it. Store it only after it."
    size = N_q * d
    write_mistakes = {inside: T_c * size, both: (T_c + 1) * size, "O is stored twice.": 2 * size}
    reads, writes = memory.accesses("O")
    expect_count("Elements of O written", writes, size, write_mistakes)
    loaded = "O is loaded. O_i stays on chip, and is only stored, at the end."
    expect_count("Elements of O read", reads, 0, {loaded: size, f"{loaded} ": T_c * size})
    reads, _ = memory.accesses("Q")
    read_mistakes = {"Q[i] is loaded for each j.": T_c * size}
    expect_count("Elements of Q read", reads, size, read_mistakes)
    for name in "KV":
        reads, _ = memory.accesses(name)
        expect_count(f"Elements of {name} read", reads, T_r * N_k * d, {})
    return T_r * T_c


def _check_turn(problem: ExerciseProblem, values: dict[str, Array], i: int, j: int) -> None:
    """Check m_i, l_i and O_i on chip after a turn. Raises Mistake."""
    turn = problem.turn(i, j)
    after = turn.after
    with np.errstate(all="ignore"):
        mistakes = _mistakes(problem, turn)
    right = {"m_i": after.m, "l_i": after.l, "O_i": after.O * after.l}  # O_i is not divided yet
    label = f"After turn i = {i + 1}, j = {j + 1} (keys 0 to {turn.keys.stop - 1})"
    for name, expected in right.items():
        tile = values.get(name)
        if tile is None:
            raise Mistake(
                f"{label}, {name} was not computed on chip.", f"{name} = on_chip(…, over={name})"
            )
        expect(f"{label}, {name}", tile, expected, mistakes[name])


def _mistakes(problem: ExerciseProblem, turn: Turn) -> dict[str, dict[str, Array]]:
    """Return hints for m_i, l_i and O_i, each with the numbers that a mistake leads to."""
    before = turn.before
    after = turn.after
    S = problem.Q[turn.rows] @ problem.K[turn.keys].T
    P = np.exp(S - after.m)
    P_sum = P.sum(1, keepdims=True)
    PV = P @ problem.V[turn.keys]
    factor = np.exp(before.m - after.m)
    l = before.l
    O = before.O * before.l
    early = (
        "O_i is divided by l_i within the inner loop, so each later turn divides again. Divide "
        "once, after it."
    )
    as_in_algorithm_1 = (
        "O_i is multiplied by l_i, as in Algorithm 1. Here it is a sum already, and was never "
        "divided."
    )
    m_mistakes = {
        "m_i stays what it was before the turn. It becomes m_new, last of the three.": before.m,
        **scaled(after.m, problem),
    }
    l_mistakes = {
        (
            "The old l_i is not rescaled by exp(m_i - m_new), or m_i was replaced by m_new too "
            "early."
        ): l + P_sum,
        f"The old l_i is {INVERSE}. {FACTOR}.": l / factor + P_sum,
        "This is the block's sum alone. Where is the old l_i?": P_sum,
        "The factor multiplies both terms. P_ij is against m_new already.": factor * (l + P_sum),
        SCALED_P: factor * l + scaled_sum(S - after.m, problem),
    }
    O_mistakes = {
        (
            "The old O_i is not rescaled: it was summed against the old maximum. The factor is "
            "exp(m_i - m_new)."
        ): O + PV,
        (
            "O_i began as O[i], in which nothing was written yet, and not as 0 on chip; or it "
            f"is {INVERSE}. {FACTOR}."
        ): np.full_like(O, np.nan),
        early: after.O,
        f"{early} ": (factor * before.O + PV) / after.l,
        "This is the block's product alone. Where is the old O_i?": PV,
        as_in_algorithm_1: after.l * factor * O + PV,
        f"{as_in_algorithm_1} ": l * factor * O + PV,
        "The factor multiplies both terms. P_ij is against m_new already.": factor * (O + PV),
    }
    return {"m_i": m_mistakes, "l_i": l_mistakes, "O_i": O_mistakes}

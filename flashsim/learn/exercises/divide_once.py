"""Exercise 6: queries outside, O in SRAM, divided at the end."""

from collections.abc import Callable
from functools import partial

import numpy as np

from flashsim.attention.inputs import Array
from flashsim.attention.shapes import Blocks
from flashsim.learn.exercises.inner_loop import (
    FACTOR,
    INVERSE,
    PROBLEMS,
    SCALED_P,
    Problem,
    over,
    scaled,
    scaled_sum,
)
from flashsim.learn.exercises.judging import Turns, expect, expect_count
from flashsim.learn.exercises.work import Work, Wrong
from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM

NUMBER = 6
TITLE = "the loops exchanged, and one division"
RIGHT = "q_outer"
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


def whole(attention: Callable[..., object]) -> Callable[..., tuple[Matrix, ...]]:
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


def grade(work: Work) -> str:
    attention = work.function("attention")
    turns = sum(_run(attention, problem) for problem in PROBLEMS)
    return (
        f"m, l and O were right after each of {turns} inner turns; O was written once and never "
        "read: counts =="
    )


def _run(attention: Callable[..., object], problem: Problem) -> int:
    (N_q, d), N_k, blocks = problem.Q.shape, len(problem.K), problem.blocks
    T_r = blocks.T_r
    T_c = blocks.T_c
    stage, divided = problem.placed(watched := Turns(tiles=("m_i", "l_i", "O_i")))
    divided.append(stage.output("O", (N_q, d), blocks.B_r))
    watched.judge(
        lambda: attention(stage.hbm, stage.sram, *divided, blocks),
        partial(_judge, problem),
        T_r * T_c,
    )
    want = over(*problem[:3])
    last = np.arange(N_q)[:, None] >= (T_r - 1) * blocks.B_r
    mistakes = {
        "O was never stored: what HBM has not been given reads as NaN.": np.full_like(
            want.O, np.nan
        ),
        "O is not divided by l_i: the sum itself was stored.": want.O * want.l,
        "O is divided by l_i twice.": want.O / want.l,
        (
            "Only the last row block was stored, and the rest is NaN: the store is outside the "
            "loop of i."
        ): (np.where(last, want.O, np.nan)),
    }
    expect("O", stage.hbm.peek("O"), want.O, mistakes)
    inside = (
        "O is stored in the inner loop, once for each block of keys. Store it once, after that "
        "loop."
    )
    both = "O is stored in the inner loop and once more after it. Store it only after it."
    writes = {inside: T_c * N_q * d, both: (T_c + 1) * N_q * d, "O is stored twice.": 2 * N_q * d}
    expect_count("Elements of O written", stage.moved("O")[1], N_q * d, writes)
    loaded = "O is loaded. O_i stays on chip, and is only stored, at the end."
    expect_count(
        "Elements of O read", stage.moved("O")[0], 0, {loaded: N_q * d, f"{loaded} ": T_c * N_q * d}
    )
    expect_count(
        "Elements of Q read",
        stage.moved("Q")[0],
        N_q * d,
        {"Q[i] is loaded for each j.": T_c * N_q * d},
    )
    for name in "KV":
        expect_count(f"Elements of {name} read", stage.moved(name)[0], T_r * N_k * d, {})
    return T_r * T_c


def _judge(problem: Problem, values: dict[str, Array], i: int, j: int) -> None:
    rows, keys, before, want = problem.at(i, j)
    S = problem.Q[rows] @ problem.K[keys].T
    V = problem.V[keys]
    P = np.exp(S - want.m)
    with np.errstate(all="ignore"):
        a = np.exp(before.m - want.m)
        inverse = before.l / a
    l = before.l
    O = before.O * before.l
    P_sum = P.sum(1, keepdims=True)
    PV = P @ V
    sums = want._replace(O=want.O * want.l)
    early = (
        "O_i is divided by l_i within the inner loop, so each later turn divides again. Divide "
        "once, after it."
    )
    undone = (
        "O_i is multiplied by l_i, as in Algorithm 1. Here it is a sum already, and was never "
        "divided."
    )
    mistakes = {
        "m_i": {
            "m_i stays what it was before the turn. It becomes m_new, last of the three.": before.m
        }
        | scaled(want.m, problem),
        "l_i": {
            (
                "The old l_i is not rescaled by exp(m_i - m_new), or m_i was replaced by m_new too "
                "early."
            ): l + P_sum,
            f"The old l_i is {INVERSE}. {FACTOR}.": inverse + P_sum,
            "This is the block's sum alone. Where is the old l_i?": P_sum,
            "The factor multiplies both terms. P_ij is against m_new already.": a * (l + P_sum),
            SCALED_P: a * l + scaled_sum(S - want.m, problem),
        },
        "O_i": {
            (
                "The old O_i is not rescaled: it was summed against the old maximum. The factor is "
                "exp(m_i - m_new)."
            ): O + PV,
            (
                "O_i began as O[i], in which nothing was written yet, and not as 0 on chip; or it "
                f"is {INVERSE}. {FACTOR}."
            ): (np.full_like(O, np.nan)),
            early: sums.O / sums.l,
            early + " ": (a * before.O + PV) / sums.l,
            "This is the block's product alone. Where is the old O_i?": PV,
            undone: sums.l * a * O + PV,
            f"{undone} ": l * a * O + PV,
            "The factor multiplies both terms. P_ij is against m_new already.": a * (O + PV),
        },
    }
    said = f"After turn i = {i + 1}, j = {j + 1} (keys 0 to {keys.stop - 1})"
    for name, value in (("m_i", sums.m), ("l_i", sums.l), ("O_i", sums.O)):
        got = values.get(name)
        if got is None:
            raise Wrong(
                f"{said}, {name} was not computed on chip.", f"{name} = on_chip(…, over={name})"
            )
        expect(f"{said}, {name}", got, value, mistakes[name])

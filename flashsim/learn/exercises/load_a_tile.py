"""Exercise 1: load, compute, store."""

import numpy as np

from flashsim.learn.exercises.checks import ExerciseMemory, expect, expect_count
from flashsim.learn.exercises.submission import Submission

NUMBER = 1
TITLE = "load a tile"
TEXT = '''
HBM is large and slow. SRAM is small: it holds M elements, and only what is in
SRAM can be computed with. A matrix in HBM is a handle; X[i] is its i-th block
of rows. Three verbs move things, and each element moved is counted:

    X_i = sram.load(X[i])         HBM -> SRAM, counted as reads
    Y_i = on_chip(X_i + 1)        the result of a statement now occupies SRAM
    sram.store(Y[i], Y_i)         SRAM -> HBM, counted as writes

sram.loop(T) counts 0, 1, ..., T - 1. At the end of a turn it evicts whatever
the turn brought on chip, so that SRAM is free for the next block.

Write Y = X * X, element by element, one block of rows at a time. Each element
of X is to be read once, and each of Y written once.
"""


def square(hbm, sram, X, Y):
    on_chip = sram.on_chip
    for i in sram.loop(len(X)):
        X_i = ...  # load a block
        Y_i = ...  # its square, on chip
        ...  # store it
'''
HINTS = (
    "The three comments are the three verbs, in that order, with i as the index.",
    "X_i is a NumPy array: its square is X_i * X_i. Wrap it in on_chip(…).",
    "X_i = sram.load(X[i]);  Y_i = on_chip(X_i * X_i);  sram.store(Y[i], Y_i)",
)


def grade(submission: Submission) -> str:
    square = submission.function("square")
    for N, d, rows in ((12, 4, 3), (7, 3, 2)):
        values = np.random.default_rng(N).normal(size=(N, d))
        memory = ExerciseMemory({"X": values}, M=3 * rows * d)
        X = memory.in_blocks("X", rows)
        Y = memory.output("Y", (N, d), rows)
        square(memory.hbm, memory.sram, X, Y)
        result = memory.hbm.peek("Y")
        nan = np.full((N, d), np.nan)
        in_first_block = np.arange(N)[:, None] < rows
        last_block = np.roll(values, rows, axis=0)
        first = np.where(in_first_block, values**2, np.nan)
        overwritten = np.where(in_first_block, last_block**2, np.nan)
        mistakes = {
            "Y was never stored: what HBM has not been given reads as NaN. sram.store(Y[i], …)": nan,
            "Only the first block was stored. Use i, not 0.": first,
            "All blocks were stored to Y[0], one over the other. Use i, not 0.": overwritten,
            "This is X, not its square: what was stored is the tile that was loaded.": values,
            "This is 2·X. The square is X_i * X_i.": 2 * values,
        }
        expect(f"With {N} rows in blocks of {rows}, Y", result, values**2, mistakes)
        reads, _ = memory.accesses("X")
        _, writes = memory.accesses("Y")
        twice = "Each block is loaded twice. Load it once, and use the tile twice: X_i * X_i."
        expect_count(f"Elements of X read, of {N} × {d}", reads, N * d, {twice: 2 * N * d})
        replay = "Each block is stored twice. One sram.store a turn is enough."
        expect_count(f"Elements of Y written, of {N} × {d}", writes, N * d, {replay: 2 * N * d})
    return (
        "Y is X², also with a short last block; N·d elements were read and N·d written, a tile at "
        "a time"
    )

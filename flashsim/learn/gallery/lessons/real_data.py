"""A head of a real model, whose maxima jump as one reads on."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsim import tracing
from flashsim.attention import qkv
from flashsim.learn.gallery.trace_queries import (
    find_steps,
    first_step,
    largest_rise,
    old_and_new,
    short,
)
from flashsim.tracing import Trace

TITLE = "Real data: where the maximum moves most"
ORDER = 40
SAMPLE = Path(qkv.__file__).parent / "data" / qkv.SAMPLE
# rows that are traced, and block sizes that figures/qkv_statistics.json is of
WINDOW = 32
KEY_BLOCKS = (32, 64)


def rises(block: int) -> NDArray[Any]:
    """Return by how much each row's maximum rises at each block of keys after the first, (heads,
    N, blocks − 1).
    """
    sample = qkv.load_sample().astype(np.dtype(np.float32))
    S = sample.Q @ sample.K.swapaxes(-1, -2) / np.sqrt(np.float32(sample.Q.shape[-1]))
    by_block = [
        S[..., start : start + block].max(axis=-1) for start in range(0, S.shape[-1], block)
    ]
    return np.diff(np.maximum.accumulate(np.stack(by_block, axis=-1), axis=-1), axis=-1)


def steepest() -> tuple[int, int, int]:
    """Return the block size, the head and the row where a maximum of the bundled data rises by
    the most at one block.
    """
    block = max(KEY_BLOCKS, key=lambda size: float(rises(size).max()))
    by_block = rises(block)
    head, row, _ = np.unravel_index(by_block.argmax(), by_block.shape)
    return block, int(head), int(row)


def record() -> Trace:
    sample = qkv.load_sample().astype(np.dtype(np.float32))
    Q = sample.Q[2, 160:192]
    K = sample.K[2]
    V = sample.V[2]
    return tracing.trace("flash_basic", Q, K, V, blocks=(8, 64), M=6_144)


def teach(trace: Trace) -> str:
    block, head, row = steepest()
    smaller = min(KEY_BLOCKS)
    sample = qkv.load_sample().astype(np.dtype(np.float32))
    with np.load(SAMPLE, allow_pickle=False) as held:
        tokens = held["tokens"]
    S = sample.Q[head] @ sample.K[head].T / np.sqrt(np.float32(sample.Q.shape[-1]))
    start = row // WINDOW * WINDOW
    rise, traced, old, new = largest_rise(trace)
    assert rise.rows is not None
    assert rise.cols is not None
    assert traced == row - start
    tile_row = traced - rise.rows[0]
    factor = float(np.exp(old - new))
    key = int(S[row].argmax())
    previous = int((S.argmax(axis=-1)[1:] == np.arange(len(S) - 1)).sum())
    written = first_step(trace, "write O", rise.number)
    O_old, O_new = old_and_new(written, "O")
    begun = next(s for s in find_steps(trace, "first maximum") if s.rows == rise.rows)
    still = next(s for s in find_steps(trace, "maximum stays", rise.number) if s.rows == rise.rows)
    assert still.cols is not None
    return f"""
        These numbers come from a model: head {head} in layer 0 of all-MiniLM-L6-v2, which reads the
        Gettysburg Address, {len(S)} tokens. This head looks for the token before: {previous} of
        {len(S) - 1} queries have their largest score there. So when a row’s own neighbourhood comes
        on chip, its maximum jumps, here by {short(new - old)}, the most in any head for blocks of
        {block} keys (for blocks of {smaller} it is {short(rises(smaller).max())}).

        The page shows tokens {start} to {start + WINDOW - 1} as queries, rows 0 to {WINDOW - 1},
        and all keys. Row {row - start} is token {row}, “{tokens[row]}”, after “{tokens[row - 1]}”.

        » Watch its line in m, ℓ, O when keys {rise.cols[0]} to {rise.cols[1] - 1} arrive: the
        factor is {short(factor)}. So everything from the {rise.cols[0]} keys before becomes smaller
        than float32 can add, and O is replaced. Without the factors of lines 11 and 12 it would
        count in full.

        [first maximum @ {begun.number}] Keys 0 to {block - 1}: row {row - start} gets its first
        maximum, {short(old_and_new(begun, "m")[1][tile_row, 0])}.
        [rescale @ {rise.number}] Row {row - start}: m from {short(old)} to {short(new)}, as
        “{tokens[row]}” meets “{tokens[key]}” (key {key}). The factor is {short(factor)};
        {rise.rescaled} of the block’s {len(O_old)} rows are rescaled.
        [write O @ {written.number}] Row {row - start} of O: its first value goes from
        {short(O_old[tile_row, 0])} to {short(O_new[tile_row, 0])}.
        [maximum stays @ {still.number}] Keys {still.cols[0]} to {still.cols[1] - 1}: no row of this
        block finds a larger score; all factors are 1.

        [asks @ {rise.number}] Row {row - start} has met {rise.cols[0]} keys, and looks for the
        token before it, which comes now. What becomes of all that it has gathered?
        [choices] it counts as before | it counts for half | it counts for next to nothing
        [right] {"it counts for next to nothing" if factor < 0.01 else "it counts as before"}
        [because] Its maximum rises by {short(new - old)}, so the factor is {short(factor)}.
        """

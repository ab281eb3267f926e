"""The nine lessons: for each, what makes its trace, and its text, with numbers and steps from the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import flashsim
from flashsim import qkv
from flashsim.gallery.looking import does, end, first, largest_rise, moved, output, pair, rescaled_rows, short, value
from flashsim.tracing import Lesson, Moment, Trace, TraceEvent

SAMPLE = Path(__file__).parents[1] / "data" / qkv.SAMPLE
Teach = Callable[[Trace, Trace | None], Lesson]


@dataclass(frozen=True)
class Page:
    """A lesson to be: what it is about in a line, the command or the Python that makes its trace, and what it teaches."""

    about: str
    made_by: str
    teach: Teach

    @property
    def is_command(self) -> bool:
        """Whether a command makes the page; else it is lines of Python that make `trace`."""
        return self.made_by.startswith("flashsim ")


ONLINE_SOFTMAX = """\
import numpy as np, flashsim

Q, K, V = np.float32([[1]]), np.float32([[2], [5], [1], [4]]), np.float32([[10], [20], [30], [40]])
trace = flashsim.trace("q_outer", Q, K, V, scale=1.0, blocks=(1, 1), M=12)"""


def online_softmax(trace: Trace, _: Trace | None) -> Lesson:
    """One query, four scores, one in each tile."""
    scores = [value(trace, s, "S_ij").item() for s in trace.steps if s.label == "line 9"]
    start = first(trace, lambda s: s.moved > 0)
    rise = first(trace, lambda s: s.rescaled > 0)
    total = first(trace, lambda s: s.label == "line 13", rise.number)
    still = first(trace, lambda s: s.label == "line 11" and not s.moved)
    divided = first(trace, lambda s: s.label == "line 18")
    (old,), (new,) = (x[0] for x in pair(rise, "m"))
    before, after = (x.item() for x in pair(total, "l"))
    last = [s for s in trace.steps if s.label == "line 13"][-1]
    l_end = pair(last, "l")[1].item()
    O_end = output(trace).item()
    written = ", ".join(map(short, scores))
    text = f"""
        The softmax of a row seems to need two passes: one for the largest score m, one for the sum ℓ of e^{{S − m}}.
        Online softmax takes one. It keeps the largest score so far and the sum so far, and when a larger score comes,
        what was summed before is multiplied by e^{{m − m^new}}, as if the new maximum had been known from the start.

        Here one query meets the scores {written}, one in each tile. Watch m, ℓ, O, old → new, and the factor beside m.
        It is 1 in every tile but one: there m rises from {short(old)} to {short(new)}, and what ℓ and O were is
        multiplied by e^{{{short(old - new)}}} = {short(np.exp(old - new))}. At the end ℓ = {short(l_end)} is the sum of
        e^{{S − {short(max(scores))}}} over all of them. `flashsim example online_softmax` prints the same numbers.
        """
    return Lesson(
        "Online softmax",
        text,
        (
            Moment(
                start.number, "first maximum", f"m goes from −∞ to {short(scores[0])}; there is nothing to rescale yet."
            ),
            Moment(
                rise.number,
                "rescale",
                f"m rises from {short(old)} to {short(new)}; the factor is e^{{{short(old - new)}}} = "
                f"{short(np.exp(old - new))}.",
            ),
            Moment(
                total.number,
                "line 13",
                f"ℓ = {short(np.exp(old - new))} · {short(before)} + 1 = {short(after)}: the old sum shrinks, "
                "and the new score is added.",
            ),
            Moment(
                still.number,
                "maximum stays",
                f"{short(scores[dict(still.loops)['j']])} is less than {short(new)}: the factor is 1.",
            ),
            Moment(
                divided.number,
                "line 18",
                f"Only now O is divided by ℓ = {short(l_end)}: {short(O_end)}, V’s mean, weighted.",
            ),
        ),
    )


def standard(trace: Trace, _: Trace | None) -> Lesson:
    """Three passes, with S and P through HBM between them."""
    N_q, N_k = trace.about.shape.N_q, trace.about.shape.N_k
    written = [first(trace, does(trace, "store", name)) for name in ("S", "P")]
    read = [first(trace, does(trace, "load", name)) for name in ("S", "P")]
    sums, both = moved(trace), moved(trace, "S", "P")
    K = trace.about.arrays[1]
    text = f"""
        Standard attention is three passes: S = QKᵀ, P = softmax(S), O = PV. Between them the N × N matrices S and P go
        to HBM and come back. Watch the table of HBM accesses: S is written, {N_q * N_k} elements, then read; P is
        written, then read. Together they make {both:,} of the {sums:,} accesses, {both / sums:.0%}: they are N × N
        where Q, K, V and O are N × d. A tile of the grid is visited once in each pass, so it is “done in part” until
        the last one has been there.

        The rows of K are loaded again for each block of rows of Q, {K.reads // (K.shape[0] * K.shape[1])} times in all:
        products too large for the chip cost that, and standard attention as it is counted here pays it.
        """
    return Lesson(
        "Algorithm 0: standard attention",
        text,
        (
            Moment(written[0].number, "write S", "The first tile of S leaves for HBM."),
            Moment(
                read[0].number,
                "read S",
                f"The second pass begins: row block by row block, all {N_q * N_k} elements of S come back.",
            ),
            Moment(written[1].number, "write P", "The rows’ softmax leaves for HBM."),
            Moment(read[1].number, "read P", "The third pass begins: P comes back, to be multiplied by V."),
            end(trace, f"{both:,} of {sums:,} accesses were to S and P."),
        ),
    )


def flash_basic(trace: Trace, _: Trace | None) -> Lesson:
    """S never leaves the chip; O, ℓ and m come and go instead."""
    about = trace.about
    begun = first(trace, does(trace, "init", "O"))
    over = first(trace, lambda s: s.label == "line 9")
    used = trace.events[over.last].occupancy
    start = first(trace, lambda s: s.moved > 0)
    again = first(trace, lambda s: does(trace, "load", "O")(s) and s.loops[0] == ("j", 1))
    rise, row, old, new = largest_rise(trace)
    assert about.standard is not None
    O = moved(trace, "O", "l", "m")
    text = f"""
        Algorithm 1 goes through the score matrix tile by tile, and no tile leaves the chip: there is no S and no P in
        the table of HBM accesses. The price is that each block of O, with its ℓ and m, is loaded, improved and stored
        again for each of the {about.blocks.T_c} blocks of keys: {O} of {moved(trace):,} accesses. Standard attention
        makes {sum(about.standard):,} here.

        Watch the tiles fill column by column. From the second column on, rows come back with a maximum, and where a
        tile has a larger score the row is rescaled: row {row} by the most, as its maximum
        rises by {short(new - old)}. In SRAM’s bar, red stripes say that line 1’s block sizes leave no room for the tile
        of S: K_j, V_j, Q_i and O_i fill M, and the paper does not count the rest.
        """
    return Lesson(
        "Algorithm 1: FlashAttention",
        text,
        (
            Moment(begun.number, "initialize O", "O = 0, ℓ = 0, m = −∞, in HBM: an answer for no keys at all."),
            Moment(
                over.number,
                "over M",
                f"S_ij is made, and {used} elements are on a chip for {about.M}: {used - about.M} too many.",
            ),
            Moment(
                start.number,
                "first maximum",
                "The first rows get a maximum; the factor is 0, as there was none before.",
            ),
            Moment(again.number, "read O", "The second block of keys: the first rows’ O, ℓ and m come back."),
            Moment(
                rise.number,
                "rescale",
                f"Row {row}’s maximum rises from {short(old)} to {short(new)}: its old ℓ and O "
                f"count for {short(np.exp(old - new))} of what they did.",
            ),
            end(
                trace,
                f"O is whole. {moved(trace):,} accesses, equal to the closed form; "
                f"standard attention’s are {sum(about.standard):,}.",
            ),
        ),
    )


WINDOW, KEY_BLOCKS = 32, (32, 64)  # rows that are traced, and block sizes that figures/qkv_statistics.json is of


def rises(block: int) -> NDArray[Any]:
    """Return by how much each row's maximum rises at each block of keys after the first, (heads, N, blocks − 1)."""
    sample = qkv.load_sample().astype(np.dtype(np.float32))
    S = sample.Q @ sample.K.swapaxes(-1, -2) / np.sqrt(np.float32(sample.Q.shape[-1]))
    by_block = [S[..., start : start + block].max(axis=-1) for start in range(0, S.shape[-1], block)]
    return np.diff(np.maximum.accumulate(np.stack(by_block, axis=-1), axis=-1), axis=-1)


def steepest() -> tuple[int, int, int]:
    """Return the block size, the head and the row where a maximum of the bundled data rises by the most at one block."""
    block = max(KEY_BLOCKS, key=lambda size: float(rises(size).max()))
    found = rises(block)
    head, row, _ = np.unravel_index(found.argmax(), found.shape)
    return block, int(head), int(row)


def real_data_code() -> str:
    """Return the Python that traces the window of rows around the steepest rise."""
    block, head, row = steepest()
    start = row // WINDOW * WINDOW
    return f"""\
import numpy as np, flashsim
from flashsim import qkv

sample = qkv.load_sample().astype(np.dtype(np.float32))
Q, K, V = sample.Q[{head}, {start}:{start + WINDOW}], sample.K[{head}], sample.V[{head}]
trace = flashsim.trace("flash_basic", Q, K, V, blocks=(8, {block}), M=6_144)"""


def real_data(trace: Trace, _: Trace | None) -> Lesson:
    """Where a maximum moves by the most in the bundled sample."""
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
    at = traced - rise.rows[0]
    factor, key = float(np.exp(old - new)), int(S[row].argmax())
    previous = int((S.argmax(axis=-1)[1:] == np.arange(len(S) - 1)).sum())
    written = first(trace, does(trace, "store", "O"), rise.number)
    O_old, O_new = pair(written, "O")
    begun = first(trace, lambda s: s.moved > 0 and s.rows == rise.rows)
    still = first(trace, lambda s: s.label == "line 11" and s.rows == rise.rows and not s.moved, rise.number)
    assert still.cols is not None
    text = f"""
        Not random numbers but a model’s: head {head} in layer 0 of all-MiniLM-L6-v2, which reads the Gettysburg
        Address, {len(S)} tokens. This head looks for the token before: {previous} of {len(S) - 1} queries have their
        largest score there. So when a row’s own neighbourhood comes on chip, its maximum jumps, here by
        {short(new - old)}, the most in any head for blocks of {block} keys (for blocks of {smaller} it is
        {short(float(rises(smaller).max()))}).

        The page shows tokens {start} to {start + WINDOW - 1} as queries, rows 0 to {WINDOW - 1}, and all keys. Row
        {row - start} is token {row}, “{tokens[row]}”, after “{tokens[row - 1]}”. Watch its line in m, ℓ, O when keys
        {rise.cols[0]} to {rise.cols[1] - 1} arrive: the factor is {short(factor)}, so that all it had gathered from
        {rise.cols[0]} keys counts for nothing, less than float32 can add, and its O is replaced. Without the factors of
        lines 11 and 12 it would count in full.
        """
    return Lesson(
        "Real data: where the maximum moves most",
        text,
        (
            Moment(
                begun.number,
                "first maximum",
                f"Keys 0 to {block - 1}: row {row - start} gets its first maximum, {short(float(pair(begun, 'm')[1][at, 0]))}.",
            ),
            Moment(
                rise.number,
                "rescale",
                f"Row {row - start}: m from {short(old)} to {short(new)}, as “{tokens[row]}” meets “{tokens[key]}” (key {key}). "
                f"The factor is {short(factor)}; {rise.rescaled} of the block’s {len(O_old)} rows are rescaled.",
            ),
            Moment(
                written.number,
                "write O",
                f"Row {row - start} of O: its first value goes from {short(float(O_old[at, 0]))} to "
                f"{short(float(O_new[at, 0]))}.",
            ),
            Moment(
                still.number,
                "maximum stays",
                f"Keys {still.cols[0]} to {still.cols[1] - 1}: no row of this block finds a larger score; all factors are 1.",
            ),
        ),
    )


def causal(trace: Trace, _: Trace | None) -> Lesson:
    """What the mask forbids is not loaded."""
    about = trace.about
    blocks, tiles = about.blocks, about.tiles
    assert tiles is not None
    visited = {s.tile for s in trace.steps if s.tile is not None}
    every, partly = blocks.T_r * blocks.T_c, sum(kind == 2 for row in tiles for kind in row)
    plain = flashsim.count(
        "q_outer", N=about.shape.N_q, d=about.shape.d, blocks=(blocks.B_r, blocks.B_c), M=about.M, dtype=about.stored
    )
    edge = first(trace, lambda s: s.label == "line 10" and s.tile is not None and tiles[s.tile[0]][s.tile[1]] == 2)
    skip = first(trace, lambda s: s.label == "line 18")
    whole = first(trace, lambda s: s.label == "line 10" and s.tile is not None and tiles[s.tile[0]][s.tile[1]] == 1)
    KV = sum(plain.hbm.by_array[name].reads for name in "KV")
    text = f"""
        Under a causal mask query i attends to keys up to i, and the tiles above the diagonal are forbidden as a whole.
        With the rows outermost they can simply be left out: of {every} tiles {len(visited)} are visited, and the
        {every - len(visited)} crossed ones are never loaded. K and V cost {moved(trace, "K", "V")} accesses; without
        the mask they would cost {KV}. For long sequences that nears half.

        Watch each row of tiles end at the diagonal. Only there, in {partly} tiles, the mask does anything: line 10 puts
        −∞ above the diagonal. Tiles below it are whole, and line 10 leaves them as they are. (Algorithm 2 as printed
        visits all tiles, with `--algorithm flash`.)
        """
    return Lesson(
        "Causal skipping",
        text,
        (
            Moment(
                edge.number,
                "masked in part",
                "A tile on the diagonal: line 10 puts −∞ where the key is after the query.",
            ),
            Moment(
                skip.number,
                "tiles skipped",
                f"Row block 0 is done after one tile: the {blocks.T_c - 1} to its right are skipped.",
            ),
            Moment(whole.number, "whole tile", "Below the diagonal: everything is allowed, and nothing is masked."),
            end(
                trace,
                f"{len(visited)} tiles done, {every - len(visited)} skipped; "
                f"{moved(trace):,} accesses of {plain.hbm.accesses:,} without a mask.",
            ),
        ),
    )


def backward(trace: Trace, _: Trace | None) -> Lesson:
    """P is computed again; dK and dV stay, dQ comes and goes."""
    about = trace.about
    T_r, T_c = about.blocks.T_r, about.blocks.T_c
    zero = first(trace, lambda s: s.label == "line 8")
    P = first(trace, lambda s: s.label == "line 13")
    dV = first(trace, lambda s: s.label == "line 16")
    D = first(trace, lambda s: s.label == "line 19")
    dQ = first(trace, does(trace, "store", "dQ"))
    again = first(trace, lambda s: does(trace, "load", "dQ")(s) and s.loops[0] == ("j", 1))
    done = first(trace, does(trace, "store", "dK"))
    rows = value(trace, P, "P_ij").sum(axis=1)
    assert about.standard is not None
    text = f"""
        The forward pass kept neither S nor P. Algorithm 4 computes P again, tile by tile, from Q, K and the rows’ m and
        ℓ: line 13 divides by the final ℓ at once, so no maximum moves here and nothing is rescaled. (A row’s P in one
        tile does not sum to 1; over all {T_c} tiles of the row it does.)

        Watch who stays and who travels. dK and dV of a block of keys stay on chip and gather from all {T_r} blocks of
        rows; after line 5’s zeros they are written once. dQ of a block of rows gets a part from every block of keys, so
        it is loaded and stored {T_c} times. Line 19’s D, one number a row, stands for a sum over all of the row of P ∘
        dP: it is why a tile is enough.
        """
    return Lesson(
        "Backward",
        text,
        (
            Moment(zero.number, "line 8", "dK and dV of the first block of keys begin at 0, on chip."),
            Moment(
                P.number,
                "line 13",
                f"P, computed again: in this tile its rows sum to {', '.join(map(short, rows.tolist()))}.",
            ),
            Moment(dV.number, "line 16", "dV grows by what the first rows give it."),
            Moment(
                D.number,
                "line 19",
                f"D = {', '.join(short(x) for x in value(trace, D, 'D_i').ravel().tolist())}: one number for each row.",
            ),
            Moment(dQ.number, "write dQ", "dQ’s first part goes to HBM: more is to come."),
            Moment(
                done.number,
                "write dK",
                "The block of keys has met all rows: its dK and dV are complete, and written once.",
            ),
            Moment(again.number, "read dQ", "The second block of keys: dQ comes back for its next part."),
            end(trace, f"{moved(trace):,} accesses; standard attention’s backward pass makes {sum(about.standard):,}."),
        ),
    )


def block_sparse(trace: Trace, _: Trace | None) -> Lesson:
    """Tiles that the block mask leaves out cost nothing but K and V."""
    about = trace.about
    blocks = about.blocks
    order = [(s, s.tile) for s in trace.steps if s.tile is not None and s.label == "line 9"]
    jump, gap = next(
        (after, b[0] - a[0] - 1) for (_, a), (after, b) in pairwise(order) if a[1] == b[1] and b[0] - a[0] > 1
    )
    every = blocks.T_r * blocks.T_c
    dense = flashsim.count(
        "flash", N=about.shape.N_q, d=about.shape.d, blocks=(blocks.B_r, blocks.B_c), M=about.M, dtype=about.stored
    )
    second = first(trace, lambda s: does(trace, "load", "K")(s) and s.loops[0] == ("j", 1))
    rise, row, old, new = largest_rise(trace)
    kept = moved(trace) - moved(trace, "K", "V")
    text = f"""
        Algorithm 5 is FlashAttention with one question before each tile (line 8): does it count? The butterfly mask
        here keeps {len(order)} of {every} tiles, s = {len(order) / every:g}: those on the diagonal and those whose
        indices i and j differ in one bit. Watch the walk jump over the crossed tiles: for them no Q, O, ℓ or m is
        loaded and nothing is computed.

        {moved(trace):,} accesses are made, and {dense.hbm.accesses:,} with all tiles. That is not s times as many, as
        some do not depend on the mask: K and V are loaded once ({moved(trace, "K", "V")}), and O, ℓ, m are initialized.
        Rows are rescaled as ever; what is skipped does not count in their sums, so this is another function than dense
        attention, not a faster way to it.
        """
    assert kept > 0
    return Lesson(
        "Block-sparse",
        text,
        (
            Moment(
                jump.number,
                "tiles skipped",
                f"From tile row {jump.tile[0] - gap - 1 if jump.tile else 0} to {jump.tile[0] if jump.tile else 0}: "
                f"{gap} {'tile is' if gap == 1 else 'tiles are'} jumped over.",
            ),
            Moment(second.number, "read K", "The next column of tiles: K and V are loaded whatever the mask says."),
            Moment(
                rise.number,
                "rescale",
                f"Row {row}’s maximum rises from {short(old)} to {short(new)}, the largest rise here.",
            ),
            end(
                trace,
                f"{len(order)} tiles done, {every - len(order)} skipped; "
                f"{moved(trace):,} accesses, {dense.hbm.accesses:,} with all tiles.",
            ),
        ),
    )


def decoding(trace: Trace, _: Trace | None) -> Lesson:
    """One query, keys in splits, and their merging."""
    splits = 1 + max(dict(s.loops).get("s", 0) for s in trace.steps)
    load, store = first(trace, does(trace, "load", "K")), first(trace, does(trace, "store", "O_parts"))
    anew = first(trace, lambda s: s.moved > 0, store.number)
    merge = first(trace, does(trace, "load", "O_parts"))
    rise = first(trace, lambda s: s.rescaled > 0)
    parts = moved(trace, "O_parts", "l_parts", "m_parts")
    maxima = [float(pair(s, "m")[1].item()) for s in trace.steps if s.moved and s.label == "line 12"]
    (old,), (new,) = (x[0] for x in pair(rise, "m"))
    text = f"""
        To decode one token is one query against all keys so far: one row of tiles, walked one after another, with
        nothing to do at once. FlashDecoding cuts the keys into splits instead, {splits} here. Each split is attended to
        as if it were alone, with a maximum of its own that starts at −∞, and leaves a part, (O, ℓ, m), in HBM. On a GPU
        the splits run at once; the page plays them one after another.

        Watch the maxima: {", ".join(map(short, maxima))}. No split is rescaled, as each is one tile. That comes when
        the parts are merged (line 22): a part with a larger maximum scales down what was merged before it, just as a
        tile would. K and V are read once, {moved(trace, "K", "V")} of {moved(trace):,} accesses; the parts cost
        {parts}.
        """
    return Lesson(
        "Decoding: one query, many keys",
        text,
        (
            Moment(load.number, "read K", "The first split’s keys and values."),
            Moment(store.number, "write O_parts", "Its part, not yet divided by ℓ, is written."),
            Moment(
                anew.number,
                "first maximum",
                f"The second split starts at −∞ again, and knows nothing of {short(maxima[0])}.",
            ),
            Moment(merge.number, "read O_parts", "Merging: the first part comes back."),
            Moment(
                rise.number,
                "rescale",
                f"The part of split {dict(rise.loops)['s']} has the largest maximum: from {short(old)} to {short(new)}, "
                f"what was merged counts for {short(float(np.exp(old - new)))}.",
            ),
            end(trace, "O is divided by ℓ and written."),
        ),
    )


def missing_rescale(right: Trace, wrong: Trace | None) -> Lesson:
    """What comes out when O is not scaled down."""
    assert wrong is not None
    error = np.abs(output(right) - output(wrong)).max(axis=1)
    worst = int(error.argmax())
    rows = len(error)
    bad = {int(row) for row in np.flatnonzero(error > 1e-3 * np.abs(output(right)).max())}
    assert bad == rescaled_rows(right)
    rise = first(right, lambda s: s.rescaled > 0)
    differs = next(
        s
        for s, other in zip(right.steps, wrong.steps, strict=True)
        if not _same(right.events[s.last], wrong.events[other.last])
    )
    sound = ", ".join(map(str, sorted(set(range(rows)) - bad)))
    assert right.about.arrays == wrong.about.arrays
    assert np.array_equal(output(right, "l"), output(wrong, "l"))
    old_O, new_O = pair(differs, "O")
    other_O = pair(wrong.steps[differs.number], "O")[1]
    assert differs.rows is not None
    row = int(np.abs(new_O - other_O).max(axis=1).argmax())
    text = f"""
        The first run is Algorithm 1; the second is the same with e^{{m_i − m_i^new}} left out of line 12, underlined in
        the Python. The wrong run moves the same elements, fills the same SRAM, and gives no error and no NaN: only
        values tell. They are further down, at m, ℓ, O.

        The two are equal until a maximum rises, and from there on those rows of O keep too much of what came first. At
        the end {len(bad)} of {rows} rows are wrong, row {worst} by {short(float(error[worst]))}. Right are the rows
        whose maximum never rose ({sound}). So a test in which every row has its maximum in the first block passes with
        this bug in. And ℓ, which line 11 still rescales, is right everywhere.
        """
    return Lesson(
        "A missing rescale",
        text,
        (
            Moment(
                rise.number,
                "rescale",
                f"Maxima rise for the first time, in {rise.rescaled} rows; line 11 rescales ℓ in both runs, which still agree.",
            ),
            Moment(
                differs.number,
                "first difference",
                f"Line 12: row {differs.rows[0] + row} of O begins with {short(float(new_O[row, 0]))} in the first run, and with "
                f"{short(float(other_O[row, 0]))} in the second, where what it was before, "
                f"{short(float(old_O[row, 0]))}, weighs too much.",
            ),
            end(right, f"The same counts; {len(bad)} of {rows} rows of O are wrong."),
        ),
    )


def _same(event: TraceEvent, other: TraceEvent) -> bool:
    mine, theirs = event.value, other.value
    if mine is None or theirs is None:
        return mine is theirs
    return np.array_equal(mine, theirs)


def pages() -> Mapping[str, Page]:
    """Return the lessons in the order in which they are to be read."""
    return {
        "online_softmax": Page(
            "One pass over a row’s scores, with a running maximum and a running sum.", ONLINE_SOFTMAX, online_softmax
        ),
        "standard": Page(
            "Three passes, with the N × N matrices S and P in HBM.",
            "flashsim step --algorithm standard --n 12 --d 4 --M 64",
            standard,
        ),
        "flash_basic": Page(
            "The score matrix tile by tile, on chip; O, ℓ and m come and go.",
            "flashsim step --algorithm flash_basic --n 12 --d 4 --M 64",
            flash_basic,
        ),
        "real_data": Page("A head of a real model, whose maxima jump as one reads on.", real_data_code(), real_data),
        "causal": Page(
            "Tiles above the diagonal are not loaded.",
            "flashsim step --algorithm q_outer --n 12 --d 4 --blocks 3 3 --M 72 --causal",
            causal,
        ),
        "backward": Page(
            "P computed again; dK and dV gather on chip, dQ comes and goes.",
            "flashsim step --backward --algorithm flash --n 6 --d 2 --blocks 2 3 --M 64",
            backward,
        ),
        "block_sparse": Page(
            "A block mask says which tiles count; the others are jumped over.",
            "flashsim step --algorithm block_sparse --n 16 --d 2 --blocks 2 2 --M 32 --block-mask butterfly",
            block_sparse,
        ),
        "decoding": Page(
            "FlashDecoding: keys in splits, each attended to alone, then merged.",
            "flashsim step --algorithm split_kv --n 1 --n-k 16 --d 4 --blocks 1 4",
            decoding,
        ),
        "missing_rescale": Page(
            "The correct run beside one that forgets a factor.",
            "flashsim step --algorithm flash_basic --n 8 --d 2 --blocks 4 2 --M 60 --bug no_rescale",
            missing_rescale,
        ),
    }

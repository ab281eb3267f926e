"""A language model’s loss by online softmax: it picks one logit of each row, and stores none."""

from typing import Any

import numpy as np

import flashsim
from flashsim.beyond import cross_entropy
from flashsim.learn.gallery.looking import every, first, largest_rise, moved, output, pair, short, value
from flashsim.support.sizes import human_bytes
from flashsim.tracing import Trace

TITLE, ORDER = "Cross-entropy without logits", 120


def record() -> Trace:
    X = np.array([[1, 1], [0, 1], [2, 0], [1, -1]], np.float32)
    E = np.array([[1, 0], [0, 2], [-1, 1], [2, -1], [0, 0], [1, 3], [3, 1], [-2, 0]], np.float32)
    return flashsim.trace(cross_entropy.loss, X, E, np.array([1, 3, 6, 0]), blocks=(2, 2), M=32)


def teach(trace: Trace) -> str:
    (N, d, v), T_r = (size for _, size in trace.about.sizes), trace.about.blocks.T_r
    labels = np.concatenate([e.value for e in trace.events if e.kind == "load" and e.array == "y" and e.value is not None])
    start, L = first(trace, "first maximum"), first(trace, "line 15")
    picks = next(s for s in every(trace, "line 9") if value(trace, s, "c_i").any())
    rise, row, old, new = largest_rise(trace)
    total = first(trace, "line 12", rise.number)
    before, after = (x[row % 2, 0] for x in pair(total, "l"))
    read = next(a.reads for a in trace.about.arrays if a.name == "E")
    real: dict[str, Any] = {"N": 8192, "v": 256_000, "d": 2304}
    kept = sum(a.size * a.itemsize for a in cross_entropy.count(**real, M=10**6).hbm.by_array.values() if a.role == "output")
    return f"""
        A language model’s last layer takes N × v logits, a row for each token and a column for each word, S = X Eᵀ, and then
        needs one number of each row: the loss, log Σ_j e^{{S_ij}} minus the logit of the right word. With N = 8,192 tokens and
        256,000 words the logits take {human_bytes(real["N"] * real["v"] * 4)}, and the results {human_bytes(kept)}.

        This is attention’s softmax without values, so the same loop computes it: rows of X stay, blocks of E pass, and m and ℓ
        are kept as before. There is one more statistic, c: it takes the logit out of the tile that has the label’s column.
        Watch y on the chip, {", ".join(f"{label:.0f}" for label in labels[:2, 0])} for the first two rows: the columns are
        counted from 0, two a tile. No tile of S is ever written; this run moves {moved(trace)} elements, and the logits, there
        and back, would be {2 * N * v} more.

        The gradients compute the tiles again from L, as Algorithm 4 does: `flashsim.cross_entropy.gradient`.

        [first maximum] The first tile: m of row 0 is {short(pair(start, "m")[1][0, 0])}.
        [line 9 @ {picks.number}] Column {labels[0, 0]:.0f} is row 0’s label: c = {short(value(trace, picks, "c_i")[0, 0])}. Of
        all its logits this one is kept.
        [rescale @ {rise.number}] Row {row}: m from {short(old)} to {short(new)}; ℓ will count for {short(np.exp(old - new))} of
        what it was.
        [line 12 @ {total.number}] Row {row}: ℓ was {short(before)}, and is {short(after)} with this tile in it.
        [line 15] L = m + log ℓ: {short(value(trace, L, "L_i")[0, 0])} for row 0.
        [line 16] The loss, L − c: {short(output(trace, "loss")[0, 0])} for row 0.
        [line 7, i = 1] The next rows read E again: {read} elements in all, T_r = {T_r} times {v * d}.
        [last step] {moved(trace)} accesses; of {N * v} logits none was in HBM.

        [asks @ {rise.number}] In row {row} the maximum will now rise from {short(old)} to {short(new)}, and ℓ will be scaled
        down. By what is c, the logit of its label, scaled?
        [choices] by nothing | e^{{{short(old - new)}}} | 1/ℓ
        [right] by nothing
        [because] c is a logit, not an exponential: it does not depend on the maximum. It meets m again in line 16, through L =
        m + log ℓ.
        """

"""The score matrix tile by tile, on chip; O, ℓ and m come and go."""

import numpy as np

from flashsim.learn.gallery.trace_queries import accesses, first_step, largest_rise, short
from flashsim.tracing import Trace

TITLE = "Algorithm 1: FlashAttention"
ORDER = 30
RUN = {"algorithm": "flash_basic", "N": 12, "d": 4, "blocks": (4, 4), "M": 128}


def teach(trace: Trace) -> str:
    about = trace.about
    tile = first_step(trace, "line 9")
    rise, row, old, new = largest_rise(trace)
    assert about.standard is not None
    return f"""
        Algorithm 1 goes through the score matrix tile by tile, and no tile leaves the chip: there
        is no S and no P in the table of HBM accesses. This has a price: for each of the
        {about.blocks.T_c} blocks of keys, something is loaded and stored again. A question on the
        way asks what it is.

        Watch the tiles fill column by column. From the second column on, rows come back with a
        maximum, and where a tile has a larger score the row is rescaled: row {row} by the most, as
        its maximum rises by {short(new - old)}. (Line 1’s own block sizes would not fit into M:
        `flashsim lessons line_1` shows it.)

        [initialize O] O = 0, ℓ = 0, m = −∞, in HBM: an answer for no keys at all.
        [line 9] S_ij is made on chip; {trace.events[tile.last].occupancy} of {about.M} elements are
        in use.
        [first maximum] The first rows get a maximum; the factor is 0, as there was none before.
        [read O, j = 1] The second block of keys: the first rows’ O, ℓ and m come back.
        [rescale @ {rise.number}] Row {row}’s maximum rises from {short(old)} to {short(new)}: its
        old ℓ and O are multiplied by {short(np.exp(old - new))}.
        [last step] O is complete. {accesses(trace):,} accesses, equal to the prediction; standard
        attention’s are {sum(about.standard):,}.

        [asks @ line 9] S and P never leave the chip. In the whole run, which array is accessed
        most? Guess.
        [choices] Q | K | V | O
        [right] {max("QKVO", key=lambda name: accesses(trace, name))}
        [because] O, {accesses(trace, "O")} accesses: with its ℓ and m, each block of O is loaded,
        improved and stored again for each block of keys. K and V are read once, {accesses(trace, "K")}
        each; Q, {accesses(trace, "Q")}, once for each block of keys.
        """

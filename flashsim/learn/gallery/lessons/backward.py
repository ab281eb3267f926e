"""P computed again; dK and dV gather on chip, dQ comes and goes."""

from flashsim.learn.gallery.trace_queries import accesses, first_step, short, tile_value
from flashsim.tracing import Trace

TITLE = "Backward"
ORDER = 33
RUN = {"backward": True, "algorithm": "flash", "N": 6, "d": 2, "blocks": (2, 3), "M": 64}


def teach(trace: Trace) -> str:
    about = trace.about
    T_r = about.blocks.T_r
    T_c = about.blocks.T_c
    rows = tile_value(trace, first_step(trace, "line 13"), "P_ij").sum(axis=1)
    D = tile_value(trace, first_step(trace, "line 19"), "D_i")
    assert about.standard is not None
    return f"""
        The forward pass kept neither S nor P. Algorithm 4 computes P again, tile by tile, from Q, K
        and the rows’ m and ℓ: line 13 divides by the final ℓ at once, so no maximum moves here and
        nothing is rescaled. (A row’s P in one tile does not sum to 1; over all {T_c} tiles of the
        row it does.)

        Watch which arrays stay and which travel. dK and dV of a block of keys sum up parts from all
        {T_r} blocks of rows, and dQ of a block of rows sums up parts from all {T_c} blocks of keys;
        the outer loop is over the keys. Line 19’s D, one number a row, equals the sum of P ∘ dP
        over the whole row. Because of D, one tile is enough.

        [line 8] dK and dV of the first block of keys begin at 0, on chip.
        [line 13] P, computed again: in this tile its rows sum to
        {", ".join(map(short, rows.tolist()))}.
        [line 16] dV grows by what the first rows give it.
        [line 19] D = {", ".join(map(short, D.ravel().tolist()))}: one number for each row.
        [write dQ] dQ’s first part goes to HBM: more is to come.
        [write dK] The block of keys has met all rows: its dK and dV are complete, and written once.
        [read dQ, j = 1] The second block of keys: dQ comes back for its next part.
        [last step] {accesses(trace):,} accesses; standard attention’s backward pass makes
        {sum(about.standard):,}.

        [asks @ write dQ] dQ’s first part goes to HBM. In the whole run, which of dQ, dK and dV is
        written most? Guess.
        [choices] dQ | dK | dV
        [right] {max(about.arrays, key=lambda array: array.writes).name}
        [because] dQ: once for zeros, and once for each of the {T_c} blocks of keys. dK and dV stay
        on chip until they are complete: once for zeros, and once more.
        """

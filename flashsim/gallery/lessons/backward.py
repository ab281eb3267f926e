"""P computed again; dK and dV gather on chip, dQ comes and goes."""

from __future__ import annotations

import flashsim
from flashsim.gallery.looking import does, end, first, moved, see, short, value
from flashsim.gallery.page import Said
from flashsim.tracing import Stop, Trace
from flashsim.tracing.sample import gradient, operands

TITLE, ORDER = "Backward", 60
COMMAND = "flashsim step --backward --algorithm flash --N 6 --d 2 --blocks 2 3 --M 64"


def record() -> tuple[Trace, ...]:
    Q, K, V = operands(6, 2)
    return (flashsim.trace("flash", Q, K, V, dO=gradient(6, 2), blocks=(2, 3), M=64),)


def teach(trace: Trace) -> Said:
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
    yield f"""
        The forward pass kept neither S nor P. Algorithm 4 computes P again, tile by tile, from Q, K and the rows’ m
        and ℓ: line 13 divides by the final ℓ at once, so no maximum moves here and nothing is rescaled. (A row’s P in
        one tile does not sum to 1; over all {T_c} tiles of the row it does.)

        Watch who stays and who travels. dK and dV of a block of keys gather from all {T_r} blocks of rows, dQ of a
        block of rows from all {T_c} blocks of keys; the outer loop is over the keys. Line 19’s D, one number a row,
        stands for a sum over all of the row of P ∘ dP: it is why a tile is enough.
        """
    yield see(zero, "line 8", "dK and dV of the first block of keys begin at 0, on chip.")
    yield see(P, "line 13", f"P, computed again: in this tile its rows sum to {', '.join(map(short, rows.tolist()))}.")
    yield see(dV, "line 16", "dV grows by what the first rows give it.")
    yield see(
        D,
        "line 19",
        f"D = {', '.join(short(x) for x in value(trace, D, 'D_i').ravel().tolist())}: one number for each row.",
    )
    yield see(dQ, "write dQ", "dQ’s first part goes to HBM: more is to come.")
    yield see(done, "write dK", "The block of keys has met all rows: its dK and dV are complete, and written once.")
    yield see(again, "read dQ", "The second block of keys: dQ comes back for its next part.")
    yield end(trace, f"{moved(trace):,} accesses; standard attention’s backward pass makes {sum(about.standard):,}.")
    yield Stop(
        dQ.number,
        "dQ’s first part goes to HBM. In the whole run, which of dQ, dK and dV is written most? Guess.",
        ("dQ", "dK", "dV"),
        max(about.arrays, key=lambda array: array.writes).name,
        f"dQ: once for zeros, and once for each of the {T_c} blocks of keys. dK and dV stay on chip until "
        "they are complete: once for zeros, and once more.",
    )

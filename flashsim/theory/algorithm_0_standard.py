"""Algorithm 0: standard attention, forward.

Products keep a panel of B_r rows on chip and stream the other operand past it in B_c rows. T_r =
⌈N_q/B_r⌉ counts panels of queries. With p = 1 if a row fits (N_k + 2 ≤ M), else 2:

    reads   Q: N_q·d   K: T_r·N_k·d   S: p·N_q·N_k   P: N_q·N_k   V: T_r·N_k·d_v
    writes  S: N_q·N_k   P: N_q·N_k   O: N_q·d_v

With T_r = p = 1 that is the proof's accounting, each operand read once for each product: reads 3Nd
+ 2N², writes Nd + 2N².

A mask of whatever kind adds a pass that reads and writes S. Dropout adds one that reads P and
writes Z and P^dropped, which line 3 then reads for P. A sink is read twice for each block of rows
of the softmax, and its column of P written.
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.form import Form
from flashsim.theory.passes import dropping_peak, masking_tiles
from flashsim.theory.problem import Arrays, OneHead, Tiles, ceil_div
from flashsim.theory.theorems import theorem_2_standard


def line_1(rows: int, d: int) -> tuple[int, int]:
    """Return (B_r, B_c): Algorithm 1's, exchanged, as here the panel of queries decides how
    often K and V are read.
    """
    return rows, min(rows, d)


def whole(p: OneHead) -> int:
    """Return how many whole rows of S the softmax holds at a time, with m, ℓ, and a sink twice;
    0 if none fits.
    """
    return max(p.M - 2 * p.sink, 0) // (p.N_k + 2)


def traffic(p: OneHead, blocks: Blocks, tiles: Tiles) -> Arrays:
    square = p.N_q * p.N_k
    dropped = int(p.dropout) * p.N_q * p.N_k
    masking = square if p.masked else 0
    passes = 1 if whole(p) else 2
    dropped_arrays = p.array("P_dropped", "extra", reads=dropped, writes=dropped) | p.array(
        "Z", "extra", writes=dropped
    )
    return {
        **p.array("Q", "input", reads=p.N_q * p.d),
        **p.array("K", "input", reads=blocks.T_r * p.N_k * p.d),
        **p.array("V", "input", reads=blocks.T_r * p.N_k * p.d_v),
        **p.masks(masking_tiles(p)),
        **p.array("S", "extra", reads=masking + passes * square, writes=square + masking),
        **p.array("P", "extra", reads=square, writes=square),
        **p.array("O", "output", writes=p.N_q * p.d_v),
        **(dropped_arrays if p.dropout else {}),
        **(p.array("P_sink", "extra", writes=p.N_q) if p.sink else {}),
    }


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Line 1's or 3's panel, block and tile of S; rows of S with m and ℓ; S with the mask; P
    with Z.
    """
    B_r = blocks.B_r
    B_c = blocks.B_c
    n = p.N_q
    k = p.N_k
    product = (B_r + B_c) * max(p.d, p.d_v) + B_r * B_c
    softmax = (
        min(n, whole(p)) * (k + 2) + 2 * p.sink
        if whole(p)
        else max(min(k, max(p.M - 3, 1)) + 3, p.sink + 2)
    )
    masking = masking_tiles(p).most(lambda r, c: r * c + p.mask_tile(r, c)) if p.masked else 0
    return max(product, softmax, masking, dropping_peak(p))


FORM = Form(
    name="standard",
    line_1=line_1,
    traffic=traffic,
    peak=peak,
    products=(1, 1),
    theta=lambda N, d, M: theorem_2_standard(N, d),
    sink=lambda p, blocks: 2 * ceil_div(p.N_q, max(whole(p), 1)),
    formulas={
        "Q": ("N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "S": ("p * N_q * N_k", "N_q * N_k"),
        "P": ("N_q * N_k", "N_q * N_k"),
        "O": ("0", "N_q * d_v"),
    },
)

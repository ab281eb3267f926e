"""Algorithm 3: standard attention, backward.

Products as in Algorithm 0. T_r = ⌈N_q/B_r⌉ counts panels of queries, U_c = ⌈N_k/B_r⌉ panels of keys
(lines 1 and 5). With p = 1 if a row fits (2N_k + 1 ≤ M), else 2:

    reads   line 1, dV: P N_q·N_k, dO U_c·N_q·d_v      line 2, dP: dO N_q·d_v, V T_r·N_k·d_v
            line 3, dS: P and dP p·N_q·N_k each
            line 4, dQ: dS N_q·N_k, K T_r·N_k·d        line 5, dK: dS N_q·N_k, Q U_c·N_q·d
    writes  dP, dS: N_q·N_k each, dQ: N_q·d, dK: N_k·d, dV: N_k·d_v

With T_r = U_c = p = 1 that is the proof's accounting: reads 5Nd + 5N², writes 3Nd + 2N².

Dropout adds a pass that reads Z and reads and writes dP, and line 1 reads P^dropped for P. A bias
adds one that reads dS, and reads and writes the block of dB that goes with each tile.
"""

from flashsim.attention.shapes import Blocks
from flashsim.theory.algorithm_0_standard import line_1
from flashsim.theory.form import Form
from flashsim.theory.passes import dropping_peak, learning_tiles
from flashsim.theory.problem import Arrays, OneHead, Tiles


def traffic(p: OneHead, blocks: Blocks, tiles: Tiles) -> Arrays:
    """Algorithm 3. A mask costs nothing: it is in P."""
    n = p.N_q
    k = p.N_k
    square = p.N_q * p.N_k
    dropped = int(p.dropout) * p.N_q * p.N_k
    U_c = -(-k // blocks.B_r)
    passes = 1 if 2 * k + 1 <= p.M else 2
    learning = learning_tiles(p)
    dropped_arrays = p.array("P_dropped", "input", reads=dropped) | p.array(
        "Z", "input", reads=dropped
    )
    return {
        **p.array("Q", "input", reads=U_c * n * p.d),
        **p.array("K", "input", reads=blocks.T_r * k * p.d),
        **p.array("V", "input", reads=blocks.T_r * k * p.d_v),
        **p.array("dO", "input", reads=(U_c + 1) * n * p.d_v),
        **p.array("P", "input", reads=(square - dropped) + passes * square),
        **(dropped_arrays if p.dropout else {}),
        **p.array("dP", "extra", reads=dropped + passes * square, writes=square + dropped),
        **p.array("dS", "extra", reads=2 * square + learning.area, writes=square),
        **p.gradient(learning),
        **p.array("dQ", "output", writes=n * p.d),
        **p.array("dK", "output", writes=k * p.d),
        **p.array("dV", "output", writes=k * p.d_v),
    }


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """Lines 2 and 4 (lines 1 and 5 hold no more: their blocks are no larger), or line 3: rows of
    P, dP and their sum; dS, dB.
    """
    n = p.N_q
    k = p.N_k
    M = p.M
    width = max(p.d, p.d_v)
    B = blocks.B_r
    b = blocks.B_c
    row = 2 * k + 1
    softmax = min(n, M // row) * row if row <= M else 2 * min(k, max((M - 1) // 2, 1)) + 1
    learning = learning_tiles(p).most(lambda r, c: r * c + p.gradient_tile(r, c)) if p.learns else 0
    return max((B + b) * width + B * b, softmax, dropping_peak(p), learning)


FORM = Form(
    name="standard",
    direction="backward",
    line_1=line_1,
    traffic=traffic,
    peak=peak,
    products=(2, 2),  # dQ dK; dV dP
    gives_dS=True,
    sink_of=("P_sink",),
    formulas={
        "Q": ("U_c * N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "dO": ("(U_c + 1) * N_q * d_v", "0"),
        "P": ("(p + 1) * N_q * N_k", "0"),
        "dP": ("p * N_q * N_k", "N_q * N_k"),
        "dS": ("2 * N_q * N_k", "N_q * N_k"),
        "dQ": ("0", "N_q * d"),
        "dK": ("0", "N_k * d"),
        "dV": ("0", "N_k * d_v"),
    },
)

"""Attention to keys and values in floats of 8 bits, with a scale for each G keys of a sequence, or
for all of them.

    Require: Q of all sequences, K and V in e4m3 or e5m2, scales k, v, one for each G keys of a
             sequence, in HBM, on-chip SRAM of size M.
    1  for each sequence s, all at once, 1 ≤ i ≤ T_r of its rows, do
    2    Load Q_i from HBM to on-chip SRAM.
    3    Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    4    for each tile j, keys a … a' − 1, of those that a row sees, do
    5      Load K_j, V_j, and k, v of groups ⌊a/G⌋ … ⌊(a' − 1)/G⌋ from HBM to on-chip SRAM.
    6      S_ij = τ Q_i K_jᵀ diag(k), each key's own.
    7      S_ij^masked = MASK(S_ij).
    8      m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    9      ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    10     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij diag(v) V_j, m_i ← m_i^new.
    11   end for
    12   O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
    13   Write O_i, L_i to HBM.
    14 end for
    15 Return O, L.

Sources: "FP8 Formats for Deep Learning" (Micikevicius et al., 2022); `k_descale`, `v_descale` of
FlashAttention-3, one for each sequence and head, as here without G. The listing is ours. P̃ stays
in the chip's precision.
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from flashsim.algorithms.notation import exp, finite, log, maximum, nonzero, product, rowmax, rowsum
from flashsim.algorithms.record import Bug
from flashsim.attention.arguments import check_count
from flashsim.memory.hbm import HBM, Matrix, Tile
from flashsim.memory.shape_only import ShapeOnly
from flashsim.memory.sram import SRAM
from flashsim.serving.batch import Batch, Operands
from flashsim.serving.record import BatchProgram
from flashsim.support.sizes import ceil_div

FORMATS = {"e4m3": ("float8_e4m3fn", 448.0), "e5m2": ("float8_e5m2", 57344.0)}
"""By name, the type's name in ml_dtypes, and its largest number."""


def fp8(
    hbm: HBM,
    sram: SRAM,
    batch: Batch,
    Q: Matrix,
    K: Matrix,
    k_scale: Matrix,
    V: Matrix,
    v_scale: Matrix,
    group: int,
) -> tuple[Matrix, Matrix]:
    """Run on Q (R, d), K (n, d), V (n, d_v), k_scale, v_scale (Σ ⌈n_s/G⌉, 1); return O (R, d_v),
    L (R, 1).
    """
    on_chip = sram.on_chip
    B_r = batch.B_r
    B_c = batch.B_c
    tau = batch.tau
    G = group
    O = hbm.empty("O", (Q.shape[0], batch.d_v), Q.dtype, "output")
    L = hbm.empty("L", (Q.shape[0], 1), sram.dtype)
    groups = [0, *accumulate(ceil_div(n, G) for n in batch.keys)]
    for s in sram.loop(len(batch), alike=batch.alike):  # line 1
        n = batch.keys[s]
        Q_s, O_s, L_s = (X.rows(*batch.rows(s)).divide(B_r) for X in (Q, O, L))
        K_s, V_s = (X.rows(*batch.cols(s)).divide(B_c) for X in (K, V))
        ends = [(a // G, (min(a + B_c, n) - 1) // G + 1) for a in range(0, n, B_c)]
        for i in sram.loop(len(Q_s), alike=batch.rows_alike(s)):  # line 1
            Q_i = sram.load(Q_s[i])  # line 2
            O_i = sram.full(O_s[i].shape, 0.0)  # line 3
            l_i = sram.full(L_s[i].shape, 0.0)  # line 3
            m_i = sram.full(L_s[i].shape, float("-inf"))  # line 3
            tiles = ceil_div(batch.seen(s, i, n), B_c)
            for j in sram.loop(tiles, alike=[end - first for first, end in ends]):  # line 4
                first, end = (groups[s] + g for g in ends[j])
                K_j, V_j = sram.load(K_s[j], V_s[j])  # line 5
                k_j, v_j = sram.load(  # line 5
                    k_scale.rows(first, end)[0], v_scale.rows(first, end)[0]
                )
                own = np.arange(j * B_c, j * B_c + K_j.shape[0]) // G - j * B_c // G
                S_ij = on_chip(tau * (Q_i @ K_j.T) * of_keys(k_j, own))  # line 6
                S_masked_ij = on_chip(batch.mask(S_ij, s, i, j * B_c, n), over=S_ij)  # line 7
                m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 8
                P_tilde_ij = on_chip(exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij)  # line 8
                l_i = on_chip(  # line 9
                    exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                )
                P_scaled_ij = on_chip(  # line 10
                    P_tilde_ij * of_keys(v_j, own), over=P_tilde_ij
                )
                O_i = on_chip(  # line 10
                    exp(m_i - finite(m_i_new)) * O_i + product(P_scaled_ij, V_j), over=O_i
                )
                m_i = on_chip(m_i_new, over=m_i)  # line 10
            # line 11: end for
            O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 12
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 12
            sram.store(O_s[i], O_i)  # line 13
            sram.store(L_s[i], L_i)  # line 13
    # line 14: end for
    return O, L  # line 15


def of_keys(scales: Tile, own: Any) -> Tile:
    """Return the scale of each key, a row, of the groups that keys are of."""
    if isinstance(scales, ShapeOnly):
        return scales.made((1, len(own)), other=0)
    factors: Tile = scales[own].T
    return factors


def check_options(batch: Batch, *, group: Any = None) -> Mapping[str, Any]:
    """Return how many keys share a scale; None: all of a sequence."""
    return {"group": max(1, *batch.keys) if group is None else check_count("group", group)}


def operands(batch: Batch, options: Mapping[str, Any]) -> Operands:
    n, scales = sum(batch.keys), (sum(ceil_div(n, options["group"]) for n in batch.keys), 1)
    return {
        "Q": batch.shapes()["Q"],
        "K": (n, batch.d),
        "k_scale": scales,
        "V": (n, batch.d_v),
        "v_scale": scales,
    }


PROGRAM = BatchProgram(
    name="fp8",
    title="Keys and values in floats of 8 bits",
    run=fp8,
    options=check_options,
    operands=operands,
    # e5m2 is as large
    stored={"K": "float8_e4m3fn", "V": "float8_e4m3fn", "k_scale": "float32", "v_scale": "float32"},
    bugs=(
        Bug("scales are ignored", " * of_keys(k_j, own)", ""),
        Bug("scales of V are K's", "of_keys(v_j, own)", "of_keys(k_j, own)"),
        Bug(
            "groups are counted from the tile",
            "K_j.shape[0]) // G - j * B_c // G",
            "K_j.shape[0]) // G - j * B_c",
        ),
        Bug(
            "groups are counted across sequences",
            "groups[s] + g for",
            "sum(batch.keys[:s]) // G + g for",
        ),
        Bug("the tile's first scale is all keys'", "of_keys(v_j, own)", "of_keys(v_j, 0 * own)"),
    ),
)

"""Attention to quantised keys and values: packed integers, with a scale and a zero for each group
of G.

    Require: Q of all sequences, K and V in `bits` bits, packed in bytes, k_σ, k_ζ for G tokens of a
             channel, v_σ, v_ζ for G channels of a token in HBM, on-chip SRAM of size M.
    1  for each sequence s, all at once, 1 ≤ i ≤ T_r of its rows, do
    2    Load Q_i from HBM to on-chip SRAM.
    3    Initialize O_i = (0)_{B_r×d}, ℓ_i = (0)_{B_r}, m_i = (−∞)_{B_r} on SRAM.
    4    for each tile j, keys a … a' − 1, of those that a row sees, do
    5      Load K_j, and rows ⌊a/G⌋ … ⌊(a' − 1)/G⌋ of k_σ, k_ζ from HBM to on-chip SRAM.
    6      K_j[t, c] ← k_ζ[⌊t/G⌋, c] + k_σ[⌊t/G⌋, c] · K_j[t, c], unpacked.
    7      S_ij^masked = MASK(τ Q_i K_jᵀ).
    8      Load V_j, and rows a … a' − 1 of v_σ, v_ζ from HBM to on-chip SRAM.
    9      V_j[t, c] ← v_ζ[t, ⌊c/G⌋] + v_σ[t, ⌊c/G⌋] · V_j[t, c], unpacked.
    10     m_i^new = max(m_i, rowmax(S_ij^masked)), P̃_ij = exp(S_ij^masked − m_i^new).
    11     ℓ_i ← e^{m_i − m_i^new} ℓ_i + rowsum(P̃_ij).
    12     O_i ← diag(e^{m_i − m_i^new}) O_i + P̃_ij V_j, m_i ← m_i^new.
    13   end for
    14   O_i ← diag(ℓ_i)⁻¹ O_i, L_i = m_i + log ℓ_i.
    15   Write O_i, L_i to HBM.
    16 end for
    17 Return O, L.

Source: "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache" (Liu et al., 2024): keys by
channel, values by token. The listing is ours. M counts elements, so a packed byte takes as much of
it as a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def quantised(
    hbm: HBM,
    sram: SRAM,
    batch: Batch,
    Q: Matrix,
    K: Matrix,
    k_scale: Matrix,
    k_zero: Matrix,
    V: Matrix,
    v_scale: Matrix,
    v_zero: Matrix,
    bits: int,
    group: int,
) -> tuple[Matrix, Matrix]:
    """Run on Q (R, d), K (n, ⌈d·bits/8⌉), V alike, k_… (Σ ⌈n_s/G⌉, d), v_… (n, ⌈d_v/G⌉); return
    O (R, d_v), L (R, 1).
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
        K_s, V_s, *v_s = (X.rows(*batch.cols(s)).divide(B_c) for X in (K, V, v_scale, v_zero))
        ends = [(a // G, (min(a + B_c, n) - 1) // G + 1) for a in range(0, n, B_c)]
        for i in sram.loop(len(Q_s), alike=batch.rows_alike(s)):  # line 1
            Q_i = sram.load(Q_s[i])  # line 2
            O_i = sram.full(O_s[i].shape, 0.0)  # line 3
            l_i = sram.full(L_s[i].shape, 0.0)  # line 3
            m_i = sram.full(L_s[i].shape, float("-inf"))  # line 3
            tiles = ceil_div(batch.seen(s, i, n), B_c)
            for j in sram.loop(tiles, alike=[end - first for first, end in ends]):  # line 4
                first, end = (groups[s] + g for g in ends[j])
                packed, *k_j = sram.load(  # line 5
                    K_s[j], k_scale.rows(first, end)[0], k_zero.rows(first, end)[0]
                )
                t = np.arange(j * B_c, j * B_c + packed.shape[0])[:, None]
                at = t // G - j * B_c // G, np.arange(batch.d)[None]
                K_j = on_chip(restored(packed, k_j, bits, at))  # line 6
                S_ij = on_chip(tau * (Q_i @ K_j.T))  # line 7
                S_masked_ij = on_chip(batch.mask(S_ij, s, i, j * B_c, n), over=S_ij)  # line 7
                packed, *v_j = sram.load(V_s[j], v_s[0][j], v_s[1][j])  # line 8
                at = t - j * B_c, np.arange(batch.d_v)[None] // G
                V_j = on_chip(restored(packed, v_j, bits, at))  # line 9
                m_i_new = on_chip(maximum(m_i, rowmax(S_masked_ij)))  # line 10
                P_tilde_ij = on_chip(  # line 10
                    exp(S_masked_ij - finite(m_i_new)), over=S_masked_ij
                )
                l_i = on_chip(  # line 11
                    exp(m_i - finite(m_i_new)) * l_i + rowsum(P_tilde_ij), over=l_i
                )
                O_i = on_chip(  # line 12
                    exp(m_i - finite(m_i_new)) * O_i + product(P_tilde_ij, V_j), over=O_i
                )
                m_i = on_chip(m_i_new, over=m_i)  # line 12
            # line 13: end for
            O_i = on_chip(O_i / nonzero(l_i), over=O_i)  # line 14
            L_i = on_chip(m_i + log(l_i), over=l_i)  # line 14
            sram.store(O_s[i], O_i)  # line 15
            sram.store(L_s[i], L_i)  # line 15
    # line 16: end for
    return O, L  # line 17


def restored(packed: Tile, scales: Sequence[Tile], bits: int, index: Any) -> Tile:
    """Return the numbers of packed bytes, (rows, columns): zero + scale · integer, of the group
    `at` which each is.
    """
    shape, (scale, zero) = (packed.shape[0], index[1].shape[1]), scales
    if isinstance(packed, ShapeOnly):
        return packed.made(shape, other=4 * shape[0] * shape[1])
    column = np.arange(shape[1])
    integers = packed[:, column * bits // 8] >> (column * bits % 8).astype(np.uint8) & (2**bits - 1)
    numbers: Tile = zero[index] + scale[index] * integers.astype(scale.dtype)
    return numbers


def check_options(batch: Batch | None, *, bits: Any, group: Any) -> Mapping[str, Any]:
    """Return the bits of a number, and how many share a scale and a zero."""
    if check_count("bits", bits) not in (2, 4, 8):
        raise ValueError(f"bits is {bits}; expected 2, 4 or 8, so that a byte has whole numbers")
    return {"bits": int(bits), "group": check_count("group", group)}


def operands(batch: Batch, options: Mapping[str, Any]) -> Operands:
    n = sum(batch.keys)
    bits = options["bits"]
    G = options["group"]
    k = (sum(ceil_div(n, G) for n in batch.keys), batch.d)
    v = (n, ceil_div(batch.d_v, G))
    K, V = ((n, ceil_div(width * bits, 8)) for width in (batch.d, batch.d_v))
    return {
        "Q": batch.shapes()["Q"],
        "K": K,
        "k_scale": k,
        "k_zero": k,
        "V": V,
        "v_scale": v,
        "v_zero": v,
    }


PROGRAM = BatchProgram(
    name="quantised",
    title="Quantised keys and values",
    run=quantised,
    options=check_options,
    operands=operands,
    stored={"K": "uint8", "V": "uint8"},
    bugs=(
        Bug(
            "scales of keys are the first group's",
            "(groups[s] + g for g in ends[j])",
            "(groups[s], groups[s] + 1)",
        ),
        Bug("groups are counted from the tile", "t // G - j * B_c // G", "(t - j * B_c) // G"),
        Bug(
            "groups are counted across sequences",
            "groups[s] + g for",
            "sum(batch.keys[:s]) // G + g for",
        ),
        Bug(
            "scales are ignored",
            "restored(packed, k_j",
            "restored(packed, (0 * k_j[0] + 1, k_j[1])",
        ),
        Bug(
            "V takes the scales of K's columns",
            "np.arange(batch.d_v)[None] // G",
            "np.arange(batch.d_v)[None] * 0",
        ),
        Bug("zeros are forgotten", "restored(packed, v_j", "restored(packed, (v_j[0], 0 * v_j[1])"),
    ),
)

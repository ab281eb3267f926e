"""What approximates attention: the forms of Linformer and Performer, of k rows or features, and of
Reformer and SMYRF.

These two have h rounds and T = ⌈N/C⌉ clusters of C rows, r in the last. The peaks, each the largest
of these:

    linformer
        (b_e + b_c)·max(d, e) + b_e·b_c: K^low_a K_j, or V^low_a V_j, and a tile of E or F
        (b_r + b_k)(d + e) + b_r·b_k + 3b_r: Q_i O_i K^low_b V^low_b, S_ib, ℓ_i m_i m_i^new
    performer
        (b_f + b_c)(d + e) + b_f·b_c + 3b_f: W_f S_f K_j V_j, G_fj, ℓ_f m_f m_f^new
        (b_r + b_g)(d + e) + b_r·b_g + 3b_r + b_g: Q_i O_i W_g S_g, G_ig, ℓ_i m_i m_i^new, z_g
    performer_materialised
        (b_f + b_c)d + b_f·b_c: W_f K_j, G_fj = log φ(K);
        (b_r + b_g)d + b_r·b_g: Q_i W_g, A_ig = log φ(Q)
        (b_f + b_c)e + b_f·b_c + 3b_f, (b_r + b_g)e + b_r·b_g + 3b_r + b_g: their softmax, as above
    reformer
        c(d + h + e + 3) + c(d + e + 1) + c²: c rows alone, r_i Q_i H_i O_i ℓ_i m_i,
            K_i V_i m_i^new, S_ii
        c(d + h + e + 3) + C(d + e + h + 1) + c·C + c: and the C before, r_j K_j V_j H_j, S_ij,
            m_i^new
    smyrf
        C(2d + 2e + 4) + C²: q_i k_i, Q_i K_i V_i, S_i, m_i ℓ_i, O_i
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flashsim.attention.shapes import Sizes
from flashsim.theory.kernel_products import kernel_rows
from flashsim.theory.matrices import MatrixForm, Moved, between, given, returned
from flashsim.theory.problem import ceil_div


def linformer_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    mixing = (b.B_e + b.B_c) * max(p.d, p.e) + b.B_e * b.B_c
    attending = (b.B_r + b.B_k) * (p.d + p.e) + b.B_r * b.B_k + 3 * b.B_r
    return max(mixing, attending)


LINFORMER = MatrixForm(
    name="linformer",
    blocks={"B_r": "N", "B_c": "N", "B_e": "k", "B_k": "k"},
    line_1=lambda rows, p: (rows, ceil_div(p.d, 2), 2 * rows, min(rows, p.d)),
    rows=kernel_rows,
    arrays={
        "Q": given("N", "d"),
        "K": given("N", "d", reads="T_e"),
        "V": given("N", "e", reads="T_e"),
        "E": given("k", "N"),
        "F": given("k", "N"),
        "K_low": between("k", "d", reads="T_r"),
        "V_low": between("k", "e", reads="T_r"),
        "O": returned("N", "e"),
        "L": between("N", "1", "chip", reads="0"),
    },
    peak=linformer_peak,
    matmul=lambda p, b, options: 4 * p.k * p.N * (p.d + p.e),
)


def performer_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    keys = (b.B_f + b.B_c) * (p.d + p.e) + b.B_f * b.B_c + 3 * b.B_f
    queries = (b.B_r + b.B_g) * (p.d + p.e) + b.B_r * b.B_g + 3 * b.B_r + b.B_g
    return max(keys, queries)


PERFORMER = MatrixForm(
    name="performer",
    blocks={"B_r": "N", "B_c": "N", "B_f": "k", "B_g": "k"},
    line_1=lambda rows, p: (rows, min(rows, p.d), rows, min(rows, p.d)),
    rows=kernel_rows,
    arrays={
        "Q": given("N", "d"),
        "K": given("N", "d", reads="T_f"),
        "V": given("N", "e", reads="T_f"),
        "W": given("k", "d", reads="T_r + 1"),
        "S": between("k", "e", reads="T_r"),
        "z": between("k", "1", "chip", reads="T_r"),
        "O": returned("N", "e"),
    },
    peak=performer_peak,
    matmul=lambda p, b, options: 4 * p.k * p.N * (p.d + p.e),
)


def materialised_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    keys = b.B_f * b.B_c
    queries = b.B_r * b.B_g
    return max(
        (b.B_f + b.B_c) * p.d + keys,
        (b.B_r + b.B_g) * p.d + queries,
        (b.B_f + b.B_c) * p.e + keys + 3 * b.B_f,
        (b.B_r + b.B_g) * p.e + queries + 3 * b.B_r + b.B_g,
    )


PERFORMER_MATERIALISED = replace(
    PERFORMER,
    name="performer_materialised",
    arrays={**PERFORMER.arrays, "G": between("k", "N"), "A": between("N", "k")},
    peak=materialised_peak,
)


def reformer_traffic(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> Mapping[str, Moved]:
    """Keys are read N + (T − 1)C times a round: all but those of the last cluster twice."""
    keys = p.h * (p.N + (b.T - 1) * b.C)
    return {
        name: Moved(reads=keys * width)
        for name, width in (("K", p.d), ("V", p.e), ("order", 1), ("home", p.h))
    }


def reformer_peak(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """The first cluster's, or the second's, which is whole if there is a third."""
    T = ceil_div(p.N, b.C)
    row = p.d + p.h + p.e + 3
    own = b.C * (row + p.d + p.e + 1 + b.C)
    if T == 1:
        return own
    c = b.C if T > 2 else p.N - b.C
    return max(own, c * (row + 1) + b.C * (p.d + p.e + p.h + 1 + c))


def reformer_products(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """2(d + e) for each pair of rows in one cluster, and of one and the cluster before."""
    T = ceil_div(p.N, b.C)
    r = p.N - (T - 1) * b.C
    pairs = (T - 1) * b.C**2 + r**2 + (((T - 2) * b.C + r) * b.C if T > 1 else 0)
    return 2 * p.h * pairs * (p.d + p.e)


REFORMER = MatrixForm(
    name="reformer",
    blocks={"C": "N"},
    arrays={
        "Q": given("N", "d", reads="h"),
        "K": given("N", "d"),
        "V": given("N", "e"),
        "order": given("h", "N", "index"),
        "home": given("N", "h", "words"),
        "O_parts": between("h·N", "e"),
        "L_parts": between("h·N", "1", "chip"),
        "O": returned("N", "e"),
    },
    traffic=reformer_traffic,
    peak=reformer_peak,
    matmul=reformer_products,
)


def smyrf_products(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """2(d + e) for each pair of a query and a key of one cluster."""
    T = ceil_div(p.N, b.C)
    return 2 * p.h * ((T - 1) * b.C**2 + (p.N - (T - 1) * b.C) ** 2) * (p.d + p.e)


SMYRF = MatrixForm(
    name="smyrf",
    blocks={"C": "N"},
    arrays={
        "Q": given("N", "d", reads="h"),
        "K": given("N", "d", reads="h"),
        "V": given("N", "e", reads="h"),
        "order_Q": given("h", "N", "index"),
        "order_K": given("h", "N", "index"),
        "O_parts": between("h·N", "e"),
        "L_parts": between("h·N", "1", "chip"),
        "O": returned("N", "e"),
    },
    peak=lambda p, b, options: b.C * (2 * p.d + 2 * p.e + 4 + b.C),
    matmul=smyrf_products,
)

"""What the forms of linear attention share."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from flashsim.records import Sizes


def chunk_rows(M: int, p: Sizes) -> int:
    """Return the largest C with (C + d + e)² ≤ M + (d + e)² − d·e, at least 1."""
    w = p.d + p.e
    C = isqrt(max(M + w * w - p.d * p.e, 0)) - w
    return C if C > 1 else 1


def chunk_line_1(rows: int, p: Sizes) -> tuple[int]:
    """Return (C,)."""
    return (rows,)


def chunk_products(p: Sizes, b: Sizes, options: Mapping[str, Any]) -> int:
    """Q_i K_iᵀ and A_i V_i in each chunk, 2c²(d + e); Q_i S and K_iᵀ V_i, 2·c·d·e each."""
    whole, rest = divmod(p.N, b.C)
    return 2 * (whole * b.C**2 + rest**2) * (p.d + p.e) + 4 * p.N * p.d * p.e

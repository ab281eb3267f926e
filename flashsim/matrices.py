"""What kind of matrix each name stands for: its rows and columns in the paper's symbols. Stated here once."""

from __future__ import annotations

from flashsim.records import Shape

SYMBOLS = {
    "Q": ("N_q", "d"),
    "K": ("N_k", "d"),
    "V": ("N_k", "d_v"),
    "O": ("N_q", "d_v"),
    "dQ": ("N_q", "d"),
    "dK": ("N_k", "d"),
    "dV": ("N_k", "d_v"),
    "dO": ("N_q", "d_v"),
    **dict.fromkeys(("l", "m", "L", "D"), ("N_q", "1")),
    **dict.fromkeys(("S", "P", "Z", "P_dropped", "dP", "dS"), ("N_q", "N_k")),
    "O_parts": ("N_q", "t d_v"),
    **dict.fromkeys(("l_parts", "m_parts"), ("N_q", "t")),
    "R": ("1", "2"),
}


def kind_of(name: str, sizes: tuple[int, int], shape: Shape) -> tuple[str, str]:
    """Return what a matrix of these sizes has as rows and as columns; "" where its size is not that.

    One with a name that is not known has queries as rows, and keys as columns, where there are so many.
    """
    known = {"N_q": shape.N_q, "N_k": shape.N_k, "d": shape.d, "d_v": shape.d_v, "1": 1, "2": 2}
    rows, cols = SYMBOLS.get(name, ("N_q", "N_k"))
    return rows if sizes[0] == known.get(rows) else "", cols if sizes[1] == known.get(cols) else ""

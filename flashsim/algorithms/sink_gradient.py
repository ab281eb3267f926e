"""The gradient of a learnable sink, after a backward pass, to which it leaves
everything else.

    Require: O, dO in HBM, the sink's weight in each row, as log-sum-exp L, as ℓ and m,
             or as P_sink itself, its logit s in HBM, on-chip SRAM of size M.
    1  Load s from HBM to on-chip SRAM. Initialize ds = 0 on SRAM.
    2  for 1 ≤ i ≤ T, blocks of as many rows as fit, do
    3    Load O_i, dO_i, and L_i, or ℓ_i and m_i, or P_sink,i, from HBM to on-chip SRAM.
    4    P_sink,i = e^{s − L_i}, or e^{s − m_i}/ℓ_i, unless it was loaded.
    5    ds ← ds − P_sink,iᵀ rowsum(dO_i ∘ O_i).
    6  end for
    7  Write ds to HBM.
    8  Return ds.

The sink's value is 0, so its dP is 0 and its dS is P_sink(0 − D), D = rowsum(dO ∘ O).
To the other gradients it is only a part of L: their formulas hold, and their algorithms
stay as they are. A kernel that has D on chip anyway, as `q_outer`'s backward pass has
it in its lines 4 to 7, could do this there, for N + 1 reads.
"""

from collections.abc import Callable
from functools import partial

from flashsim.algorithms.notation import at_most_0, exp, finite, nonzero, rowsum
from flashsim.memory.hbm import HBM, Matrix, Tile
from flashsim.memory.sram import SRAM

WEIGHTS: dict[tuple[str, ...], Callable[..., Tile]] = {
    ("L",): lambda s, L: exp(at_most_0(s - finite(L))),
    ("l", "m"): lambda s, l, m: exp(s - finite(m)) / nonzero(l),
    ("P_sink",): lambda s, P_sink: P_sink,
}
"""P_sink of a row block, by what it is made of besides s."""


def least_room(d_v: int, statistics: int) -> int:
    """Return the least M: s, ds, and one row of O, dO and the statistics, of which
    there are so many.
    """
    return 2 + 2 * d_v + statistics


def sink_gradient(
    hbm: HBM, sram: SRAM, s: Matrix, O: Matrix, dO: Matrix, *statistics: Matrix
) -> Matrix:
    """Return ds (1, 1), in HBM, of O, dO (N, d_v) and columns (N, 1), those of one
    query head, whose logit is s (1, 1).
    """
    on_chip = sram.on_chip
    dsink = hbm.empty("dsink", (1, 1), s.dtype, "output")
    rows = max((sram.capacity - 2) // (2 * O.shape[1] + len(statistics)), 1)
    O, dO, *columns = (X.divide(rows) for X in (O, dO, *statistics))
    weight = WEIGHTS[tuple(X.name for X in statistics)]  # line 1
    s_1 = sram.load(s[0])  # line 1
    ds = sram.full((1, 1), 0.0)  # line 1
    for i in sram.loop(len(O)):  # line 2
        O_i, dO_i, *of_i = sram.load(O[i], dO[i], *(X[i] for X in columns))  # line 3
        P_sink_i = partial(weight, s_1, *of_i)  # line 4
        ds = on_chip(  # line 5
            ds - rowsum((P_sink_i() * rowsum(dO_i * O_i)).T), over=ds
        )
    # line 6: end for
    sram.store(dsink[0], ds)  # line 7
    return dsink  # line 8

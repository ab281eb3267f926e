"""Keys and values in floats of 8 bits. A tile of keys a … a' − 1 needs r = ⌊(a' − 1)/G⌋ − ⌊a/G⌋ + 1
scales of K, and of V.

reads   Q: R·d   K: d·Σ cover(e_i, B_c)   V: d_v·Σ cover(e_i, B_c)   k, v: Σ r
writes  O: R·d_v   L: R
peak    (b + c)(d + d_v) + b·c + 3b + 2r; without a tile b(d + d_v + 2)
"""

from flashsim.serving.batch import Batch
from flashsim.serving.theory.form import BatchForm, Moved, moves
from flashsim.serving.theory.quantised import tiles


def traffic(p: Batch, group: int) -> dict[str, Moved]:
    every = [one for _, group_tiles in tiles(p, group) for one in group_tiles]
    keys = sum(c for c, _ in every)
    scales = sum(r for _, r in every)
    return moves(p, K=keys * p.d, V=keys * p.d_v, k_scale=scales, v_scale=scales)


def peak(p: Batch, group: int) -> int:
    """A tile of each row block: one with more scales may be larger than the first."""
    w = p.d + p.d_v
    tops = [0]
    for b, group_tiles in tiles(p, group):
        tops += [b * (w + 2), *((b + c) * w + b * c + 3 * b + 2 * r for c, r in group_tiles)]
    return max(tops)


FORM = BatchForm(name="fp8", traffic=traffic, peak=peak)

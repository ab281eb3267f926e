"""Quantised keys and values. A tile of keys a … a' − 1 needs r = ⌊(a' − 1)/G⌋ − ⌊a/G⌋ + 1 rows of
k's scales and zeros.

reads   Q: R·d   K: ⌈d·bits/8⌉·Σ cover(e_i, B_c)   V: ⌈d_v·bits/8⌉·Σ cover(e_i, B_c)
        k_σ, k_ζ: d·Σ r   v_σ, v_ζ: ⌈d_v/G⌉·Σ cover(e_i, B_c)
writes  O: R·d_v   L: R
peak    b(d + d_v + 3) + b·c + c(d + d_v + ⌈d·bits/8⌉ + ⌈d_v·bits/8⌉ + 2⌈d_v/G⌉) + 2r·d;
        without a tile b(d + d_v + 2)
"""

from collections.abc import Iterator

from flashsim.serving.batch import Batch
from flashsim.serving.theory.form import BatchForm, Moved, moves, sequences


def tiles(p: Batch, group: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield b, the rows of each row block, and of each of its tiles c, its keys, and r."""
    for blocks in sequences(p):
        for b, e in zip(blocks.b.tolist(), blocks.e.tolist(), strict=True):
            ends = [(a, min(a + p.B_c, blocks.n)) for a in range(0, e, p.B_c)]
            yield b, [(end - a, (end - 1) // group - a // group + 1) for a, end in ends]


def widths(p: Batch, bits: int, group: int) -> dict[str, int]:
    """Return the columns of what has a row for each key."""
    v = -(-p.d_v // group)
    return {"K": -(-p.d * bits // 8), "V": -(-p.d_v * bits // 8), "v_scale": v, "v_zero": v}


def traffic(p: Batch, bits: int, group: int) -> dict[str, Moved]:
    every = [one for _, group_tiles in tiles(p, group) for one in group_tiles]
    keys = sum(c for c, _ in every)
    rows = sum(r for _, r in every)
    reads = {name: keys * width for name, width in widths(p, bits, group).items()}
    return moves(p, **reads, k_scale=rows * p.d, k_zero=rows * p.d)


def peak(p: Batch, bits: int, group: int) -> int:
    """A tile of each row block: one with more rows of scales may be larger than the first."""
    w = p.d + p.d_v
    row = p.d + p.d_v + sum(widths(p, bits, group).values())
    tops = [0]
    for b, group_tiles in tiles(p, group):
        tops += [
            b * (w + 2),
            *(b * (w + 3) + b * c + c * row + 2 * r * p.d for c, r in group_tiles),
        ]
    return max(tops)


FORM = BatchForm(name="quantised", traffic=traffic, peak=peak)

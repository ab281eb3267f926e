"""Shared prefixes. A node's T row blocks each read all of its n keys; suffixes are q_outer's. Of D
levels, R rows:

    reads   Q: D·R·d   K_p: d·Σ T·n   V_p: d_v·Σ T·n
            K: d·Σ cover(e_i, B_c)   V: d_v·Σ cover(e_i, B_c)   O, L: D − 1 times
    writes  O, L: D times   O^new, L^new: D − 1 times each way
    peak    q_outer's; or merging, B_r(2d_v + 4): O, O^new, L, L^new, m, z

D counts the level of suffixes.
"""

from flashsim.serving.batch import Batch
from flashsim.serving.checks import Levels
from flashsim.serving.theory.form import BatchForm, Moved, row_blocks, sequences, tile_peak, whole


def traffic(p: Batch, levels: Levels) -> dict[str, Moved]:
    R = p.group * sum(p.queries)
    D = 1 + len(levels)
    shared = sum(
        -(-p.group * sum(p.queries[a:b]) // p.B_r) * n for level in levels for a, b, n in level
    )
    own = sum(whole(blocks.cover(p.B_c)) for blocks in sequences(p))
    reads = {
        "Q": D * R * p.d,
        "K_p": shared * p.d,
        "V_p": shared * p.d_v,
        "K": own * p.d,
        "V": own * p.d_v,
    }
    arrays = {name: Moved(n) for name, n in reads.items()}
    for name, w, chip in (("O", p.d_v, False), ("L", 1, True)):
        arrays[name] = Moved((D - 1) * R * w, D * R * w, R * w, chip, "extra" if chip else "output")
        if levels:
            arrays[f"{name}_new"] = Moved((D - 1) * R * w, (D - 1) * R * w, R * w, True)
    return arrays


def peak(p: Batch, levels: Levels) -> int:
    """Passes over nodes and suffixes, or merging."""
    nodes = [
        row_blocks(p.group * sum(p.queries[a:b]), n, 1, p.B_r, False)
        for level in levels
        for a, b, n in level
    ]
    tiles = [tile_peak(p, blocks.b, blocks.first(p.B_c)) for blocks in (*nodes, *sequences(p))]
    merging = min(p.B_r, p.group * sum(p.queries)) * (2 * p.d_v + 4) if levels else 0
    return max(0, merging, *tiles)


FORM = BatchForm(name="cascade", traffic=traffic, peak=peak)

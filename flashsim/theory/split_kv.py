"""FlashDecoding, with t splits.

Empty tiles are never loaded. C = Σ of the columns of the live tiles (T_r·N_k if all are).

    reads   Q: t·N_q·d   K: C·d   V: C·d_v
    writes  parts: t·N_q(d_v + 2)   O: N_q·d_v
    peak    as with the loops exchanged; or merging, B_r(2d_v + 5): two parts and a new m

Merged in sequence, parts are read once. As a tree: t − 1 merges read two parts and write one; at
last one is read without its m.
"""

from dataclasses import replace

from flashsim.attention.arguments import check_merge, check_splits
from flashsim.attention.options import Option
from flashsim.attention.shapes import Blocks
from flashsim.theory import q_outer
from flashsim.theory.problem import Arrays, OneHead, Tiles


def traffic(p: OneHead, blocks: Blocks, tiles: Tiles) -> Arrays:
    n = p.N_q
    t = p.options["splits"] or blocks.T_c
    merges = 0 if p.options["merge"] == "sequence" else t - 1
    arrays = {
        **p.array("Q", "input", reads=t * n * p.d),
        **p.array("K", "input", reads=tiles.columns * p.d),
        **p.array("V", "input", reads=tiles.columns * p.d_v),
        **p.masks(tiles),
        **p.generator("forward"),
        **p.array("O", "output", writes=n * p.d_v),
    }
    for name, width in (("O_parts", p.d_v), ("l_parts", 1), ("m_parts", 1)):
        last = t if p.options["merge"] == "sequence" else int(name != "m_parts")
        reads = (2 * merges + last) * n * width
        writes = (t + merges) * n * width
        arrays |= p.array(name, "extra", reads=reads, writes=writes, kept=(t * n * width, "chip"))
    return arrays


def peak(p: OneHead, blocks: Blocks, tiles: Tiles) -> int:
    """FlashDecoding: a split, or merging; as a tree, one part is only read and divided, which
    takes no more than its split.
    """
    alone = p.options["merge"] == "tree" and (p.options["splits"] or blocks.T_c) == 1
    # where merging begins with a sink: less than a row block without
    begun = blocks.B_r * (p.d_v + 1) + p.sink
    return max(
        q_outer.without_sink(p, blocks, tiles), begun, 0 if alone else blocks.B_r * (2 * p.d_v + 5)
    )


FORM = replace(
    q_outer.FORM,
    name="split_kv",
    traffic=traffic,
    peak=peak,
    theta=None,
    options=(Option("splits", None, check_splits), Option("merge", "sequence", check_merge)),
    formulas={
        "Q": ("T_c * N_q * d", "0"),
        "K": ("T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
        "O_parts": ("T_c * N_q * d_v", "T_c * N_q * d_v"),
        "l_parts": ("T_c * N_q", "T_c * N_q"),
        "m_parts": ("T_c * N_q", "T_c * N_q"),
    },
)

"""Packed batches. Blocks up to the longest sequence's are launched for each, and read cu_q; those
that are there read cu_k.

    reads   Q: R·d   K: d·Σ cover(e_i, B_c)   V: d_v·Σ cover(e_i, B_c)
            cu_q: 2b·⌈max R_s/B_r⌉ words   cu_k: 2·Σ ⌈R_s/B_r⌉
    writes  O: R·d_v   L: R
    peak    q_outer's, and four words; or the two of a block that is not there

b is how many sequences there are.
"""

from flashsim.serving.batch import Batch
from flashsim.serving.theory.form import BatchForm, Moved, moves, sequences, tile_peak, whole


def traffic(p: Batch) -> dict[str, Moved]:
    T = [len(blocks.b) for blocks in sequences(p)]
    k = sum(whole(blocks.cover(p.B_c)) for blocks in sequences(p))
    return moves(p, K=k * p.d, V=k * p.d_v, cu_q=2 * len(T) * max(T), cu_k=2 * sum(T))


def peak(p: Batch) -> int:
    """The words are held for the whole turn."""
    return max(
        [
            0,
            *(
                tile_peak(p, blocks.b, blocks.first(p.B_c)) + 4
                for blocks in sequences(p)
                if len(blocks.b)
            ),
        ]
    )


FORM = BatchForm(name="varlen", traffic=traffic, peak=peak)

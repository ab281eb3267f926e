"""Summing dK and dV over a group of query heads, which ran separately and each wrote a
part of its own.

    Require: dK_parts, dV_parts in HBM, g of each, on-chip SRAM of size M.
    1  Divide the parts, and dK, dV, into tiles of ⌊M/2⌋ elements.
    2  for each tile of dK and of dV do
    3    Initialize its sum to 0 on SRAM.
    4    for 1 ≤ h ≤ g do
    5      Load the tile of part h from HBM to on-chip SRAM.
    6      Add it to the sum.
    7    end for
    8    Write the sum to HBM.
    9  end for
    10 Return dK, dV.

The listing is ours. FlashAttention-2 does the same for grouped heads: its backward pass
writes one dK and dV for each query head, in the inputs' type, and the copies are summed
afterwards. Adding is by element, so rows do not matter: a part is one long row here,
N_k·d elements. A bias's gradient, of which grouped heads have parts, is summed up in
the same way.
"""

from flashsim.memory.hbm import HBM, Matrix
from flashsim.memory.sram import SRAM


def sum_over_group(hbm: HBM, sram: SRAM, *all_parts: Matrix) -> tuple[Matrix, ...]:
    """Sum parts (g, N_k·d) and (g, N_k·d_v), a row for each query head, and return dK
    (1, N_k·d) and dV (1, N_k·d_v), in HBM.
    """
    on_chip = sram.on_chip
    sums = tuple(
        hbm.empty(
            parts.name.removesuffix("_parts"),
            (1, parts.shape[1]),
            parts.dtype,
            "output",
        )
        for parts in all_parts
    )
    for parts, total in zip(all_parts, sums, strict=True):
        tile = min(max(sram.capacity // 2, 1), total.shape[1])  # line 1
        part_tiles = parts.divide(1, tile)  # line 1
        total_tiles = total.divide(1, tile)  # line 1
        g, tiles = part_tiles.blocks
        for i in sram.loop(tiles):  # line 2
            sum_i = sram.full(total_tiles[0, i].shape, 0.0)  # line 3
            for h in sram.loop(g):  # line 4
                part_hi = sram.load(part_tiles[h, i])  # line 5
                sum_i = on_chip(sum_i + part_hi, over=sum_i)  # line 6
            # line 7: end for
            sram.store(total_tiles[0, i], sum_i)  # line 8
        # line 9: end for
    return sums  # line 10

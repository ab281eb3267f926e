"""A group is g query heads that share a KV head: what it costs as one problem, and what the sums of
dK and dV over it cost.

"grouped" is the form of an algorithm at g·N_q queries, once for each KV head: a mask's positions
are ⌊row/g⌋, and its arrays with a row for each query have one for each row. "separate" is the form
at N_q for each query head, K and V being the same for g of them; backward, dK and dV are parts, and
a pass over each group sums them:

    sum     reads   g(N_k·d + N_k·d_v), the parts      writes  N_k(d + d_v)
            peak    2·min(⌊M/2⌋, N_k·max(d, d_v)): a tile of a part, and its sum

The gradient of a bias with a row for each query is, "grouped", of g·N_q rows, its parts; a pass
over them sums those of a query.
"""

from dataclasses import replace

from flashsim.memory.traffic import ArrayTraffic
from flashsim.theory.problem import Arrays, OneHead


def shared(arrays: Arrays, group: int, kv_heads: int) -> Arrays:
    """Return one query head's arrays for all heads: K and V have the size of the KV heads only."""
    heads = {name: array.times(group * kv_heads) for name, array in arrays.items()}
    return heads | {
        name: replace(heads[name], size=arrays[name].size * kv_heads) for name in ("K", "V")
    }


def summed(arrays: Arrays, p: OneHead, group: int, kv_heads: int) -> Arrays:
    """Return all heads' arrays of a backward pass, with dK and dV as parts and as the sums of
    those.
    """
    entries: Arrays = {}
    for name, array in arrays.items():
        if name not in ("dK", "dV"):
            entries[name] = array
            continue
        elements = kv_heads * p.size(name)
        entries[f"{name}_parts"] = replace(array, reads=group * elements, role="extra")
        entries[name] = replace(array, reads=0, writes=elements, init_writes=0, size=elements)
    return entries


def sum_peak(p: OneHead) -> int:
    """Return what the pass that sums holds."""
    return 2 * min(max(p.M // 2, 1), p.N_k * max(p.d, p.d_v))


def sink_learnt(p: OneHead, columns: tuple[str, ...], heads: int) -> tuple[Arrays, int]:
    """Return what the pass that makes a sink's gradient moves, over all query heads, of N_q rows
    each; and what it holds.

    reads   O, dO: N_q·d_v each   columns: N_q each   sink: 1      writes  dsink: 1
    peak    2 + b(2d_v + how many columns), b = ⌊(M − 2) / (2d_v + how many columns)⌋ rows, at most
            N_q
    """
    one = replace(p, group=1)
    width = 2 * p.d_v + len(columns)
    entries = one.array("sink", "input", reads=1, kept=(1, "chip")) | one.array(
        "dsink", "output", writes=1, kept=(1, "chip")
    )
    for name in ("O", "dO", *columns):
        entries |= one.array(name, "input", reads=one.size(name))
    return {name: a.times(heads) for name, a in entries.items()}, 2 + width * min(
        max((p.M - 2) // width, 1), p.N_q
    )


def bias_summed(dB: ArrayTraffic, group: int, M: int) -> tuple[Arrays, int]:
    """Return a grouped bias's gradient as parts, and as the sum of those; and what the pass that
    sums holds.
    """
    elements = dB.size // group
    entries = {
        "dB_parts": replace(dB, reads=dB.reads + dB.size, role="extra"),
        "dB": replace(dB, reads=0, writes=elements, init_writes=0, size=elements),
    }
    return entries, 2 * min(max(M // 2, 1), elements)

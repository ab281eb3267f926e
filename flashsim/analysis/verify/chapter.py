"""The chapter's systems, by count: loops exchanged, decoding, grouped heads, trees, a third level,
and the best.

The chapter is "FlashAttention: Theory and Practice", of a book on inference.
"""

import itertools
from typing import Any

import numpy as np

from flashsim import theory
from flashsim.analysis.tune import tune
from flashsim.analysis.verify.shared import Claim, accesses, in_range, within
from flashsim.attention.masks.paddings import KeyPadding
from flashsim.attention.masks.tree import Tree
from flashsim.hardware.cache import L2
from flashsim.hardware.machines import kv_tile
from flashsim.memory.traffic import Traffic
from flashsim.reference import attention, error_bound, of_bound, rounding
from flashsim.simulate.api import count, forward


def loops_exchanged(full: bool) -> Claim:
    """FlashAttention: Theory and Practice. Loops exchanged: O moves exactly N·d elements, and in
    two passes dQ does too. Forward, 8/5 ≤ accesses / (N²d²/M) ≤ 12 + 1/d; backward, 16/5 … 27 +
    11/d; never more than FlashAttention's loops with line 1's blocks.
    """
    ratios = []
    fewer = True
    once = True
    for N, d, M in in_range(full):
        for direction in ("forward", "backward"):
            count_of_accesses = accesses("q_outer", N, d, M, direction)
            ratios.append(
                (
                    count_of_accesses / theory.theorem_2_flash(N, d, M),
                    *theory.q_outer_constants(d, direction),
                )
            )
            fewer &= count_of_accesses <= accesses("flash", N, d, M, direction)
        shape: dict[str, Any] = {"N": N, "d": d, "M": M, "sizing": "paper"}
        once &= count("q_outer", **shape).hbm.by_array["O"].accesses == N * d
        once &= (
            count("q_outer_two_pass", **shape, direction="backward").hbm.by_array["dQ"].accesses
            == N * d
        )
    return within(ratios, "counts over d ≤ M ≤ Nd, forward and backward").also(
        f"O and dQ moved {'once' if once else 'MORE THAN ONCE'}; "
        + ("at most FlashAttention's" if fewer else "MORE THAN FLASHATTENTION'S"),
        fewer and once,
    )


def flash_decoding(full: bool) -> Claim:
    """FlashAttention: Theory and Practice. FlashDecoding: any splits, also empty ones, merged in
    sequence or as a tree, give attention. One query with n keys in t splits reads t·d + 2nd + t(d +
    2) elements and writes t(d + 2) + d.
    """
    rng = np.random.default_rng(12)
    worst = 0.0
    runs = 0
    exact = True
    for n, B_c, lengths in ((64, 16, (64, 1, 0)), (301, 16, (301, 17)), (37, 40, (37,))):
        Q = rng.normal(size=(1, 8))
        K = 3 * rng.normal(size=(n, 8))
        V = rng.normal(size=(n, 8))
        for length, splits, merge in itertools.product(
            lengths, (None, 1, 2, 5, 40), ("sequence", "tree")
        ):
            arguments: dict[str, Any] = {
                "splits": splits,
                "merge": merge,
                "M": 2000,
                "blocks": (1, B_c),
            }
            run = forward("split_kv", Q, K, V, mask=KeyPadding(length), **arguments)
            whole = np.arange(n)[None] < length
            bound = error_bound(Q, K, V, mask=whole, **rounding("split_kv", run.blocks))
            worst = max(worst, of_bound(run.O, attention(Q, K, V, mask=whole), bound))
            runs += 1
        t = -(-n // B_c)
        plain = count("split_kv", N_q=1, N_k=n, d=8, M=2000, blocks=(1, B_c)).hbm
        exact &= (plain.reads, plain.writes) == (t * 8 + 2 * n * 8 + t * 10, t * 10 + 8)
    cases = f"{runs} runs: 3 caches, lengths 0 to 301, 1 to 40 splits, both merges"
    measured = (
        f"largest error {worst:.2f} of the rounding bound; counts {'equal' if exact else 'DIFFER'}"
    )
    return Claim(
        cases, measured, worst <= 1 and exact, {"runs": runs, "worst_error_over_bound": worst}
    )


def grouped_heads(full: bool) -> Claim:
    """FlashAttention: Theory and Practice. Grouped heads: if a group of g heads loads each K and V
    tile once, it reads K and V g times less often with K, V outermost, and in decoding. With Q
    outermost and N_q ≥ B_r it saves nothing, because the number of rows on chip decides. Q is read
    as often.
    """
    cases = 0
    all_hold = True
    for g, name in itertools.product((2, 4, 8), ("flash_basic", "flash", "q_outer", "split_kv")):
        for N_q, N_k, B_r in ((1, 512, 1), (64, 512, 16)):
            shape: dict[str, Any] = {
                "N_q": N_q,
                "N_k": N_k,
                "d": 16,
                "M": 10**6,
                "heads": 2 * g,
                "kv_heads": 2,
            }
            rows = (g * B_r if N_q == 1 else B_r, 32)
            separate, grouped = (
                count(name, **shape, gqa=gqa, blocks=rows).hbm.by_array
                for gqa in ("separate", "grouped")
            )
            shares = name.startswith("flash") or N_q == 1
            for array in ("K", "V"):
                all_hold &= separate[array].reads == grouped[array].reads * (g if shares else 1)
                cases += 1
            all_hold &= separate["Q"].reads == grouped["Q"].reads
    text = (
        f"{cases} counts: g 2, 4, 8; FlashAttention, loops exchanged, FlashDecoding; N_q = 1 and 64"
    )
    return Claim(
        text, "every count as said" if all_hold else "A COUNT DIFFERS", all_hold, {"cases": cases}
    )


def tree_masks(full: bool) -> Claim:
    """FlashAttention: Theory and Practice. Tree masks: each root-to-leaf path gets the same result
    as alone. The mask of 256 nodes takes 8 KB, and is read as 1/32 as many elements as booleans.
    """
    rng = np.random.default_rng(13)
    worst = 0.0
    paths = 0
    for n, prefix in ((9, 0), (9, 37), (40, 100)):
        parents = (
            [-1, 0, 1, 1, 2, 2, 3, 3, 4]
            if n == 9
            else [-1, *(int(rng.integers(0, node)) for node in range(1, n))]
        )
        tree = Tree(parents)
        Q, K, V = (rng.normal(size=(rows, 8)) for rows in (n, prefix + n, prefix + n))
        run = forward("flash", Q, K, V, mask=tree, M=2000, blocks=(4, 7))
        for path in tree.paths():
            keys = [*range(prefix), *(prefix + node for node in path)]
            alone = forward("flash", Q[path], K[keys], V[keys], causal=True, M=2000, blocks=(4, 7))
            allowed = np.tri(len(path), len(keys), prefix, dtype=bool)
            bound = 2 * error_bound(
                Q[path], K[keys], V[keys], mask=allowed, steps=-(-(prefix + n) // 7)
            )
            worst = max(worst, of_bound(run.O[path], alone.O, bound))
            paths += 1
    shape: dict[str, Any] = {"N": 256, "d": 64, "M": 25_600, "blocks": (64, 64)}
    bits = count("flash", **shape, mask=Tree([-1, *range(255)])).hbm.by_array["tree"]
    booleans = count("flash", **shape, mask=np.tri(256, dtype=bool)).hbm.by_array["mask"]
    is_32_times_smaller = (
        bits.size * bits.itemsize == 256 * 256 // 8 and booleans.reads == 32 * bits.reads
    )
    cases = (
        f"{paths} paths of 3 trees, the chapter's of 9 nodes among them, with 0 to 100 committed "
        "keys before"
    )
    measured = (
        f"largest difference {worst:.3f} of the rounding bound; the bitmask "
        f"{'as said' if is_32_times_smaller else 'DIFFERS'}"
    )
    return Claim(
        cases,
        measured,
        worst <= 1 and is_32_times_smaller,
        {"paths": paths, "worst_error_over_bound": worst},
    )


def what_is_optimal(full: bool) -> Claim:
    """What is optimal. Among all blocks that really fit, for d² ≤ M, K, V outermost moves 1 to 3
    times as much as Q outermost. The best of all load K and V by elements: with Q outermost for 2d²
    ≤ M, the hybrid at d²/2, and tiles for M ≤ d²/4.
    """
    ratios = []
    best: set[str] = set()
    for d, k in itertools.product((16, 64), (1, 2, 4, 8, *((16, 32) if full else ()))):
        tuned = tune(N=512, d=d, M=k * d * d)
        ratios.append(
            (tuned.by_loops["flash"].accesses / tuned.by_loops["q_outer"].accesses, 1.0, 3.0)
        )
        best |= {tuned.best.algorithm} if k > 1 else set()
    about, small = (
        {tune(N=512, d=64, M=M).best.algorithm for M in rooms}
        for rooms in ((2048,), (64, 256, 1024))
    )
    cases = (
        "M from d² up at N = 512, d = 16 and 64; M = 64, 256, 1,024, 2,048 at d = 64; every T_r "
        "and T_c"
    )
    return within(ratios, cases).also(
        (
            f"best from 2d² up: {', '.join(sorted(best))}; about d²: {', '.join(sorted(about))}; "
            f"below: {', '.join(sorted(small))}"
        ),
        best == {"streamed"} and about == {"hybrid_streamed"} and small == {"tiles_streamed"},
        best=sorted(best),
        best_about=sorted(about),
        best_below=sorted(small),
    )


def third_level(full: bool) -> Claim:
    """FlashAttention: Theory and Practice. A third level: with an L2 of 4Nd elements, DRAM moves
    each array of FlashAttention once, but N × N matrices of standard attention. A 32 × 32 tile does
    32 FLOP/byte (the chapter divides rounded numbers: 32.75), decoding 1.
    """
    N = 256
    d = 32
    M = 2048
    rng = np.random.default_rng(14)
    Q, K, V = (rng.normal(size=(N, d)).astype(np.float32) for _ in range(3))
    dram: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for name in ("standard", "flash_basic", "q_outer"):
        l2 = L2(4 * N * d)
        hbm: Traffic = forward(name, Q, K, V, M=M, observers=[l2]).hbm
        l2.flush()
        dram[name] = l2.dram_accesses
        sizes[name] = sum(a.size for a in hbm.by_array.values())
    fits = all(dram[name] == sizes[name] for name in ("flash_basic", "q_outer"))
    squares = dram["standard"] >= 2 * N * N
    tiles = kv_tile(B_q=32, B_k=32, d=128), kv_tile(B_q=1, B_k=32, d=128)
    printed = [float(tile.as_printed) for tile in tiles]
    return Claim(
        (
            f"N = {N}, d = {d}, M = {M:,}, an L2 of {4 * N * d:,} elements; the chapter's tiles at "
            "d = 128, 2 bytes"
        ),
        f"DRAM: FlashAttention {dram['flash_basic']:,}, loops exchanged {dram['q_outer']:,}, "
        f"standard {dram['standard']:,}; "
        f"intensities {tiles[0].intensity} and {tiles[1].intensity}, as printed {printed[0]:.2f} "
        f"and {printed[1]:.0f}",
        fits
        and squares
        and [tile.intensity for tile in tiles] == [32, 1]
        and printed == [32.75, 1.0],
        {"dram": dram, "sizes": sizes, "printed": printed},
    )

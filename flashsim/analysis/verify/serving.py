"""What serving moves: pages, shared prefixes, packed batches, schedules, latents, sinks.
Authors' claims, by counts.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, sqrt
from typing import Any

import numpy as np

from flashsim import serving
from flashsim.analysis.verify.shared import Claim, none_differs
from flashsim.attention.masks.bias import Bias
from flashsim.attention.masks.paddings import KeyPadding
from flashsim.attention.masks.relative import RelativeBias
from flashsim.attention.masks.scores import ALiBi, SoftCap
from flashsim.attention.masks.sink import Sink
from flashsim.attention.masks.streaming import Streaming
from flashsim.hardware.cache import L2
from flashsim.hardware.machines import MACHINES
from flashsim.reference import attention
from flashsim.serving.programs import programs
from flashsim.serving.schedules import schedule_of
from flashsim.serving.theory import mla
from flashsim.simulate.api import count, forward
from flashsim.simulate.results import Result
from flashsim.support.sizes import largest_that_fits


def counts(full: bool) -> Claim:
    """Ragged batches. Every serving program moves exactly what its closed form says, array by
    array, and its peak on chip is the one predicted.
    """
    rng = np.random.default_rng(21)
    unequal = []
    runs = 400 if full else 60
    options_by_name: dict[str, dict[str, Any]] = {
        "paged": {"page": 5},
        "paged_split": {"page": 4, "tail": "page", "splits": 3},
        "cascade": {"prefix": 37},
        "varlen": {},
        "decode": {"workers": 7},
        "mla": {},
        "mla_expanded": {"latent": 3, "rope": 1},
        "quantised": {"bits": 4, "group": 3},
        "mla_paged": {"page": 4, "splits": 2},
        "fp8": {"group": 5},
    }
    every_program = [*programs().values(), *programs("backward").values()]
    for number in range(runs):
        program = every_program[number % len(every_program)]
        b, g, H, d, d_v = rng.integers(1, 9, 5).tolist()
        lengths = {
            "queries": rng.integers(0, 12, b).tolist(),
            "keys": rng.integers(0, 60, b).tolist(),
        }
        result = serving.count(
            program.name,
            direction=program.direction,
            **lengths,
            heads=g * H,
            kv_heads=H,
            d=d + d_v,
            d_v=d_v,
            M=10**6,
            blocks=tuple(rng.integers(1, 20, 2)),
            causal=bool(b % 2),
            **options_by_name[program.name],
        )
        exact = serving.exact(result)
        if (exact.hbm, exact.sram) != (result.hbm, result.sram):
            unequal.append(f"{program.name} at {lengths}")
    return none_differs(
        f"{runs} batches of up to 8 sequences, {len(every_program)} programs, lengths from 0",
        unequal,
        {"runs": runs},
    )


def block_table(full: bool) -> Claim:
    """PagedAttention (Kwon et al., 2023), section 7.1. The paper's kernel is 20 to 26% slower
    because it reads a block table. Traffic is not the reason: with pages of 16 tokens, the table
    has less than a thousandth of the bytes of K and V.
    """
    shares = {}
    for page in (1, 16):
        by_array = serving.count(
            "paged", queries=1, keys=[2048], d=128, dtype="float16", page=page, M=10**6
        ).hbm.by_array
        shares[page] = by_array["table"].bytes / (by_array["K"].bytes + by_array["V"].bytes)
    text = ", ".join(f"{share:.2%} with p = {page}" for page, share in shares.items())
    return Claim(
        "one query, n = 2,048, d = 128, float16",
        f"table {text}",
        shares[16] < 1e-3,
        {"shares": shares},
    )


def page_waste(full: bool) -> Claim:
    """PagedAttention (Kwon et al., 2023), Figure 2. Systems that reserve memory for whole sequences
    used 20.4 to 38.2% of the memory that they kept for K and V, and wasted the rest. Pages of p
    rows waste (p − 1)/2 rows of each sequence on average. If a token has w bytes of K and V, pages
    and table together take the fewest bytes at p = √(8n/w).
    """
    lengths = range(373, 629)
    waste = {}
    for page in (16, 256):
        # a share of what is kept, as in the paper
        waste[page] = 1 - sum(lengths) / pool_bytes(page, lengths, 1)
    longer = range(1, 4096, 1 if full else 37)
    w = 2 * 8 * 128 * 2
    sizes = {p: pool_bytes(p, longer, w, 4) for p in range(1, 33)}
    best = min(sizes, key=sizes.__getitem__)
    root = sqrt(8 * sum(longer) / len(longer) / w)
    text = ", ".join(f"{share:.1%} with p = {page}" for page, share in waste.items())
    cases = "n = 373 … 628; 8 KV heads of d = 128 in float16, n = 1 … 4,095"
    measured = f"wasted of what is kept: {text}; fewest bytes at p = {best}, √(8n/w) = {root:.1f}"
    return Claim(
        cases, measured, waste[16] < 0.02 and best == round(root), {"waste": waste, "best": best}
    )


def pool_bytes(page: int, lengths: Sequence[int], row: int, word: int = 0) -> int:
    """Return the bytes of pages that are kept for these sequences, of `row` bytes a token, and
    of their table's words.
    """
    rows = (
        serving.count("paged", queries=0, keys=lengths, d=1, page=page, blocks=(1, 1))
        .hbm.by_array["K"]
        .size
    )
    return rows * row + rows // page * word


def cascade_saving(full: bool) -> Claim:
    """FlashInfer, "Cascade Inference" (Ye et al., 2024): up to 31 times faster. If b
    sequences share a prefix, it is not read b times less often. ⌈b·g·N/B_r⌉ passes over it remain,
    so accesses fall by a factor of at most B_r/(g·N).
    """
    ratios = {}
    b = 128
    for B_r in (16, 64, 128):
        arguments: dict[str, Any] = {
            "queries": 1,
            "d": 128,
            "heads": 32,
            "dtype": "float16",
            "M": 10**6,
            "blocks": (B_r, 64),
        }
        alone = serving.count("cascade", keys=[32_768 + 128] * b, **arguments)
        ratios[B_r] = (
            alone.hbm.accesses
            / serving.count("cascade", keys=[128] * b, prefix=32_768, **arguments).hbm.accesses
        )
    text = ", ".join(f"{times:.1f}× with B_r = {B_r}" for B_r, times in ratios.items())
    holds = all(times <= min(B_r, b) for B_r, times in ratios.items())
    return Claim(
        "b = 128, prefix 32,768, suffixes 128, 32 heads, d = 128",
        f"fewer by {text}",
        holds,
        {"saved": ratios},
    )


def cascade_break_even(full: bool) -> Claim:
    """vLLM's use_cascade_attention. vLLM shares a prefix only from 256 keys and 8 requests on. By
    accesses a tenth of these keys is enough: sharing costs R·d + 4R(d_v + 1) accesses, and a few
    keys save as many.
    """
    smallest = {}
    for g in (1, 4, 8):
        arguments: dict[str, Any] = {
            "queries": 1,
            "d": 128,
            "heads": g,
            "kv_heads": 1,
            "M": 10**6,
            "blocks": (64, 64),
        }

        def gains(n: int, arguments: dict[str, Any] = arguments) -> bool:
            alone = serving.count("cascade", keys=[n + 128] * 8, **arguments)
            return (
                serving.count("cascade", keys=[128] * 8, prefix=n, **arguments).hbm.accesses
                <= alone.hbm.accesses
            )

        smallest[g] = next((n for n in range(1, 256) if gains(n)), 256)
    text = ", ".join(f"{n} keys with g = {g}" for g, n in smallest.items())
    return Claim(
        "b = 8, suffixes 128, d = 128, B_r = 64",
        f"repaid by {text}",
        max(smallest.values()) < 26,
        {"least": smallest},
    )


def hydragen(full: bool) -> Claim:
    """Hydragen (Juravsky et al., 2024). When the prefix grows from 1K to 16K, throughput falls by
    less than 15% if the prefix is shared, and by more than 90% if not. Bytes agree if a row block
    holds the whole batch, but not if it holds 128 rows.
    """
    # CodeLlama-13b in float16; layers × heads
    weights = 26e9
    caches = 40 * 40
    b = 1024

    def step(n: int, shared: bool, B_r: int) -> float:
        """Return the bytes of a step of decoding with a prefix of n keys."""
        keys = 64 if shared else 64 + n
        result = serving.count(
            "cascade",
            queries=1,
            keys=[keys] * b,
            prefix=n if shared else 0,
            d=128,
            dtype="float16",
            M=10**7,
            blocks=(B_r, 64),
        )
        return weights + caches * result.hbm.bytes

    cases = {
        "shared": (True, b),
        "unshared": (False, b),
        "shared, B_r = 128": (True, 128),
    }
    falls = {name: 1 - step(1024, *case) / step(16_384, *case) for name, case in cases.items()}
    text = ", ".join(f"−{fall:.1%} {name}" for name, fall in falls.items())
    holds = falls["shared"] < 0.15 and falls["unshared"] > 0.9
    return Claim(
        "b = 1,024, mean suffix 64 (assumed), 26 GB of weights a step",
        text,
        holds,
        {"falls": falls},
    )


def padding(full: bool) -> Claim:
    """Krell et al., 2021: up to 50% of all tokens can be padding. Here half of the tokens are
    padding, but more than half of the scores are. So padded batches move more than twice what
    packed ones do.
    """
    N = 512
    d = 64
    lengths = [*range(8, 513, 8)]
    arguments: dict[str, Any] = {"d": d, "blocks": (64, 64), "M": 10**6}
    packed = serving.count(
        "varlen", queries=lengths, keys=lengths, causal=False, **arguments
    ).hbm.accesses
    whole = len(lengths) * count("q_outer", N=N, **arguments).hbm.accesses
    live = sum(count("q_outer", N=N, mask=KeyPadding(n), **arguments).hbm.accesses for n in lengths)
    stream = document_stream(lengths, d, 64)
    times = {
        "padded": whole / packed,
        "with live tiles": live / packed,
        "one stream under a document mask": stream / packed,
    }
    share = 1 - sum(lengths) / (N * len(lengths))
    text = ", ".join(f"{name} {ratio:.2f}×" for name, ratio in times.items())
    cases = (
        f"b = {len(lengths)}, lengths 8 … {N}, {share:.0%} padding, d = {d}, tiles of 64, not "
        "causal"
    )
    return Claim(cases, f"accesses over packed: {text}", times["padded"] > 2, {"times": times})


def document_stream(lengths: list[int], d: int, B: int) -> int:
    """Return the accesses of `q_outer` on sequences end to end as one, where tiles are live that
    hold a pair of one sequence.
    """
    ends = np.cumsum([0, *lengths])
    N = int(ends[-1])
    keys = 0
    for row in range(0, N, B):
        first = ends[np.searchsorted(ends, row, "right") - 1]
        last = ends[np.searchsorted(ends, min(row + B, N) - 1, "right")]
        keys += min(ceil(last / B) * B, N) - first // B * B
    return int(2 * N * d + N + 2 * d * keys)


def stream_k(full: bool) -> Claim:
    """LeanAttention (Sanovar et al., 2024): 1.73 times faster than FlashDecoding. Stream-K gives
    the busiest of G workers ⌈T/G⌉ of T tiles. With a large number of fixed splits the busiest
    worker has no more, but there are many times as many parts. With a small number it has little
    more, and there are few parts.
    """
    workers = 108
    result = serving.count(
        "decode", queries=1, keys=[4096] * 32, d=64, workers=workers, M=10**6, blocks=(1, 64)
    )
    best = schedule_of(result.problem, "stream_k", workers, 1)
    fixed = {t: schedule_of(result.problem, "fixed", workers, t) for t in range(1, 65)}
    ratios = {t: schedule.busiest / best.busiest for t, schedule in fixed.items()}
    even = next(t for t in fixed if ratios[t] == 1)
    with_few_parts = [t for t, schedule in fixed.items() if schedule.parts <= best.parts]
    few = min(with_few_parts, key=ratios.__getitem__)
    text = (
        f"Stream-K {best.busiest} tiles, {best.parts} parts; t fixed splits, over these tiles: "
        f"{ratios[1]:.2f}× with t = 1, "
        f"{ratios[few]:.2f}× with t = {few} and {fixed[few].parts} parts, "
        f"{ratios[even]:.2f}× with t = {even} and {fixed[even].parts} parts"
    )
    holds = best.busiest == ceil(32 * 64 / workers) and fixed[even].parts > 8 * best.parts
    return Claim(
        "32 problems of 64 tiles, 108 workers, t = 1 … 64", text, holds, {"ratios": ratios}
    )


def multi_token(full: bool) -> Claim:
    """Packed rows, as in FlashAttention's kernels. If g heads of a group and k + 1 tokens are rows
    of one block, K is read ⌈g(k + 1)/B_r⌉ times, and not g·⌈(k + 1)/B_r⌉ times. So a draft of k
    tokens costs what one token does.
    """
    reads = {}
    for tokens in (1, 4, 8):
        arguments: dict[str, Any] = {
            "N_q": tokens,
            "N_k": 4096,
            "d": 128,
            "heads": 8,
            "kv_heads": 1,
            "M": 10**6,
            "blocks": (64, 64),
        }
        for gqa in ("separate", "grouped"):
            result = count("q_outer", **arguments, gqa=gqa, causal=True)
            reads[f"{gqa}, {tokens}"] = result.hbm.by_array["K"].reads / (4096 * 128)
    separate = ", ".join(f"{times:.2g}×" for name, times in reads.items() if "separate" in name)
    grouped = ", ".join(f"{times:.2g}×" for name, times in reads.items() if "grouped" in name)
    text = f"by separate heads {separate}; by grouped heads {grouped}"
    holds = all(times == (1 if "grouped" in name else 8) for name, times in reads.items())
    return Claim(
        "1, 4 and 8 tokens, g = 8, n = 4,096, B_r = 64",
        f"K is read: {text}",
        holds,
        {"reads": reads},
    )


MLA: dict[str, Any] = {
    "queries": 1,
    "heads": 128,
    "kv_heads": 1,
    "d": 576,
    "d_v": 512,
    "dtype": "float16",
    "M": "227KB",
    "blocks": (64, 64),
}
"""A step of decoding of DeepSeek-V3, absorbed, in an SM of Hopper."""


def mla_intensity(full: bool) -> Claim:
    """FlashMLA, "A Deep-Dive Into the New Flash MLA Kernel" (2025). Decoding does about 2h_q·s_q
    FLOPs a byte, so arithmetic is the limit from h_q·s_q = ½·865/3.35 ≈ 128 rows on. The exact
    number is h_q·s_q(d_k + d_v)/d_k, which at 128 rows is below the ridge. Moreover, 128 rows do
    not fit on chip. With blocks of 64 rows, C passes twice, and the FLOPs a byte are half of that,
    unless an L2 serves the second pass.
    """
    ridge = 865 / 3.35
    exact = 128 * (576 + 512) / 576
    intensities = {}
    whole = {**MLA, "M": 10**6, "blocks": (128, 64)}
    for name, n, arguments in (
        ("one pass", 2**24, whole),
        ("one pass of 4,096", 4096, whole),
        ("two passes", 2**24, MLA),
    ):
        result = serving.count("mla", keys=[n], **arguments)
        intensities[name] = (result.flops.matmul if result.flops else 0) / result.hbm.bytes
    Q = np.zeros((128, 1, 576), "float16")
    C = np.zeros((1, 4096, 576), "float16")
    l2 = L2(MACHINES["H100"].l2 // 2)
    run = serving.mla(
        [Q], [C], latent=512, scale=192**-0.5, M="227KB", blocks=(64, 64), observers=[l2]
    )
    l2.flush()
    intensities["two of 4,096 by an L2"] = 2 * 128 * 4096 * (576 + 512) / l2.dram_bytes(run.hbm)
    by_one = replace(run.problem, B_c=1)
    most_rows = largest_that_fits(
        lambda rows: mla.peak(replace(by_one, B_r=rows)) <= run.problem.M, 128
    )
    once, short, twice, cached = intensities.values()
    text = (
        f"{once:.1f} in one pass, {short:.1f} if n = 4,096; {twice:.1f} in two passes, "
        f"{cached:.1f} if n = 4,096 with an L2"
    )
    holds = (
        abs(intensities["one pass"] - exact) < 0.01
        and exact < ridge
        and abs(intensities["two passes"] - exact / 2) < 0.01
    )
    return Claim(
        (
            "128 heads, one query, d_k = 576, d_v = 512, float16, 227 KB on chip, n = 2²⁴ or "
            "4,096, an H100's L2"
        ),
        (
            f"FLOPs a byte: {text}; the ridge, {ridge:.1f}, needs {128 * ridge / exact:.1f} rows; "
            f"{most_rows} rows fit"
        ),
        holds
        and intensities["two of 4,096 by an L2"] > 0.99 * intensities["one pass of 4,096"]
        and most_rows < 128,
        {"found": intensities},
    )


def mla_cache(full: bool) -> Claim:
    """DeepSeek-V2 (2024), Table 1. For each token a latent is kept, which is as large as K and V of
    2.25 groups. Latents save traffic only if W_UK and W_UV are absorbed. If each step computes K
    and V from the latents, it moves more than if K and V had been kept.
    """
    full_heads = {**MLA, "keys": [4096], "kv_heads": 128, "d": 192, "d_v": 128, "blocks": (1, 64)}
    absorbed = serving.count("mla", keys=[4096], **MLA).hbm
    kept = serving.count("decode", workers=1, **full_heads).hbm
    expanded = serving.count("mla_expanded", latent=512, rope=64, **full_heads).hbm
    row = absorbed.by_array["C"].size / 4096
    ratio_to_kept = (kept.by_array["K"].size + kept.by_array["V"].size) / 4096 / row
    times = {
        "K and V kept": kept.accesses / absorbed.accesses,
        "K and V computed": expanded.accesses / absorbed.accesses,
    }
    text = ", ".join(f"{name} {ratio:.1f}×" for name, ratio in times.items())
    return Claim(
        "128 heads of 128 + 64 columns, values of 128, latents of 512 + 64, n = 4,096, 227 KB of "
        "float16; without the query's own projections",
        f"{row:.0f} numbers a token, as many as {row / 256:.2f} groups of 128, "
        f"{ratio_to_kept:.1f}× fewer than K and V; accesses over absorbed: {text}",
        row == 576 and 1 < times["K and V kept"] < times["K and V computed"],
        {"times": times, "fewer": ratio_to_kept},
    )


def quantised_bits(full: bool) -> Claim:
    """KIVI (Liu et al., 2024): K and V in 2 bits. With a scale and a zero of 16 bits for each 32
    numbers, 2 bits become 3: 5.3 times fewer than float16's, and not 8 times. Tiles that cut groups
    read the scales of keys twice, so they move more.
    """
    bits_by_case = {}
    for bits, group, B_c in ((2, 32, 64), (4, 32, 64), (8, 128, 128), (2, 32, 48)):
        arguments: dict[str, Any] = {
            "queries": 1,
            "keys": [6144],
            "d": 128,
            "dtype": "float16",
            "M": 10**6,
            "blocks": (1, B_c),
        }
        result = serving.count("quantised", **arguments, bits=bits, group=group)
        nbytes = _bytes_of_keys_and_values(result)
        bits_by_case[f"{bits} bits, G = {group}, B_c = {B_c}"] = 8 * nbytes / (2 * 6144 * 128)
    fewest, *_, cut = bits_by_case.values()
    text = "; ".join(f"{name}: {bits:.2f}" for name, bits in bits_by_case.items())
    measured = f"bits per number, scales included: {text}; {16 / fewest:.1f}× fewer than 16"
    return Claim(
        "one query, n = 6,144, d = 128",
        measured,
        fewest == 3 and cut > fewest,
        {"found": bits_by_case},
    )


def float_bits(full: bool) -> Claim:
    """FlashAttention-3 (Shah et al., 2024): K and V in e4m3. A scale for each sequence and head, or
    for each 64 keys, adds nearly nothing to the 8 bits of a number. Integers of 8 bits with a scale
    and a zero take more bits, but their error is several times smaller on normally distributed
    numbers.
    """
    rng = np.random.default_rng(21)
    results = dict[str, tuple[float, float]]()
    Q, K, V = ([rng.normal(size=(1, n, 128)).astype("float32")] for n in (16, 1024, 1024))
    arguments: dict[str, Any] = {"M": 10**6, "blocks": (16, 64)}
    exact = serving.decode(Q, K, V, workers=1, **arguments).O[0]
    runs: dict[str, Result] = {}
    for name in ("e4m3", "e5m2"):
        for scales, group in (("one scale", None), ("of 64 keys", 64)):
            run = serving.fp8(Q, K, V, dtype=name, group=group, **arguments)
            runs[f"{name}, {scales}"] = run
    runs["integers, G = 128"] = serving.quantised(Q, K, V, bits=8, group=128, **arguments)
    bits = {}
    errors = {}
    for name, run in runs.items():
        bits[name] = 8 * _bytes_of_keys_and_values(run) / (2 * 1024 * 128)
        errors[name] = float(np.abs(run.O[0] - exact).max() / np.abs(exact).max())
        results[name] = (bits[name], errors[name])
    text = "; ".join(
        f"{name}: {each:.2f} bits, off by {errors[name]:.2%}" for name, each in bits.items()
    )
    most_bits = max(bits[name] for name in bits if name != "integers, G = 128")
    integers = errors["integers, G = 128"]
    holds = most_bits < 8.02
    holds = holds and integers < errors["e4m3, one scale"] < errors["e5m2, one scale"]
    return Claim(
        "16 queries, n = 1,024, d = 128, normally distributed, float32",
        text,
        holds,
        {"found": results},
    )


def _bytes_of_keys_and_values(result: Result) -> int:
    """Return the bytes that move for K and V, scales included."""
    by_array = result.hbm.by_array
    return sum(by_array[name].bytes for name in by_array if name not in ("Q", "O", "L"))


def mla_pages(full: bool) -> Claim:
    """FlashMLA (2025): latents in pages of 64, divided among splits. The table is less than a
    ten-thousandth of C. Each split reads Q again, and writes a part of 512 columns in float32. If
    splits are short, Q and parts take more bytes than C.
    """
    paged: dict[str, Any] = {**MLA, "keys": [4096], "page": 64}
    plain = serving.count("mla_paged", **paged).hbm
    ratios = {}
    for splits in (2, 8, 64):
        ratios[splits] = serving.count("mla_paged", **paged, splits=splits).hbm.bytes / plain.bytes
    C = plain.by_array["C"].bytes
    table = plain.by_array["table"].bytes
    holds = (
        serving.count("mla", keys=[4096], **MLA).hbm.by_array["C"].bytes == C and table < 1e-4 * C
    )
    text = ", ".join(f"{t} splits {ratio:.2f}×" for t, ratio in ratios.items())
    case = "one query of 128 heads, n = 4,096, pages of 64, B_r = 64, float16"
    return Claim(
        case, f"table {table / C:.4%} of C; bytes over unsplit: {text}", holds, {"found": ratios}
    )


def sinks(full: bool) -> Claim:
    """gpt-oss (OpenAI, 2025): a learnable sink for each head, in the denominator alone. The sink
    acts like a key of score s and value 0. It costs one word for each row block, however many
    splits there are; a kernel that added it once for each split was wrong (rocm-libraries 12227).
    The gradient of the sink takes one more pass.
    """
    rng = np.random.default_rng(22)
    off = 0.0
    words = {}
    Q, K, V = rng.normal(size=(3, 40, 8))
    for s in (-800.0, 0.0, 3.0, 800.0):
        O = attention(Q, K, V, sink=s)
        for splits in (1, 3, 7):
            run = forward("split_kv", Q, K, V, mask=Sink(s), splits=splits, M=400, blocks=(8, 4))
            off = max(off, float(np.abs(run.O - O).max()))
            words[splits] = run.hbm.by_array["sink"].reads
    sizes: dict[str, Any] = {"N": 4096, "d": 64, "M": 25_600, "sizing": "paper"}
    increases = {}
    for direction in ("forward", "backward"):
        plain = count("q_outer", **sizes, direction=direction).hbm.accesses
        with_sink = count("q_outer", **sizes, direction=direction, mask=Sink(0)).hbm.accesses
        increases[direction] = with_sink / plain - 1
    text = (
        f"{words[1]} words with 1, 3 and 7 splits; accesses +{increases['forward']:.4%} forward, "
        f"+{increases['backward']:.1%} backward"
    )
    holds = off < 1e-12 and {*words.values()} == {5} and increases["forward"] < 1e-4
    return Claim(
        "s = −800 … 800, N = 40 in row blocks of 8; q_outer at N = 4,096, d = 64",
        text,
        holds,
        {"more": increases},
    )


def streaming(full: bool) -> Claim:
    """StreamingLLM (Xiao et al., 2023): up to 22.2 times faster than computing the window anew. A
    step moves the same at any length: the sinks, the window, and the rest of their tiles. With M =
    100 KB, computing the window anew moves less than 22.2 times as much, but does far more
    arithmetic. So arithmetic can explain the 22.2 times, and traffic cannot.
    """
    reads = {}
    for n in (4096, 65_536):
        result = count(
            "q_outer", N_q=1, N_k=n, d=128, M=10**6, blocks=(1, 4), mask=Streaming(4, 1020)
        )
        reads[n] = result.hbm.by_array["K"].reads // 128
    arguments: dict[str, Any] = {
        "N_k": 1024,
        "d": 128,
        "M": 25_600,
        "sizing": "fit",
        "causal": True,
    }
    step = count("q_outer", N_q=1, **arguments)
    whole = count("q_outer", N_q=1024, **arguments)
    accesses = whole.hbm.accesses / step.hbm.accesses
    flops = whole.flops.matmul / step.flops.matmul
    text = ", ".join(f"{keys:,} at n = {n:,}" for n, keys in reads.items())
    cases = "one query, 4 sinks, a window of 1,020, tiles of 4 keys, d = 128; anew with M = 25,600"
    measured = f"keys read {text}; anew {accesses:.1f}× the accesses, {flops:.0f}× the FLOPs"
    holds = len({*reads.values()}) == 1 and reads[4096] <= 1024 + 2 * 4 and accesses < 22.2 < flops
    return Claim(cases, measured, holds, {"reads": reads, "moved": accesses, "done": flops})


def score_modifications(full: bool) -> Claim:
    """FlexAttention (Dong et al., 2024): score modifications in place of arrays. A cap and ALiBi
    move nothing. Every tile loads the table of relative biases, which is little if the table is
    smaller than a tile. An array of biases has a number for every score.
    """
    sizes: dict[str, Any] = {"N": 4096, "d": 64, "M": 25_600, "sizing": "paper"}
    plain = count("q_outer", **sizes).hbm.accesses
    rules = {
        "cap and ALiBi": SoftCap(50) & ALiBi(0.5),
        "table of 32": RelativeBias(np.zeros(32, "float32")),
        "array": Bias(np.zeros((4096, 4096), "float32")),
    }
    increases = {
        name: count("q_outer", **sizes, mask=rule).hbm.accesses / plain - 1
        for name, rule in rules.items()
    }
    text = ", ".join(f"{name} +{increase:.2%}" for name, increase in increases.items())
    holds = increases["cap and ALiBi"] == 0 < increases["table of 32"] < 0.01 < increases["array"]
    return Claim(
        "q_outer, N = 4,096, d = 64, M = 25,600", f"accesses {text}", holds, {"more": increases}
    )

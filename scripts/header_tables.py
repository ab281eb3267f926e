"""Write tables of measured rates in docs/gpu-tried.md and docs/gpu.md: between "measured: NAME" and
"end of measured".

python scripts/header_tables.py       # from figures/gpu_hopper*.json
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flashsim.support.entry import run_script
from flashsim.support.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
TRIED = ROOT / "docs" / "gpu-tried.md"
REACHED = ROOT / "docs" / "gpu.md"
START = "<!-- measured: {} -->\n"
END = "<!-- end of measured -->\n"
LABELS = {
    "hopper deterministic": "deterministic",
    "torch_cudnn": "cuDNN",
    "torch_flash": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "hopper_fp8, keys of V contiguous": "V by keys",
    "copy": "a copy",
    "hopper_decode, paged": "hopper_decode",
    "hopper, varlen": "hopper",
    "flashinfer": "FlashInfer",
    "torch": "PyTorch",
}


def main() -> None:
    """Write the tables and print what has changed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    for page in (TRIED, REACHED):
        before = text = page.read_text(encoding="utf-8")
        for name in (name for name, (index, *_) in TABLES.items() if index == page):
            text = written(name, text)
        write_whole(page, text)
        print(f"{page.relative_to(ROOT)}: " + ("unchanged" if text == before else "written"))


def written(name: str, text: str) -> str:
    """Return the page with a kernel's table made anew. Raises ValueError where a marker is not
    there exactly once.
    """
    start = START.format(name)
    if text.count(start) != 1 or END not in text.partition(start)[2]:
        raise ValueError(f"{name}: expected {start.strip()!r} once, and then {END.strip()!r}")
    before, _, rest = text.partition(start)
    _, record, rows = TABLES[name]
    made = json.loads((ROOT / "figures" / f"{record}.json").read_text(encoding="utf-8"))
    table = list(rows(made["results"]))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "    ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    on = (
        f"{made['machine']['gpu']}, NVRTC {made['machine']['nvrtc']}, PyTorch "
        f"{made['machine']['torch'].partition('+')[0]}"
    )
    lines.append(f"{on}, {made['date'][:10]}, {made['commit'][:7]}: figures/{record}.json")
    return (
        before
        + start
        + "\n```text\n"
        + "\n".join(lines)
        + "\n```\n\n"
        + END
        + rest.partition(END)[2]
    )


def forward(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the rows of `flashsim bench`."""
    rows = [
        {**r, "tflops": {t["name"]: t["tflops"] for t in r["timings"] if not t["failed"]}}
        for r in results
    ]
    yield from by_length(rows, "hopper", ["torch_cudnn", "fa4", "tensor_core"])


def backward(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the rows without dropout."""
    peers = ["hopper deterministic", "torch_cudnn", "fa4", "torch_flash", "tensor_core"]
    yield from by_length([r for r in results if not r["dropout_p"]], "hopper", peers)


def backward_of_256(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the rows, with those of peers that take d = 256."""
    yield from by_length(results, "hopper", ["torch_cudnn", "fa4", "torch_flash", "standard"])


def eight_bits(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the rows of 8 bits."""
    yield from by_length(
        [r for r in results if r["case"] == "fp8"],
        "hopper_fp8",
        ["hopper_fp8, keys of V contiguous", "hopper"],
    )


def by_length(results: list[dict[str, Any]], own: str, peers: list[str]) -> Iterator[list[str]]:
    """Yield TFLOP/s, full / causal: a column for each N, and for each d the kernel's own row and
    its peers'.
    """
    lengths = sorted({r["N"] for r in results})
    yield ["TFLOP/s, full / causal", *(f"N = {N}" for N in lengths)]
    for d in sorted({r["d"] for r in results}, reverse=True):
        rates = {(r["N"], r["causal"]): r["tflops"] for r in results if r["d"] == d}
        for name in (own, *peers):
            label = f"d = {d}" if name == own else "  " + LABELS.get(name, name)
            if any(name in of for of in rates.values()):
                both = ([rates[N, causal].get(name) for causal in (False, True)] for N in lengths)
                yield [
                    label,
                    *(" / ".join(f"{rate:.0f}" if rate else "–" for rate in of) for of in both),
                ]


def distributions(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield `hopper`'s rate over the fastest peer's, full / causal: a column for each
    distribution.
    """
    result = {}
    for r in results:
        rates = {t["name"]: t["tflops"] for t in r["timings"] if not t["failed"]}
        result[r["d"], r["N"], r["distribution"], r["causal"]] = rates.pop("hopper") / max(
            rates.values()
        )
    names = list(dict.fromkeys(r["distribution"] for r in results))
    yield ["÷ the fastest peer, full / causal", *names]
    for d, N in dict.fromkeys((r["d"], r["N"]) for r in sorted(results, key=lambda r: -r["d"])):
        both = [[result[d, N, name, causal] for causal in (False, True)] for name in names]
        yield [f"d = {d}, N = {N:,}", *(f"{full:.2f} / {causal:.2f}" for full, causal in both)]


def decoding(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield GB/s of K and V, with 1 and with 8 queries."""
    cases = {(r["sequences"], r["N_k"], r["N_q"]): r for r in results if r["case"] == "decode"}
    shapes = list(dict.fromkeys(key[:2] for key in cases))
    yield ["GB/s of K and V, 1 / 8 queries", *(f"{B} × {N_k}" for B, N_k in shapes)]
    for name in ("hopper_decode", "torch_cudnn", "fa4", "copy"):
        both = [[cases[*shape, N_q] for N_q in (1, 8)] for shape in shapes]
        traffic = "copied" if name == "copy" else "bytes"
        yield [
            LABELS.get(name, name),
            *(" / ".join(f"{r[traffic] / r['ms'][name] / 1e6:.0f}" for r in of) for of in both),
        ]


def few_queries(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the fastest peer's time over `hopper_decode`'s, float16 / bfloat16: a column for
    each number of queries.
    """
    result = {}
    for r in results:
        peers = [ms for name, ms in r["ms"].items() if name != "hopper_decode"]
        result[r["sequences"], r["N_k"], r["N_q"], r["dtype"]] = (
            min(peers) / r["ms"]["hopper_decode"]
        )
    queries = sorted({r["N_q"] for r in results})
    yield ["fp16 / bf16", *(f"{N_q} queries" if N_q > 1 else "1 query" for N_q in queries)]
    for B, N_k in dict.fromkeys((r["sequences"], r["N_k"]) for r in results):
        both = (
            [result[B, N_k, N_q, dtype] for dtype in ("float16", "bfloat16")] for N_q in queries
        )
        yield [f"{B} × {N_k:,}", *(f"{half:.2f} / {brain:.2f}" for half, brain in both)]


def types(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield `hopper`'s rate, and by how much that of FlashAttention-3 and of the fastest peer is
    exceeded: full / causal.
    """
    rates = {
        (r["d"], r["dtype"], r["N"], r["causal"]): {
            t["name"]: t["tflops"] for t in r["timings"] if not t["failed"]
        }
        for r in results
    }
    lengths = sorted({key[2] for key in rates})
    yield ["full / causal", *(f"N = {N:,}" for N in lengths)]
    for d, dtype in dict.fromkeys(key[:2] for key in sorted(rates, key=lambda key: -key[0])):
        columns = [[rates[d, dtype, N, causal] for causal in (False, True)] for N in lengths]
        yield [
            f"d = {d}, {dtype}: TFLOP/s",
            *(" / ".join(f"{of['hopper']:.0f}" for of in both) for both in columns),
        ]
        against = [[of["hopper"] / of["fa3"] for of in both] for both in columns]
        yield ["  ÷ FlashAttention-3", *(f"{full:.2f} / {causal:.2f}" for full, causal in against)]
        fastest = [
            [of["hopper"] / max(of[name] for name in of if name != "hopper") for of in both]
            for both in columns
        ]
        yield ["  ÷ the fastest peer", *(f"{full:.2f} / {causal:.2f}" for full, causal in fastest)]


def to_read(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the rate of `hopper_forward` over the fastest peer's, full / causal."""
    result = {}
    for r in results:
        rates = {t["name"]: t["tflops"] for t in r["timings"] if not t["failed"]}
        own = rates.pop("hopper_forward")
        del rates["hopper"]
        result[r["d"], r["dtype"], r["N"], r["causal"]] = own / max(rates.values())
    lengths = sorted({key[2] for key in result})
    yield ["÷ the fastest peer, full / causal", *(f"N = {N:,}" for N in lengths)]
    for d, dtype in dict.fromkeys(key[:2] for key in result):
        both = [[result[d, dtype, N, causal] for causal in (False, True)] for N in lengths]
        yield [f"d = {d}, {dtype}", *(f"{full:.2f} / {causal:.2f}" for full, causal in both)]


def masked_backward(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield ms of windows, and of block masks: what part of the tiles is live, and what part of
    the time it takes.
    """
    windows = [r for r in results if "window" in r["case"]]
    sides = list(dict.fromkeys(tuple(r["window"]) for r in windows))
    yield ["ms, d = 64 / 128", *(f"window {left}, {right}" for left, right in sides)]
    for name in ("hopper", "fa4", "algorithm_2"):
        ms = {(tuple(r["window"]), r["d"]): r["ms"][name] for r in windows}
        yield [LABELS.get(name, name), *(f"{ms[of, 64]:.3g} / {ms[of, 128]:.3g}" for of in sides)]
    masks = {r["d"]: r for r in results if "window" not in r["case"]}
    names = list(masks[64]["live"])[1:]
    yield ["÷ without a mask", *(f"{masks[64]['live'][name]:.3f} of the tiles" for name in names)]
    shares = ([masks[d]["ms"][name] / masks[d]["ms"]["dense"] for d in (64, 128)] for name in names)
    yield ["hopper", *(f"{of_64:.3f} / {of_128:.3f}" for of_64, of_128 in shares)]


def array_masks(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield TFLOP/s with masks that are arrays, as if all pairs counted."""
    names = list(dict.fromkeys(r["mask"] for r in results))
    yield ["TFLOP/s, d = 64 / 128", *names]
    result = {(r["direction"], r["mask"], r["d"]): r["tflops"] for r in results}
    for direction in ("forward", "backward"):
        for name in ("hopper", "torch_cudnn", "torch_efficient", "scalar", "hopper, no mask"):
            rates = ([result[direction, mask, d][name] for d in (64, 128)] for mask in names)
            label = LABELS.get(name, {"scalar": "scalar kernel"}.get(name, name))
            yield [
                f"{direction}, {label}",
                *(f"{of_64:.0f} / {of_128:.0f}" for of_64, of_128 in rates),
            ]


def paged(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield GB/s of K and V, by the size of pages."""
    cases = {
        (r["sequences"], r["n"], r["N"], r["lengths"], r["page"]): r
        for r in results
        if r["case"] == "paged"
    }
    pages = sorted({key[-1] for key in cases})
    sizes = " / ".join(map(str, pages))
    yield [f"GB/s, pages of {sizes}", "hopper_decode", "FlashInfer", "FlashAttention-4", "a copy"]
    for b, n, N, how in dict.fromkeys(key[:-1] for key in cases):
        of = [cases.get((b, n, N, how, page)) for page in pages]
        rates = (
            [f"{r['GB/s'][who]:.0f}" if r and who in r["GB/s"] else "–" for r in of]
            for who in ("hopper_decode, paged", "flashinfer", "fa4")
        )
        copied = " / ".join(f"{r['copied'] / r['ms']['copy'] / 1e6:.0f}" if r else "–" for r in of)
        queries = f", {N} queries" * (N > 1)
        yield [
            f"{b} × {'up to ' * (how == 'ragged')}{n * (1 + (how == 'ragged')):,}{queries}",
            *map(" / ".join, rates),
            copied,
        ]


def varlen(results: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield TFLOP/s of packed batches, full / causal."""
    cases = {
        (r["d"], r["lengths"], r["causal"]): r["tflops"] for r in results if r["case"] == "varlen"
    }
    yield ["TFLOP/s, full / causal", "hopper", "FlashAttention-4", "PyTorch"]
    for d, name in dict.fromkeys(key[:2] for key in sorted(cases, key=lambda key: -key[0])):
        both = [cases.get((d, name, causal), {}) for causal in (False, True)]
        rates = (
            " / ".join(f"{r[who]:.0f}" if who in r else "–" for r in both)
            for who in ("hopper, varlen", "fa4", "torch")
        )
        yield [f"d = {d}, {name}", *rates]


TABLES: dict[str, tuple[Path, str, Callable[[list[dict[str, Any]]], Iterator[list[str]]]]] = {
    "hopper.cu": (TRIED, "gpu_hopper", forward),
    "hopper_backward.cu": (TRIED, "gpu_hopper_backward", backward),
    "hopper_backward_wide.cu": (TRIED, "gpu_hopper_backward_wide", backward_of_256),
    "hopper_decode.cu": (TRIED, "gpu_hopper_cases", decoding),
    "hopper_fp8.cu": (TRIED, "gpu_hopper_fp8", eight_bits),
    "masked backward": (REACHED, "gpu_hopper_masked_backward", masked_backward),
    "array masks": (REACHED, "gpu_hopper_array_masks", array_masks),
    "distributions": (REACHED, "gpu_distributions", distributions),
    "the kernel to read": (REACHED, "gpu_hopper_forward", to_read),
    "few queries": (REACHED, "gpu_few_queries", few_queries),
    "types": (REACHED, "gpu_hopper_peers", types),
    "paged": (REACHED, "gpu_serving", paged),
    "varlen": (REACHED, "gpu_serving", varlen),
}

if __name__ == "__main__":
    run_script(main)

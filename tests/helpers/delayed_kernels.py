"""What tests/gpu/test_gpu_delays.py starts: the bits of what a group of kernels returns, each case
several times, as JSON.

    python tests/helpers/delayed_kernels.py backward-128 \\
        '{"options": ["-DDELAYED=1"], "bugs": {"file.cu": [["text", "a wrong one"]]}}'
"""

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from flashsim import SlidingWindow, gpu
from flashsim.gpu import compiling
from flashsim.gpu.compiling import import_cupy
from flashsim.tracing.planting import changed

Cases = Iterator[tuple[str, Callable[[], Any]]]
# so many that a block of threads has one row block, or key block, after another
HEADS = 160
KV_HEADS = 80
N_Q = 300
N_K = 333
REPEATS = 3


def main() -> None:
    """Print, by case, what each run returned."""
    options = json.loads(sys.argv[2])
    compiling.OPTIONS = (*compiling.OPTIONS, *options["options"])
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(compiling.KERNELS, folder, dirs_exist_ok=True)
        for file, changes in options["bugs"].items():
            text = (compiling.KERNELS / file).read_text(encoding="utf-8")
            Path(folder, file).write_text(
                changed(text, [(old, new) for old, new in changes], file), encoding="utf-8"
            )
        compiling.KERNELS = Path(folder)
        cases = dict(GROUPS[sys.argv[1]]())
        with ThreadPoolExecutor(initializer=import_cupy().cuda.Device(0).use) as threads:
            list(threads.map(lambda call: call(), cases.values()))  # to compile them, side by side
        result = {name: [bits(call()) for _ in range(REPEATS)] for name, call in cases.items()}
    print(json.dumps(result))


def bits(arrays: Any) -> list[str]:
    """Return a digest of each array."""
    each = arrays if isinstance(arrays, tuple) else (arrays,)
    return [hashlib.sha256(array.get().tobytes()).hexdigest()[:16] for array in each]


def forward(d: int) -> Cases:
    """Yield `hopper`'s forward pass, each way in which it masks; and of packed batches."""
    q, k, v, _ = wholes(d)
    for (name, options), p in product(ways().items(), (0.0, 0.3)):
        call = partial(
            gpu.forward, q, k, v, kernel="hopper", dropout_p=p, seed=7, return_lse=True, **options
        )
        yield f"{name}, dropout {p}", call
    if d < 256:
        ends = np.arange(20) * 77, np.arange(20) * 301
        q, k, v = (
            normal(heads, of[-1], d)
            for heads, of in zip((16, 8, 8), (ends[0], ends[1], ends[1]), strict=True)
        )
        for causal in (False, True):
            yield (
                f"packed, {causal}",
                partial(gpu.varlen, q, k, v, *ends, causal=causal, return_lse=True),
            )


def backward(d: int) -> Cases:
    """Yield `hopper`'s backward pass, each way in which it masks; in turn, since additions to dQ
    else change places.
    """
    q, k, v, do = wholes(d)
    o = normal(*q.shape)
    lse = 6 + normal(*q.shape[:3]).astype("float32")
    for (name, options), p in product(ways().items(), (0.0, 0.3)):
        if (d == 256 and (p or name not in ("full", "causal", "window"))) or (
            p and "array" in name
        ):
            continue  # which it does not take
        inputs = {"kernel": "hopper", "dropout_p": p, "seed": 7, "deterministic": True, **options}
        yield f"{name}, dropout {p}", partial(gpu.backward, q, k, v, o, lse, do, **inputs)


def to_read() -> Cases:
    """Yield the kernel to read."""
    for d, causal in product((64, 128, 256), (False, True)):
        q, k, v, _ = wholes(d)
        call = partial(
            gpu.forward, q, k, v, kernel="hopper_forward", causal=causal, return_lse=True
        )
        yield f"d = {d}, causal = {causal}", call


def decoding() -> Cases:
    """Yield decoding: clusters with whole heads, blocks with whole heads, pairs, and pairs with a
    second launch; and of pages.
    """
    lengths = np.array([300, 0, 1, 3100], np.int32)
    page = 16
    table = np.full((4, 194), -1, np.int32)
    for s, (first, pages) in enumerate(((0, 19), (0, 0), (19, 1), (20, 194))):
        table[s, :pages] = np.arange(first, first + pages)[::-1]
    for d in (64, 128):
        for B, N_k in ((2, 150), (2, 300), (2, 3000), (40, 700), (16, 1000), (2, 4200)):
            inputs = normal(B, 16, 3, d), normal(B, 4, N_k, d), normal(B, 4, N_k, d)
            options: dict[str, Any] = {
                "kernel": "hopper_decode",
                "causal": True,
                "return_lse": True,
            }
            yield f"d = {d}, {B} × {N_k}", partial(gpu.forward, *inputs, **options)
        paged = normal(4, 8, 3, d), normal(214, 2, page, d), normal(214, 2, page, d), table, lengths
        for splits in (None, 1, 3):
            call = partial(gpu.paged, *paged, splits=splits, check=False, return_lse=True)
            yield f"pages, d = {d}, splits = {splits}", call


def grouped() -> Cases:
    """Yield more queries than decoding takes: whole heads, parts, and clusters; several items
    for a block of threads.
    """
    for d, (B, N_k), causal in product(
        (64, 128), ((1, 700), (2, 3000), (100, 1200)), (False, True)
    ):
        q = normal(B, 16, 40, d)
        k = normal(B, 4, N_k, d)
        v = normal(B, 4, N_k, d)
        call = partial(gpu.forward, q, k, v, kernel="hopper_decode", causal=causal, return_lse=True)
        yield f"d = {d}, {B} × {N_k}, causal = {causal}", call


def eight_bits() -> Cases:
    """Yield 8 bits. Each block of threads has one row block: whether it needed maxima decides
    how the next is computed.
    """
    q, k, v = (gpu.to_fp8(normal(1, 24, 640, 128)) for _ in range(3))
    by_keys = gpu.to_fp8(normal(1, 24, 640, 128), keys_contiguous=True)
    for causal, (name, of) in product((False, True), (("rows", v), ("keys", by_keys))):
        yield (
            f"V by {name}, {causal}",
            partial(gpu.forward, q, k, of, causal=causal, return_lse=True),
        )


GROUPS: dict[str, Callable[[], Cases]] = {
    **{f"forward-{d}": partial(forward, d) for d in (64, 128, 256)},
    **{f"backward-{d}": partial(backward, d) for d in (64, 128, 256)},
    "to-read": to_read,
    "decoding": decoding,
    "grouped": grouped,
    "8-bits": eight_bits,
}


def ways() -> dict[str, dict[str, Any]]:
    """Return the ways to mask."""
    mask = import_cupy().asarray(np.random.default_rng(0).random((N_Q, N_K)) < 0.5)
    return {
        "full": {},
        "causal": {"causal": True},
        "window": {"mask": SlidingWindow(100, 0)},
        "window, sums for maxima": {"mask": SlidingWindow(100, 31)},
        "block mask": {
            "block_mask": lambda T_r, T_c: np.arange(T_r * T_c).reshape(T_r, T_c) % 3 > 0
        },
        "array": {"mask": mask},
        "array, causal": {"mask": mask, "causal": True},
    }


def wholes(d: int) -> list[Any]:
    """Return Q, K, V and dO."""
    return [
        normal(1, heads, n, d)
        for heads, n in ((HEADS, N_Q), (KV_HEADS, N_K), (KV_HEADS, N_K), (HEADS, N_Q))
    ]


def normal(*shape: int) -> Any:
    """Return random numbers, of a shape the same each time."""
    return import_cupy().asarray(np.random.default_rng(0).standard_normal(shape).astype("float16"))


if __name__ == "__main__":
    main()

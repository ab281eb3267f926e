"""Clocks: our kernels, unfused attention and PyTorch's backends, interleaved in one run.

    results = benchmark(settings(lengths=(1024, 4096), head_dims=(128,)))

Contestants of a setting take turns: in every round each runs as many launches as fill some milliseconds, between two CUDA
events; what is reported is the median over the rounds, with the least and the most. Inputs are normal random numbers, since
zeros would draw less power and clock higher. Times are of whole calls, Python included where the GPU does not hide it.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from flashsim.gpu import hopper, hopper_fp8
from flashsim.gpu.compiling import current_device, import_cupy
from flashsim.gpu.kernel import Kernel
from flashsim.gpu.rungs import ladder
from flashsim.masks import SlidingWindow
from flashsim.patterns import butterfly

OnSetting = Callable[[int, int, str], None]
Call = Callable[[], Any]
TORCH = {"torch_unfused": "", "torch_math": "MATH", "torch_flash": "FLASH_ATTENTION", "torch_cudnn": "CUDNN_ATTENTION"}
"""Backends of PyTorch's scaled_dot_product_attention; "": attention written in PyTorch, the paper's baseline."""
FA4 = "fa4"  # FlashAttention-4, of the package flash-attn-4, where it is installed
SPARSE: dict[str, dict[str, Any]] = {
    "hopper_window": {"mask": SlidingWindow(128, 127)},
    "hopper_butterfly": {"block_mask": butterfly},
}
"""What else the paper's Figure 3 compares: less than all of S, by `hopper`, forward. They take part if they are asked for."""
NAMES = (*ladder(), *SPARSE, *TORCH, FA4)
LONGEST = {"torch_unfused": 16_384, "torch_math": 16_384}
"""Beyond these lengths the N × N matrices are too large to be worth the time. Our kernels' records have their own."""
TOKENS, HEADS = 16_384, 16
LAUNCHES_MS, MOST_LAUNCHES, LEAST_ROUNDS = 30.0, 1000, 3


@dataclass(frozen=True)
class Setting:
    """One problem: B·N tokens in H heads, self-attention. `dropout_p` and `mask` as in GPT-2 medium's (Figure 1 right)."""

    N: int
    d: int
    causal: bool = False
    direction: str = "forward"
    dtype: str = "float16"
    B: int = 0
    H: int = HEADS
    dropout_p: float = 0.0

    @property
    def batch(self) -> int:
        """B, by default as many as make 16,384 tokens."""
        return self.B or max(TOKENS // self.N, 1)

    @property
    def flops(self) -> float:
        """4·B·H·N²·d forward, 2.5 times that backward, half if causal: as kernels' authors count."""
        pairs = self.N * (self.N + 1) / 2 if self.causal else self.N**2
        return 4 * self.batch * self.H * pairs * self.d * (2.5 if self.direction == "backward" else 1.0)

    def __str__(self) -> str:
        causal = ", causal" if self.causal else ""
        return f"{self.direction}, N = {self.N:,}, d = {self.d}, B = {self.batch}, H = {self.H}, {self.dtype}{causal}"


@dataclass(frozen=True)
class Timing:
    """A contestant's time of one call in ms: median, least and most over the rounds; TFLOP/s; peak bytes beyond inputs."""

    name: str
    median: float = math.nan
    least: float = math.nan
    most: float = math.nan
    tflops: float = math.nan
    extra_bytes: int | None = None
    failed: str = ""


def settings(
    lengths: Iterable[int],
    head_dims: Iterable[int],
    causal: Iterable[bool] = (False, True),
    directions: Iterable[str] = ("forward", "backward"),
    **others: Any,
) -> list[Setting]:
    """Return all combinations, the shortest first; `others` are fields of each."""
    return [
        Setting(N, d, masked, direction, **others)
        for N in lengths
        for d in head_dims
        for masked in causal
        for direction in directions
    ]


def benchmark(
    asked: Sequence[Setting], *, names: Sequence[str] = (), rounds: int = 7, on_setting: OnSetting | None = None
) -> list[dict[str, Any]]:
    """Return, by setting, what each contestant took, as plain data. A contestant that fails says why, and others go on.

    `names`: of NAMES; none: all that the setting allows. Raises MissingGPU without a GPU.
    """
    results = []
    for done, setting in enumerate(asked):
        if on_setting is not None:
            on_setting(done, len(asked), str(setting))
        timings = [asdict(timing) for timing in race(setting, contestants(setting, names), rounds)]
        results.append({**asdict(setting), "B": setting.batch, "flops": setting.flops, "timings": timings})
    return results


def race(setting: Setting, makers: Iterable[tuple[str, Callable[[], Call]]], rounds: int) -> Iterator[Timing]:
    """Yield what each contestant took: a name, and what makes its call. First come those that fail, with the reason."""
    cupy = import_cupy()
    calls: dict[str, Call] = {}
    extra: dict[str, int] = {}
    failed: dict[str, str] = {}
    for name, make in makers:
        try:
            call = make()
            call()
            extra[name] = _extra_bytes(call)
            calls[name] = call
        except Exception as error:  # a contestant that cannot do this setting must not end the benchmark
            failed[name] = _said(error)
        cupy.cuda.runtime.deviceSynchronize()
    times = interleaved(calls, rounds, failed)
    for name, reason in failed.items():
        yield Timing(name, failed=reason)
    for name, measured in times.items():
        median = statistics.median(measured)
        rate = setting.flops * share(name, setting) / median / 1e9
        yield Timing(name, median, min(measured), max(measured), rate, extra[name])
    del calls
    _free()


def interleaved(calls: Mapping[str, Call], rounds: int, failed: dict[str, str] | None = None) -> dict[str, list[float]]:
    """Return the ms of each call, a number a round: all take turns, each with as many launches as take 30 ms.

    Rounds have orders of their own: who comes after one that draws little power would clock higher each time. One that fails
    twice goes to `failed`, with the reason, and the others go on; without `failed` the error is raised.
    """
    launches: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    shuffled = random.Random(0)
    for _ in range(1 + max(rounds, LEAST_ROUNDS)):
        for name in shuffled.sample(list(times), len(times)):
            try:
                taken = _turn(calls[name], launches.get(name, 2))
            except Exception as error:
                if failed is None:
                    raise
                failed[name] = _said(error)
                del times[name]
            else:
                if name in launches:
                    times[name].append(taken)
                else:  # the first round is to find how many
                    launches[name] = max(1, min(MOST_LAUNCHES, int(LAUNCHES_MS / max(taken, 1e-3))))
    return times


def _said(error: Exception) -> str:
    """Return an error in words: itself, it would keep its frames' arrays."""
    return f"{type(error).__name__}: {error}"[:300]


def _turn(call: Call, launches: int) -> float:
    """Return the ms of one call, of so many; where what others keep in their pools is in the way, of a second try."""
    try:
        return _time(call, launches)
    except Exception:  # CuPy and PyTorch free their own pools when memory ends, and not each other's
        _free()
        call()
        return _time(call, launches)


def _time(call: Call, launches: int) -> float:
    """Return the ms of one call, of so many between two events."""
    cupy = import_cupy()
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(launches):
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / launches


def _extra_bytes(call: Call) -> int:
    """Return the most memory a call allocates beyond what was there: in a pool of CuPy's that starts empty, and in PyTorch's."""
    cupy, torch = import_cupy(), _torch()
    _free()
    if torch is not None:
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
    pool = cupy.cuda.MemoryPool()  # the usual one may have room in what the inputs left
    with cupy.cuda.using_allocator(pool.malloc):
        result = call()
        cupy.cuda.runtime.deviceSynchronize()
    most = pool.total_bytes()
    if torch is not None:
        most += torch.cuda.max_memory_allocated() - allocated
    del result
    return int(most)


def _free() -> None:
    gc.collect()
    import_cupy().get_default_memory_pool().free_all_blocks()
    torch = _torch()
    if torch is not None:
        torch.cuda.empty_cache()


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        return None
    return torch if torch.cuda.is_available() else None


def contestants(setting: Setting, asked: Sequence[str]) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Yield names, and what makes a call of each: that may fail too."""
    usual = [name for name in NAMES if name not in SPARSE and _longest(name, setting.N) >= setting.N]
    names = [name for name in NAMES if name in asked] if asked else usual
    torch = _torch()
    for name in names:
        if name in ladder():
            if _can(ladder()[name], setting):
                yield name, partial(_ours, name, setting)
        elif name in SPARSE:
            if setting.direction == "forward" and not setting.causal:
                yield name, partial(_ours, "hopper", setting, **SPARSE[name])
        elif torch is None or (name == FA4 and _version("flash-attn-4") is None):
            continue
        elif name == FA4:
            yield name, partial(_fa4, setting, torch)
        else:
            yield name, partial(_torchs, TORCH[name], setting, torch)


def share(name: str, setting: Setting) -> float:
    """Return how many of S's elements a contestant is asked for, of all that a setting has."""
    N, more = setting.N, SPARSE.get(name, {})
    if "mask" in more:
        rows, window = np.arange(N), more["mask"]
        keys = np.minimum(rows, window.left) + 1 + np.minimum(N - 1 - rows, window.right)
        return float(keys.sum()) / N**2
    if "block_mask" in more:
        rows, columns = (np.diff([*range(0, N, B), N]) for B in hopper.choose_tiles(setting.d, "LISTED").blocks)
        return float(rows @ more["block_mask"](len(rows), len(columns)) @ columns) / N**2
    return 1.0


def _longest(name: str, otherwise: int) -> int:
    own = ladder()[name].longest if name in ladder() else LONGEST.get(name)
    return otherwise if own is None else own


def dtype_of(rung: Kernel, setting: Setting) -> str:
    """Return the setting's dtype, or the one that a rung takes in its place: 8 bits."""
    return rung.dtypes[0] if rung.output else setting.dtype


def _can(rung: Kernel, setting: Setting) -> bool:
    """Say whether a rung has what the setting asks for."""
    shape = setting.batch, setting.H, setting.N, setting.d
    lacks = (
        rung.unsuited and rung.unsuited(shape, shape),
        setting.causal and not rung.causal,
        setting.dropout_p and not rung.dropout,
        setting.direction == "backward" and rung.backward is None,
        rung.output and setting.d not in rung.head_dims,
    )
    return not any(lacks)


def arrays(setting: Setting, count: int, dtype: str = "") -> list[Any]:
    """Return so many arrays of normal random numbers, shaped as a setting's q, of its dtype or another."""
    cupy = import_cupy()
    rng = cupy.random.default_rng(0)
    shape = setting.batch, setting.H, setting.N, setting.d
    made = (rng.standard_normal(shape, dtype=cupy.float32) for _ in range(count))
    if dtype == hopper_fp8.NAME:
        return [hopper_fp8.to_fp8(x) for x in made]
    return [x.astype(dtype or setting.dtype) for x in made]


def _ours(name: str, setting: Setting, **more: Any) -> Call:
    from flashsim import gpu

    q, k, v, do = arrays(setting, 4, dtype_of(ladder()[name], setting))
    options: dict[str, Any] = {
        "kernel": name,
        "causal": setting.causal,
        "dropout_p": setting.dropout_p,
        "seed": 1,
    } | more
    if setting.direction == "forward":
        return lambda: gpu.forward(q, k, v, **options)
    o, lse = gpu.forward(q, k, v, return_lse=True, **options)
    return lambda: gpu.backward(q, k, v, o, lse, do, **options)


def _torchs(backend: str, setting: Setting, torch: Any) -> Call:
    attention = _fused(backend, setting) if backend else _unfused(setting, torch)
    return _peer(attention, (setting.batch, setting.H, setting.N, setting.d), setting, torch)


def _fa4(setting: Setting, torch: Any) -> Call:
    """Its arrays are (B, N, H, d)."""
    from flash_attn.cute import flash_attn_func

    def attention(q: Any, k: Any, v: Any) -> Any:
        found = flash_attn_func(q, k, v, causal=setting.causal)
        return found[0] if isinstance(found, tuple) else found

    if setting.dropout_p:
        raise ValueError("FlashAttention-4 has no dropout")
    return _peer(attention, (setting.batch, setting.N, setting.H, setting.d), setting, torch)


def _peer(attention: Callable[..., Any], shape: tuple[int, ...], setting: Setting, torch: Any) -> Call:
    """Return a call of attention on tensors of that shape, or of its backward pass, which PyTorch's autograd has."""
    backward = setting.direction == "backward"
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=getattr(torch, setting.dtype), requires_grad=backward) for _ in range(3)
    )
    if not backward:
        return partial(attention, q, k, v)
    o = attention(q, k, v)
    do = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)


def _fused(backend: str, setting: Setting) -> Callable[..., Any]:
    """Return PyTorch's scaled_dot_product_attention, which is to use this backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def attention(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return scaled_dot_product_attention(q, k, v, is_causal=setting.causal, dropout_p=setting.dropout_p)

    return attention


def _unfused(setting: Setting, torch: Any, device: str = "cuda") -> Callable[..., Any]:
    """Return attention as PyTorch programs had it before: products, scale, mask, softmax and dropout one by one."""
    from torch.nn.functional import dropout, softmax

    above = torch.ones(setting.N, setting.N, dtype=torch.bool, device=device).triu(1) if setting.causal else None

    def attention(q: Any, k: Any, v: Any) -> Any:
        S = (q @ k.transpose(-2, -1)) * setting.d**-0.5
        if above is not None:
            S = S.masked_fill(above, -math.inf)
        P = softmax(S, -1)
        if setting.dropout_p:
            P = dropout(P, setting.dropout_p)
        return P @ v

    return attention


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Return the GPU, its driver, and the packages' versions. Raises MissingGPU where there is none."""
    cupy = import_cupy()
    properties = cupy.cuda.runtime.getDeviceProperties(current_device())
    torch = _torch()
    return {
        "gpu": properties["name"].decode(),
        "sms": properties["multiProcessorCount"],
        "l2_bytes": properties["l2CacheSize"],
        "driver_cuda": cupy.cuda.runtime.driverGetVersion(),
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cupy": cupy.__version__,
        "torch": None if torch is None else torch.__version__,
        "cudnn": None if torch is None else torch.backends.cudnn.version(),
        "flash_attn_4": _version("flash-attn-4"),
    }

"""Forward: decoding, sliding windows, block-sparse attention, d = 256, causal sections of heads."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import flashsim
from flashsim import gpu
from flashsim.attention.masks import patterns
from flashsim.gpu import hopper
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.contestants import Setting, arrays, contestants
from flashsim.gpu.kernel import Options
from flashsim.gpu.launching import section
from hopper_races.calls import PEERS, Calls, captured, copying, normal, peers, race, replayed

# sequences, KV, queries
DECODED = [
    (32, 8192, 1),
    (32, 8192, 8),
    (8, 8192, 1),
    (8, 8192, 8),
    (1, 131_072, 1),
    (1, 131_072, 8),
]
DTYPES = ("float16", "bfloat16")
FEW_MS = 20.0
WINDOWS = [(127, 0), (64, 63), (255, 0)]


def decoding() -> Iterator[dict[str, Any]]:
    """Yield each case: its name, what must move, and everybody's ms."""
    copied, copy = copying()
    for B, N_k, N_q in DECODED:
        q = normal(B, 64, N_q, 128)
        k = normal(B, 8, N_k, 128)
        v = normal(B, 8, N_k, 128)
        ms = race({**copy, "hopper_decode": captured(q, k, v), **peers(q, k, v)})
        assert gpu.plan(q, k, v).kernel == "hopper_decode"
        sizes = {"sequences": B, "N_k": N_k, "N_q": N_q, "H_q": 64, "H_kv": 8, "d": 128}
        yield {"case": "decode", **sizes, "bytes": k.nbytes + v.nbytes, "copied": copied, "ms": ms}


def few_queries() -> Iterator[dict[str, Any]]:
    """Yield cases as `decoding`, from 1 to 128 queries. cuDNN takes part where it is not slow."""
    for dtype, B, N_k in product(DTYPES, (1, 8, 32), (1024, 8192, 131_072)):
        k, v = (normal(B, 8, N_k, 128, dtype=dtype) for _ in "kv")
        for N_q in (1, 2, 4, 8, 16, 32, 64, 128):
            q = normal(B, 64, N_q, 128, dtype=dtype)
            names = PEERS if N_q == 1 or N_q >= 64 else PEERS[1:]
            ms = race(
                {"hopper_decode": captured(q, k, v), **peers(q, k, v, names=names)}, turn_ms=FEW_MS
            )
            assert gpu.plan(q, k, v).kernel == "hopper_decode"
            sizes = {
                "dtype": dtype,
                "sequences": B,
                "N_k": N_k,
                "N_q": N_q,
                "H_q": 64,
                "H_kv": 8,
                "d": 128,
            }
            flops = 4 * B * 64 * N_q * N_k * 128
            yield {
                "case": "few-queries",
                **sizes,
                "bytes": k.nbytes + v.nbytes,
                "flops": flops,
                "ms": ms,
            }
        del k, v
        import_cupy().get_default_memory_pool().free_all_blocks()


def windows() -> Iterator[dict[str, Any]]:
    """Yield cases as `decoding`."""
    copied, copy = copying()
    q, k, v = (normal(2, 128, 8192, 64) for _ in range(3))
    sizes = {"N": 8192, "heads": 256, "d": 64, "bytes": 4 * q.nbytes, "copied": copied}
    for window in WINDOWS:
        mask = flashsim.SlidingWindow(*window)
        ms = race({**copy, "hopper": captured(q, k, v, mask=mask), **peers(q, k, v, window)})
        yield {"case": "window", "window": window, **sizes, "ms": ms}


def block_sparse() -> Iterator[dict[str, Any]]:
    """Yield cases: the part of tiles that is live, and ms."""
    for d, H in ((64, 32), (128, 16)):
        q, k, v = (normal(1, H, 16_384, d) for _ in range(3))
        tables = {
            s: np.random.default_rng(0).random((128, 128)) < s for s in (0.5, 0.25, 0.125, 0.0625)
        }
        shares = {f"s = {s}": table for s, table in tables.items()} | {
            "butterfly": patterns.butterfly(128, 128)
        }
        ms = race(
            {
                "dense": captured(q, k, v),
                **{s: captured(q, k, v, block_mask=t) for s, t in shares.items()},
            }
        )
        live = {"dense": 1.0, **{s: float(table.mean()) for s, table in shares.items()}}
        yield {"case": "block-sparse", "N": 16_384, "heads": H, "d": d, "live": live, "ms": ms}


def heads_of_256() -> Iterator[dict[str, Any]]:
    """Yield cases as `eight_bits`, of d = 256: H d = 2048, B N = 16384."""
    for N in (512, 1024, 2048, 4096, 16_384):
        for causal in (False, True):
            setting = Setting(N, 256, causal, H=8)
            q, k, v = arrays(setting, 3)
            ms = race(
                {
                    "hopper": captured(q, k, v, kernel="hopper", causal=causal),
                    **peers(q, k, v, causal=causal),
                }
            )
            tflops = {
                name: round(setting.flops / duration / 1e9, 1) for name, duration in ms.items()
            }
            sizes = {"N": N, "d": 256, "causal": causal, "B": setting.batch, "H": 8}
            yield {"case": "heads256", **sizes, "ms": ms, "tflops": tflops}


SECTIONS = [
    (128, 512, 16),
    (64, 512, 32),
    (256, 512, 8),
    (128, 1024, 16),
    (128, 16_384, 16),
    (256, 16_384, 8),
]
# d, N, H: the last two with 160 heads
SECTIONS += [(64, 1024, 16), (64, 1024, 10), (128, 1024, 10)]


def sections() -> Iterator[dict[str, Any]]:
    """Yield cases: µs of a causal call, B N = 16384, with sections of so many heads; "usual": what
    the L2 holds.

    With N = 512, also of a copy of as many bytes as Q, K, V and O have, and of calls from Python,
    one after the other.
    """
    cupy = import_cupy()
    own = hopper.section_of
    l2_bytes = cupy.cuda.Device().attributes["L2CacheSize"]
    for d, N, H in SECTIONS:
        setting = Setting(N, d, True, H=H)
        q, k, v = arrays(setting, 3)
        heads = setting.batch * setting.H
        o = cupy.empty_like(q)
        held = 4 * N * d, l2_bytes, heads
        chosen = own(*held, hopper.choose_tiles(d, "CAUSAL").teams(d))
        tried = {
            "usual": section(*held),
            **{str(n): n for n in (1, 8, 16, 32, 64, 66, 128, chosen) if n <= heads},
        }
        calls: Calls = {}
        for name, many in tried.items():
            hopper.section_of = lambda *_, many=many: many
            hopper._launch.cache_clear()
            calls[name] = replayed(
                partial(hopper.launch, None, q, k, v, o, None, Options(d**-0.5, causal=True))
            )
        hopper.section_of = own
        hopper._launch.cache_clear()
        if N == 512:
            large = cupy.empty((2, *q.shape), q.dtype)
            calls["copy of as much"] = replayed(partial(cupy.copyto, large, cupy.empty_like(large)))
            calls |= {
                f"loop, {name}": make()
                for name, make in contestants(setting, ["hopper", "torch_cudnn"])
            }
        ms = race(
            {
                **calls,
                **{
                    name: call
                    for name, call in peers(q, k, v, causal=True).items()
                    if name == "torch_cudnn"
                },
            }
        )
        sizes = {"d": d, "N": N, "heads": heads, "chosen": chosen}
        yield {
            "case": "sections",
            **sizes,
            "us": {name: round(1000 * duration, 2) for name, duration in ms.items()},
        }

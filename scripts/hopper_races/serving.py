"""What serves: keys in pages, and packed batches, beside FlashInfer, FlashAttention and PyTorch
where they are.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from flashsim import gpu
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.machine import version
from hopper_races.calls import Calls, copying, normal, race, replayed

# sequences, keys, queries
PAGED = [(64, 4096, 1), (32, 8192, 1), (32, 8192, 4), (8, 8192, 1), (1, 131_072, 1)]
PAGES = (16, 64, 128)
VARLEN = {  # lengths of 16,384 tokens or so
    "alike, 1024": [1024] * 16,
    "alike, 4096": [4096] * 4,
    "ragged": np.random.default_rng(0).integers(64, 2048, 16).tolist(),
    "one long": [8192, *[256] * 32],
}


def paged() -> Iterator[dict[str, Any]]:
    """Yield cases of decoding from pages at random: ms, and GB/s of K and V. Lengths are alike,
    or drawn up to their double.
    """
    cupy = import_cupy()
    rng = np.random.default_rng(0)
    copied, copy = copying()
    cases = [(*case, page, "alike") for case, page in product(PAGED, PAGES)]
    cases += [(64, 4096, 1, page, "ragged") for page in (16, 128)]
    for b, n, N, page, how in cases:
        lengths = np.full(b, n) if how == "alike" else rng.integers(1, 2 * n, b)
        needed = -(-lengths // page)
        table = np.zeros((b, needed.max()), np.int32)
        free = rng.permutation(int(needed.sum())).astype(np.int32)
        for s, ends in enumerate(np.cumsum(needed)):
            table[s, : needed[s]] = free[ends - needed[s] : ends]
        q = normal(b, 64, N, 128)
        k = normal(len(free), page, 8, 128)
        v = normal(len(free), page, 8, 128)
        words = cupy.asarray(table)
        keys = cupy.asarray(lengths, "int32")
        pools = k.swapaxes(1, 2), v.swapaxes(1, 2)
        cupy.cuda.Device().synchronize()  # other streams read the words next
        longest = int(lengths.max())
        inputs = q, k, v, words, keys

        ours = partial(gpu.paged, q, *pools, words, keys, check=False)
        calls = {**copy, "hopper_decode, paged": replayed(ours)}
        ms = race(
            calls | theirs({"fa4": fa4_paged, "flashinfer": flashinfer_paged}, *inputs, longest)
        )
        sizes = {
            "sequences": b,
            "n": n,
            "lengths": how,
            "N": N,
            "page": page,
            "H_q": 64,
            "H_kv": 8,
            "d": 128,
        }
        traffic = int(lengths.sum()) * 8 * 128 * 2 * 2
        rates = {name: round(traffic / of / 1e6, 1) for name, of in ms.items() if name != "copy"}
        sizes["flashinfer"] = version("flashinfer-python")
        yield {
            "case": "paged",
            **sizes,
            "bytes": traffic,
            "copied": copied,
            "ms": ms,
            "GB/s": rates,
        }


def varlen() -> Iterator[dict[str, Any]]:
    """Yield cases of packed batches: ms, and TFLOP/s of the pairs that count."""
    cupy = import_cupy()
    for (name, lengths), (d, H), causal in product(
        VARLEN.items(), ((128, 16), (64, 32)), (False, True)
    ):
        total = sum(lengths)
        q, k, v = (normal(total, H, d) for _ in range(3))
        ends = np.cumsum([0, *lengths])
        own = (*[x.swapaxes(0, 1) for x in (q, k, v)], ends, ends)
        calls: Calls = {"hopper, varlen": replayed(partial(gpu.varlen, *own, causal=causal))}
        words = cupy.asarray(ends, "int32")
        ms = race(
            calls
            | theirs(
                {"fa4": fa4_varlen, "torch": torch_varlen}, q, k, v, words, max(lengths), causal
            )
        )
        pairs = sum(n * (n + 1) / 2 if causal else n * n for n in lengths)
        tflops = {who: round(4 * H * d * pairs / of / 1e9, 1) for who, of in ms.items()}
        sizes = {
            "lengths": name,
            "sequences": len(lengths),
            "tokens": total,
            "H": H,
            "d": d,
            "causal": causal,
        }
        yield {"case": "varlen", **sizes, "ms": ms, "tflops": tflops}


def theirs(makers: dict[str, Callable[..., Any]], *inputs: Any) -> Calls:
    """Return calls of those who are here and can do it, as graphs; of others say why not."""
    try:
        import torch
    except ImportError:
        return {}
    arrays = [torch.from_dlpack(x) if hasattr(x, "__dlpack__") else x for x in inputs]
    graphs: Calls = {}
    for name, make in makers.items():
        try:
            call = make(torch, *arrays)
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            graphs[name] = graph.replay
        except Exception as error:  # a contestant that cannot do this must not end the run
            print(f"{name}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            torch.cuda.synchronize()
    return graphs


def fa4_varlen(_: Any, q: Any, k: Any, v: Any, ends: Any, longest: int, causal: bool) -> Any:
    """FlashAttention-4's flash_attn_varlen_func."""
    from flash_attn.cute import flash_attn_varlen_func

    sizes = {"max_seqlen_q": longest, "max_seqlen_k": longest}
    return lambda: flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, **sizes, causal=causal
    )


def torch_varlen(torch: Any, q: Any, k: Any, v: Any, ends: Any, longest: int, causal: bool) -> Any:
    """PyTorch's FlashAttention-2 on packed sequences, which torch.nn.attention.varlen calls."""
    forward = torch.ops.aten._flash_attention_forward
    return lambda: forward(q, k, v, ends, ends, longest, longest, 0.0, causal, False)


def fa4_paged(torch: Any, q: Any, k: Any, v: Any, table: Any, lengths: Any, longest: int) -> Any:
    """FlashAttention-4's flash_attn_varlen_func with a page table; it does not split keys on
    Hopper.
    """
    from flash_attn.cute import flash_attn_varlen_func

    rows = q.transpose(1, 2).contiguous()
    return lambda: flash_attn_varlen_func(
        rows, k, v, seqused_k=lengths, page_table=table, max_seqlen_k=longest, causal=True
    )


def flashinfer_paged(
    torch: Any, q: Any, k: Any, v: Any, table: Any, lengths: Any, longest: int
) -> Any:
    """FlashInfer's decoding of one query, planned before."""
    import flashinfer

    if q.shape[2] != 1:
        raise ValueError("more than one query")
    page = k.shape[1]
    rows = q[:, :, 0].contiguous()
    needed = (lengths + page - 1) // page
    ends = torch.zeros(len(q) + 1, dtype=torch.int32, device="cuda")
    ends[1:] = needed.cumsum(0)
    pages = torch.cat([table[s, :n] for s, n in enumerate(needed.tolist())])
    space = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    how = {"use_cuda_graph": True, "use_tensor_cores": True}
    buffers = {
        "paged_kv_indptr_buffer": ends.clone(),
        "paged_kv_indices_buffer": pages.clone(),
        "paged_kv_last_page_len_buffer": torch.empty(len(q), dtype=torch.int32, device="cuda"),
    }
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", **how, **buffers)
    last = (lengths - 1) % page + 1
    wrapper.plan(ends, pages, last, 64, 8, 128, page, q_data_type=q.dtype, kv_data_type=k.dtype)
    return lambda: wrapper.run(rows, (k, v))

"""Memory and streams on a GPU: whatever is late, no kernel uses memory that is another's."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from flashsim import gpu
from flashsim.gpu.compiling import import_cupy, load
from flashsim.gpu.counters import Counters
from flashsim.gpu.kernel import Options
from tests.helpers.hopper import ON_HOPPER

pytestmark = ON_HOPPER

LATE = 5_000_000  # ns, in which a kernel on another stream is done
SENTINEL = 0x5A


def normal(*shape: int) -> Any:
    return import_cupy().asarray(np.random.default_rng(0).standard_normal(shape).astype("float16"))


def delay() -> None:
    """Let CuPy's current stream wait."""
    load("merge_states.cu", ("pause",), {"COUNT": 0})["pause"]((1,), (1,), (np.int32(LATE),))


def eight_bits() -> list[Any]:
    return [gpu.to_fp8(normal(2, 4, 300, 128)) for _ in "qkv"]


def test_totals_are_not_in_memory_that_a_kernel_writes_to() -> None:
    """The pool has nothing but what the call itself frees, so that it would come next."""
    cupy = import_cupy()
    q, k, v = eight_bits()
    *_, expected = gpu.forward(q, k, v, count=True)
    o = cupy.empty(q.shape, "float16")
    counters = Counters()
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        gpu.kernel("hopper_fp8").forward(q, k, v, o, None, Options(128**-0.5, counters=counters))
        result = counters.moved()
    assert result == expected


def test_totals_begin_at_0_and_are_complete_whichever_streams_are_late() -> None:
    cupy = import_cupy()
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    counters = Counters()
    with first:
        delay()
        totals = counters.for_launch(("Q",), ("mended",))
    with second:
        totals += 3
        delay()
        totals += 4
    assert counters.moved() == {"Q": gpu.Moved(7, 7)}
    with second:
        delay()
        totals += 1
    assert counters.happened() == {"mended": 8}


def test_pages_are_counted_on_a_stream_of_pytorchs_whichever_streams_are_late() -> None:
    torch = pytest.importorskip("torch")
    q = normal(3, 8, 1, 128)
    k, v = (normal(40, 2, 16, 128) for _ in "kv")
    table = np.arange(36, dtype=np.int32).reshape(3, 12)
    lengths = np.array([190, 16, 100], np.int32)
    *_, expected = gpu.paged(q, k, v, table, lengths, count=True)
    tensors = [torch.from_dlpack(x) for x in (q, k, v)]
    delay()  # compiles it
    words = [torch.from_numpy(x).cuda() for x in (table, lengths)]
    stream = torch.cuda.Stream()
    for late in (False, True):  # the first call loads what takes longer than the delay
        torch.cuda.synchronize()
        if late:
            delay()
        with torch.cuda.stream(stream):
            _, result = gpu.paged(*tensors, *words, check=False, count=True)
        assert result == expected


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls of kernels that need memory besides their results'."""
    q, k, v, do = (normal(1, 4, 300, 64) for _ in range(4))
    o, lse = gpu.forward(q, k, v, return_lse=True)
    for kernel in ("hopper", "tensor_core", "algorithm_2"):
        keywords: dict[str, Any] = {"kernel": kernel, "deterministic": kernel == "hopper"}
        yield f"{kernel}, backward", partial(gpu.backward, q, k, v, o, lse, do, **keywords)
    yield "algorithm_2", partial(gpu.forward, q, k, v, kernel="algorithm_2")
    yield "8 bits", partial(gpu.forward, *eight_bits())
    few = normal(1, 8, 1, 128)
    cache = [normal(1, 2, 5000, 128) for _ in "kv"]
    yield "decoding", partial(gpu.forward, few, *cache, kernel="hopper_decode")


NAMES = (
    "hopper, backward",
    "tensor_core, backward",
    "algorithm_2, backward",
    "algorithm_2",
    "8 bits",
    "decoding",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_writes_to_its_results_alone_when_it_runs_again(name: str) -> None:
    """What the pool gives out after a capture stays as it is."""
    cupy = import_cupy()
    call = dict(calls())[name]
    expected = call()
    pool = cupy.cuda.MemoryPool()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, cupy.cuda.using_allocator(pool.malloc):
        call()  # compiles, and fills the pool
        stream.synchronize()
        stream.begin_capture()
        result = call()
        graph = stream.end_capture()
        free = pool.free_bytes()
        others = [cupy.full(512, SENTINEL, "uint8") for _ in range(free // 512)]
        assert pool.free_bytes() < 512
        for _ in range(2):
            graph.launch(stream)
        stream.synchronize()
        assert (cupy.concatenate(others) == SENTINEL).all()
    pairs = zip(*((x if isinstance(x, tuple) else (x,)) for x in (result, expected)), strict=True)
    for one, other in pairs:
        assert np.allclose(one.get(), other.get(), rtol=1e-2, atol=1e-2)

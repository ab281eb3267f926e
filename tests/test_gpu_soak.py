"""The long way round, on a GPU: random shapes by the hundred, and ten thousand launches. pytest -m slow tests/test_gpu_soak.py"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flashsim.dropout import keep_mask
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.kernel import Kernel, Options
from tests import test_gpu as tests

pytestmark = [pytest.mark.slow, *tests.pytestmark]

PARTS, SHAPES = 8, 200
LAUNCHES, PROBLEMS, SETTLED = 10_000, 60, 2000


def random_problem(rung: Kernel, rng: np.random.Generator) -> tuple[tuple[int, ...], str, dict[str, Any]]:
    """A shape (B, H_q, H_kv, N_q, N_k, d), a dtype and options, of what a rung takes; short lengths as likely as long ones."""

    def length() -> int:
        return int(np.exp(rng.uniform(0, np.log(700))))

    group, H_kv = (int(rng.integers(1, 4)) if rung.gqa else 1), int(rng.integers(1, 3))
    N_q = min(length(), 64 // group) if rung.unsuited else length()
    shape = (int(rng.integers(1, 4)), group * H_kv, H_kv, N_q, length(), int(rng.choice(rung.head_dims)))
    asked: dict[str, Any] = {"scale": float(rng.choice([shape[-1] ** -0.5, -0.1, 1.0]))}
    if rung.causal and rng.random() < 0.5:
        asked["causal"] = True
    if rung.dropout and rng.random() < 0.3:
        asked |= {"dropout_p": float(rng.uniform(0.05, 0.9)), "seed": int(rng.integers(2**63))}
    return shape, str(rng.choice(rung.dtypes)), asked


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("rung", tests.RUNGS, ids=tests.by_name)
def test_random_shapes_lie_within_rounding_of_the_reference(rung: Kernel, part: int) -> None:
    """Into outputs of NaN between guard bands, forward and backward, 200 in all."""
    for n in range(part, SHAPES, PARTS):
        shape, dtype, asked = random_problem(rung, np.random.default_rng(n))
        B, H, _, N_q, N_k, _ = shape
        problem, p = tests.given(shape, dtype, seed=n, outliers=n % 5 == 0), asked.get("dropout_p", 0.0)
        heads = [keep_mask(asked["seed"], p, N_q, N_k, head) for head in range(B * H)] if p else []
        keep = np.stack(heads).reshape(B, H, N_q, N_k) if p else None
        found = tests.run(rung, problem, backward=rung.backward is not None, **asked)
        mask = problem.causal if asked.get("causal") else None
        try:
            tests.assert_near(rung, problem, found, mask, keep, p, scale=asked["scale"])
        except AssertionError as error:
            raise AssertionError(f"{n}: {shape} {dtype} {asked}: {error}") from error


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("rung", [rung for rung in tests.RUNGS if rung.tensor_cores], ids=tests.by_name)
def test_the_kit_finds_nothing_in_200_examples(rung: Kernel, d: int) -> None:
    for dtype in rung.dtypes:
        tests.check(rung, dtype, d, examples=200)


def test_ten_thousand_launches_leave_no_memory_behind_and_no_wrong_bit() -> None:
    """Shapes, kernels, directions and streams change from launch to launch; the first results of each problem are checked."""
    cupy = import_cupy()
    rng = np.random.default_rng(0)
    rungs = [rung for rung in tests.RUNGS if rung.tensor_cores]
    made: list[tuple[Callable[[], Any], list[Any]]] = []
    for n in range(PROBLEMS):
        rung = rungs[n % len(rungs)]
        shape, dtype, asked = random_problem(rung, rng)
        problem = tests.given(shape, dtype, seed=n)
        found = tests.run(rung, problem, backward=rung.backward is not None, deterministic=True, **asked)
        if not asked.get("dropout_p"):
            mask = problem.causal if asked.get("causal") else None
            tests.assert_near(rung, problem, found, mask, scale=asked["scale"])
        launch = _launched(rung, problem, asked)
        made.append((launch, [x.copy() for x in launch()]))
    wrong = cupy.zeros(1, "int64")
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    cupy.cuda.Device().synchronize()
    pool, settled = cupy.get_default_memory_pool(), 0
    for n in range(LAUNCHES):
        launch, wanted = made[int(rng.integers(PROBLEMS))]
        with streams[int(rng.integers(len(streams)))] as stream:
            for a, b in zip(launch(), wanted, strict=True):
                bits = "uint32" if a.itemsize == 4 else "uint16"
                wrong += (a.view(bits) != b.view(bits)).any()
            stream.synchronize()
        if n == SETTLED:
            settled = cupy.cuda.runtime.memGetInfo()[0]
    cupy.cuda.Device().synchronize()
    assert int(wrong[0]) == 0
    grown = settled - cupy.cuda.runtime.memGetInfo()[0]
    assert grown <= 64 * 2**20, f"{grown:,} bytes of the GPU's memory are gone; the pool has {pool.total_bytes():,}"


def _launched(rung: Kernel, problem: Any, asked: dict[str, Any]) -> Callable[[], list[Any]]:
    cupy = import_cupy()
    q, k, v, do = (cupy.asarray(getattr(problem, name)) for name in ("q", "k", "v", "do"))
    options = Options(deterministic=True, **asked)

    def launch() -> list[Any]:
        o, lse = cupy.empty_like(q), cupy.empty(q.shape[:3], "float32")
        rung.forward(q, k, v, o, lse, options)
        results = [o, lse]
        if rung.backward is not None:
            results += [cupy.empty_like(x) for x in (q, k, v)]
            rung.backward(q, k, v, o, lse, do, *results[2:], options)
        return results

    return launch

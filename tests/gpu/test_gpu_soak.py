"""The long way round, on a GPU: random shapes by the hundred, and ten thousand launches.

# in as many processes as there are cores
OPENBLAS_NUM_THREADS=1 pytest -m slow tests/gpu/test_gpu_soak.py -k "not launches"
# alone, as it looks at the GPU's memory
pytest -m slow tests/gpu/test_gpu_soak.py -k launches -n 0

SOAK_SECONDS=40 ends the launches after so many seconds.
"""

import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import gpu
from flashsim.attention.masks.dropout import keep_mask
from flashsim.attention.shapes import Shape
from flashsim.gpu.compiling import capability, current_device, import_cupy
from flashsim.gpu.kernel import Kernel
from tests.helpers import gpu_fp8 as fp8
from tests.helpers import gpu_runs as tests
from tests.helpers import gpu_serving as serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:tensor_core runs instead of hopper"),
    pytest.mark.filterwarnings("ignore:hopper runs instead of hopper_decode"),
]

PARTS = 16
SHAPES = 200
LAUNCHES = 10_000
PROBLEMS = 96
SETTLED = 2000
SECONDS = float(os.environ.get("SOAK_SECONDS", "inf"))
Launch = Callable[[int], list[Any]]


@dataclass(frozen=True)
class Drawn:
    """A problem of what a rung takes: (B, H_q, H_kv, N_q, N_k, d), a dtype, and fields of
    `Options`.
    """

    rung: Kernel
    shape: tuple[int, ...]
    dtype: str
    asked: dict[str, Any]

    @property
    def backward(self) -> bool:
        """Whether it has a backward pass."""
        not_backward = self.rung.not_backward.get(self.shape[-1], ())
        lacks = {"window", "block_mask", *not_backward} & set(self.asked)
        return self.rung.backward is not None and not lacks

    @property
    def allowed(self) -> Any:
        """Which scores count, (N_q, N_k), or None: all."""
        *_, N_q, N_k, d = self.shape
        right = 0 if self.asked.get("causal") else -1
        window = self.asked.get("window", (-1, right))
        allowed = flashsim.SlidingWindow(*window).whole(Shape(N_q, N_k, d, d), ())
        if "block_mask" in self.asked:
            B_r, B_c = _tiles(d)
            rows = self.asked["block_mask"].repeat(B_r, axis=0)[:N_q]
            allowed = allowed & rows.repeat(B_c, axis=1)[:, :N_k]
        return None if allowed.all() else allowed

    @property
    def keep(self) -> Any:
        """Which weights dropout keeps, (B, H_q, N_q, N_k), or None."""
        B, H, _, N_q, N_k, _ = self.shape
        p = self.asked.get("dropout_p", 0.0)
        if not p:
            return None
        seed = self.asked["seed"]
        heads = [keep_mask(seed, p, N_q, N_k, head) for head in range(B * H)]
        return np.stack(heads).reshape(B, H, N_q, N_k)


def _tiles(d: int) -> tuple[int, int]:
    return 128, 64 if d == 256 else 128


def drawn(rung: Kernel, rng: np.random.Generator) -> Drawn:
    """Draw from all that a rung takes here; short lengths as likely as long ones."""

    def length(most: int = 700) -> int:
        return int(np.exp(rng.uniform(0, np.log(most))))

    group = int(rng.integers(1, 4))
    H_kv = int(rng.integers(1, 3))
    few = rung.unsuited is not None  # queries, and keys enough to be split
    N_q = min(length(), 64 // group) if few else length()
    N_k = length(9000 if few else 700)
    d = rng.choice(rung.head_dims)
    B = int(rng.integers(1, 4))
    shape = (B, group * H_kv, H_kv, N_q, N_k, int(d))
    scales = [d**-0.5, -0.1, 0.05 if rung.output else 1.0]
    options: dict[str, Any] = {"scale": float(rng.choice(scales))}
    # else another runs in its place
    own = rung.why_not is None or not rung.why_not(capability(current_device()), int(d))
    kind = rng.random()
    if "window" in rung.takes and own and kind < 0.2:
        left = int(rng.integers(-1, 300))
        right = int(rng.integers(-1, 300))
        options["window"] = (left, right)
    elif "causal" in rung.takes and kind < 0.6:
        options["causal"] = True
    if "block_mask" in rung.takes and own and "window" not in options and rng.random() < 0.2:
        B_r, B_c = _tiles(d)
        in_blocks = (-(-N_q // B_r), -(-N_k // B_c))
        options["block_mask"] = rng.random(in_blocks) < 0.6
    if "dropout_p" in rung.takes and rng.random() < 0.3:
        options["dropout_p"] = float(rng.uniform(0.05, 0.9))
        options["seed"] = int(rng.integers(2**63))
    return Drawn(rung, shape, str(rng.choice(rung.dtypes)), options)


def checked(case: Drawn, seed: int, **options: Any) -> Any:
    """Hold a rung's results against the reference, and return the problem."""
    rung = case.rung
    arguments = case.asked
    if rung.output:
        problem = fp8.rounded(case.shape, seed)
        scale = arguments["scale"]
        causal = arguments.get("causal", False)
        keys_contiguous = seed % 2 == 0 and problem.k.shape[2] % 4 == 0
        o, lse = fp8.run(problem, scale, causal, keys_contiguous)
        fp8.assert_near(problem, o, lse, scale, causal)
        return problem
    outliers = seed % 5 == 0
    problem = tests.given(case.shape, case.dtype, seed=seed, outliers=outliers)
    result = tests.run(rung, problem, backward=case.backward, **arguments, **options)
    try:
        p = arguments.get("dropout_p", 0.0)
        scale = arguments["scale"]
        tests.assert_near(rung, problem, result, case.allowed, case.keep, p, scale=scale)
    except AssertionError as error:
        raise AssertionError(f"{seed}: {case}: {error}") from error
    return problem


@pytest.mark.parametrize(
    ("rung", "part"),
    [(rung, part) for part in range(PARTS) for rung in tests.RUNGS],
    ids=lambda x: getattr(x, "name", x),
)
def test_random_shapes_lie_within_rounding_of_the_reference(rung: Kernel, part: int) -> None:
    """Into outputs of NaN between guard bands, forward and backward, 200 in all.

    A part has what is alike, so that few kernels are compiled by two processes: that takes longer
    than all else.
    """

    def what_is_compiled(case_and_seed: tuple[Drawn, int]) -> tuple[Any, ...]:
        case, _ = case_and_seed
        return (case.shape[-1], case.dtype, *sorted(case.asked))

    cases = [(drawn(rung, np.random.default_rng(n)), n) for n in range(SHAPES)]
    cases.sort(key=what_is_compiled)
    first = SHAPES * part // PARTS
    end = SHAPES * (part + 1) // PARTS
    for case, n in cases[first:end]:
        checked(case, n)


@pytest.mark.parametrize(
    ("rung", "dtype", "d"),
    [
        (rung, dtype, d)
        for rung in tests.RUNGS
        if rung.tensor_cores
        for dtype in rung.dtypes
        for d in (64, 128, 256)
        if d in rung.head_dims
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_the_kit_finds_nothing_in_200_examples(rung: Kernel, dtype: str, d: int) -> None:
    tests.check(rung, dtype, d, examples=200)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", [serving.through_pages, serving.among_others])
def test_the_kit_finds_nothing_in_what_serves(way: Any, dtype: str, d: int) -> None:
    if capability(current_device()) != "90":
        pytest.skip("it needs a GPU of compute capability 90")
    serving.run_kit(way, dtype, d, 200)


def test_ten_thousand_launches_leave_no_memory_behind_and_no_wrong_bit() -> None:
    """Shapes, kernels, options, libraries, directions and streams change from launch to launch.

    The first results of each problem are checked.
    """
    cupy = import_cupy()
    rng = np.random.default_rng(0)
    rungs = [rung for rung in gpu.ladder().values() if rung.tensor_cores]
    rungs = [rung for rung in rungs if not rung.output or capability(current_device()) == "90"]
    cases = [drawn(rungs[n % len(rungs)], rng) for n in range(PROBLEMS)]
    made: list[tuple[Launch, list[Any]]] = []
    with ThreadPoolExecutor() as threads:  # in which kernels are compiled
        problems = threads.map(
            lambda n, case: checked(case, n, deterministic=True), range(PROBLEMS), cases
        )
        for n, (case, problem) in enumerate(zip(cases, problems, strict=True)):
            launch = _launched(case, problem, tensors=n % 3 == 0)
            made.append((launch, [x.copy() for x in launch(0)]))
    wrong = cupy.zeros(1, "int64")

    def compare(result: list[Any], expected: list[Any]) -> None:
        nonlocal wrong
        for a, b in zip(result, expected, strict=True):
            bits = f"uint{8 * a.itemsize}"
            wrong += (a.view(bits) != b.view(bits)).any()

    for _, expected in made:  # CuPy compiles what compares, which takes seconds
        compare(expected, expected)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    cupy.cuda.Device().synchronize()
    start = time.monotonic()
    settled = 0
    done = 0
    while done < LAUNCHES and time.monotonic() - start < SECONDS:
        launch, expected = made[int(rng.integers(PROBLEMS))]
        with streams[int(rng.integers(len(streams)))] as stream:
            compare(launch(stream.ptr), expected)
            stream.synchronize()
        done += 1
        if not settled and (done == SETTLED or time.monotonic() - start > SECONDS / 3):
            settled = cupy.cuda.runtime.memGetInfo()[0]
    cupy.cuda.Device().synchronize()
    print(f"{done:,} launches in {time.monotonic() - start:.0f} s")
    assert int(wrong[0]) == 0
    assert settled, "too few launches to say whether memory grows"
    grown = settled - cupy.cuda.runtime.memGetInfo()[0]
    assert grown <= 64 * 2**20, f"{grown:,} bytes of the GPU's memory are gone"


def _launched(case: Drawn, problem: Any, tensors: bool) -> Launch:
    """Return what launches on a stream and returns CuPy's arrays; where there is PyTorch, of its
    tensors.
    """
    cupy = import_cupy()
    options = {"kernel": case.rung.name, **case.asked}
    if "window" in options:
        options["mask"] = flashsim.SlidingWindow(*options.pop("window"))
    inputs = []
    for name in ("q", "k", "v", "do"):
        bits = getattr(problem, name).view(np.uint8)
        inputs.append(cupy.asarray(bits).view(problem.q.dtype))
    q, k, v, do = inputs
    torch: Any = None
    if tensors and importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
    if torch is not None:
        kind = getattr(torch, problem.q.dtype.name)
        q, k, v, do = (torch.from_dlpack(x.view("uint8")).view(kind) for x in inputs)

    def launch(stream: int) -> list[Any]:
        with (
            torch.cuda.stream(torch.cuda.ExternalStream(stream))
            if torch is not None
            else nullcontext()
        ):
            o, lse = gpu.forward(q, k, v, return_lse=True, **options)
            results = [o, lse]
            if case.backward:
                results += gpu.backward(q, k, v, o, lse, do, deterministic=True, **options)
            return results if torch is None else [cupy.from_dlpack(x) for x in results]

    return launch

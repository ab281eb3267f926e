# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# Triton reads the annotations of kernels.
"""Triton's kernels, counted in Triton's interpreter."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

import flashsim  # noqa: E402
from flashsim.attention.problem import Problem  # noqa: E402
from flashsim.profiling import OutsideArrays, ProfilingError, count, count_attention  # noqa: E402
from flashsim.profiling.recording import Recorder  # noqa: E402
from flashsim.profiling.switch import SWITCH  # noqa: E402
from flashsim.profiling.triton_kernels import Triton  # noqa: E402
from flashsim.reference import attention as naive_attention  # noqa: E402
from flashsim.support.loading import file_of  # noqa: E402
from flashsim.theory import exact, lower_bound  # noqa: E402

SOURCE = Path(flashsim.__file__).parent / "profiling" / "triton_example.py"
ARRAYS = ("Q", "K", "V", "O")


def kernels(folder: Path, old: str = "", new: str = "") -> Any:
    """Return the module of the kernels, with one text replaced."""
    text = SOURCE.read_text(encoding="utf-8")
    assert old in text
    changed = text.replace(old, new, 1) if old else text
    file = folder / f"kernels_{abs(hash((old, new)))}.py"
    file.write_text(changed, encoding="utf-8")
    return file_of(file)


def operands(N_q: int, N_k: int, d: int, heads: int = 1, kv_heads: int = 1) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(0)
    for number, rows in ((heads, N_q), (kv_heads, N_k), (kv_heads, N_k)):
        yield torch.randn((1, number, rows, d), generator=generator)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("N", "d", "B_r", "B_c", "heads", "kv_heads"),
    [(64, 16, 16, 16, 1, 1), (100, 16, 16, 32, 2, 1), (70, 32, 32, 16, 4, 2)],
)
def test_a_kernel_moves_what_q_outer_moves(
    tmp_path: Path, N: int, d: int, B_r: int, B_c: int, heads: int, kv_heads: int, causal: bool
) -> None:
    attention = kernels(tmp_path).attention
    Q, K, V = operands(N, N, d, heads, kv_heads)
    profile = count(attention, Q, K, V, causal=causal, B_r=B_r, B_c=B_c)
    form = exact(
        "q_outer",
        N=N,
        d=d,
        M=10**6,
        heads=heads,
        kv_heads=kv_heads,
        causal=causal,
        blocks=(B_r, B_c),
    )
    for name in ARRAYS:
        counted = profile.by_array[name]
        expected = form.hbm.by_array[name]
        assert (counted.reads, counted.writes) == (expected.reads, expected.writes), name
        assert (counted.size, counted.role) == (expected.size, expected.role), name
    assert profile.blocks == (B_r, B_c)
    assert profile.nearest is not None
    assert profile.nearest.equal
    assert profile.nearest.algorithm == "q_outer"
    assert profile.findings == ()
    statistics = profile.by_array["L"]
    assert (statistics.reads, statistics.writes) == (0, heads * N)


def test_the_call_computes_what_it_would_compute(tmp_path: Path) -> None:
    attention = kernels(tmp_path).attention
    Q, K, V = operands(50, 50, 16)
    results = []

    def kept(q: Any, k: Any, v: Any) -> Any:
        results.append(attention(q, k, v, causal=True))
        return results[-1]

    count(kept, Q, K, V)
    arrays = [operand.numpy() for operand in (Q, K, V)]
    expected = naive_attention(*arrays, mask=np.tril(np.ones((50, 50), bool)))
    np.testing.assert_allclose(results[0].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_the_backward_pass_moves_what_q_outer_two_pass_moves(tmp_path: Path, causal: bool) -> None:
    attention = kernels(tmp_path).attention
    Q, K, V = operands(70, 70, 16, heads=2, kv_heads=2)
    profile = count(attention, Q, K, V, direction="backward", causal=causal, B_r=16, B_c=32)
    form = exact(
        "q_outer_two_pass",
        direction="backward",
        N=70,
        d=16,
        M=10**6,
        heads=2,
        causal=causal,
        blocks=(16, 32),
    )
    for name in ("Q", "K", "V", "dO", "dQ", "dK", "dV"):
        counted = profile.by_array[name]
        expected = form.hbm.by_array[name]
        assert (counted.reads, counted.writes) == (expected.reads, expected.writes), name
        assert counted.role == expected.role
    assert profile.nearest is not None
    assert profile.nearest.equal
    assert profile.nearest.algorithm == "q_outer_two_pass"
    assert [launch.kernel for launch in profile.launches] == [
        "rowsum_kernel",
        "keys_kernel",
        "queries_kernel",
    ]
    assert {(finding.kind, finding.array) for finding in profile.findings} == {("kept in HBM", "D")}


def test_the_gradients_are_right(tmp_path: Path) -> None:
    attention = kernels(tmp_path).attention
    mine = [operand.requires_grad_() for operand in operands(50, 50, 16)]
    theirs = [operand.requires_grad_() for operand in operands(50, 50, 16)]
    gradient = torch.randn(1, 1, 50, 16)
    recorder = Recorder()
    with Triton().listening(recorder):
        for name, operand in zip("QKV", mine, strict=True):
            Triton().add(recorder, name, operand, "input")
        Triton().add(recorder, "dO", gradient, "input")
        attention(*mine, causal=True, B_r=16, B_c=16).backward(gradient)
    torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True).backward(gradient)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4)


def test_a_function_without_a_gradient_is_refused(tmp_path: Path) -> None:
    attention = kernels(tmp_path).attention

    def detached(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v).detach()

    Q, K, V = operands(32, 32, 16)
    with pytest.raises(ProfilingError, match="first result has no gradient"):
        count(detached, Q, K, V, direction="backward")


def test_the_bound_is_that_of_prove(tmp_path: Path) -> None:
    attention = kernels(tmp_path).attention
    Q, K, V = operands(64, 64, 16)
    profile = count(attention, Q, K, V)
    compulsory = 4 * 64 * 16
    assert profile.fewest() == compulsory
    assert profile.over_bound() == profile.hbm.accesses / compulsory
    least = lower_bound(N=64, d=16, M=100).accesses
    assert least > compulsory
    assert profile.fewest(M=100) == least
    assert profile.fewest(M="400 B") == least


def test_query_heads_that_share_a_kv_head_are_bounded_together(tmp_path: Path) -> None:
    attention = kernels(tmp_path).attention
    Q, K, V = operands(64, 64, 16, heads=4, kv_heads=2)
    profile = count(attention, Q, K, V)
    assert profile.fewest() == 4 * 2 * 64 * 16 + 2 * 2 * 64 * 16


LOAD_K = "        K_j = tl.load(K + tile, mask=j[:, None] < N_k, other=0.0)\n"
LOAD_Q = "        Q_i = tl.load(Q + queries, mask=i[:, None] < N_q, other=0.0)\n"
STORE_O = "        tl.store(O + queries, O_i, mask=i[:, None] < N_q)\n"
NEXT_TURN = "        m_i = m_new\n"
LAST_TURN = "    for start in range(0, end, B_c):\n"
PLANTED = {
    "Q in the inner loop": (LOAD_K, LOAD_Q + LOAD_K, "read again", "Q", 4 * 64 * 16),
    "K twice": (LOAD_K, LOAD_K + LOAD_K, "read again", "K", 4 * 64 * 16),
    "a turn too many": (
        LAST_TURN,
        "    for start in range(0, end + B_c, B_c):\n",
        "masked off",
        "K",
        None,
    ),
    "O in every turn": (NEXT_TURN, NEXT_TURN + STORE_O, "written again", "O", 4 * 64 * 16),
    "statistics in HBM": (
        NEXT_TURN,
        "        tl.store(L + head * N_q + i, m_new)\n        m = tl.load(L + head * N_q + i)\n",
        "kept in HBM",
        "L",
        4 * 64,
    ),
    "O in float32": (
        "o = torch.empty_like(q)",
        "o = torch.empty_like(q, dtype=torch.float64)",
        "wide output",
        "O",
        None,
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_waste_is_found_at_its_line(tmp_path: Path, name: str) -> None:
    old, new, kind, array, elements = PLANTED[name]
    module = kernels(tmp_path, old, new)
    Q, K, V = operands(64, 64, 16)
    profile = count(module.attention, Q, K, V, B_r=16, B_c=16)
    matches = [
        finding for finding in profile.findings if finding.kind == kind and finding.array == array
    ]
    assert matches
    assert sum(finding.elements or 0 for finding in matches) == (elements or 0)
    line = matches[0].line
    assert line is not None
    source = Path(module.__file__).read_text(encoding="utf-8").splitlines()[line.number - 1]
    verb = "tl.load" if kind in ("read again", "masked off", "kept in HBM") else "tl.store"
    assert verb in source
    assert f"({array} +" in source


WRONG = {
    "the last tile is left out": ("range(0, end, B_c)", "range(0, end - B_c, B_c)"),
    "sums are not rescaled": ("l_i = factor * l_i +", "l_i = l_i +"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_is_found(tmp_path: Path, name: str) -> None:
    module = kernels(tmp_path, *WRONG[name])
    Q, K, V = operands(64, 64, 16)
    profile = count(module.attention, Q, K, V, B_r=16, B_c=16)
    assert profile.findings[0].kind == "wrong result"
    assert profile.difference is not None
    assert profile.difference.is_wrong


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_right_result_is_known(dtype: str) -> None:
    from flashsim.profiling.triton_example import attention

    problem = Problem.of(N=70, d=16, heads=4, kv_heads=2, causal=True, dtype=dtype)
    profile = count_attention(attention, problem, B_r=16, B_c=32)
    assert profile.difference is not None
    assert not profile.difference.is_wrong
    assert 0 < profile.difference.error < profile.difference.allowance / 4


def test_an_error_in_a_kernel_names_its_line(tmp_path: Path) -> None:
    module = kernels(tmp_path)
    Q, K, V = operands(32, 32, 48)
    with pytest.raises(ProfilingError, match=r"kernels_\d+\.py:\d+: a kernel failed .*power of 2"):
        count(module.attention, Q, K, V)


def test_a_wasteful_kernel_is_not_taken_for_another_program(tmp_path: Path) -> None:
    old, new, *_ = PLANTED["Q in the inner loop"]
    module = kernels(tmp_path, old, new)
    Q, K, V = operands(64, 64, 16)
    profile = count(module.attention, Q, K, V, B_r=16, B_c=16)
    assert profile.nearest is not None
    assert profile.nearest.algorithm == "q_outer"
    assert not profile.nearest.equal


def test_tiles_that_a_causal_mask_empties_are_found(tmp_path: Path) -> None:
    module = kernels(tmp_path, "    if causal:  # no key after", "    if False:  # no key after")
    Q, K, V = operands(64, 64, 16)
    profile = count(module.attention, Q, K, V, causal=True, B_r=16, B_c=16)
    tiles = [finding for finding in profile.findings if finding.kind == "needless tiles"]
    assert [finding.array for finding in tiles] == ["K", "V"]
    for finding in tiles:
        assert finding.elements == 6 * 16 * 16  # 4 × 4 tiles, of which 6 are above the diagonal
    assert profile.nearest is not None
    assert profile.nearest.equal
    assert not profile.nearest.skips


def test_strides_and_padding(tmp_path: Path) -> None:
    """A tensor with axes in another order has the same counts; every second column costs twice the
    sectors.
    """
    import triton
    import triton.language as tl

    @triton.jit
    def copy_kernel(X, Y, rows, stride, d: tl.constexpr):
        row = tl.program_id(0)
        columns = tl.arange(0, d)
        values = tl.load(X + row * stride[0] + columns * stride[1])
        tl.store(Y + row * d + columns, values)

    def copy(x: Any) -> Any:
        y = torch.empty(x.shape)
        copy_kernel[(x.shape[0],)](x, y, x.shape[0], x.stride(), d=x.shape[1])
        return y

    whole = count(copy, torch.randn(8, 32))
    assert whole.by_array["x"].reads == 8 * 32
    assert whole.sectors["x"] == 8 * 32 * 4
    spread = count(copy, torch.randn(8, 64)[:, ::2])
    assert spread.by_array["x"].reads == 8 * 32
    assert spread.sectors["x"] == 2 * 8 * 32 * 4
    assert "unused bytes" in {finding.kind for finding in spread.findings}
    transpose = count(copy, torch.randn(32, 8).T)
    assert transpose.by_array["x"].reads == 8 * 32
    assert transpose.sectors["x"] == 8 * 8 * 32 * 4


def test_what_lies_outside_every_array_is_refused(tmp_path: Path) -> None:
    module = kernels(
        tmp_path,
        "Q_i = tl.load(Q + queries, mask=i[:, None] < N_q, other=0.0)",
        "Q_i = tl.load(Q + queries)",
    )
    Q, K, V = operands(40, 40, 16)
    expected = r"kernels_\d+\.py:\d+: program \(2, 0, 0\) reads 128 of 256 elements outside Q"
    with pytest.raises(OutsideArrays, match=expected):
        count(module.attention, Q, K, V, B_r=16, B_c=16)


def test_a_call_without_kernels_is_refused() -> None:
    with pytest.raises(ProfilingError, match="ran none of PyTorch operators or Triton kernels"):
        count(lambda q: q, torch.zeros(4))


def test_an_autotuned_kernel_takes_its_first_configuration(tmp_path: Path) -> None:
    import triton
    import triton.language as tl

    @triton.autotune(configs=[triton.Config({"B": 16}), triton.Config({"B": 32})], key=["size"])
    @triton.jit
    def double_kernel(X, Y, size, B: tl.constexpr):
        places = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(Y + places, 2 * tl.load(X + places, mask=places < size), mask=places < size)

    def double(x: Any) -> Any:
        y = torch.empty_like(x)
        double_kernel[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, y, x.numel())
        return y

    profile = count(double, torch.randn(40))
    assert profile.by_array["x"].reads == 40
    assert profile.by_array["Y"].writes == 40
    assert profile.launches[0].grid == (3,)
    assert "B: 16" in profile.launches[0].config
    assert profile.launches[0].config.endswith("of 2")


def test_descriptors_and_atomics() -> None:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit
    def sums_kernel(X, Y, total, N, d: tl.constexpr, B: tl.constexpr):
        rows = tl.program_id(0) * B
        x = X.load([rows, 0])
        y = tl.make_tensor_descriptor(Y, (N, d), (d, 1), (B, d)).load([rows, 0])
        tl.atomic_add(total, tl.sum(x * y))

    def product(x: Any, y: Any, total: Any) -> None:
        N, d = x.shape
        descriptor = TensorDescriptor.from_tensor(x, [16, d])
        sums_kernel[(triton.cdiv(N, 16),)](descriptor, y, total, N, d=d, B=16)

    total = torch.zeros(1)
    x = torch.randn(40, 16)
    y = torch.randn(40, 16)
    profile = count(product, x, y, total)
    assert float(total) == pytest.approx(float((x * y).sum()), rel=1e-4)
    assert profile.by_array["x"].reads == 40 * 16
    assert profile.by_array["y"].reads == 40 * 16
    counted = profile.by_array["total"]
    assert (counted.reads, counted.writes) == (3, 3)


def test_a_problem_is_enough(tmp_path: Path) -> None:
    module = kernels(tmp_path)
    problem = Problem.of(N=48, d=16, heads=2, kv_heads=1, causal=True, dtype="float16")
    profile = count_attention(module.attention, problem, B_r=16, B_c=16)
    assert profile.problem is not None
    assert profile.problem.shape == problem.shape
    assert profile.by_array["Q"].itemsize == 2
    assert profile.nearest is not None
    assert profile.nearest.equal
    assert math.isclose(profile.over_bound(), profile.hbm.accesses / profile.fewest())


@pytest.mark.parametrize("switch", ["0", "1"])
def test_kernels_decorated_for_a_gpu_or_not_have_the_same_counts(
    tmp_path: Path, switch: str
) -> None:
    """Triton reads its environment variable when it is imported and when it decorates."""
    program = (
        "import torch\n"
        "from flashsim.profiling import count\n"
        "from flashsim.profiling.triton_example import attention\n"
        "Q, K, V = torch.randn(3, 1, 2, 40, 16)\n"
        "profile = count(attention, Q, K, V, causal=True, B_r=16, B_c=16)\n"
        "print([(a.reads, a.writes) for a in profile.by_array.values()])\n"
    )
    environment = os.environ | {SWITCH: switch}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[(1280, 0), (2816, 0), (2816, 0), (0, 80), (0, 1280)]\n"

"""How a kernel's counts grow with N: from short lengths to long ones."""

from fractions import Fraction
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from flashsim.attention.problem import Problem  # noqa: E402
from flashsim.masks import SlidingWindow  # noqa: E402
from flashsim.profiling import ProfilingError, law  # noqa: E402
from flashsim.profiling.triton_example import attention  # noqa: E402
from flashsim.theory import exact  # noqa: E402


@pytest.mark.parametrize("causal", [False, True])
def test_the_law_is_the_closed_form_at_a_length_that_is_not_run(causal: bool) -> None:
    problem = Problem.of(N=64, d=16, heads=2, kv_heads=1, causal=causal)
    kernel_law = law(attention, problem, B_r=32, B_c=16)
    assert kernel_law.step == 32
    assert kernel_law.lengths == (64, 96, 128, 160, 224)
    N = 2**17
    form = exact(
        "q_outer",
        N=N,
        d=16,
        M=10**6,
        heads=2,
        kv_heads=1,
        causal=causal,
        blocks=(32, 16),
    )
    traffic = kernel_law.traffic(N)
    for name in ("Q", "K", "V", "O"):
        by_law = traffic.by_array[name]
        expected = form.hbm.by_array[name]
        assert (by_law.reads, by_law.writes) == (expected.reads, expected.writes)
        assert by_law.size == expected.size
    reads, writes = kernel_law.formulas()["Q"]
    assert (reads, writes) == ("H·N·d", "0")


def test_its_formulas_have_the_kernels_symbols() -> None:
    formulas = law(attention, Problem.of(N=64, d=64, causal=True), B_r=32, B_c=16).formulas()
    assert formulas["K"] == ("N²·d/(2·B_r) + N·d/2", "0")
    assert formulas["L"] == ("0", "N")
    assert formulas["O"] == ("0", "N·d")


def test_operators_have_a_law_too() -> None:
    def eager(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    kernel_law = law(eager, Problem.of(N=64, d=8))
    assert kernel_law.blocks is None
    assert kernel_law.reads["softmax_1"] == (Fraction(1), Fraction(0), Fraction(0))
    assert kernel_law.formulas()["softmax_1"] == ("N²", "N²")


def test_a_length_off_the_blocks_is_refused() -> None:
    kernel_law = law(attention, Problem.of(N=64, d=16), B_r=16, B_c=16)
    with pytest.raises(ValueError, match="N is 1,000; expected a multiple of 16"):
        kernel_law.traffic(1000)


def test_a_kernel_without_a_law_is_refused() -> None:
    """At one of the lengths that check the law, it skips tiles."""
    run: Any = attention

    def jumpy(q: Any, k: Any, v: Any) -> Any:
        return run(q, k, v, causal=k.shape[-2] == 80, B_r=16, B_c=16)

    with pytest.raises(ProfilingError, match="jumpy follows no law: at N = 80 it reads"):
        law(jumpy, Problem.of(N=64, d=16))


def test_a_mask_that_does_not_grow_is_refused() -> None:
    problem = Problem.of(N=64, d=16, mask=SlidingWindow(4, 0))
    with pytest.raises(ValueError, match="expected none, or causal"):
        law(attention, problem)

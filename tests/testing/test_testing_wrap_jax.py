"""Attentions on JAX's arrays, wrapped for NumPy: with `pip install jax`, pytest
tests/testing/test_testing_wrap_jax.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim.cli import main
from flashsim.reference import attention, gradients
from flashsim.testing.wrapping import wrap
from tests.helpers.wrapping import SDPA_CASES, close, grouped, inputs, layouts, problem, same_bits

pytest.importorskip("jax", reason="jax is not installed")


# --------------------------------------------------------------------------------------------------
# JAX


def jax_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Any = None,
) -> Any:
    import jax

    q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))  # jax.nn's is (B, N, H, d)
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
    result = jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal, scale=scale)
    return result.swapaxes(1, 2)


JAX_CASES: dict[str, dict[str, Any]] = {
    name: {key: value for key, value in case.items() if key != "d_v"}
    for name, case in SDPA_CASES.items()
    if name not in ("one head's keys", "no keys", "d_v") and "mask" not in case
}


@pytest.mark.parametrize("case", JAX_CASES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax_against_the_reference(case: str, dtype: str) -> None:
    (q, k, v), keywords, mask = problem(JAX_CASES[case], dtype)
    result = wrap(jax_attention, "jax")(q, k, v, **keywords)
    assert type(result) is np.ndarray
    assert result.dtype == q.dtype
    K, V = (grouped(a, q.shape[1]) for a in (k, v))
    expected = attention(q, K, V, scale=keywords.get("scale"), mask=mask)
    close(result, expected, {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype])


def test_jax_masks_and_gradients() -> None:
    case = {"H_q": 4, "mask": "full", "causal": True}
    (q, k, v), keywords, mask = problem(case, "float32")
    assert mask is not None
    keywords["mask"] = keywords["mask"].copy()
    # jax.nn's says nothing of queries with no keys
    keywords["mask"][..., 0] = True
    mask[..., 0] = True
    do = np.random.default_rng(2).standard_normal(q.shape).astype(np.float32)

    def with_q(q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        return jax_attention(q, k, v, **keywords), q

    kernel = wrap(with_q, "jax")
    K = grouped(k, 4)
    V = grouped(v, 4)
    O, _ = kernel(q, k, v, **keywords)
    close(O, attention(q, K, V, mask=mask))
    expected = gradients(q, K, V, do, mask=mask)
    dq, dk, dv = kernel.backward(q, k, v, do, **keywords)
    close(dq, expected.dQ)
    of_groups = (2, 2, 2, 7, 8)
    close(dk, expected.dK.reshape(of_groups).sum(axis=2))
    close(dv, expected.dV.reshape(of_groups).sum(axis=2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("layout", layouts("float32"))
def test_jax_gets_and_gives_the_very_bits(dtype: str, layout: str) -> None:
    array = layouts(dtype)[layout]
    first = wrap(lambda q, k, v: q, "jax", device="cpu")
    assert same_bits(first(array, array, array), array)


def test_jax_holds_no_memory_of_the_caller() -> None:
    import jax

    arrays: list[Any] = []

    def keeps(q: Any, k: Any, v: Any) -> Any:
        arrays.append(q)
        assert isinstance(q, jax.Array)
        return q

    q, k, v = inputs()
    result = wrap(keeps, "jax")(q, k, v)
    before = q.copy()
    q[:] = 0
    assert same_bits(np.asarray(arrays[0]), before)
    result[:] = 0
    assert same_bits(np.asarray(arrays[0]), before)


def test_jax_has_float64_only_where_it_is_enabled() -> None:
    import jax

    q, k, v = inputs(dtype="float64")
    kernel = wrap(jax_attention, "jax")
    with pytest.raises(
        ValueError,
        match=r'q has dtype float64, .*expected jax.config.update\("jax_enable_x64", True\)',
    ):
        kernel(q, k, v)
    jax.config.update("jax_enable_x64", True)
    try:
        wide = wrap(lambda q, k, v: jax.nn.softmax(q @ k.mT / 8**0.5) @ v, "jax")
        result = wide(q, k, v)
    finally:
        jax.config.update("jax_enable_x64", False)
    assert result.dtype == np.float64
    close(result, attention(q, k, v), 1e-13)


KERNELS = """
import jax


def attention(q, k, v):
    return jax.nn.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v


@jax.custom_vjp
def doubled(q, k, v):
    return attention(q, k, v)


def backward(vjp, do):
    dq, dk, dv = vjp(do)
    return 2 * dq, dk, dv


doubled.defvjp(lambda q, k, v: jax.vjp(attention, q, k, v), backward)
"""


def test_check_takes_jax_s_own_gradients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jax_kernels.py").write_text(KERNELS, encoding="utf-8")
    few = ["--examples", "4", "--max-shapes", "1", "--check", "gradients", "--quiet"]
    for name, failed in (("attention", False), ("doubled", True)):
        where = f"{tmp_path}/jax_kernels.py:{name}"
        assert main(["check", where, "--wrap", "jax", "--backward", "auto", *few]) == failed
        assert ("dq, dk, dv for a random dO against the" in capsys.readouterr().out) == failed

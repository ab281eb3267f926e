"""Attentions on the arrays of another package, wrapped for NumPy: what needs none, and CuPy's."""

import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim.cli import main
from flashsim.testing.bridges import BRIDGES, Bridge, NativeArray, _surroundings
from flashsim.testing.checkup import check_attention
from flashsim.testing.conventions import _sdpa
from flashsim.testing.probe import parameters
from flashsim.testing.spec import Spec
from flashsim.testing.wrapping import Wrapped, wrap
from tests.helpers.wrapping import DTYPES, inputs, layouts, same_bits


def _cupy() -> bool:
    if importlib.util.find_spec("cupy") is None:
        return False
    import cupy  # type: ignore[import-not-found, unused-ignore]

    return bool(cupy.is_available())


# --------------------------------------------------------------------------------------------------
# any package


@pytest.mark.parametrize(
    ("xp", "install"), [("torch", "pip install torch"), ("jax", "jax"), ("cupy", "cupy-cuda12x")]
)
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, xp: str, install: str) -> None:
    monkeypatch.setitem(sys.modules, xp, None)
    with pytest.raises(ModuleNotFoundError, match=f"xp='{xp}' needs the package {xp}: .*{install}"):
        wrap(lambda q, k, v: q, xp)


def test_unknown_arguments_are_refused() -> None:
    with pytest.raises(
        ValueError, match="xp is 'numba'; expected one of 'numpy', 'torch', 'cupy', 'jax'"
    ):
        wrap(lambda q, k, v: q, "numba")
    message = "convention is 'flash'; expected one of None, 'sdpa', 'flex_attention', 'flash_attn',"
    with pytest.raises(ValueError, match=message):
        wrap(lambda q, k, v: q, "torch", convention="flash")
    with pytest.raises(ValueError, match="xp is 'jax'; expected 'torch'"):
        wrap(lambda q, k, v: q, "jax", convention="sdpa")
    with pytest.raises(ValueError, match="fn is 3; expected a function"):
        wrap(3, "torch")


class Plain(Bridge):
    """To NumPy's own arrays, in torch's name."""

    package = "torch"


def test_a_callable_object_has_its_class_s_name_and_is_wrapped_again_by_one_s_own() -> None:
    class Attention:
        def __call__(self, q: Any, k: Any, v: Any) -> Any:
            return q

        def __repr__(self) -> str:
            return "Attention(\n  (drop): Dropout(p=0.0)\n)"

    module = Wrapped(Attention(), Plain(), None)
    assert module.__name__ == "Attention"
    assert module.code("attend") == "wrap(attend, 'torch')"


class Tensor(np.ndarray[Any, Any]):
    """Another package's arrays."""


class Boxed(Plain):
    """To tensors, and from nothing else."""

    kind = Tensor

    def send(self, name: str, array: Any) -> NativeArray:
        return NativeArray(name, array.view(Tensor))


OWN_BACKWARD = """
from flashsim.testing.mutants import BASES

def attend(q, k, v, **options):
    return BASES["unfused"](q, k, v, **options)[0].view(type(q))

def attend_backward(q, k, v, do, **options):
    assert {type(a).__name__ for a in (q, k, v, do)} == {"Tensor"}
    return [a.view(type(q)) for a in BASES["unfused"].backward(q, k, v, do, **options)]

def attend_wrongly(q, k, v, do, **options):
    dq, dk, dv = attend_backward(q, k, v, do, **options)
    return dq, 2 * dk, dv
"""


def test_a_backward_function_of_one_s_own_is_wrapped_like_the_forward_one() -> None:
    own: dict[str, Any] = {}
    exec(OWN_BACKWARD, own)
    names = ("attend", "attend_backward", "attend_wrongly")
    forward, backward, wrong = (Wrapped(own[name], Boxed(), None) for name in names)
    options: dict[str, Any] = {"checks": ["gradients", "inputs_unmodified"], "max_examples": 20}
    assert check_attention(forward, Spec(), backward=backward, **options).tallies["gradients"].tried
    report = check_attention(forward, Spec(), backward=wrong, **options, on_fail="return")
    assert [failure.check for failure in report.failures] == ["gradients"]
    # there is nowhere to import it from
    assert "attend_wrongly = wrap(attend_wrongly, 'torch')" not in str(report)
    assert "# attend_wrongly: the one under test" in str(report)


def test_a_convention_s_backward_function_gets_its_keywords_and_returns_all_three() -> None:
    def backward(q: Any, k: Any, v: Any, do: Any, is_causal: bool = False) -> Any:
        return q, 2 * k, do * is_causal

    q, k, v = inputs(N_k=5)
    dq, dk, dv = Wrapped(backward, Boxed(), "sdpa")(q, k, v, q, causal=True)
    assert same_bits(dq, q)
    assert same_bits(dk, 2 * k)
    assert same_bits(dv, q)


def test_on_the_command_line_too_it_gets_the_package_s_arrays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(BRIDGES, "torch", Boxed)
    Path("tensors.py").write_text(OWN_BACKWARD, encoding="utf-8")
    command = ["check", "tensors.py:attend", "--wrap", "torch", "--backward"]
    gradients = ["--check", "gradients", "--examples", "20"]
    assert main([*command, "tensors.py:attend_backward", *gradients]) == 0
    assert main([*command, "tensors.py:attend_wrongly", *gradients]) == 1
    assert "attend_wrongly = wrap(attend_wrongly, 'torch')" in capsys.readouterr().out
    assert main([*command, "tensors.py:attend_backward", "--init"]) == 0
    text = Path("test_attend.py").read_text(encoding="utf-8")
    assert "backward=wrap(attend_backward, 'torch')" in text
    assert "from flashsim.testing import parametrize_with_checks, wrap\n" in text
    assert "from tensors import attend_backward\n" in text


def test_a_wrapped_function_s_parameters_are_its_own_but_for_a_convention_s() -> None:
    def attend(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        return q

    assert parameters(Wrapped(attend, Plain(), None)) == ("q", "k", "v", "is_causal")
    assert "is_causal" not in parameters(Wrapped(attend, Plain(), "sdpa"))


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_a_mask_for_pytorch_has_four_axes(axes: int) -> None:
    q = np.ones((1, 1, 4, 2))
    mask = np.ones((1, 1, 4, 4)[-axes:], bool)
    assert _sdpa(q, q, mask=mask)["attn_mask"].shape == (1, 1, 4, 4)


def test_who_wraps_already_is_not_told_to() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        raise RuntimeError("torch has no device")

    message = str(check_attention(Wrapped(attention, Plain(), None), Spec(), on_fail="return"))
    assert "it raised RuntimeError: torch has no device" in " ".join(message.split())
    assert "--wrap" not in message
    assert "give --wrap torch" in " ".join(
        str(check_attention(attention, Spec(), on_fail="return")).split()
    )


def test_who_uses_a_method_of_other_arrays_is_told_to_wrap() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return q.float() @ k

    message = " ".join(str(check_attention(attention, Spec(), on_fail="return")).split())
    assert "If it takes another package's arrays, give --wrap torch or jax or cupy." in message
    assert "--wrap" not in str(
        check_attention(Wrapped(attention, Plain(), None), Spec(), on_fail="return")
    )


def test_specs_of_the_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "torch", types.SimpleNamespace(device=lambda name: name, Tensor=Tensor)
    )
    promised = wrap(lambda q, k, v: q, "torch", convention="sdpa").spec()
    assert (promised.layout, promised.causal, promised.empty_rows, promised.lse) == (
        "BHND",
        "top_left",
        "zero",
        None,
    )
    assert all(
        (
            promised.masks,
            promised.scale,
            promised.gqa,
            promised.cross,
            promised.d_v,
            promised.zero_keys,
        )
    )
    assert promised.dtypes == ("float32", "float16", "bfloat16")
    flash = wrap(lambda q, k, v: q, "torch", convention="flash_attn")
    assert (flash.spec().layout, flash.spec().causal, flash.spec().masks) == (
        "BNHD",
        "bottom_right",
        False,
    )
    assert flash.spec().head_dims == tuple(8 * n for n in range(1, 33))
    assert flash.spec(head_dims=(64,), lse="natural").head_dims == (64,)
    with pytest.raises(ValueError, match="layout is 'BHND'; expected 'BNHD', that of flash_attn"):
        flash.spec(layout="BHND")
    assert wrap(lambda q, k, v: q, "torch").spec(layout="BNHD", masks=True) == Spec(
        layout="BNHD", masks=True
    )


def test_a_device_that_is_none_is_refused_before_any_call(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(name: Any) -> Any:
        raise (
            RuntimeError("Unknown backend")
            if isinstance(name, str)
            else TypeError("device() received an object")
        )

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(device=never, Tensor=Tensor))
    monkeypatch.setitem(
        sys.modules, "jax", types.SimpleNamespace(devices=never, Device=int, Array=Tensor)
    )
    others = [(xp, object()) for xp in ("cupy", "torch", "jax")]
    for xp, device in (("numpy", "cpu"), ("cupy", -1), ("jax", "none"), *others):
        with pytest.raises(ValueError, match=r"^device is (-1|<object|'none'|'cpu').*; expected"):
            wrap(lambda q, k, v: q, xp, device=device)


# --------------------------------------------------------------------------------------------------
# CuPy


@contextmanager
def _device(number: int) -> Iterator[int]:
    yield number


def fake_cupy() -> types.ModuleType:
    """Return what `wrap` uses of CuPy, in NumPy."""
    cupy: Any = types.ModuleType("cupy")
    cupy.__version__ = "0"
    cupy.ndarray = np.ndarray
    cupy.asarray = np.array  # onto the device: always a copy
    cupy.asnumpy = np.array
    cupy.lib = types.SimpleNamespace(stride_tricks=np.lib.stride_tricks)
    cupy.cuda = types.SimpleNamespace(Device=_device)
    module: types.ModuleType = cupy
    return module


@pytest.fixture(
    params=[
        "stand-in",
        pytest.param(
            "cupy", marks=pytest.mark.skipif(not _cupy(), reason="cupy has no device here")
        ),
    ]
)
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    import cupy

    return cupy


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", layouts("float32"))
def test_cupy_gets_and_gives_the_very_bits_and_strides(cupy: Any, dtype: str, layout: str) -> None:
    array = layouts(dtype)[layout]
    events: list[Any] = []

    def first(q: Any, k: Any, v: Any, mask: Any) -> Any:
        events.append((q, mask))
        assert isinstance(q, cupy.ndarray)
        return q.copy(), mask

    mask = np.broadcast_to(np.arange(7) < 3, (5, 7))
    result, same = wrap(first, "cupy", device=0)(array, array, array, mask=mask)
    used = [i for i, n in enumerate(array.shape) if n > 1 and array.size]
    assert [events[0][0].strides[i] for i in used] == [array.strides[i] for i in used]
    assert same_bits(result, array)
    assert same_bits(same, mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["contiguous", "transposed", "every second", "offset", "stride 0, writable"]
)
def test_what_cupy_changes_is_written_back(cupy: Any, dtype: str, name: str) -> None:
    def writes(q: Any, k: Any, v: Any) -> Any:
        k[..., 1:2] = 3
        return q.copy()

    array = layouts(dtype)[name]
    before = array.copy()
    wrap(writes, "cupy")(array.copy(), array, array.copy())
    assert (array[..., 1] == 3).all()
    assert same_bits(array[..., 2:], before[..., 2:])
    whole = before.copy()
    # the view is read-only, the memory that it is of is not; then both are
    for array in (whole.view(), whole):
        array.flags.writeable = False
        with pytest.raises(ValueError, match="writes wrote into k, which is read-only"):
            wrap(writes, "cupy")(before, array, before)
        assert same_bits(array, before)


def test_cupy_has_no_backward(cupy: Any) -> None:
    kernel = wrap(lambda q, k, v: q, "cupy")
    assert not hasattr(kernel, "backward")
    with pytest.raises(
        AttributeError, match="no backward for <lambda>: cupy has no automatic differentiation"
    ):
        _ = kernel.backward


def test_an_old_cupy_without_bfloat16_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(np.ndarray[Any, Any]):
        def view(self, *args: Any) -> Any:  # type: ignore[override]
            raise TypeError("Unsupported type")

    module: Any = fake_cupy()
    module.asarray = lambda a: np.array(a).view(Old)
    monkeypatch.setitem(sys.modules, "cupy", module)
    q, k, v = inputs(dtype="bfloat16")
    with pytest.raises(ValueError, match="q has dtype bfloat16, which this CuPy"):
        wrap(lambda q, k, v: q, "cupy")(q, k, v)


def test_what_a_view_is_a_part_of_is_found() -> None:
    whole = np.arange(24, dtype=np.uint16).reshape(4, 6)
    around, first = _surroundings(whole[1:3, 2:5])
    assert np.array_equal(around, whole.ravel())
    assert first == 8

"""Pallas kernels where JAX is not installed, or is another version than the tested one."""

from __future__ import annotations

import sys

import pytest

from flashsim.attention.problem import Problem
from flashsim.profiling import ProfilingError, count_attention
from flashsim.profiling.pallas_call import TESTED, Internals
from flashsim.profiling.pallas_kernels import Pallas
from flashsim.support.install import extra_with


def attention(q: object, k: object, v: object) -> object:
    raise AssertionError("it is not called without arrays")


def test_without_jax_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)

    with pytest.raises(ProfilingError) as raised:
        count_attention(attention, Problem.of(N_q=8, N_k=8, d=4), library="jax")

    assert str(raised.value) == (
        f"JAX is not installed; Pallas kernels need it: {extra_with('jax')}"
    )


def test_no_value_is_an_array_of_jax_before_jax_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "jax", raising=False)

    assert not Pallas().is_array([1.0])
    assert "jax" not in sys.modules


@pytest.mark.parametrize("library", ["tensorflow", 3])
def test_an_unknown_library_is_named(library: object) -> None:
    with pytest.raises(ValueError, match=r"library.*expected.*torch.*jax"):
        count_attention(attention, Problem.of(N_q=8, N_k=8, d=4), library=library)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("jax._src.pallas.pallas_call", "_trace_kernel_to_jaxpr"),
        ("jax._src.pallas.mosaic.interpret.interpret_pallas_call", "_allocate_buffer"),
        ("jax._src.source_info_util", "user_frames"),
    ],
)
def test_another_version_of_jax_is_named_with_the_one_that_works(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    Internals.load()
    monkeypatch.delattr(f"{module}.{name}")

    with pytest.raises(ProfilingError) as raised:
        Internals.load()

    message = str(raised.value)
    assert message.startswith(
        f"Pallas kernels are counted with JAX {TESTED}; JAX {jax.__version__}"
    )
    assert name in message


def test_a_callback_with_other_parameters_is_not_listened_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in JAX 0.9, whose callbacks take no token: each argument would be read as another."""
    pytest.importorskip("jax", reason="JAX is not installed")
    internals = Internals.load()

    def get(device_id: int, local_core_id: int, memory_space: int, buffer_id: int) -> None: ...

    monkeypatch.setattr(internals.tpu, "get", get)
    with pytest.raises(ProfilingError, match=r"get has the parameters \['device_id'"):
        Internals.load()

"""What people hand in: other libraries' arrays by DLPack, lists; M and dtypes as they write
them.
"""

import ctypes
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flashsim
from flashsim.attention.arguments import check_array
from flashsim.attention.inputs import check_M, float_dtype
from flashsim.theory import exact

BF16 = np.dtype(ml_dtypes.bfloat16)
rng = np.random.default_rng(0)
Q, K, V = rng.normal(size=(3, 6, 4))


class Foreign:
    """An array of a library that has DLPack alone; bfloat16 as PyTorch exports it."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self.array = array
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: Any) -> Any:
        if options:
            raise TypeError("no keyword is known here")
        if self.array.dtype != BF16:
            return self.array.__dlpack__()
        capsule = self.array.view(np.uint16).__dlpack__()
        pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype = ctypes.c_void_p
        pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 20).value = 4
        return capsule


class Tensor(Foreign):
    """One that is also an array to NumPy, but for bfloat16, and that may require gradients, as
    PyTorch's.
    """

    requires_grad = True

    def detach(self) -> Any:
        detached = Tensor(self.array, self.device)
        detached.requires_grad = False
        return detached

    def __array__(self, *_: Any, **__: Any) -> Any:
        if self.requires_grad or self.array.dtype == BF16:
            raise RuntimeError("Can't call numpy()")
        return self.array

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient")
        return super().__dlpack__(**options)


@pytest.mark.parametrize("kind", [Foreign, Tensor])
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.float64])
def test_an_array_with_dlpack_is_one_of_numpy(kind: Any, dtype: Any) -> None:
    arrays = [a.astype(dtype) for a in (Q, K, V)]
    want = flashsim.forward("flash", *arrays)
    mask = np.ones((6, 6), bool)
    run = flashsim.forward("flash", *map(kind, arrays), mask=kind(mask))
    assert run.O.dtype == np.dtype(dtype)
    assert np.array_equal(run.O, want.O)
    dO = np.ones_like(want.O)
    from_kind = flashsim.backward("flash", run, kind(dO))
    from_numpy = flashsim.backward("flash", want, dO)
    assert np.array_equal(from_kind.dK, from_numpy.dK)


def test_bfloat16_by_dlpack_keeps_every_bit_in_any_layout() -> None:
    patterns = np.arange(2**16, dtype=np.uint16).view(BF16)
    patterns = patterns.reshape(2**8, 2**8)
    for array in (patterns, patterns.T, patterns[::2, ::-3], patterns[5]):
        result = check_array("Q", Foreign(array))
        assert result.dtype == BF16
        assert result.shape == array.shape
        assert np.array_equal(result.view(np.uint16), array.view(np.uint16))


def test_a_capsule_with_a_version_and_memory_pinned_for_a_device_are_read_too() -> None:
    class Versioned(Foreign):
        def __dlpack__(self, **options: Any) -> Any:
            capsule = self.array.view(np.uint16).__dlpack__(max_version=(1, 0))
            pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype = ctypes.c_void_p
            pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
            ctypes.c_uint8.from_address(pointer(capsule, b"dltensor_versioned") + 32 + 20).value = 4
            return capsule

    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this NumPy exports no version")
    array = Q.astype(BF16)
    result = check_array("Q", Versioned(array))
    assert result.dtype == BF16
    assert np.array_equal(result, array)
    for pinned in (3, 11):
        assert np.array_equal(check_array("Q", Foreign(Q, device=pinned)), Q)


def test_lists_of_such_arrays_are_stacked() -> None:
    heads = np.stack([Q, K]).astype(BF16)
    stacked = check_array("Q", [Tensor(head) for head in heads])
    assert np.array_equal(stacked, heads)
    nested = check_array("Q", [[Foreign(head)] for head in heads])
    assert np.array_equal(nested, heads[:, None])


def test_what_is_on_a_device_is_copied_or_refused_by_name() -> None:
    class Copies(Foreign):
        def __dlpack__(self, **options: Any) -> Any:
            assert options == {"dl_device": (1, 0), "copy": True}
            return self.array.__dlpack__()

    assert np.array_equal(check_array("Q", Copies(Q, device=2)), Q)
    with pytest.raises(
        ValueError, match=r"^Q is <.*>; expected an array: it is in a device's memory.*\.cpu\(\)"
    ):
        flashsim.forward("flash", Foreign(Q, device=2), K, V)


def test_lists_have_the_type_of_the_arrays_beside_them() -> None:
    of_lists = flashsim.forward("flash", [[1, 2]], [[1, 2]], [[3, 4]])
    assert of_lists.O.dtype == np.float64
    K = np.ones((3, 2), np.float16)
    run = flashsim.forward("flash", [[1, 2]], K, [[3, 4]] * 3)
    assert run.O.dtype == np.float16
    assert flashsim.backward("flash", run, [[1, 0]]).dQ.dtype == np.float16
    integers = np.array([[1]])
    with pytest.raises(ValueError, match="Q has dtype int64; expected one of float16"):
        flashsim.forward("flash", integers, [[2.0]], [[3.0]])


# --------------------------------------------------------------------------------------------------
# M, and dtypes


@pytest.mark.parametrize(
    ("M", "elements"),
    [
        ("100KB", 25_600),
        ("100 KiB", 25_600),
        ("25600", 25_600),
        ("1e5", 100_000),
        ("2.5e4", 25_000),
        (1e5, 100_000),
        (np.float32(64), 64),
        (np.int8(64), 64),
        (None, 25_600),
    ],
)
def test_m_is_taken_as_people_write_it(M: Any, elements: int) -> None:
    assert check_M(M, 4) == elements
    assert flashsim.count("flash", N=64, d=8, M=M).sram.capacity == elements
    assert exact("flash", N=64, d=8, M=M).sram.capacity == elements


@pytest.mark.parametrize(
    ("M", "text"),
    [
        ("100QB", "M: '100QB' is not a size; write elements (25600) or bytes with a unit (100KB)"),
        ("3B", "M: '3B' is 0 elements; expected a whole number of at least 1"),
        ("1e99", "M is 1"),
        (2.5, "M is 2.5; expected a whole number"),
        (float("nan"), "M is nan; expected"),
        (np.inf, "M is inf; expected"),
    ],
)
def test_what_is_no_size_is_refused_by_name(M: Any, text: str) -> None:
    for function in (flashsim.count, exact):
        with pytest.raises(ValueError, match="^" + re.escape(text)):
            function("flash", N=64, d=16, M=M)


def test_dtypes_are_taken_as_people_write_them() -> None:
    for text, name in (
        ("fp16", "float16"),
        ("half", "float16"),
        ("torch.float16", "float16"),
        (np.float16, "float16"),
        ("bf16", "bfloat16"),
        (BF16, "bfloat16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        ("fp32", "float32"),
        (">f4", "float32"),
        ("fp64", "float64"),
        (float, "float64"),
    ):
        assert float_dtype(text).name == name
        want = flashsim.count("flash", N=64, d=16, dtype=name).hbm
        assert flashsim.count("flash", N=64, d=16, dtype=text).hbm == want
        assert exact("flash", N=64, d=16, dtype=text).hbm == want


def test_torch_is_taken_as_it_is() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = (torch.tensor(a).to(torch.bfloat16).requires_grad_() for a in (Q, K, V))
    mask = torch.ones(6, 6, dtype=torch.bool)
    run = flashsim.forward("flash", q, k, v, mask=mask)
    assert run.O.dtype == BF16
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    want = attended.detach().float().numpy()
    assert np.allclose(run.O.astype(np.float32), want, atol=0.05)
    assert flashsim.backward("flash", run, torch.ones_like(q)).dQ.dtype == BF16
    assert float_dtype(torch.float16) == np.float16
    with pytest.raises(ValueError, match=r"dtype torch.float8_e5m2 is not"):
        float_dtype(torch.float8_e5m2)

"""What the tests of wrapped attentions share: inputs in every layout, and how they are compared."""

from typing import Any

import numpy as np

from flashsim.attention.inputs import Array, float_dtype

DTYPES = ("float16", "bfloat16", "float32", "float64")


def inputs(
    B: int = 2,
    H_q: int = 2,
    H_kv: int = 2,
    N_q: int = 5,
    N_k: int = 7,
    d: int = 8,
    d_v: int = 8,
    dtype: str = "float32",
) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    dtype_of_numpy = float_dtype(dtype)
    q = rng.standard_normal((B, H_q, N_q, d)).astype(dtype_of_numpy)
    k = rng.standard_normal((B, H_kv, N_k, d)).astype(dtype_of_numpy)
    v = rng.standard_normal((B, H_kv, N_k, d_v)).astype(dtype_of_numpy)
    return q, k, v


def layouts(dtype: str) -> dict[str, Array]:
    """Return one array's worth of numbers, in several strides."""
    base = (
        np.arange(2 * 3 * 10 * 16, dtype=np.float64)
        .reshape(2, 3, 10, 16)
        .astype(float_dtype(dtype))
    )
    read_only = base[:, :, ::2].copy()
    read_only.flags.writeable = False
    one = base[1].tobytes()
    of_a_buffer = np.frombuffer(bytearray(one), base.dtype)
    unaligned = np.frombuffer(bytearray(b"..." + one), np.uint8)[3:]
    padded = np.pad(base.ravel().view(np.uint16), (8, 9))
    return {
        "contiguous": base,
        "transposed": base.transpose(0, 2, 1, 3),
        "last axis apart": base.swapaxes(-1, -2),
        "every second": base[:, :, ::2, ::2],
        "offset": base[1:, :, 3:, 5:],
        "one long": base[:, :1, :1],
        "broadcast": np.broadcast_to(base[:, :1], base.shape),
        "stride 0, writable": np.lib.stride_tricks.as_strided(
            base, (2, 3, 10, 16), (0, *base.strides[1:])
        ),
        "read-only": read_only,
        "read-only, every second": np.broadcast_to(base[..., ::2], (2, 3, 10, 8)),
        "no keys": base[:, :, :0],
        "F order": np.asfortranarray(base)[1:],
        "of a buffer": of_a_buffer[30:430].reshape(2, 2, 10, 10),
        "unaligned": unaligned.view(base.dtype).reshape(1, 3, 10, 16),
        "of other numbers": padded[8:-9].view(base.dtype).reshape(base.shape),
    }


def backwards(a: Array) -> Array:
    return a[:, :, ::-1]


def in_a_record(a: Array) -> Array:
    record = np.zeros(a.shape, dtype=[("a", a.dtype), ("b", np.uint8)])
    record["a"] = a
    result: Array = record["a"]
    return result


def bits(a: Array) -> Array:
    result: Array = np.ascontiguousarray(a).view(np.uint8)
    return result


def same_bits(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool((bits(a) == bits(b)).all())


def grouped(a: Array, heads: int) -> Array:
    repeated: Array = np.repeat(a, heads // a.shape[1], axis=1)
    return repeated


def close(result: Array, expected: Array, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=rtol, atol=rtol)


SDPA_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal, fewer queries": {"causal": True},
    "causal, fewer keys": {"N_q": 9, "causal": True},
    "causal=False": {"causal": False},
    "scale": {"scale": 0.7},
    "negative scale": {"scale": -0.7},
    "scale 0": {"scale": 0.0},
    "one head's keys": {"mask": "keys"},
    "mask": {"mask": "full"},
    "mask of two axes": {"mask": "matrix"},
    "mask and causal": {"mask": "full", "causal": True},
    "mask and causal, fewer keys": {"mask": "matrix", "causal": True, "N_q": 9},
    "grouped": {"H_q": 4},
    "grouped, causal": {"H_q": 4, "H_kv": 1, "causal": True},
    "grouped, masked, scaled": {"H_q": 6, "mask": "full", "scale": 0.3, "causal": True},
    "one key": {"N_k": 1},
    "no keys": {"N_k": 0},
    "d_v": {"d_v": 5, "causal": True},
}


def problem(
    case: dict[str, Any], dtype: str
) -> tuple[tuple[Array, Array, Array], dict[str, Any], Array | None]:
    """Return the inputs, the keywords, and the mask that they amount to."""
    of_the_call = ("causal", "scale", "mask")
    sizes = {name: case[name] for name in case if name not in of_the_call}
    q, k, v = inputs(dtype=dtype, **sizes)
    keywords = {name: case[name] for name in case if name in of_the_call}
    N_q = q.shape[2]
    N_k = k.shape[2]
    rng = np.random.default_rng(1)
    full = rng.random((2, q.shape[1], N_q, N_k)) < 0.7
    full[:, :, 1] = False  # a query with no keys
    masks = {"full": full, "matrix": full[0, 0], "keys": full[0, 0, 0]}
    whole = None
    if "mask" in keywords:
        keywords["mask"] = whole = masks[keywords["mask"]]
    if keywords.get("causal"):
        lower = np.tri(N_q, N_k, dtype=bool)
        whole = lower if whole is None else whole & lower
    return (q, k, v), keywords, whole

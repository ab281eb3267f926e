"""Say what scales of Q, K and V gain before they are rounded to e4m3: figures/fp8_scales.json.
NumPy alone, no GPU.

python scripts/fp8_scales.py

A scale makes the largest number of a whole array, a head, a block of rows or a row 448. Errors are
‖O − exact‖ / ‖exact‖ of the exact attention of the rounded numbers; with `turned`, Q and K are
first multiplied by one random orthogonal matrix, which changes no score.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from flashsim.gpu.contestants import Setting, captured, drawn
from flashsim.support.entry import run_script
from flashsim.support.files import write_whole
from flashsim.support.provenance import made_with

Array = np.ndarray[Any, Any]
N = 768
D = 128
HEADS = 12
LARGEST = 448.0
SCALES: dict[str, int | None] = {
    "none": 0,
    "array": None,
    "head": N,
    "128 rows": 128,
    "64 rows": 64,
    "row": 1,
}
DISTRIBUTIONS = ("captured", "normal", "wide", "growing", "sink", "outliers", "V / 50")


def main() -> int:
    """Compute, print and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/fp8_scales.json"))
    output = parser.parse_args().output
    results = []
    for name in DISTRIBUTIONS:
        q, k, v = numbers(name)
        turn = np.linalg.qr(np.random.default_rng(1).standard_normal((D, D)))[0]
        for causal in (False, True):
            exact = attention(q, k, v, causal)
            errors = {of: off(exact, (q, k, v), rows, causal) for of, rows in SCALES.items()}
            errors["turned"] = off(exact, (q @ turn, k @ turn, v), 0, causal)
            results.append({"distribution": name, "causal": causal, "errors": errors})
            print(name, causal, {of: f"{error:.2%}" for of, error in errors.items()}, flush=True)
    sizes = {"N": N, "d": D, "heads": HEADS}
    record = {
        "command": "python scripts/fp8_scales.py",
        "made_with": made_with(),
        **sizes,
        "results": results,
    }
    write_whole(output, json.dumps(record, indent=1) + "\n")
    return 0


def numbers(name: str) -> list[Array]:
    """Return Q, K, V (heads, N, d) in float64."""
    rng = np.random.default_rng(0)
    normal = [rng.standard_normal((1, HEADS, N, D), dtype="float32") for _ in range(3)]
    if name == "captured":
        made = captured(Setting(N, D, B=1, H=HEADS, distribution=name))
    elif name == "outliers":  # one number in 1000 is ten times as large
        made = [
            X + 10 * rng.standard_normal(X.shape) * (rng.random(X.shape) < 0.001) for X in normal
        ]
    elif name == "V / 50":
        made = [*normal[:2], normal[2] / 50]
    else:
        made = drawn(Setting(N, D, distribution=name), normal, np)
    return [np.asarray(X, np.float64).reshape(HEADS, N, D) for X in made]


def off(exact: Array, inputs: tuple[Array, ...], rows: int | None, causal: bool) -> float:
    """Return the relative error of attention of what rounding makes of arrays, with a scale for
    so many rows; 0: without.
    """
    q, k, v = (rounded(X, rows) for X in inputs)
    result = attention(q, k, v, causal)
    return float(np.linalg.norm(result - exact) / np.linalg.norm(exact))


def rounded(X: Array, rows: int | None) -> Array:
    """Return X (heads, N, d), divided by scales, rounded to e4m3, and multiplied by them. Rows
    None: one scale for all.
    """
    if rows == 0:
        scale: Any = 1.0
    elif rows is None:
        scale = np.abs(X).max() / LARGEST
    else:
        most = np.abs(X).reshape(len(X), -1, rows, X.shape[-1]).max((2, 3))
        scale = most.repeat(rows, axis=1)[..., None] / LARGEST
    eight = np.clip(X / scale, -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)
    return np.asarray(eight.astype(np.float64) * scale)


def attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Return softmax(q kᵀ / √d) v in float64."""
    S = q @ k.swapaxes(1, 2) / D**0.5
    if causal:
        S[:, ~np.tri(N, dtype=bool)] = -np.inf
    P = np.exp(S - S.max(-1, keepdims=True))
    return np.asarray(P @ v / P.sum(-1, keepdims=True))


if __name__ == "__main__":
    run_script(main)

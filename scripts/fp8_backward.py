"""Say how far off gradients are if the backward pass has operands of 8 bits:
figures/fp8_backward.json. NumPy alone, no GPU.

python scripts/fp8_backward.py

The operands of the five products S = Q Kᵀ, dP = dO Vᵀ, dV = Pᵀ dO, dQ = dS K and dK = dSᵀ Q are
rounded, and all else is exact. Of dO, P and dS each head has a scale, with which its largest number
becomes the type's largest; a kernel would not know that of dS beforehand. Errors are ‖x − exact‖ /
‖exact‖, from the exact gradients of the numbers before rounding.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from fp8_scales import HEADS, D, N, numbers

from flashsim.support.entry import run_script
from flashsim.support.files import write_whole
from flashsim.support.provenance import made_with

Array = np.ndarray[Any, Any]
Rounding = Callable[[Array], Array]


def rounding(dtype: Any, largest: float = 0.0) -> Rounding:
    """Return what rounds arrays (heads, …) to dtype; with a scale for each head, if its largest
    number is to be `largest`.
    """

    def rounded(X: Array) -> Array:
        scale = largest / np.abs(X).max((1, 2), keepdims=True) if largest else 1.0
        return np.asarray((X * scale).astype(dtype).astype(np.float64) / scale)

    return rounded


half = rounding(np.float16)
e4m3 = rounding(ml_dtypes.float8_e4m3fn)
scaled_e4m3 = rounding(ml_dtypes.float8_e4m3fn, 448.0)
scaled_e5m2 = rounding(ml_dtypes.float8_e5m2, 57344.0)


WAYS: dict[str, tuple[Rounding, Rounding, Rounding, Rounding]] = {  # of Q, K, V; of dO, P and dS
    "fp16": (half, half, half, half),
    "Q, K, V": (e4m3, half, half, half),
    "dO, too": (e4m3, scaled_e4m3, half, half),  # all that S and dP are products of
    "all": (e4m3, scaled_e4m3, scaled_e4m3, scaled_e4m3),
    "dO, dS in e5m2": (e4m3, scaled_e5m2, scaled_e4m3, scaled_e5m2),
}
"""What is rounded to 8 bits, e4m3 where no other type is named; the rest is rounded to fp16."""


def main() -> int:
    """Compute, print and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/fp8_backward.json"))
    output = parser.parse_args().output
    results = []
    for name in ("captured", "normal"):
        inputs = [*numbers(name), np.random.default_rng(2).standard_normal((HEADS, N, D))]
        for causal in (False, True):
            exact = gradients(inputs, [np.asarray] * 4, causal)
            for way, roundings in WAYS.items():
                result = zip(gradients(inputs, roundings, causal), exact, strict=True)
                errors = [
                    float(np.linalg.norm(x - expected) / np.linalg.norm(expected))
                    for x, expected in result
                ]
                results.append(
                    {"distribution": name, "causal": causal, "way": way, "errors": errors}
                )
                print(name, causal, way, *(f"{error:.2%}" for error in errors), flush=True)
    sizes = {"N": N, "d": D, "heads": HEADS}
    record = {
        "command": "python scripts/fp8_backward.py",
        "made_with": made_with(),
        **sizes,
        "results": results,
    }
    write_whole(output, json.dumps(record, indent=1) + "\n")
    return 0


def gradients(operands: Any, roundings: Any, causal: bool) -> tuple[Array, Array, Array]:
    """Return dQ, dK, dV of Q, K, V and dO (heads, N, d) in float64, with operands rounded."""
    of_inputs, of_dO, of_P, of_dS = roundings
    *inputs, dO = operands
    q, k, v, dO = *map(of_inputs, inputs), of_dO(dO)
    S = q @ k.swapaxes(1, 2) / D**0.5
    if causal:
        S[:, ~np.tri(S.shape[1], dtype=bool)] = -np.inf
    P = np.exp(S - S.max(-1, keepdims=True))
    P /= P.sum(-1, keepdims=True)
    dP = dO @ v.swapaxes(1, 2)
    dS = of_dS(P * (dP - (P * dP).sum(-1, keepdims=True)))
    return dS @ k / D**0.5, dS.swapaxes(1, 2) @ q / D**0.5, of_P(P).swapaxes(1, 2) @ dO


if __name__ == "__main__":
    run_script(main)

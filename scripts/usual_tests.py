"""What usual tests let pass: the kit's bugs under a course's test, and errors of bfloat16 under the
rule of a factor of 2.

    python scripts/usual_tests.py        # half a minute; the tables, and figures/usual_tests.json

A course's test is np.allclose at 10⁻² on Gaussian inputs of one 128 × 128 shape. The rule is that
of FlashAttention's own tests: the largest error of O is at most twice that of standard attention
which rounds to the same 16 bits. Here that baseline is Algorithm 0 in bfloat16, whose S and P are
rounded as they are stored in HBM; both errors are against exact attention.
"""

import argparse
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashsim import forward, reference
from flashsim.attention.inputs import float_dtype
from flashsim.reference import attention
from flashsim.support.entry import run_script
from flashsim.support.files import check_target, write_whole
from flashsim.support.tables import print_table
from flashsim.testing.mutants import ALL, Implementation, Mutant

TOLERANCE = 1e-2  # absolute and relative


@dataclass(frozen=True)
class UsualTest:
    """Such a test: (B, H, N, d) of its inputs, of seed 0, and what it compares besides O.
    Gradients are for dO = 1.
    """

    shape: tuple[int, int, int, int]
    dtypes: tuple[str, ...] = ("float32",)
    causal: tuple[bool, ...] = (False,)
    gradients: bool = False
    dropout: bool = False

    def notices(self, mutant: Mutant, built: Implementation) -> bool:
        """Whether the test would fail. Only a bug of dropout's is tried with dropout, the mask
        given.
        """
        rng = np.random.default_rng(0)
        arrays = [rng.normal(size=self.shape) for _ in range(3)]
        dropped = (0.0, 0.2) if self.dropout and mutant.part == "dropout" else (0.0,)
        return any(
            self._differs(built, [a.astype(float_dtype(dtype)) for a in arrays], causal, p)
            for dtype in self.dtypes
            for causal in self.causal
            for p in dropped
        )

    def _differs(self, built: Implementation, inputs: list[Any], causal: bool, p: float) -> bool:
        B, H, N, _ = self.shape
        q, k, v = inputs
        options: dict[str, Any] = {"causal": causal} | ({"dropout_p": p, "seed": 1} if p else {})
        keep = built.keep((B, H, N, N), p, 1) if p else None
        how: dict[str, Any] = {
            "mask": np.tri(N, dtype=bool) if causal else None,
            "keep": keep,
            "dropout_p": p,
        }
        with np.errstate(all="ignore"):
            want = [reference.attention(q, k, v, **how)]
            gradients = self.gradients and built.backward is not None
            want += reference.gradients(q, k, v, np.ones_like(q), **how) if gradients else []
            result = [built(q, k, v, **options)[0]]
            result += built.backward(q, k, v, np.ones_like(q), **options) if gradients else []
        return not all(
            np.allclose(np.asarray(a, float), b, TOLERANCE, TOLERANCE)
            for a, b in zip(result, want, strict=True)
        )


TEXTBOOK = UsualTest(
    (1, 2, 64, 32), ("float32", "float16"), (False, True), gradients=True, dropout=True
)
COURSE = {  # what a course's tests compare, one 128 × 128 shape, float32
    "O": UsualTest((1, 1, 128, 128)),
    "O and the gradients": UsualTest((1, 1, 128, 128), gradients=True),
    "the same, causal too": UsualTest((1, 1, 128, 128), causal=(False, True), gradients=True),
    "the same, with dropout's mask too": UsualTest(
        (1, 1, 128, 128), causal=(False, True), gradients=True, dropout=True
    ),
}

N = 1024
D = 64
B_R = 64
DRAWS = 20
M = 1 << 20
RUNS = {f"flash, B_c = {B_c}": ("flash", B_c) for B_c in (16, 32, 64, 128)} | {
    "q_outer, B_c = 16": ("q_outer", 16)
}


def bugs_that_pass() -> dict[str, int]:
    """Return how many of the kit's bugs each of a course's tests lets pass. Each test compares
    all that the one before does.
    """
    passing = [(mutant, mutant.build()) for mutant in ALL]
    result: dict[str, int] = {}
    for what, test in COURSE.items():
        passing = [each for each in passing if not test.notices(*each)]
        result[what] = len(passing)
    return result


def errors(draw: int) -> dict[str, tuple[float, float]]:
    """Return each run's error over the baseline's, for one draw of Q, K and V: the largest, and
    the root mean square.
    """
    rng = np.random.default_rng(draw)
    Q, K, V = (rng.normal(size=(N, D)).astype(float_dtype("bfloat16")) for _ in range(3))
    exact = attention(Q, K, V)

    def error(name: str, **how: Any) -> tuple[float, float]:
        off = forward(name, Q, K, V, M=M, **how).O.astype(np.float64) - exact
        return float(np.abs(off).max()), float(np.sqrt((off**2).mean()))

    largest, mean = error("standard")
    ran = {what: error(name, blocks=(B_R, B_c)) for what, (name, B_c) in RUNS.items()}
    return {what: (of[0] / largest, of[1] / mean) for what, of in ran.items()}


def summarised(ratios: list[tuple[float, float]]) -> dict[str, Any]:
    """Return what is said of a run's draws."""
    largest, mean = np.array(ratios).T
    return {
        "rms": round(float(np.sqrt((mean**2).mean())), 2),
        "largest_median": round(float(np.median(largest)), 2),
        "largest": round(float(largest.max()), 2),
        "beyond_2": int((largest > 2).sum()),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", type=Path, default=Path("figures/usual_tests.json"), help="where the numbers go"
    )
    output = check_target(parser.parse_args().json)
    passing = bugs_that_pass()
    print_table(
        ("compared at 10⁻², one 128 × 128 shape", f"of {len(ALL)} bugs pass"), passing.items()
    )
    draws = [errors(draw) for draw in range(DRAWS)]
    result = {what: summarised([draw[what] for draw in draws]) for what in RUNS}
    rows = [
        (
            what,
            *(f"{of[name]:.2f}" for name in ("rms", "largest_median", "largest")),
            of["beyond_2"],
        )
        for what, of in result.items()
    ]
    print()
    print_table(
        ("error / baseline's", "RMS", "largest: median", "most", f"beyond 2, of {DRAWS}"), rows
    )
    data = {
        "bugs": len(ALL),
        "pass": passing,
        "N": N,
        "d": D,
        "B_r": B_R,
        "draws": DRAWS,
        "errors": result,
    }
    command = shlex.join(["python", f"scripts/{Path(__file__).name}", *sys.argv[1:]])
    write_whole(
        output, json.dumps({"command": command, "data": data}, indent=1, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    run_script(main)

"""Algorithms of one's own, as a user would write them: a file's text, for the command line, and
the function in it.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

TWO_SWEEPS = Path(__file__).with_name("two_sweeps.py").read_text(encoding="utf-8")
FORM = """
from flashsim.theory import Form


def traffic(p, blocks, tiles):
    return {
        **p.array("Q", "input", reads=p.N_q * p.d),
        **p.array("K", "input", reads=2 * blocks.T_r * p.N_k * p.d),
        **p.array("V", "input", reads=blocks.T_r * p.N_k * p.d_v),
        **p.array("O", "output", writes=p.N_q * p.d_v),
    }


def peak(p, blocks, tiles):
    w = p.d + p.d_v
    return tiles.most(lambda r, c: max(r * p.d + c * p.d + r * c + 3 * r, (r + c) * w + r * c + 2 * r))


FORM = Form(
    name="two_sweeps",
    direction="forward",
    line_1=lambda rows, d: (min(rows, d), rows),
    traffic=traffic,
    peak=peak,
    products=(2, 1),
    formulas={
        "Q": ("N_q * d", "0"),
        "K": ("2 * T_r * N_k * d", "0"),
        "V": ("T_r * N_k * d_v", "0"),
        "O": ("0", "N_q * d_v"),
    },
    plain=True,
)
"""

SKIPPING = TWO_SWEEPS.replace("V, blocks)", "V, blocks, times=1, *, kind='plain')").replace(
    "            S_ij =",
    "            for _ in range(times - 1):\n                sram.load(K[j])\n            S_ij =",
)
"""Two sweeps, which loads K `times` times in the first."""


def module_of(text: str, file: Path) -> ModuleType:
    """Write a file and run it."""
    file.write_text(text, encoding="utf-8")
    module = ModuleType(file.stem)
    exec(compile(text, str(file), "exec"), module.__dict__)
    return module


def two_sweeps(file: Path) -> Any:
    """Return the function, from a file."""
    return module_of(TWO_SWEEPS, file).two_sweeps

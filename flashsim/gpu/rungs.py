"""The ladder: every `KERNEL` of this folder, in one dict. No other list has the kernels' names."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path

from flashsim.attention.arguments import is_one_of, short_repr
from flashsim.gpu.compiling import KERNELS as SOURCES
from flashsim.gpu.kernel import Kernel


@cache
def ladder() -> dict[str, Kernel]:
    """Return the kernels by name, from the slowest: all modules here that have a .cu file of their
    name and a record.
    """
    files = [file.name for file in pkgutil.iter_modules([str(Path(__file__).parent)])]
    modules = [
        import_module(f"flashsim.gpu.{name}") for name in files if (SOURCES / f"{name}.cu").exists()
    ]
    kernels = [module.KERNEL for module in modules if hasattr(module, "KERNEL")]
    return {rung.name: rung for rung in sorted(kernels, key=lambda rung: rung.rung)}


def kernel(name: str) -> Kernel:
    """Return the kernel of this name, or raise ValueError."""
    if not is_one_of(name, ladder()):
        raise ValueError(
            f"kernel is {short_repr(name)}; expected one of {', '.join(map(repr, ladder()))}"
        )
    return ladder()[name]


def fastest(direction: str, dtype: str) -> list[Kernel]:
    """Return the kernels that may be chosen in a direction, the fastest first. For an 8-bit dtype,
    only kernels made for it.
    """
    kernels = [rung for rung in reversed(ladder().values()) if direction in rung.fastest_in]
    return [rung for rung in kernels if rung.output and dtype in rung.dtypes] or [
        r for r in kernels if not r.output
    ]

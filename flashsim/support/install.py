"""The commands that install missing packages, and a warning where two copies of flashsim are
mixed up.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the package that runs."""
EXTRA_OF = {
    "ml_dtypes": "bfloat16",
    "safetensors": "safetensors",
    "pandas": "pandas",
    "hypothesis": "testing",
    "cupy": "gpu",
    "triton": "triton",
    "jax": "pallas",
}
"""flashsim's extra that installs a package."""
OTHERS = {
    "torch": "pip install torch",
    "jax": "pip install jax",
    "cupy": (
        "pip install cupy-cuda12x (or the build for your CUDA; see "
        "https://docs.cupy.dev/en/stable/install.html)"
    ),
    "cublas": "pip install nvidia-cublas",
}
"""The commands that install packages for which flashsim has no extra."""


def extra_with(package: str) -> str:
    """Return the command that installs a package by flashsim's extra. It is to be run in the
    clone, as flashsim is in no registry.
    """
    return f'pip install -e ".[{EXTRA_OF[package]}]" (in the clone)'


def clone_beside(directory: Path) -> Path | None:
    """Return the clone of flashsim that a directory lies in, if another copy of flashsim runs;
    else None.
    """
    for folder in (directory, *directory.parents):
        package = folder / "flashsim"
        if (folder / "pyproject.toml").is_file() and (package / "memory" / "sram.py").is_file():
            return None if package.resolve() == PACKAGE else folder
    return None


def two_copies() -> str:
    """Return a warning if the working directory is a clone of flashsim, and another copy runs;
    else an empty text.
    """
    try:
        clone = clone_beside(Path.cwd())
    except OSError:  # the directory is gone
        return ""
    if clone is None:
        return ""
    return (
        f"flashsim runs from {PACKAGE}, a copy: what you edit in {clone} does not run, and "
        "breakpoints there are never hit. "
        "There, type: pip install -e ."
    )

"""What to type where a package is missing, and which of two copies of flashsim runs."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the flashsim that runs."""
EXTRA_OF = {
    "ml_dtypes": "bfloat16",
    "safetensors": "safetensors",
    "pandas": "pandas",
    "hypothesis": "testing",
    "cupy": "gpu",
}
"""The extra of flashsim's own that brings a package."""
OTHERS = {
    "torch": "pip install torch",
    "jax": "pip install jax",
    "cupy": (
        "pip install cupy-cuda12x (or the build for your CUDA; see "
        "https://docs.cupy.dev/en/stable/install.html)"
    ),
    "cublas": "pip install nvidia-cublas",
}
"""How to get what users bring themselves."""


def extra_with(package: str) -> str:
    """Return the command that installs a package that flashsim takes by an extra: in the clone,
    as flashsim is in no registry.
    """
    return f'pip install -e ".[{EXTRA_OF[package]}]" (in the clone)'


def clone_beside(here: Path) -> Path | None:
    """Return the clone of flashsim that `here` lies in, where another copy than the clone's is
    the one that runs.
    """
    for folder in (here, *here.parents):
        package = folder / "flashsim"
        if (folder / "pyproject.toml").is_file() and (package / "memory" / "sram.py").is_file():
            return None if package.resolve() == PACKAGE else folder
    return None


def two_copies() -> str:
    """Return a warning where the working directory is a clone of flashsim that is not what runs;
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

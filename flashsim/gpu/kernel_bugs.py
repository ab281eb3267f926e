"""Planted bugs in kernels: a .cu file with a change to its text, which NVRTC compiles as it does the original.

with planted("algorithm_4.cu", ("element *= p.tau;", "element *= p.tau * p.tau;")):
    flashsim.gpu.backward(q, k, v, o, lse, do, kernel="algorithm_2")
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flashsim.gpu import compiling
from flashsim.support.files import write_whole
from flashsim.tracing.planting import Change, changed

SHARED = '#include "scalar.cuh"'


@contextmanager
def planted(file: str, *changes: Change) -> Iterator[None]:
    """Have kernels/`file` compiled and launched with changes to its text, by all threads, for as long as this lasts.

    Raises ValueError for a text that is not there exactly once, and for a file that is not a scalar rung's: the others keep
    the functions that they once loaded.
    """
    original = compiling.KERNELS
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(original.glob("*.cu"))}
    scalar = [name for name, text in texts.items() if SHARED in text]
    if file not in scalar:
        raise ValueError(f"kernel file is {file!r}; expected one of {', '.join(scalar)}")
    wrong = changed(texts[file], changes, file)
    loaded = dict(compiling._loaded)
    with tempfile.TemporaryDirectory(prefix="flashsim-") as folder:
        shutil.copytree(original, folder, dirs_exist_ok=True)
        write_whole(Path(folder) / file, wrong)
        compiling.KERNELS = Path(folder)
        compiling._loaded.clear()
        try:
            yield
        finally:
            compiling.KERNELS = original
            compiling._loaded.clear()
            compiling._loaded.update(loaded)

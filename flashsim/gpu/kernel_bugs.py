"""Planted bugs in kernels: NVRTC compiles a .cu file after its text was changed.

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
    """Within the `with`, change the text of kernels/`file` for all threads.

    Raises ValueError for a text that does not occur exactly once, and for the file of a kernel that
    keeps the functions it once loaded: all but the scalar kernels.
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

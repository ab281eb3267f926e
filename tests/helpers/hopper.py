"""The mark of tests that need a GPU of compute capability 90."""

import pytest

from flashsim import gpu
from flashsim.gpu.compiling import capability, current_device


def _why_not() -> str:
    try:
        result = capability(current_device())
    except gpu.MissingGPU as error:
        return str(error)
    return "" if result == "90" else f"the GPU has compute capability {result}, not 90"


_WHY_NOT = _why_not()
ON_HOPPER = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "there is a Hopper")

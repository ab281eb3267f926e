"""The environment variable by which Triton interprets kernels in place of compiling them."""

import os

SWITCH = "TRITON_INTERPRET"


def interpret_triton() -> None:
    """Have kernels that are decorated from now on run in Triton's interpreter."""
    os.environ[SWITCH] = "1"

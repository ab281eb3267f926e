"""`import flashsim.kernels` imports the module `flashsim.extensions.kernels`."""

import sys

from flashsim.extensions.kernels import *  # noqa: F403 (type checkers read this)

sys.modules[__name__] = sys.modules["flashsim.extensions.kernels"]

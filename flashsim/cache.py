"""`import flashsim.cache` imports the module `flashsim.hardware.cache`."""

import sys

from flashsim.hardware.cache import *  # noqa: F403 (type checkers read this)

sys.modules[__name__] = sys.modules["flashsim.hardware.cache"]

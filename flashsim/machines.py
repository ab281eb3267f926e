"""`import flashsim.machines` imports the module `flashsim.hardware.machines`."""

import sys

from flashsim.hardware.machines import *  # noqa: F403 (type checkers read this)

sys.modules[__name__] = sys.modules["flashsim.hardware.machines"]

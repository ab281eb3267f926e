"""`import flashsim.patterns` imports the module `flashsim.attention.masks.patterns`."""

import sys

from flashsim.attention.masks.patterns import *  # noqa: F403 (type checkers read this)

sys.modules[__name__] = sys.modules["flashsim.attention.masks.patterns"]

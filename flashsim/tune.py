"""`import flashsim.tune` imports the module `flashsim.analysis.tune`."""

import sys

from flashsim.analysis.tune import *  # noqa: F403 (type checkers read this)

sys.modules[__name__] = sys.modules["flashsim.analysis.tune"]

"""`import flashsim.approximate` imports the module `flashsim.extensions.approximate`."""

import sys

from flashsim.extensions.approximate import *  # noqa: F403 (type checkers read this)

sys.modules[__name__] = sys.modules["flashsim.extensions.approximate"]

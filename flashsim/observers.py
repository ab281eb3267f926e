"""`import flashsim.observers` imports the module `flashsim.tracing.observers`."""

import sys

from flashsim.tracing.observers import *  # noqa: F403 (type checkers read this)

sys.modules[__name__] = sys.modules["flashsim.tracing.observers"]

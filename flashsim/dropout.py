"""`import flashsim.dropout` imports the module `flashsim.attention.masks.dropout`."""

import sys

from flashsim.attention.masks.dropout import *  # noqa: F403 (type checkers read this)

sys.modules[__name__] = sys.modules["flashsim.attention.masks.dropout"]

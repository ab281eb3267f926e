"""`import flashsim.mlp` imports the module `flashsim.extensions.mlp`."""

import sys

from flashsim.extensions.mlp import *  # noqa: F403 (type checkers read this)

sys.modules[__name__] = sys.modules["flashsim.extensions.mlp"]

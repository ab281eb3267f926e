"""`import flashsim.masks` imports the module `flashsim.attention.masks`."""

import sys

from flashsim.attention.masks import __getattr__ as __getattr__  # type checkers read this

sys.modules[__name__] = sys.modules["flashsim.attention.masks"]

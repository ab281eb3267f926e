"""`python -m flashsim`."""

import sys

from flashsim.cli import main

sys.exit(main())

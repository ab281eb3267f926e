"""pytest, as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path


def by_pytest(file: str, tests: str) -> subprocess.CompletedProcess[str]:
    """Without the plugins that happen to be installed, whose import takes longer than the tests,
    nor a configuration above.
    """
    Path("pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, "-k", tests]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, env=alone, capture_output=True, text=True, check=False)

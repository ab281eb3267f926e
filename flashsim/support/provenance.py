"""How numbers were made: versions, date, and the commit of the sources."""

import json
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from flashsim.version import __version__

SOURCES = Path(__file__).resolve().parents[2]


def made_with() -> dict[str, Any]:
    """Return the versions, the day (UTC), and the commit of flashsim's sources; None where it is
    not known.
    """
    import numpy as np

    date = datetime.now(UTC).date().isoformat()
    versions = {
        "flashsim": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    return {**versions, "date": date, "commit": commit()}


@cache
def commit() -> str | None:
    """Return the commit of the clone, with "-dirty" where files differ from it; or the commit that
    pip installed. None where it is not known.
    """
    if (SOURCES / ".git").exists():
        return _commit_of_clone()
    with suppress(PackageNotFoundError, ValueError, AttributeError):
        origin = json.loads(distribution("flashsim").read_text("direct_url.json") or "{}")
        return origin.get("vcs_info", {}).get("commit_id")  # type: ignore[no-any-return]
    return None


def _commit_of_clone() -> str | None:
    command = ["git", "-C", str(SOURCES), "describe"]
    command += ["--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() or None

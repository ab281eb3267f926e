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
    """Return the commit of a clone, "-dirty" behind it where files differ from it; or what pip
    installed from.
    """
    if (SOURCES / ".git").exists():
        told = [
            "git",
            "-C",
            str(SOURCES),
            "describe",
            "--always",
            "--abbrev=40",
            "--dirty",
            "--exclude=*",
        ]
        with suppress(OSError, subprocess.SubprocessError):
            return (
                subprocess.run(
                    told, capture_output=True, text=True, check=True, timeout=10
                ).stdout.strip()
                or None
            )
        return None
    with suppress(PackageNotFoundError, ValueError, AttributeError):
        found = json.loads(distribution("flashsim").read_text("direct_url.json") or "{}")
        return found.get("vcs_info", {}).get("commit_id")  # type: ignore[no-any-return]
    return None

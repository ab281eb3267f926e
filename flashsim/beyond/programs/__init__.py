"""What runs on the same memory and is not attention over Q, K, V: one program a file, which ends in its record, `PROGRAM`."""

from functools import cache

from flashsim.algorithms.program import Program
from flashsim.support.modules import modules_of


@cache
def programs() -> dict[str, Program]:
    """Return all of them, by name: imported when they are asked for."""
    found = [record for file in modules_of(__name__) if isinstance(record := getattr(file, "PROGRAM", None), Program)]
    return {record.name: record for record in found}

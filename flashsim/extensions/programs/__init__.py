"""What runs on the same memory and is not attention over Q, K, V: one program a file, which ends
in its record, `PROGRAM`.
"""

from functools import cache

from flashsim.algorithms.program import MatrixProgram
from flashsim.support.modules import records_of


@cache
def programs() -> dict[str, MatrixProgram]:
    """Return all of them, by name: imported when they are asked for."""
    return {program.name: program for program in records_of(__name__, "PROGRAM", MatrixProgram)}

"""What serves, a file for each program, which ends in its record."""

from collections.abc import Mapping
from functools import cache

from flashsim.serving.record import BatchProgram
from flashsim.support.modules import records_of


@cache
def programs(direction: str = "forward") -> Mapping[str, BatchProgram]:
    """Return the programs of one direction, by name."""
    known = records_of(__name__, "PROGRAM", BatchProgram)
    return {program.name: program for program in known if program.direction == direction}

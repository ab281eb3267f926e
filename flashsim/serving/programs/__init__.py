"""What serves, a file for each program, which ends in its record."""

from collections.abc import Mapping
from functools import cache

from flashsim.serving.record import ServingProgram
from flashsim.support.modules import modules_of


@cache
def programs(direction: str = "forward") -> Mapping[str, ServingProgram]:
    """Return the programs of one direction, by name."""
    found = [module.PROGRAM for module in modules_of(__name__)]
    return {program.name: program for program in found if program.direction == direction}

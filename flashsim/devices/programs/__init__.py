"""Attention over several devices, a file for each program, which ends in its record."""

from collections.abc import Mapping
from functools import cache

from flashsim.devices.record import DevicesProgram
from flashsim.support.modules import records_of


@cache
def programs(direction: str = "forward") -> Mapping[str, DevicesProgram]:
    """Return the programs of one direction, by name."""
    known = records_of(__name__, "PROGRAM", DevicesProgram)
    return {program.name: program for program in known if program.direction == direction}

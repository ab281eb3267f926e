"""Attention over several devices, a file for each program, which ends in its record."""

from collections.abc import Mapping
from functools import cache

from flashsim.devices.record import DeviceProgram
from flashsim.support.modules import modules_of


@cache
def programs(direction: str = "forward") -> Mapping[str, DeviceProgram]:
    """Return the programs of one direction, by name."""
    found = [module.PROGRAM for module in modules_of(__name__)]
    return {program.name: program for program in found if program.direction == direction}

"""What a program over devices is: a record at the end of its file, as an algorithm's is.

To add one:

1. `flashsim/devices/programs/x.py`: the listing, a function of a `Device` and a `Share`, which runs
   on every device, and at the end `PROGRAM = DevicesProgram(…)`, with `bugs=` that tests plant.
2. `flashsim/devices/theory/x.py`: what each device sends and moves, and at the end
   `FORM = DevicesForm(…)`.
3. Its name in the choices of `flashsim/cli/devices.py`. `tests/contract` finds all else: numbers,
   counts, words sent, labels, traces, bugs.

A program of the user's own is passed as its record, with `blocks=`.
"""

from dataclasses import dataclass

from flashsim.algorithms.record import Program

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, kw_only=True)
class DevicesProgram(Program):
    """A function of a `Device`, a `Share` and matrices in the device's HBM.

    columns   whether it takes the number of columns of a mesh, too
    layout    of rows, unless one is asked for
    whole_heads  whether L is of whole heads, and not of own rows
    at_root   whether device 0 has all queries, which may be fewer than the keys
    """

    columns: bool = False
    layout: str = "contiguous"
    whole_heads: bool = False
    at_root: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the matrices that it takes, in order."""
        if self.direction == "forward":
            return ("Q", "K", "V")
        return ("Q", "K", "V", "O", "dO", "L")

"""What a program over devices is: a record at the end of its file, as an algorithm's is."""

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
        return ("Q", "K", "V") if self.direction == "forward" else ("Q", "K", "V", "O", "dO", "L")

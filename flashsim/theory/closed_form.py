"""`ClosedForm`, what every closed form is, and `Exact`, what it returns.

A program's closed form is its costs by formula, written from the paper. Each kind of program has
its kind of closed form:

    Form         attention                  flashsim.theory.form
    MatrixForm   matrices of given sizes    flashsim.theory.matrices
    BatchForm    a ragged batch             flashsim.serving.theory
    DevicesForm  devices                    flashsim.devices.theory

Whatever its kind, `cost` returns an `Exact`, with which a run and a count agree by `==`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, TypeVar

from flashsim.attention.shapes import Blocks
from flashsim.memory.traffic import Occupancy, Traffic
from flashsim.support.modules import modules_of

FormKind = TypeVar("FormKind", bound="ClosedForm")


class NoClosedForm(ValueError):
    """There is no closed form for a program, a mask or a sizing. A count may still be possible."""


@dataclass(frozen=True, repr=False)
class Exact:
    """What a run costs, by formula.

    hbm     accesses by array
    sram    the peak on chip, and M
    blocks  the block sizes
    matmul  FLOPs of the matrix products, a count's `flops.matmul`; None: not known
    sizing  who chose the blocks
    """

    algorithm: str
    hbm: Traffic
    sram: Occupancy
    blocks: Any
    matmul: int | None = None
    sizing: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return f"Exact({self.algorithm!r}: {self.hbm.accesses:,} HBM accesses, {self._costs})"

    def _repr_html_(self) -> str:
        caption = f"{self.algorithm}, by formula: HBM accesses, in elements"
        return self.hbm.table(caption, [self._costs])

    @property
    def _costs(self) -> str:
        blocks = self.blocks
        sizes = str(blocks)
        if isinstance(blocks, Blocks):
            sizes = f"blocks {blocks.B_r} × {blocks.B_c}"
        chooser = f" ({self.sizing})" if self.sizing else ""
        return f"{sizes}{chooser}, {self.sram}"

    @property
    def reads(self) -> int:
        """Elements read from HBM."""
        return self.hbm.reads

    @property
    def writes(self) -> int:
        """Elements written to HBM, initialisation included."""
        return self.hbm.writes

    @property
    def init_writes(self) -> int:
        """Elements written by initialisation."""
        return self.hbm.init_writes

    @property
    def accesses(self) -> int:
        """Reads + writes."""
        return self.hbm.accesses


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """What theory knows of one program. Each kind of program has a kind of closed form.

    name, direction  the program's; the default direction is "forward"
    """

    name: str
    direction: str = "forward"

    package: ClassVar[str] = ""
    """The package whose modules hold flashsim's own forms of this kind."""

    def cost(self, *args: Any, **kwargs: Any) -> Exact:
        """Return what a run costs, of a problem in its blocks."""
        raise NotImplementedError

    # flashsim's own are pickled by name, as some of their functions are lambdas
    def __reduce__(self) -> Any:
        if self.package and forms_in(self.package).get((self.name, self.direction)) is self:
            return (_form_in, (self.package, self.name, self.direction))
        return super().__reduce__()


@cache
def forms_in(package: str) -> Mapping[tuple[str, str], ClosedForm]:
    """Return the closed forms in the modules of a package, by name and direction."""
    by_name = {}
    for module in modules_of(package):
        for value in vars(module).values():
            if isinstance(value, ClosedForm):
                by_name[value.name, value.direction] = value
    return by_name


def _form_in(package: str, name: str, direction: str) -> ClosedForm:
    return forms_in(package)[name, direction]


def form_beside(program: Any, direction: str, kind: type[FormKind]) -> FormKind | None:
    """Return the closed form in the file of a user's own program, or None.

    It has the program's name, or its function's, and the direction. `program` is a record or a
    function.
    """
    function = _function_of(program)
    names = (getattr(program, "name", ""), getattr(function, "__name__", ""))
    for form in forms_in_file(program, kind):
        if form.name in names and form.direction == direction:
            return form
    return None


def forms_in_file(program: Any, kind: type[FormKind]) -> list[FormKind]:
    """Return all closed forms of this kind in the file of a user's own program."""
    module = sys.modules.get(getattr(_function_of(program), "__module__", ""))
    if module is None:
        return []
    return [value for value in vars(module).values() if isinstance(value, kind)]


def _function_of(program: Any) -> Any:
    return inspect.unwrap(getattr(program, "run", program))

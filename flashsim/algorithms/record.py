"""`Algorithm`: all that is known of an algorithm besides its lines. Each algorithm's
file ends in its record.

To add an algorithm, as `small_cache` is one, whose files are the whole change:

1. `flashsim/algorithms/x.py`: a docstring with the listing, a function whose lines are
   labelled, and at the end `ALGORITHM = Algorithm(…)`. Name the algorithm as its
   function. Its line 1 is `q_outer_blocks` of `blocks.py` if the outer loop goes over
   blocks of queries, and `kv_outer_blocks` if it goes over blocks of keys. If the loops
   are those of another algorithm under a mask, write only a record: `sliding_window`
   runs `q_outer`. If it takes a sink, `flashsim/algorithms/with_sink/x.py` is its
   variant.
2. If it has an option of its own, add an `Option` to the record. A value that is a mask
   joins the run's mask; give `examples` for the tests.
3. `flashsim/theory/x.py`: `FORM = Form(…)`, with what each array moves as `formulas`,
   the same line 1 and the same options; the docstring derives the peak. Its function
   has only assignments and one `return`, because the playground translates it.
4. `flashsim/algorithms/x_backward.py` and `flashsim/theory/x_backward.py`: the same
   with `direction="backward"`.
5. In the record, `bugs=`: mistakes that somebody could make. `tests/contract` plants
   them, and tests all that every program must satisfy: `pytest tests/contract -k x`.
   Tests of its own, such as counts by hand, are in `tests/algorithms/test_x.py`.
6. A lesson (`flashsim/learn/gallery/page.py`).
7. `python scripts/docs_tables.py` adds it to README's table, the only other file that
   changes. The records of figures that show every algorithm are made anew before a
   release.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple

from flashsim.algorithms.blocks import paper_rows
from flashsim.attention.matrices import Kind
from flashsim.attention.options import Option
from flashsim.attention.shapes import Blocks
from flashsim.memory.hbm import HBM, Matrix, Tile
from flashsim.memory.source import Site
from flashsim.support.records import set_fields

Direction = Literal["forward", "backward"]
OPERANDS = ("Q", "K", "V")
PARTS = ("tau", "MASK", "dropout")
SERVICES = (*PARTS, "block_mask", "live", "splits", "dB", "sink")
"""Parts that any algorithm may ask for."""
GRADIENTS = ("dQ", "dK", "dV")
OfBlocks = Callable[[int], int]
"""Of T_c, how many blocks of keys there are."""
Cuts = Callable[[Blocks, int, int], tuple[Blocks, ...]]
"""(blocks, N_q, N_k) -> the blocks of S in each of its passes over S."""


def one_cut(blocks: Blocks, N_q: int, N_k: int) -> tuple[Blocks, ...]:
    """Return line 1's blocks: all passes have them."""
    return (blocks,)


def once(T_c: int) -> int:
    """Return 1: at the end, for all blocks of keys together."""
    return 1


def every_block(T_c: int) -> int:
    """Return T_c: once for each block of keys."""
    return T_c


def never(T_c: int) -> int:
    """Return 0."""
    return 0


class Bug(NamedTuple):
    """What is wrong, and the text of the function that is changed to make it so."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Program:
    """Whatever runs on the counted memory: a function, and what is known of it besides
    its lines. Its file ends in it.

    There is a kind of program for each kind of problem: `Algorithm` (attention), and
    `MatrixProgram`, `BatchProgram` and `DevicesProgram`. Each adds what its problem
    needs.

    name       what users call it
    title      in the words of its source
    source     where it comes from
    run        the function
    direction  "forward", or "backward" for gradients
    bugs       mistakes that somebody could make or has made, each as a change to its
               text; tests plant them, and must notice
    module     `__name__` of the file that it stands in, where it runs another file's
               function

    Its module calls it as `called` says. It is pickled by that name; one that no module
    calls so, by its fields.
    """

    called: ClassVar[str] = "PROGRAM"
    name: str
    title: str
    source: str = ""
    run: Callable[..., Any]
    direction: str = "forward"
    bugs: tuple[Bug, ...] = field(default=(), repr=False)
    module: str = ""

    def __reduce__(self) -> Any:
        if getattr(sys.modules.get(self.home), self.called, None) is self:
            return _of_module, (self.home, self.called)
        return super().__reduce__()

    @property
    def home(self) -> str:
        """The name of the module that it stands in."""
        return self.module or self.run.__module__

    @property
    def listing(self) -> str:
        """The docstring of its file, which holds its listing; empty for what was made
        at a prompt, say.
        """
        return getattr(sys.modules.get(self.run.__module__), "__doc__", None) or ""


def _of_module(name: str, called: str) -> Any:
    return getattr(import_module(name), called)


@dataclass(frozen=True, kw_only=True)
class Algorithm(Program):
    """One pass: `run(hbm, sram, *operands, blocks, *parts)` returns matrices in HBM.

    name           what users call it; a backward pass has its forward pass's name, or
                   one of its own and `of`
    direction      "forward" or "backward"
    title          in the words of its source
    operands       matrices it takes, by name
    parts          what else it takes, in order (`flashsim.algorithms.parts`); without
                   "tau", the scale is folded into Q; without "MASK" and "dropout", it
                   has neither
    returns        names of the matrices it returns, in order
    saves          names of the matrices, besides those it returns, that its backward
                   pass needs
    follows        what the step player follows from tile to tile, old → new, in the
                   order shown: quantities of the rows or the keys on chip, in the
                   paper's symbols. "m" is a running maximum, where rescaling is told
    of             for a backward pass, the forward pass that it belongs to, where that
                   has another name: its name, or record
    module         `__name__` of the file that it stands in, where it runs another
                   file's function, under a mask of its own, say
    options        those that are this algorithm's only; a part of an option's name is
                   that option's value
    matrices       kinds of matrices, by name, that `flashsim.attention.matrices` does
                   not know: what it saves for its backward pass
    line_1         (rows, d) -> (B_r, B_c): of `flashsim.algorithms.blocks`,
                   `kv_outer_blocks` where blocks of keys are the outer loop,
                   `q_outer_blocks` where blocks of queries are
    rows           (M, d, d_v) -> rows, for the paper's sizes; ValueError where M is too
                   small
    cuts           the blocks of S in each of its passes over S, where these are not
                   line 1's (`Cuts`)
    loops          its loop order in words, for `flashsim.tune`, which tries it; None:
                   not tried
    short          its name in pictures; "": `name`
    look           the colour, marker and dashes of its curve in pictures of all
                   algorithms; None: left out there, as it moves what another one does
    skips_as       the name of the algorithm that is this one with tiles left out, which
                   `tune` counts where a mask forbids whole tiles; "": itself, which
                   leaves them out, or cannot

    What bounds on rounding need to know, of T_c (`flashsim.reference.error_bound`,
    `gradient_bounds`):

    rescales       how often ℓ is rescaled
    rounds         how often O (backward: dQ) is rounded to the inputs' type on its way
    rounds_logs    how often a logarithm of ℓ that the result depends on is rounded
    stores_scores  whether S and P are written to HBM, in the inputs' type: S must not
                   overflow there
    recombines     whether dS is summed up by way of a block's own D (Appendix B.5)

    gives_dS       a backward pass hands each tile of dS once to `MASK.gradient`, or all
                   of dS to `dB.whole`: so a bias has a gradient

    lse            (hbm, options) -> the rows' log-sum-exp, (N_q, 1), of what a run left
                   in HBM; None where it returns L, or ℓ and m

    What is left out follows from the rest: operands and parts are the parameters of
    `run` before and behind `blocks`; a backward pass returns dQ, dK, dV; what is
    followed is m, ℓ, O, L, or backward D, dQ, dK, dV.
    """

    called: ClassVar[str] = "ALGORITHM"
    direction: Direction = "forward"
    run: Callable[..., tuple[Matrix, ...]]
    operands: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    of: str | Algorithm = ""
    options: tuple[Option, ...] = ()
    matrices: Mapping[str, Kind] = field(default_factory=dict, hash=False)
    line_1: Callable[[int, int], tuple[int, int]]
    rows: Callable[[int, int, int], int] = paper_rows
    cuts: Cuts = one_cut
    loops: str | None = None
    short: str = ""
    look: tuple[str, str, str] | None = None
    skips_as: str = ""
    rescales: OfBlocks = every_block
    rounds: OfBlocks = once
    rounds_logs: OfBlocks = never
    stores_scores: bool = False
    recombines: bool = False
    gives_dS: bool = False
    lse: Callable[[HBM, Mapping[str, Any]], Tile] | None = None

    def __post_init__(self) -> None:
        """Fill in what is left out. Raises ValueError for a part that does not exist,
        and for a backward pass without τ.
        """
        parameters = tuple(inspect.signature(self.run).parameters)
        back = self.direction == "backward"
        position = parameters.index("blocks") if "blocks" in parameters else 0
        defaults = {
            "operands": parameters[2:position] or OPERANDS,
            "parts": parameters[position + 1 :] if position else PARTS,
            "returns": GRADIENTS if back else (),
            "follows": ("D", *GRADIENTS) if back else ("m", "l", "O", "L"),
        }
        for name, value in defaults.items():
            set_fields(self, **{name: getattr(self, name) or value})
        known = (*SERVICES, *(option.name for option in self.options))
        for part in self.parts:
            if part not in known and self.direction == "forward":
                raise ValueError(
                    f"{self.name!r} has the part {part!r}; expected one of "
                    f"{', '.join(known)}"
                )
        if self.direction == "backward" and "tau" not in self.parts:
            raise ValueError(
                f"{self.name!r} is a backward pass without the part 'tau'; expected "
                "it, as dQ = τ "
                "dS K"
            )

    @property
    def forward_pass(self) -> str:
        """The name of the forward pass: this one's, or that which it comes after."""
        return self.of.name if isinstance(self.of, Algorithm) else self.of or self.name

    @property
    def site(self) -> Site | None:
        """The file and the first line of its function; None for what is not a function
        in Python.
        """
        code = getattr(inspect.unwrap(self.run), "__code__", None)
        return None if code is None else (code.co_filename, code.co_firstlineno)

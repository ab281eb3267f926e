"""What closed forms are written in: one head's problem, its tiles of S by shape, and which of
them are live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flashsim.attention.arguments import check_count
from flashsim.attention.masks.rules import Head, Mask
from flashsim.attention.matrices import KINDS, Kind, Type
from flashsim.attention.shapes import Blocks, Shape
from flashsim.memory.traffic import ArrayTraffic, Role
from flashsim.support.records import set_fields
from flashsim.support.sizes import ceil_div as ceil_div
from flashsim.theory.closed_form import NoClosedForm
from flashsim.theory.live import Chosen, Live

Arrays = dict[str, ArrayTraffic]
Kept = tuple[int, Type]
"""Elements in HBM, and what they are stored as."""
COLUMN = Kind("N_q", "1")
ITEMSIZES: Mapping[str, int] = {"bits": 1, "words": 4}
BYTES: Mapping[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Tiles:
    """A set of tiles of S, by kind: (rows, columns, words) -> how many tiles are of it.

    `words` is how many words each row of a tile overlaps in the bitmask of a tree, 0 if there is
    none: four kinds at most then, as only ends are ragged. `whole` is what they are tiles of: N_q,
    N_k, which are chosen, and how many keys are nodes.
    """

    kinds: Mapping[tuple[int, int, int], int]
    whole: tuple[int, int, Chosen | None, int] = (0, 0, None, 0)

    @classmethod
    def of(
        cls, N_q: int, N_k: int, B_r: int, B_c: int, choice: Chosen | None = None, nodes: int = 0
    ) -> Tiles:
        """Return the tiles of an N_q × N_k matrix in blocks of B_r × B_c: those chosen, or all; the
        last `nodes` keys a tree's.

        Node c has its bit in word ⌊c/32⌋, so a tile whose last node is b and whose first is a
        overlaps ⌊b/32⌋ − ⌊a/32⌋ + 1.
        """
        whole = N_q, N_k, choice, nodes
        T_r, T_c = ceil_div(N_q, B_r), ceil_div(N_k, B_c)
        last_r = N_q - (T_r - 1) * B_r
        last_c = N_k - (T_c - 1) * B_c
        count_of = choice or (lambda first, end: ((T_r - 1) * (end - first), end - first))
        runs = [(0, T_c - 1, 0), (T_c - 1, T_c, 0)]  # columns, and their words
        if nodes:
            first = (N_k - nodes) // B_c  # with a node
            runs = [(0, first, 0)]
            for j in range(first, T_c):
                a = j * B_c - (N_k - nodes)
                b = min((j + 1) * B_c, N_k) - (N_k - nodes) - 1
                runs.append((j, j + 1, b // 32 - max(a // 32, 0) + 1))
        kinds: dict[tuple[int, int, int], int] = {}
        for begin, end, words in runs:
            for rows, count in zip((B_r, last_r), count_of(begin, end), strict=True):
                if count:
                    kind = rows, B_c if end < T_c else last_c, words
                    kinds[kind] = kinds.get(kind, 0) + count
        return cls(kinds, whole)

    def cut(self, B_r: int, B_c: int) -> Tiles:
        """Return the same part of S, all of it or what is live, in tiles of B_r × B_c."""
        N_q, N_k, choice, nodes = self.whole
        assert choice is None or isinstance(choice, Live)
        return Tiles.of(N_q, N_k, B_r, B_c, choice and choice.cut(B_r, B_c), nodes)

    @property
    def chosen(self) -> bool:
        """Whether they may be some of the whole's."""
        return self.whole[2] is not None

    @property
    def number(self) -> int:
        """How many tiles."""
        return sum(self.kinds.values())

    @property
    def rows(self) -> int:
        """Σ over tiles of their rows; of all tiles, T_c·N_q."""
        return sum(r * count for (r, _, _), count in self.kinds.items())

    @property
    def columns(self) -> int:
        """Σ over tiles of their columns; of all tiles, T_r·N_k."""
        return sum(c * count for (_, c, _), count in self.kinds.items())

    @property
    def area(self) -> int:
        """Σ over tiles of their elements; of all tiles, N_q·N_k."""
        return sum(r * c * count for (r, c, _), count in self.kinds.items())

    @property
    def words(self) -> int:
        """Σ over tiles of the words of a tree's bitmask that their rows overlap."""
        return sum(r * words * count for (r, _, words), count in self.kinds.items())

    def most(self, occupancy: Callable[[int, int], int]) -> int:
        """Return the largest occupancy(rows, columns), plus its words, of any tile here; 0 if
        there is none.
        """
        return max((occupancy(r, c) + r * words for r, c, words in self.kinds), default=0)


class Stored(NamedTuple):
    """An array of a mask in HBM, (1 or N_q) × (1 or N_k): its name, and bytes an element."""

    rows: int
    columns: int
    name: str
    itemsize: int

    def block(self, rows: int, columns: int) -> int:
        """Return the elements of the block that goes with a tile of S."""
        return (rows if self.rows > 1 else 1) * (columns if self.columns > 1 else 1)

    def within(self, tiles: Tiles) -> int:
        """Return the elements of the blocks that go with a set of tiles."""
        by_row, by_tile = (
            (tiles.area, tiles.columns) if self.columns > 1 else (tiles.rows, tiles.number)
        )
        return by_row if self.rows > 1 else by_tile


class Table(Stored):
    """A table, 1 × columns, of which every tile loads all."""

    def block(self, rows: int, columns: int) -> int:
        """Return its elements."""
        return self.columns

    def within(self, tiles: Tiles) -> int:
        """Return what a set of tiles loads."""
        return tiles.number * self.columns


@dataclass(frozen=True)
class OneHead:
    """One head: lengths, widths, M; itemsizes of what is stored as the inputs are and of
    statistics; mask and dropout.

    `dense` holds the arrays of masks and of a bias that live in HBM, `learns` the bias's gradient;
    `capped` says whether a backward pass keeps a soft cap's slope, a tile; `sink` is how many
    logits of a sink there are, one for each query head; `tree` says whether the mask has a tree,
    whose bitmask is in HBM. `options` are the algorithm's own, by name. N_q counts the rows of all
    heads where those of `group` query heads are interleaved.
    """

    N_q: int
    N_k: int
    d: int
    d_v: int
    M: int
    stored: int
    masked: bool
    dense: tuple[Stored, ...]
    dropout: bool
    tree: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    group: int = 1
    learns: Stored | None = None
    capped: bool = False
    sink: int = 0

    def __post_init__(self) -> None:
        set_fields(
            self,
            N_q=check_count("N_q", self.N_q),
            N_k=check_count("N_k", self.N_k),
            d=check_count("d", self.d),
            d_v=check_count("d_v", self.d_v),
            M=check_count("M", self.M),
            group=check_count("group", self.group),
        )

    @property
    def chip(self) -> int:
        """Bytes of ℓ, m, log L and D, kept at the precision that is computed in: float32 for
        16-bit inputs.
        """
        return max(self.stored, 4)

    def size(self, name: str) -> int:
        """Return the elements of a matrix (`flashsim.attention.matrices`); of an unknown one,
        those of a column.
        """
        return self.kept(name)[0]

    def kept(self, name: str) -> Kept:
        """Return what a matrix of that name has in HBM: its elements, and how they are stored."""
        kind = KINDS.get(name, COLUMN)
        rows, columns = kind.shape(self)
        return rows * columns, kind.type

    def array(
        self,
        name: str,
        role: Role,
        *,
        reads: int = 0,
        writes: int = 0,
        init: int = 0,
        kept: Kept | None = None,
    ) -> Arrays:
        """Return one array's entry: elements read, and written after and (`init`) by
        initialisation.

        `kept` is what it has in HBM; None: what a matrix of that name has.
        """
        for formula in (reads, writes, init):
            if not isinstance(formula, int) or formula < 0:
                raise TypeError(
                    f"{name} has {reads=}, {writes=}, {init=}; expected whole numbers, from 0"
                )
        size, stored = kept or self.kept(name)
        itemsize = self.stored if stored == "inputs" else ITEMSIZES.get(stored, self.chip)
        return {name: ArrayTraffic(reads, init + writes, init, size, itemsize, role)}

    @property
    def tree_words(self) -> int:
        """How many words of a tree's bitmask a whole row of S overlaps; 0 without a tree."""
        return ceil_div(self.N_q // self.group, 32) if self.tree else 0

    def tiles(self, B_r: int, B_c: int, choice: Chosen | None = None) -> Tiles:
        """Return S in tiles that are masked as they are computed, all or those chosen: with the
        words of a tree, if any.
        """
        return Tiles.of(
            self.N_q, self.N_k, B_r, B_c, choice, self.N_q // self.group if self.tree else 0
        )

    def masks(self, *passes: Tiles) -> Arrays:
        """Return the traffic of mask arrays in HBM: each tile of each pass loads its block of each,
        wherever it has one.

        An array (N_q, N_k) is read once for every element of a tile, (1, N_k) for every column,
        (N_q, 1) for every row, and (1, 1) for every tile. A tree's bitmask is read as often as
        tiles overlap its words.
        """
        arrays: Arrays = {}
        if self.tree:
            reads = sum(tiles.words for tiles in passes)
            arrays["tree"] = ArrayTraffic(reads, 0, 0, self.N_q * self.tree_words, 4, "input")
        for array in self.dense:
            reads = sum(array.within(tiles) for tiles in passes)
            arrays[array.name] = ArrayTraffic(
                reads, 0, 0, array.rows * array.columns, array.itemsize, "input"
            )
        return arrays

    def gradient(self, tiles: Tiles) -> Arrays:
        """Return the traffic of a bias's gradient: zeros at first; each of these tiles of dS
        reads and writes its block of it.
        """
        dB = self.learns
        if dB is None:
            return {}
        array = dB.within(tiles)
        size = dB.rows * dB.columns
        return {dB.name: ArrayTraffic(array, size + array, size, size, dB.itemsize, "output")}

    def gradient_tile(self, rows: int, columns: int) -> int:
        """Return the elements on chip of a bias's gradient, its block for one tile of dS."""
        return 0 if self.learns is None else self.learns.block(rows, columns)

    def mask_tile(self, rows: int, columns: int) -> int:
        """Return the elements on chip of the mask blocks for one tile of S, and of a cap's slope. A
        tree's words are the tile's: `Tiles.most`.
        """
        return (
            sum(array.block(rows, columns) for array in self.dense) + self.capped * rows * columns
        )

    def generator(self, direction: str) -> Arrays:
        """Return R's traffic: two words, written when initialised (forward) and read once
        (backward).
        """
        if not self.dropout:
            return {}
        forward = ArrayTraffic(0, 2, 2, 2, 4, "extra")
        backward = ArrayTraffic(2, 0, 0, 2, 4, "input")
        return {"R": forward if direction == "forward" else backward}

    @property
    def R(self) -> int:
        """What the generator's state takes on chip throughout a backward pass."""
        return 2 if self.dropout else 0


def arrays_of(mask: Mask, group: int, head: Head = ()) -> tuple[Stored, ...]:
    """Return what of a mask is in HBM as arrays, at `head`. Rows, if there are several, are
    those of all heads.
    """
    shapes = (array.shape for array in mask.dense(head))
    arrays = [
        Stored(rows, columns, f"mask{number or ''}", 1)
        for number, (rows, columns) in enumerate(shapes)
    ]
    if mask.bias is not None:
        rows, columns = mask.bias.matrix
        arrays.append(
            (Table if mask.bias.is_table else Stored)(
                rows, columns, "bias", mask.bias.array.dtype.itemsize
            )
        )
    return tuple(
        array._replace(rows=array.rows * (group if array.rows > 1 else 1)) for array in arrays
    )


def live_tiles(mask: Mask, N_q: int, N_k: int, blocks: Blocks, group: int) -> Live:
    """Return the tiles with an element that positions allow. NoClosedForm for a mask that is not a
    band.

    What is allowed is what the mask's band says; which tiles that makes live, and how many, is
    derived here anew.
    """
    band = mask.band(Shape(N_q // group, N_k, 1, 1), ())
    if band is None:
        raise NoClosedForm(
            f"no closed form for a mask of type {type(mask).__name__}: its band is None"
        )
    queries = N_q if band.queries is None else group * band.queries
    left, right = (N_q + N_k if side is None else side for side in (band.left, band.right))
    return Live(
        N_q, N_k, blocks, left, right, band.keys if left + right >= 0 else 0, group, queries
    )

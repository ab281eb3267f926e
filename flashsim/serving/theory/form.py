"""`BatchForm`, a program's closed form; and row blocks, with what they see, from positions
alone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashsim.attention.inputs import chip_dtype
from flashsim.attention.shapes import Sizes
from flashsim.memory.traffic import ArrayTraffic, Occupancy, Role, Traffic
from flashsim.serving.batch import Batch
from flashsim.theory.closed_form import ClosedForm, Exact

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Moved:
    """What one KV head moves of an array, in elements. `size` is of one that the program makes,
    `chip` its type.

    A size ("Q", w) is w for each row of that operand, some of which may be of no sequence.
    """

    reads: int
    writes: int = 0
    size: int | tuple[str, int] = 0
    chip: bool = False
    role: Role = "extra"


class Stored(NamedTuple):
    """An operand in HBM: its shape, and bytes an element; None: those of its role."""

    rows: int
    columns: int
    itemsize: int | None = None


@dataclass(frozen=True)
class RowBlocks:
    """The row blocks of a sequence with N queries and n keys: rows b of each, and e, the first
    keys that they see.
    """

    N: int
    n: int
    b: Ints
    e: Ints

    def cover(self, B: int) -> Ints:
        """Return the keys that each row block loads, in tiles of B."""
        return np.minimum(-(-self.e // B) * B, self.n)

    def first(self, B: int) -> Ints:
        """Return the keys of the first tile that each row block loads, which is the largest; 0
        where there is none.
        """
        return np.where(self.e > 0, min(B, self.n), 0)


@lru_cache(2**14)
def row_blocks(N: int, n: int, g: int, B_r: int, causal: bool) -> RowBlocks:
    """Return the row blocks of a sequence: row r, at position r // g + n − N, sees the keys up
    to itself, or all.
    """
    row = np.arange(g * N, dtype=np.int64)
    keys = np.clip(row // g + 1 + n - N, 0, n) if causal else np.full(g * N, n)
    first = np.arange(0, g * N, B_r)
    ends = np.append(first[1:], g * N) if len(first) else first
    e = np.maximum.reduceat(keys, first) if len(first) else first
    return RowBlocks(N, n, ends - first, e)


def sequences(p: Batch) -> Iterator[RowBlocks]:
    """Yield each sequence's row blocks."""
    for N, n in zip(p.queries, p.keys, strict=True):
        yield row_blocks(N, n, p.group, p.B_r, p.causal)


def tile_peak(p: Batch, b: Ints, c: Ints, more: int = 0, columns: int = 0) -> int:
    """Return the most on chip in the inner loop, where row blocks of b rows meet tiles of c keys,
    none if c is 0; + `more` words.

    `columns` are those of a row of keys and values together, by default d + d_v.

    Q_i O_i K_j V_j, S_ij, ℓ_i m_i m_i^new: (b + c)(d + d_v) + b·c + 3b; without a tile b(d + d_v +
    2).
    """
    w = p.d + p.d_v
    on_chip = b * w + c * (columns or w) + b * c + np.where(c > 0, 3 * b + more, 2 * b)
    return int(max(on_chip, default=0))


def moves(p: Batch, **reads: int) -> dict[str, Moved]:
    """Return what moves where Q is read once, and O and L are written: these, and what else is
    read.
    """
    R = p.group * sum(p.queries)
    written = {
        "O": Moved(0, R * p.d_v, ("Q", p.d_v), role="output"),
        "L": Moved(0, R, ("Q", 1), chip=True),
    }
    return {"Q": Moved(R * p.d), **{name: Moved(n) for name, n in reads.items()}, **written}


@dataclass(frozen=True, kw_only=True)
class BatchForm(ClosedForm):
    """The closed form of one program on a ragged batch.

    moved  (batch, options by name) -> what each array of one KV head moves
    peak   (batch, options by name) -> the most on chip, in elements
    """

    package: ClassVar[str] = "flashsim.serving.theory"

    traffic: Callable[..., Mapping[str, Moved]]
    peak: Callable[..., int]

    def cost(
        self,
        batch: Batch,
        options: Mapping[str, Any],
        operands: Mapping[str, Stored],
        is_shared: Callable[[str], bool],
    ) -> Exact:
        """Return what a run costs, of all KV heads.

        operands   what one KV head has in HBM when it begins, by name
        is_shared  whether all KV heads share that array
        """
        chip = chip_dtype(batch.dtype).itemsize
        arrays = {}
        for name, array in self.traffic(batch, **options).items():
            role = array.role
            itemsize = chip if array.chip else batch.dtype.itemsize
            size = array.size
            if isinstance(size, tuple):
                whose, width = size
                size = operands[whose].rows * width
            if name in operands:
                role = "input"
                size = operands[name].rows * operands[name].columns
                itemsize = operands[name].itemsize or itemsize
            one_head = ArrayTraffic(array.reads, array.writes, 0, size, itemsize, role)
            all_heads = one_head.times(batch.kv_heads)
            arrays[name] = all_heads.shared(batch.kv_heads) if is_shared(name) else all_heads
        return Exact(
            algorithm=self.name,
            hbm=Traffic(arrays),
            sram=Occupancy(self.peak(batch, **options), batch.M, True),
            blocks=Sizes(B_r=batch.B_r, B_c=batch.B_c),
        )


def whole(x: Any) -> int:
    """Return a sum as a Python int."""
    return int(np.sum(x))

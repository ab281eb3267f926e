"""The sizes of a problem as plain records: one head's shape, block sizes, lengths by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral

from flashsim.support.records import set_fields


@dataclass(frozen=True)
class Shape:
    """One head's attention problem: Q is (N_q, d), K (N_k, d), V (N_k, d_v)."""

    N_q: int
    N_k: int
    d: int
    d_v: int

    def __str__(self) -> str:
        return f"N_q = {self.N_q:,}, N_k = {self.N_k:,}, d = {self.d:,}, d_v = {self.d_v:,}"


class BlockSize(int):
    """A block size such as B_r, a whole number, with the `length` that it divides:
    `Matrix.divide` refuses another one.
    """

    length: int

    def __new__(cls, size: int, length: int) -> BlockSize:
        """Return the number, with its length."""
        number = super().__new__(cls, size)
        number.length = length
        return number

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]  # for copies and pickles
        return int(self), self.length


@dataclass(frozen=True)
class Blocks:
    """Block sizes for queries and keys of these lengths: `Blocks(B_r=4, B_c=3, N_q=12, N_k=12)`.

    B_r   rows of a block of Q, and of O; at most N_q: a larger one is clipped to it
    B_c   rows of a block of K, and of V; at most N_k, likewise
    N_q, N_k  the lengths that they divide, the rows of Q and of K

    So there are T_r = ⌈N_q/B_r⌉ and T_c = ⌈N_k/B_c⌉ blocks. A matrix of another length that is
    divided by B_r or B_c raises ValueError, as its blocks would be more or fewer. Raises ValueError
    for what is not a whole number, for sizes below 1, and for lengths below 0.
    """

    B_r: int
    B_c: int
    _: KW_ONLY
    N_q: int
    N_k: int

    def __post_init__(self) -> None:
        """Check all four, and clip."""
        for name, number in vars(self).items():
            least = 0 if name.startswith("N") else 1  # a device may have no queries
            if not isinstance(number, Integral) or number < least:
                raise ValueError(
                    f"{name} of Blocks is {number!r:.40}; expected a whole number of at least "
                    f"{least}"
                )
        N_q = int(self.N_q)
        N_k = int(self.N_k)
        set_fields(
            self,
            B_r=BlockSize(min(int(self.B_r), max(N_q, 1)), N_q),
            B_c=BlockSize(min(int(self.B_c), max(N_k, 1)), N_k),
            N_q=N_q,
            N_k=N_k,
        )

    @property
    def T_r(self) -> int:
        """How many blocks of queries there are, ⌈N_q/B_r⌉."""
        return -(-self.N_q // self.B_r)

    @property
    def T_c(self) -> int:
        """How many blocks of keys there are, ⌈N_k/B_c⌉."""
        return -(-self.N_k // self.B_c)

    def to_dict(self) -> dict[str, int]:
        """Return B_r, B_c, T_r, T_c, by name."""
        return {"B_r": int(self.B_r), "B_c": int(self.B_c), "T_r": self.T_r, "T_c": self.T_c}

    @property
    def tiles(self) -> int:
        """How many tiles they make of S."""
        return self.T_r * self.T_c


class Sizes(Mapping[str, int]):
    """Lengths or block sizes by name, which are attributes too: `sizes["N"]` is `sizes.N`. They
    do not change.
    """

    def __init__(self, **sizes: int) -> None:
        self.__dict__.update(sizes)

    def __getitem__(self, name: str) -> int:
        size: int = self.__dict__[name]
        return size

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    def __getattr__(self, name: str) -> int:
        raise AttributeError(f"there is no size {name!r}; there are {', '.join(self)}")

    def __setattr__(self, name: str, size: int) -> None:
        raise AttributeError(
            f"{name} is {getattr(self, name)}; sizes do not change, but dict(sizes) does"
        )

    def clipped(self, blocks: Mapping[str, str], sizes: Sequence[int]) -> Sizes:
        """Return block sizes, each at most as long as what it divides: `blocks` has the symbol
        of that, by name.
        """
        return Sizes(
            **{
                name: min(size, self[symbol])
                for (name, symbol), size in zip(blocks.items(), sizes, strict=True)
            }
        )

    def __repr__(self) -> str:
        return ", ".join(f"{name} = {size:,}" for name, size in self.items())


def pass_tiles(M: int, N_k: int, held: int) -> tuple[int, int]:
    """Return (rows, cols) of the tiles of an element-wise pass over N_k columns, `held` tiles of
    which fill SRAM at most.
    """
    return max(M // (held * N_k), 1), min(max(M // held, 1), N_k)

"""The sizes of a problem as plain records: one head's shape, block sizes, lengths by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """One head's attention problem: Q is (N_q, d), K (N_k, d), V (N_k, d_v)."""

    N_q: int
    N_k: int
    d: int
    d_v: int

    def __str__(self) -> str:
        return f"N_q = {self.N_q:,}, N_k = {self.N_k:,}, d = {self.d:,}, d_v = {self.d_v:,}"


@dataclass(frozen=True)
class Blocks:
    """Block sizes, clipped to the lengths, and how many blocks they make: T_r = ⌈N_q/B_r⌉, T_c = ⌈N_k/B_c⌉."""

    B_r: int
    B_c: int
    T_r: int
    T_c: int

    @property
    def tiles(self) -> int:
        """How many tiles they make of S."""
        return self.T_r * self.T_c


class Sizes(Mapping[str, int]):
    """Lengths or block sizes by name, which are attributes too: `sizes["N"]` is `sizes.N`. They do not change."""

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
        raise AttributeError(f"{name} is {getattr(self, name)}; sizes do not change, but dict(sizes) does")

    def clipped(self, blocks: Mapping[str, str], sizes: Sequence[int]) -> Sizes:
        """Return block sizes, each at most as long as what it divides: `blocks` has the symbol of that, by name."""
        return Sizes(**{name: min(size, self[symbol]) for (name, symbol), size in zip(blocks.items(), sizes, strict=True)})

    def __repr__(self) -> str:
        return ", ".join(f"{name} = {size:,}" for name, size in self.items())

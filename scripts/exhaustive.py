"""Play attention scalar by scalar on tiny sizes, all schedules, and hold the fewest accesses against the lower bounds.

    python scripts/exhaustive.py [--backward] [--most STATES] N_q N_k d M [N_q N_k d M …]

The game knows nothing of the bounds' proofs. Every number is a word: an input, or a part of a sum, told by the terms in it. On
chip are at most M words. To read a word from HBM, or write it there, costs 1. Free are: to forget a word; to multiply two words
on chip and add the product to a part of a sum on chip, or begin one, over any word on chip if need be; to add two parts of a sum
that share no term. A whole S_ik is P_ik, as statistics are free. The rest is search: A*, which expands the state that may cost
least, guided by the reads and writes that are sure to come.

Left out is only what helps no schedule. Words whose every use is past are forgotten. A word is forgotten, or written, only to
make room; an output is written when it is whole. Each term of an output is added once, in place: twice would count it twice, and
what is not counted need not be done. Games that are equal but for the order of rows, keys or columns are one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import lru_cache
from heapq import heappop, heappush
from itertools import permutations, product
from operator import getitem
from typing import NamedTuple

from flashsim.theory import lower_bound, lower_bound_backward

Word = tuple[str, int, int]
AXES = {  # what a word's two numbers count: rows 0, keys 1, columns of Q and K 2, columns of V and O 3
    "Q": (0, 2), "K": (1, 2), "V": (1, 3), "O": (0, 3), "S": (0, 1), "dO": (0, 3), "dP": (0, 1), "dS": (0, 1),
    "dQ": (0, 2), "dK": (1, 2), "dV": (1, 3),
}  # fmt: skip


class Sum(NamedTuple):
    """A sum: for each term the two words that it multiplies, as (array, row, column); whole sums count as words too."""

    name: Word
    terms: list[tuple[Word, Word]]
    output: bool


def forward_sums(N_q: int, N_k: int, d: int) -> list[Sum]:
    """Return S = QKᵀ and O = PV."""
    I, J, C = range(N_q), range(N_k), range(d)
    S = [Sum(("S", i, k), [(("Q", i, c), ("K", k, c)) for c in C], False) for i, k in product(I, J)]
    O = [Sum(("O", i, c), [(("S", i, k), ("V", k, c)) for k in J], True) for i, c in product(I, C)]
    return S + O


def backward_sums(N_q: int, N_k: int, d: int) -> list[Sum]:
    """Return S, dP, dS (of one term, a function of both) and the three gradients."""
    I, J, C = range(N_q), range(N_k), range(d)
    sums = []
    for i, k in product(I, J):
        sums.append(Sum(("S", i, k), [(("Q", i, c), ("K", k, c)) for c in C], False))
        sums.append(Sum(("dP", i, k), [(("dO", i, c), ("V", k, c)) for c in C], False))
        sums.append(Sum(("dS", i, k), [(("S", i, k), ("dP", i, k))], False))
    sums += [Sum(("dV", k, c), [(("S", i, k), ("dO", i, c)) for i in I], True) for k, c in product(J, C)]
    sums += [Sum(("dK", k, c), [(("dS", i, k), ("Q", i, c)) for i in I], True) for k, c in product(J, C)]
    sums += [Sum(("dQ", i, c), [(("dS", i, k), ("K", k, c)) for k in J], True) for i, c in product(I, C)]
    return sums


class Game:
    """The game of some sums. A state is (words on chip, words in HBM that are no inputs), as bits."""

    def __init__(self, sums: list[Sum], M: int) -> None:
        self.sums, self.M = sums, M
        number = {s.name: at for at, s in enumerate(sums)}
        inputs = sorted({word for s in sums for term in s.terms for word in term if word not in number})
        self.first: list[int] = []  # the bit of each sum's subset {}; subset m has the bit first + m
        at = len(inputs) - 1
        for s in sums:
            self.first.append(at)
            at += 2 ** len(s.terms) - 1
        self.inputs = (1 << len(inputs)) - 1
        bit = {word: 1 << at for at, word in enumerate(inputs)}
        whole = {s.name: 1 << self.first[at] + 2 ** len(s.terms) - 1 for at, s in enumerate(sums)}
        self.operands = [[(bit | whole)[a] | (bit | whole)[b] for a, b in s.terms] for s in sums]
        self.all_of = [
            sum(1 << f + m for m in range(1, 2 ** len(s.terms))) for f, s in zip(self.first, sums, strict=True)
        ]
        self.with_term = [
            [sum(1 << f + m for m in range(1, 2 ** len(s.terms)) if m >> t & 1) for t in range(len(s.terms))]
            for f, s in zip(self.first, sums, strict=True)
        ]
        self.whole = [whole[s.name] for s in sums]
        self.uses: dict[int, list[tuple[int, int]]] = {}  # of a sum: (sum, term) that take it
        self.input_uses: list[tuple[int, list[tuple[int, int]]]] = []
        for word in [*inputs, *number]:
            uses = [(at, t) for at, s in enumerate(sums) for t, term in enumerate(s.terms) if word in term]
            if word in number:
                self.uses[number[word]] = uses
            else:
                self.input_uses.append((bit[word], uses))
        self.outputs = [at for at, s in enumerate(sums) if s.output]
        self.of_outputs = sum(self.all_of[at] for at in self.outputs)
        self.whole_outputs = sum(self.whole[at] for at in self.outputs)
        self.orders = [self._bytes(order) for order in self._orders(inputs)]
        self.needed_of = lru_cache(None)(self._needed)

    def _orders(self, inputs: list[Word]) -> Iterator[list[int]]:
        """Yield where each bit goes when rows, keys, columns of Q and K, or columns of V and O, are put in another order."""
        names = [*inputs, *(s.name for s in self.sums)]
        sizes = [1 + max(name[1] for name in names if name[0] == array) for array in "QK"]
        sizes += [1 + max(name[2] for name in names if name[0] == array) for array in "QV"]
        at_input = {word: at for at, word in enumerate(inputs)}
        at_sum = {s.name: at for at, s in enumerate(self.sums)}
        for orders in product(*(permutations(range(size)) for size in sizes)):

            def moved(word: Word, orders: tuple[tuple[int, ...], ...] = orders) -> Word:
                first, second = AXES[word[0]]
                return word[0], orders[first][word[1]], orders[second][word[2]]

            to = [at_input[moved(word)] for word in inputs]
            for s in self.sums:
                other = at_sum[moved(s.name)]
                terms = [set(term) for term in self.sums[other].terms]
                goes = [terms.index({moved(word) for word in term}) for term in s.terms]
                for m in range(1, 2 ** len(s.terms)):
                    to.append(self.first[other] + sum(1 << goes[t] for t in range(len(s.terms)) if m >> t & 1))
            yield to

    def _bytes(self, order: list[int]) -> list[list[int]]:
        """Return, for each byte of a state and each value of it, the bits that it becomes."""
        return [
            [sum(1 << to for bit, to in enumerate(order[at : at + 8]) if value >> bit & 1) for value in range(256)]
            for at in range(0, len(order), 8)
        ]

    def alike(self, chip: int, hbm: int) -> tuple[int, int]:
        """Return the one state that stands for all that are equal to this but for order."""
        size = len(self.orders[0])
        ours, theirs = chip.to_bytes(size, "little"), hbm.to_bytes(size, "little")
        return min((sum(map(getitem, order, ours)), sum(map(getitem, order, theirs))) for order in self.orders)

    def _needed(self, held: int) -> tuple[int, int]:
        """Of all words held: the inputs that are sure to be needed on chip yet, and the words that have a use to come."""
        missing: dict[int, bool] = {}

        def wanted(at: int, t: int) -> bool:  # a term that is to be added yet
            return not held & self.with_term[at][t] and (self.sums[at].output or needed(at))

        def needed(at: int) -> bool:
            if at not in missing:
                missing[at] = any(wanted(*use) for use in self.uses[at])
            return missing[at]

        def useful(at: int) -> bool:  # a word of an intermediate sum, if ever again
            return any(not held & self.with_term[s][t] if self.sums[s].output else useful(s) for s, t in self.uses[at])

        must = keep = 0
        for word, uses in self.input_uses:
            if any(wanted(*use) for use in uses):
                must |= word
            if any(not held & self.with_term[s][t] if self.sums[s].output else useful(s) for s, t in uses):
                keep |= word
        for at, s in enumerate(self.sums):
            if s.output or useful(at):
                keep |= self.all_of[at]
        return must, keep

    def tidy(self, chip: int, hbm: int) -> tuple[int, int]:
        """Forget what has no use to come."""
        _, keep = self.needed_of((chip | hbm) & ~self.inputs)
        return chip & keep, hbm & keep

    def least(self, chip: int, hbm: int) -> int:
        """Return loads and stores that are sure to come."""
        must, _ = self.needed_of((chip | hbm) & ~self.inputs)
        sure = (must & ~chip).bit_count()
        for at in self.outputs:
            if not hbm & self.whole[at]:
                sure += 1 + (hbm & ~chip & self.all_of[at]).bit_count()
        return sure

    def with_room(self, cost: int, chip: int, hbm: int, new: int) -> Iterator[tuple[int, int, int]]:
        """Yield the states with a word more on chip; if it is full, each with another word forgotten, or written first."""
        if (chip | new).bit_count() <= self.M:
            yield cost, chip | new, hbm
            return
        rest = chip & ~new
        while rest:
            word = rest & -rest
            rest &= rest - 1
            stays = word & (self.inputs | hbm)
            if stays or not word & self.of_outputs:  # a part of an output that is lost was made for nothing
                yield cost, (chip | new) & ~word, hbm
            if not stays:
                yield cost + 1, (chip | new) & ~word, hbm | word

    def moves(self, chip: int, hbm: int) -> Iterator[tuple[int, int, int]]:
        """Yield (cost, chip, HBM) of what a schedule can do next."""
        _, keep = self.needed_of((chip | hbm) & ~self.inputs)
        away = (self.inputs & keep | hbm) & ~chip & ~self.whole_outputs
        while away:
            yield from self.with_room(1, chip, hbm, away & -away)
            away &= away - 1
        for at, s in enumerate(self.sums):
            f = self.first[at]
            partial = [m for m in range(1, 2 ** len(s.terms)) if chip >> f + m & 1]
            for t, operands in enumerate(self.operands[at]):
                if operands & ~chip or (s.output and (chip | hbm) & self.with_term[at][t]):
                    continue
                for m in (0, *partial):
                    if not m >> t & 1:
                        yield from self._added(chip, hbm, at, m, m | 1 << t)
            for m in partial:
                for other in partial:
                    if m < other and not m & other:
                        gone = 1 << f + other if s.output else 0
                        yield from self._added(chip & ~gone, hbm & ~gone, at, m, m | other)

    def _added(self, chip: int, hbm: int, at: int, old: int, new: int) -> Iterator[tuple[int, int, int]]:
        """Yield the states in which a sum's part `old` has become `new`; a whole output is written."""
        f = self.first[at]
        if chip >> f + new & 1:
            return
        if old and self.sums[at].output:
            chip, hbm = chip & ~(1 << f + old), hbm & ~(1 << f + old)
        if 1 << f + new & self.whole_outputs:
            yield 1, chip, hbm | 1 << f + new
        else:
            yield from self.with_room(0, chip, hbm, 1 << f + new)

    def fewest(self, most: int = 10**7) -> tuple[int | None, int]:
        """Return the fewest accesses of all schedules, None if there is none, and the states expanded. ValueError past `most`."""
        start = (0, 0)
        cost, expanded = {start: 0}, 0
        queue = [(self.least(*start), 0, start)]
        while queue:
            _, below, state = heappop(queue)
            if -below > cost[state]:  # reached for less since
                continue
            expanded += 1
            chip, hbm = state
            if not self.whole_outputs & ~hbm:
                return -below, expanded
            if expanded > most:
                raise ValueError(f"more than {most:,} states")
            for price, chip, hbm in self.moves(*state):
                after = self.alike(*self.tidy(chip, hbm))
                total = price - below
                if total < cost.get(after, 1 << 30):
                    cost[after] = total
                    heappush(queue, (total + self.least(*after), -total, after))
        return None, expanded


def fewest(N_q: int, N_k: int, d: int, M: int, *, backward: bool = False, most: int = 10**7) -> tuple[int | None, int]:
    """Return the fewest accesses that any schedule makes with M words on chip, d_v = d, and how many states that took."""
    sums = backward_sums(N_q, N_k, d) if backward else forward_sums(N_q, N_k, d)
    return Game(sums, M).fewest(most)


def main() -> None:
    """Play the games that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sizes", nargs="+", type=int, metavar="N_q N_k d M")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--most", type=int, default=10**7, metavar="STATES")
    options = parser.parse_args()
    if len(options.sizes) % 4:
        parser.error("sizes come in fours: N_q N_k d M")
    bound_of = lower_bound_backward if options.backward else lower_bound
    for at in range(0, len(options.sizes), 4):
        N_q, N_k, d, M = options.sizes[at : at + 4]
        bound = bound_of(N_q=N_q, N_k=N_k, d=d, M=M)
        found, states = fewest(N_q, N_k, d, M, backward=options.backward, most=options.most)
        said = "no schedule" if found is None else f"fewest {found}"
        holds = "holds" if found is None or bound.accesses <= found else "IS BROKEN"
        print(
            f"N_q = {N_q}, N_k = {N_k}, d = {d}, M = {M}: {said}, compulsory {bound.compulsory}, by phases {bound.phases}: "
            f"the bound {holds} ({states:,} states)", flush=True
        )  # fmt: skip


if __name__ == "__main__":
    main()

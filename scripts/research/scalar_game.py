"""The game of attention's scalars: what lies where, the moves, and which states are equal.

Every number is a word: an input, or a part of a sum, told by the terms in it. On chip are at most M
words. To read a word from HBM, or write it there, costs 1. Free are: to forget a word; to multiply
two words on chip and add the product to a part of a sum on chip, or begin one, over any word on
chip if need be; to add two parts of a sum that share no term. A whole S_ik is P_ik, as statistics
are free. Each term of an output is added once: twice would count it twice, and what is not counted
need not be done. d (backward also d_v) is 1 or 2.

What is not tried, and why nothing is lost.
1. Late loads. Before its first use a word takes room and gives nothing. So a move is one operation,
   with the loads that it lacks just before it. A part of an output is read only to be changed at
   once.
2. Late evictions. A word leaves only where the next load or result needs its room. If it is
   written, then only there.
3. No use to come. Words whose every use is past are forgotten. Parts of outputs are never lost: one
   that will be lost need not be made.
4. Where a part of an output is on chip, and both operands of a term that is to be added yet, the
   term is added at once. A schedule that adds it later can be followed without that step: where it
   holds a part, hold the part with the term, or nothing in place of the term alone.
5. Two parts of an output on chip are added at once. A schedule that keeps them apart can be
   followed with their sum in the place of the one that is on chip, and in HBM where both are. So
   the part that is on chip is the only one that takes terms.
6. A whole output is written at once: that has to be paid, and gives room.
7. Of S and dP, half a sum on chip becomes the whole as soon as it can: of two terms, the whole
   serves wherever a half does.
8. Games that are equal but for the order of rows, keys or columns are one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import lru_cache, reduce
from itertools import combinations, permutations, product
from typing import NamedTuple

Word = tuple[str, int, int]
State = tuple[int, int]  # words on chip, and words in HBM that are not inputs, as bits
# what a word's two numbers count: rows 0, keys 1, columns of Q and K 2, columns of V and O 3
AXES = {
    "Q": (0, 2),
    "K": (1, 2),
    "V": (1, 3),
    "O": (0, 3),
    "S": (0, 1),
    "dO": (0, 3),
    "dP": (0, 1),
    "dS": (0, 1),
    "dQ": (0, 2),
    "dK": (1, 2),
    "dV": (1, 3),
}


class Sum(NamedTuple):
    """A sum: for each term the two words that it multiplies, as (array, row, column); whole sums
    count as words too.
    """

    name: Word
    terms: list[tuple[Word, Word]]
    output: bool


def forward_sums(N_q: int, N_k: int, d: int, d_v: int) -> list[Sum]:
    """Return S = QKᵀ and O = PV."""
    I, J, C, D = map(range, (N_q, N_k, d, d_v))
    S = [Sum(("S", i, k), [(("Q", i, c), ("K", k, c)) for c in C], False) for i, k in product(I, J)]
    O = [Sum(("O", i, c), [(("S", i, k), ("V", k, c)) for k in J], True) for i, c in product(I, D)]
    return S + O


def backward_sums(N_q: int, N_k: int, d: int, d_v: int) -> list[Sum]:
    """Return S, dP, dS (of one term, a function of both) and the three gradients."""
    I, J, C, D = map(range, (N_q, N_k, d, d_v))
    sums = []
    for i, k in product(I, J):
        sums.append(Sum(("S", i, k), [(("Q", i, c), ("K", k, c)) for c in C], False))
        sums.append(Sum(("dP", i, k), [(("dO", i, c), ("V", k, c)) for c in D], False))
        sums.append(Sum(("dS", i, k), [(("S", i, k), ("dP", i, k))], False))
    sums += [
        Sum(("dV", k, c), [(("S", i, k), ("dO", i, c)) for i in I], True) for k, c in product(J, D)
    ]
    sums += [
        Sum(("dK", k, c), [(("dS", i, k), ("Q", i, c)) for i in I], True) for k, c in product(J, C)
    ]
    sums += [
        Sum(("dQ", i, c), [(("dS", i, k), ("K", k, c)) for k in J], True) for i, c in product(I, C)
    ]
    return sums


class Game:
    """The game of a pass of these sizes (N_q, N_k, d, d_v), with M words on chip."""

    def __init__(self, sizes: tuple[int, int, int, int], M: int, backward: bool) -> None:
        if max(sizes[2:] if backward else sizes[2:3]) > 2:
            raise ValueError(
                f"d and d_v are {sizes[2]}, {sizes[3]}; expected sums S and dP of two terms at most"
            )
        self.sizes = sizes
        self.M = M
        self.sums = sums = (backward_sums if backward else forward_sums)(*sizes)
        self.number = number = {s.name: index for index, s in enumerate(sums)}
        inputs = sorted(
            {word for s in sums for term in s.terms for word in term if word not in number}
        )
        self.bit = {word: index for index, word in enumerate(inputs)}
        # the bit of each sum's subset {}; subset m has the bit first + m
        self.first: list[int] = []
        index = len(inputs) - 1
        for s in sums:
            self.first.append(index)
            index += 2 ** len(s.terms) - 1
        self.bits = index + 1
        self.inputs = (1 << len(inputs)) - 1
        self.whole = [1 << f + 2 ** len(s.terms) - 1 for f, s in zip(self.first, sums, strict=True)]
        word = {name: 1 << index for name, index in self.bit.items()} | {
            s.name: self.whole[index] for s, index in zip(sums, number.values(), strict=True)
        }
        self.operands = [[word[a] | word[b] for a, b in s.terms] for s in sums]
        self.all_of = [
            sum(1 << f + m for m in range(1, 2 ** len(s.terms)))
            for f, s in zip(self.first, sums, strict=True)
        ]
        self.with_term = [
            [
                sum(1 << f + m for m in range(1, 2 ** len(s.terms)) if m >> t & 1)
                for t in range(len(s.terms))
            ]
            for f, s in zip(self.first, sums, strict=True)
        ]
        self.uses = {
            name: [
                (index, t)
                for index, s in enumerate(sums)
                for t, term in enumerate(s.terms)
                if name in term
            ]
            for name in word
        }
        self.outputs = [index for index, s in enumerate(sums) if s.output]
        self.of_outputs = sum(self.all_of[index] for index in self.outputs)
        self.whole_outputs = sum(self.whole[index] for index in self.outputs)
        self.orders = [
            self.to(self, orders)
            for orders in product(*(permutations(range(size)) for size in sizes))
        ]
        self.needed_of = lru_cache(None)(self._needed)
        self.settled = lru_cache(10**6)(self._settled)

    # ------------------------------------------------------------------------------------------
    # games that are like it

    def to(self, other: Game, orders: tuple[tuple[int | None, ...], ...]) -> list[list[int]]:
        """Return, for each byte of a state, what each value becomes in another game, as indices
        go.
        """
        goes: list[int] = []

        def moved(word: Word) -> Word | None:
            first, second = (
                orders[axis][n] for axis, n in zip(AXES[word[0]], word[1:], strict=True)
            )
            return None if first is None or second is None else (word[0], first, second)

        for word in self.bit:
            name = moved(word)
            goes.append(0 if name is None else 1 << other.bit[name])
        for s in self.sums:
            name = moved(s.name)
            if name is None:
                goes += [0] * (2 ** len(s.terms) - 1)
                continue
            index = other.number[name]
            terms: list[set[Word | None]] = [{*term} for term in other.sums[index].terms]
            new = [{moved(word) for word in term} for term in s.terms]
            place = [1 << terms.index(term) if term in terms else 0 for term in new]
            for m in range(1, 2 ** len(s.terms)):
                left = sum(place[t] for t in range(len(s.terms)) if m >> t & 1)
                goes.append(1 << other.first[index] + left if left else 0)
        return [
            [
                reduce(
                    operator.or_,
                    (to for b, to in enumerate(goes[index : index + 8]) if value >> b & 1),
                    0,
                )
                for value in range(256)
            ]
            for index in range(0, len(goes), 8)
        ]

    def alike(self, state: State) -> State:
        """Return the one state that stands for all that are equal to this but for order."""
        size = len(self.orders[0])
        ours, theirs = (x.to_bytes(size, "little") for x in state)
        return min(
            (sum(map(operator.getitem, order, ours)), sum(map(operator.getitem, order, theirs)))
            for order in self.orders
        )

    def without(self, axis: int, n: int, other: Game) -> tuple[list[list[int]], int]:
        """Return how a state becomes one of the other game, which lacks the n-th of an axis, and
        the words left out.
        """
        orders: list[tuple[int | None, ...]] = [tuple(range(length)) for length in self.sizes]
        orders[axis] = tuple(
            None if index == n else index - (index > n) for index in range(self.sizes[axis])
        )
        out = 0
        for word in (*self.bit, *self.number):
            if (axis, n) in zip(AXES[word[0]], word[1:], strict=True):
                out |= 1 << self.bit[word] if word in self.bit else self.all_of[self.number[word]]
        return self.to(other, tuple(orders)), out

    def moved(self, state: State, to: list[list[int]]) -> State:
        """Return what a state becomes in another game."""
        chip, hbm = (
            reduce(operator.or_, map(operator.getitem, to, x.to_bytes(len(to), "little")))
            for x in state
        )
        return chip, hbm

    # ------------------------------------------------------------------------------------------
    # what is sure to come

    def _needed(self, held: int) -> State:
        """Of all words held: the inputs that are sure to be needed on chip yet, and the words
        that have a use to come.
        """
        sums, events, of_use = self.sums, dict[int, bool](), dict[int, bool]()

        def wanted(index: int, t: int) -> bool:  # a term that is to be added yet
            return not held & self.with_term[index][t] and (sums[index].output or needed(index))

        def needed(index: int) -> bool:
            if index not in events:
                events[index] = any(wanted(*use) for use in self.uses[sums[index].name])
            return events[index]

        def useful(name: Word) -> bool:  # an input, or a word of an intermediate sum, if ever again
            return any(
                not held & self.with_term[s][t] if sums[s].output else of_sum(s)
                for s, t in self.uses[name]
            )

        def of_sum(index: int) -> bool:
            if index not in of_use:
                of_use[index] = useful(sums[index].name)
            return of_use[index]

        must = sum(
            1 << index
            for name, index in self.bit.items()
            if any(wanted(*use) for use in self.uses[name])
        )
        keep = sum(1 << index for name, index in self.bit.items() if useful(name))
        return must, keep | sum(
            self.all_of[index] for index, s in enumerate(sums) if s.output or of_sum(index)
        )

    def least(self, state: State, words: int = -1) -> int:
        """Return the loads and stores of these words that are sure to come."""
        chip, hbm = state
        must, _ = self.needed_of((chip | hbm) & ~self.inputs)
        sure = (must & ~chip & words).bit_count()
        for index in self.outputs:
            if words & self.whole[index] and not hbm & self.whole[index]:
                sure += 1 + (hbm & ~chip & self.all_of[index]).bit_count()
        return sure

    # ----------------------------------------------------------------------------------------------
    # moves

    def _settled(self, chip: int, hbm: int) -> tuple[int, State]:
        """Do what is best done at once, points 3 to 7: return what it costs, and the state, in
        order.
        """
        price = 0
        for index, s in enumerate(self.sums):  # operands come before the sums that take them
            there = chip & self.all_of[index]
            if not there:
                continue
            f = self.first[index]
            m = 0
            bits = there
            while bits:
                m |= (bits & -bits).bit_length() - 1 - f
                bits &= bits - 1
            for t, operands in enumerate(self.operands[index]):
                if not operands & ~chip and not (
                    s.output and (chip | hbm) & self.with_term[index][t]
                ):
                    m |= 1 << t
            if there != 1 << f + m:
                chip = chip & ~there | 1 << f + m
                hbm &= ~there if s.output else -1
            if s.output and chip & self.whole[index]:
                price = price + 1
                chip = chip & ~self.whole[index]
                hbm = hbm | self.whole[index]
        _, keep = self.needed_of((chip | hbm) & ~self.inputs)
        return price, self.alike((chip & keep, hbm & keep))

    def room(self, chip: int, hbm: int, words: int, lack: int) -> list[tuple[int, int, int]]:
        """Return (cost, chip, HBM) with as many of these words gone: forgotten, or written
        first.
        """
        result = [(0, chip, hbm)] if lack <= 0 else []
        rest = words if lack > 0 else 0
        while rest:
            word = rest & -rest
            rest ^= word
            stays = word & (self.inputs | hbm)
            for price, left, stored in self.room(chip & ~word, hbm, rest, lack - 1):
                if stays or not word & self.of_outputs:
                    result.append((price, left, stored))
                if not stays:
                    result.append((price + 1, left, stored | word))
        return result

    def moves(self, state: State) -> Iterator[tuple[int, State]]:
        """Yield what an operation costs, with the loads and evictions before it, and the state
        after it.
        """
        chip, hbm = state
        _, keep = self.needed_of((chip | hbm) & ~self.inputs)
        for index, s in enumerate(self.sums):
            if (hbm if s.output else chip) & self.whole[index] or not keep & self.whole[index]:
                continue
            f = self.first[index]
            every = range(1, 2 ** len(s.terms))
            parts = [m for m in every if (chip | hbm) >> f + m & 1]
            here = chip & self.all_of[index]
            for t, operands in enumerate(self.operands[index]):
                if s.output and (chip | hbm) & self.with_term[index][t]:
                    continue
                yield from self.operation(state, index, operands, 0, 1 << f + (1 << t), here)
                for m in parts:
                    if not m >> t & 1:
                        part = 1 << f + m
                        yield from self.operation(
                            state, index, operands | part, part, 1 << f + (m | 1 << t), here & ~part
                        )
            for m, other in combinations(parts, 2):
                if not m & other:
                    both = 1 << f + m | 1 << f + other
                    yield from self.operation(
                        state, index, both, both, 1 << f + (m | other), here & ~both
                    )

    def operation(
        self, state: State, index: int, takes: int, old: int, new: int, gone: int
    ) -> Iterator[tuple[int, State]]:
        """Yield the states after an operation that takes these words, and puts `new` in the place
        of `old`, if there is any.

        What is `gone` must have left before, for want of room: else it had better taken part.
        """
        chip, hbm = state
        loads = takes & ~chip
        lack = (chip | takes).bit_count() - self.M
        if (
            takes.bit_count() > self.M
            or loads & ~(self.inputs | hbm)
            or max(lack, 0) < gone.bit_count()
        ):
            return
        for price, left, stored in self.room(chip, hbm, chip & ~takes, lack):
            if left & gone:
                continue
            price = price + loads.bit_count()
            left = left | takes
            if old:
                last = [(0, left & ~old, stored & ~old if self.sums[index].output else stored)]
            else:
                last = self.room(left, stored, left, left.bit_count() + 1 - self.M)
            for more, chip_after, hbm_after in last:
                written, after = self.settled(chip_after | new, hbm_after)
                yield price + more + written, after

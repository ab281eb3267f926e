"""Play attention scalar by scalar on tiny sizes, all schedules, and hold the fewest accesses
against the lower bounds.

    python scripts/research/exhaustive.py [--backward] [--d-v D_V] [--most STATES]
        N_q N_k d M [N_q N_k d M …]

The game, in scalar_game.py, knows nothing of the bounds' proofs. The search is A*, and what is sure
to come is estimated by smaller games. Leave out a row, or a key, or a column. What a schedule does
with the rest is a schedule of the smaller game, so it costs at least that game's fewest; and what
it does with the words left out costs at least a read of each that is needed yet, and a write of
each output. The smaller games are searched in the same way. So at any time the estimate of the best
state left is a proven bound on the fewest accesses.
"""

from __future__ import annotations

import argparse
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

from scalar_game import Game, State

from flashsim.theory import lower_bound, lower_bound_backward

NEVER = 1 << 30  # what cannot be done costs this


class Found(NamedTuple):
    """The fewest accesses, None if the search was cut off or there is no schedule; a bound; the
    states expanded in all games.
    """

    fewest: int | None
    at_least: int
    states: int


class Cut(Exception):
    """The search has expanded as many states as it may."""


class Search:
    """The search of a game, which asks the searches of smaller games."""

    def __init__(self, game: Game, searches: Searches) -> None:
        self.game = game
        self.searches = searches
        self.lower = 0
        self.exact: dict[State, int] = {}
        self.rated: dict[State, int] = {}

    @cached_property
    def smaller(self) -> list[tuple[Search, list[list[int]], int]]:
        """The games with a row, key or column less; how a state becomes one of theirs; and the
        words left out.
        """
        result = []
        for axis, size in enumerate(self.game.sizes):
            for n in range(size if size > 1 else 0):
                other = self.searches[
                    tuple(length - (index == axis) for index, length in enumerate(self.game.sizes))
                ]
                result.append((other, *self.game.without(axis, n, other.game)))
        return result

    def rate(self, state: State) -> int:
        """Return what a schedule costs at least from a state on."""
        if state not in self.rated:
            best = self.game.least(state)
            for other, to, out in self.smaller:
                price, then = other.game.settled(*self.game.moved(state, to))
                best = max(
                    best, min(NEVER, price + other.fewest(then) + self.game.least(state, out))
                )
            self.rated[state] = best
        return self.rated[state]

    def fewest(self, start: State = (0, 0)) -> int:
        """Return the fewest accesses from a state, settled, to the end; NEVER if there is no
        way. Raises Cut.
        """
        if start in self.exact:
            return self.exact[start]
        if start == (0, 0):
            self.lower = self.game.least(start)
        cost = {start: 0}
        came = dict[State, State]()
        opened = dict[State, int]()
        queue = [(self.rate(start), 0, start)]
        total = NEVER
        state = start
        while queue:
            about, below, state = heappop(queue)
            if opened.get(state, NEVER) <= -below or -below > cost[state]:
                continue
            rest = self.exact.get(state, self.rate(state))
            if rest - below > about:
                if rest < NEVER:
                    heappush(queue, (rest - below, below, state))
                continue
            if start == (0, 0):
                self.lower = max(self.lower, about)
            if state in self.exact or not self.game.whole_outputs & ~state[1]:
                total = -below + self.exact.get(state, 0)
                break
            self.searches.expand()
            opened[state] = -below
            for price, after in self.game.moves(state):
                if price - below < cost.get(after, NEVER):
                    cost[after] = price - below
                    came[after] = state
                    rest = self.rated.get(after, 0) or self.game.least(after)
                    heappush(queue, (max(about, price - below + rest), below - price, after))
        # no way from there is shorter than what is left of this one
        for other, spent in opened.items():
            self.rated[other] = max(self.rated[other], min(NEVER, total - spent))
        while total < NEVER and state != start:
            self.exact[state] = total - cost[state]
            state = came[state]
        self.exact[start] = total
        return total


class Searches(dict[tuple[int, ...], Search]):
    """The searches of a pass by their games' sizes, all with M words on chip, which may expand
    `most` states together.
    """

    def __init__(self, M: int, backward: bool, most: int) -> None:
        super().__init__()
        self.M = M
        self.backward = backward
        self.most = most
        self.states = 0

    def __missing__(self, sizes: tuple[int, int, int, int]) -> Search:
        self[sizes] = Search(Game(sizes, self.M, self.backward), self)
        return self[sizes]

    def expand(self) -> None:
        """Count a state. Raises Cut if it is one too many."""
        self.states += 1
        if self.states > self.most:
            raise Cut


def fewest(
    N_q: int,
    N_k: int,
    d: int,
    M: int,
    *,
    d_v: int | None = None,
    backward: bool = False,
    most: int = 10**7,
) -> Found:
    """Return the fewest accesses that any schedule makes with M words on chip, or a bound, if
    `most` states are expanded.
    """
    searches = Searches(M, backward, most)
    search = searches[N_q, N_k, d, d if d_v is None else d_v]
    try:
        result = search.fewest()
    except (Cut, KeyboardInterrupt):
        return Found(None, search.lower, searches.states)
    return Found(result if result < NEVER else None, result, searches.states)


def main() -> None:
    """Play the games that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("sizes", nargs="+", type=int, metavar="N_q N_k d M")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--d-v", type=int, help="columns of V and O; default: d")
    parser.add_argument(
        "--most", type=int, default=10**7, metavar="STATES", help="expand no more; default: 10⁷"
    )
    options = parser.parse_args()
    if len(options.sizes) % 4:
        parser.error("sizes come in fours: N_q N_k d M")
    if min(*options.sizes, options.most) < 1:
        parser.error("sizes and STATES are whole numbers from 1")
    bound_of = lower_bound_backward if options.backward else lower_bound
    for index in range(0, len(options.sizes), 4):
        N_q, N_k, d, M = options.sizes[index : index + 4]
        try:
            bound = bound_of(N_q=N_q, N_k=N_k, d=d, d_v=options.d_v, M=M)
            result = fewest(
                N_q, N_k, d, M, d_v=options.d_v, backward=options.backward, most=options.most
            )
        except ValueError as error:
            parser.error(str(error))
        text = "no schedule" if result.at_least >= NEVER else f"at least {result.at_least}, cut off"
        text = text if result.fewest is None else f"fewest {result.fewest}"
        holds = (
            "IS BROKEN" if result.fewest is not None and bound.accesses > result.fewest else "holds"
        )
        holds = (
            "is not tried" if result.fewest is None and bound.accesses > result.at_least else holds
        )
        print(
            f"N_q = {N_q}, N_k = {N_k}, d = {d}, d_v = {options.d_v or d}, M = {M}: {text}, "
            f"compulsory {bound.compulsory}, "
            f"by phases {bound.phases}: the bound {holds} ({result.states:,} states)",
            flush=True,
        )


if __name__ == "__main__":
    main()

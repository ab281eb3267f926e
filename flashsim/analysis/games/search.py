"""A* for the optimum of the row game (`flashsim.analysis.games.game`), with bounds on it all the
way.

A state is rated by what has been moved, and what is still to come at least: each open row that is
not on chip, once. That never says too much, as such a row must be loaded, or begun and written,
whatever else happens. And along a move it never falls: a load moves what was to come, and an
eviction adds its price to it. So the rating is what is compulsory and the price of evictions so
far, and a state that is met first at its lowest rating need not be opened again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, nsmallest

from flashsim.analysis.games.game import (
    Game,
    Pair,
    State,
    Unit,
    after,
    compulsory,
    in_order,
    moves,
    needs,
    price,
)

Move = tuple[Pair, tuple[Unit, ...]]
WIDTH = 4


class Search:
    """The optimum lies between `lower` and `upper`; `steps` are a schedule of cost `upper`, in the
    problem's own numbers.

    `run` makes them meet. It may be cut off (Ctrl-C): the bounds hold at any time.
    """

    def __init__(self, game: Game, todo: frozenset[Pair]) -> None:
        self.game, self.first = game, State(frozenset(), todo)
        self.least = self.lower = compulsory(game, todo)
        evicted, self.steps = a_schedule(game, self.first)
        self.upper = self.least + evicted
        self.prices: dict[State, int] = {}

    def run(self, tell: Callable[[Search], None] | None = None) -> None:
        """Search until the bounds meet. `tell` is called now and then."""
        first = in_order(self.first)[0]
        came: dict[State, tuple[State, Move] | None] = {}
        heap: list[tuple[int, int, int, State, Move | None]] = [
            (0, len(first.todo), 0, first, None)
        ]
        pushed = 0
        while heap and self.least + heap[0][0] < self.upper:
            evicted, _, _, state, move = heappop(heap)
            self.lower = self.least + evicted
            before = state
            if move is not None:
                state = in_order(after(before, *move))[0]
            if state in self.prices:
                continue
            came[state] = None if move is None else (before, move)
            if not state.todo:
                self.upper, self.steps = self.lower, self._way(came, state)
                return
            self.prices[state] = evicted
            for pair, gone in moves(self.game, state, self.upper - self.lower):
                pushed += 1
                heappush(
                    heap,
                    (
                        evicted + price(self.game, gone),
                        len(state.todo),
                        pushed,
                        state,
                        (pair, gone),
                    ),
                )
            if tell is not None and not len(self.prices) % 100:
                tell(self)
        self.lower = self.upper

    def _way(self, came: dict[State, tuple[State, Move] | None], end: State) -> list[Move]:
        """Return the moves that led to a state, in the problem's own numbers."""
        path = []
        at = came[end]
        while at is not None:
            path.append(at[1])
            at = came[at[0]]
        state, rows, columns = in_order(self.first)
        steps = []
        for (i, j), gone in reversed(path):
            named = tuple((name, (rows if name in "QO" else columns)[n]) for name, n in gone)
            steps.append(((rows[i], columns[j]), named))
            state, across, down = in_order(after(state, (i, j), gone))
            rows = [rows[n] for n in across]
            columns = [columns[n] for n in down]
        return steps


def a_schedule(game: Game, first: State) -> tuple[int, list[Move]]:
    """Return what the evictions of a schedule cost that is soon found, and its moves.

    Of the states that have as many products done, it goes on from the cheapest few.
    """
    found: list[dict[State, tuple[int, list[Move]]]] = [{} for _ in range(len(first.todo) + 1)]
    found[0][first] = 0, []
    for states in found[:-1]:
        for state, (evicted, steps) in nsmallest(
            WIDTH, states.items(), key=lambda item: item[1][0]
        ):
            for pair, gone in plain_moves(game, state):
                total = evicted + price(game, gone)
                then = after(state, pair, gone)
                there = found[len(first.todo) - len(then.todo)]
                if then not in there or total < there[then][0]:
                    there[then] = total, [*steps, (pair, gone)]
    (best,) = found[-1].values()
    return best


def plain_moves(game: Game, state: State) -> Iterator[Move]:
    """Yield each product with one set of rows to evict: those that the fewest products need, as
    far as room is lacking.
    """
    size = {unit: getattr(game, unit[0]) for unit in needs(state.todo)}
    uses = Counter(unit for i, j in state.todo for unit in (("Q", i), ("O", i), ("K", j), ("V", j)))
    least_used = sorted(state.chip, key=lambda unit: (uses[unit] * price(game, (unit,)), unit))
    for pair in sorted(state.todo):
        need = needs(frozenset({pair}))
        lack = sum(size[unit] for unit in state.chip | need) - game.room
        gone: list[Unit] = []
        for unit in least_used:
            if lack > 0 and unit not in need:
                gone.append(unit)
                lack -= size[unit]
        for unit in list(gone):
            if size[unit] <= -lack:
                gone.remove(unit)
                lack += size[unit]
        yield pair, tuple(gone)

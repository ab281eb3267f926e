"""A* for the optimum of the row game (`flashsim.analysis.games.game`), with bounds on it all the
way.

The rating of a state is the elements moved so far, and a bound on those that are still to be moved:
each open row that is not on chip, once. The bound holds, as such a row must be loaded, or begun and
written, whatever else happens. The rating never falls along a move: a load moves what the bound
counts, and an eviction adds its price. So the rating is the compulsory elements and the price of
the evictions so far. A state is first reached at its lowest rating, and need not be opened again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
    units_of,
)

Move = tuple[Pair, tuple[Unit, ...]]
"""A product, and the rows that are evicted for it."""
Origin = tuple[State, Move] | None
"""The state and the move that a state was first reached by; None for the start."""
Entry = tuple[int, int, int, State, Move | None]
"""A state and a move from it, in the order of search: cost, products to do, number of the entry."""
WIDTH = 4  # states that a quick schedule keeps, of those with as many products done


class Search:
    """The optimum lies between `lower` and `upper`; `steps` are a schedule of cost `upper`, in the
    problem's own numbers.

    `run` makes them meet. It may be cut off (Ctrl-C): the bounds hold at any time.
    """

    def __init__(self, game: Game, todo: frozenset[Pair]) -> None:
        self.game = game
        self.first = State(frozenset(), todo)
        self.least = compulsory(game, todo)
        self.lower = self.least
        cost, self.steps = some_schedule(game, self.first)
        self.upper = self.least + cost
        self.prices: dict[State, int] = {}

    def run(self, tell: Callable[[Search], None] | None = None) -> None:
        """Search until the bounds meet. `tell` is called now and then."""
        first = in_order(self.first)[0]
        origins: dict[State, Origin] = {}
        heap: list[Entry] = [(0, len(first.todo), 0, first, None)]
        pushes = 0
        while heap and self.least + heap[0][0] < self.upper:
            cost, _, _, state, move = heappop(heap)
            self.lower = self.least + cost
            before = state
            if move is not None:
                state = in_order(after(before, *move))[0]
            if state in self.prices:
                continue
            origins[state] = None if move is None else (before, move)
            if not state.todo:
                self.upper = self.lower
                self.steps = self._path(origins, state)
                return
            self.prices[state] = cost
            for pair, evicted in moves(self.game, state, self.upper - self.lower):
                pushes += 1
                total = cost + price(self.game, evicted)
                heappush(heap, (total, len(state.todo), pushes, state, (pair, evicted)))
            if tell is not None and not len(self.prices) % 100:
                tell(self)
        self.lower = self.upper

    def _path(self, origins: Mapping[State, Origin], end: State) -> list[Move]:
        """Return the moves that led to a state, in the problem's own numbers."""
        path = []
        origin = origins[end]
        while origin is not None:
            before, move = origin
            path.append(move)
            origin = origins[before]
        state, rows, columns = in_order(self.first)
        steps = []
        for (i, j), evicted in reversed(path):
            units = []
            for X, n in evicted:
                units.append((X, rows[n] if X in "QO" else columns[n]))
            steps.append(((rows[i], columns[j]), tuple(units)))
            state, across, down = in_order(after(state, (i, j), evicted))
            rows = [rows[n] for n in across]
            columns = [columns[n] for n in down]
        return steps


def some_schedule(game: Game, first: State) -> tuple[int, list[Move]]:
    """Return the cost of the evictions of a schedule that is quickly computed, and its moves.

    Of the states that have as many products done, it goes on from the cheapest few.
    """
    number = len(first.todo)
    by_done: list[dict[State, tuple[int, list[Move]]]] = [{} for _ in range(number + 1)]
    by_done[0][first] = (0, [])
    for states in by_done[:-1]:
        cheapest = nsmallest(WIDTH, states.items(), key=_cost_of_item)
        for state, (cost, steps) in cheapest:
            for pair, evicted in plain_moves(game, state):
                total = cost + price(game, evicted)
                successor = after(state, pair, evicted)
                others = by_done[number - len(successor.todo)]
                if successor not in others or total < others[successor][0]:
                    others[successor] = (total, [*steps, (pair, evicted)])
    (best,) = by_done[-1].values()
    return best


def _cost_of_item(item: tuple[State, tuple[int, list[Move]]]) -> int:
    _, (cost, _) = item
    return cost


def plain_moves(game: Game, state: State) -> Iterator[Move]:
    """Yield each product with one set of rows to evict: as many as it needs, and those that the
    fewest products need.
    """
    size = {unit: getattr(game, unit[0]) for unit in needs(state.todo)}
    uses = Counter(unit for i, j in state.todo for unit in units_of(i, j))
    least_used = sorted(state.chip, key=lambda unit: (uses[unit] * price(game, (unit,)), unit))
    for pair in sorted(state.todo):
        need = needs(frozenset({pair}))
        lack = sum(size[unit] for unit in state.chip | need) - game.room
        evicted: list[Unit] = []
        for unit in least_used:
            if lack > 0 and unit not in need:
                evicted.append(unit)
                lack -= size[unit]
        for unit in list(evicted):
            if size[unit] <= -lack:  # there is room without
                evicted.remove(unit)
                lack += size[unit]
        yield pair, tuple(evicted)

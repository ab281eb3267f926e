"""The optimum of a small problem: `optimum` finds it, and it can be replayed and proved.

best = flashsim.optimum(N=4, d=4, M=24)
best.upper, best.schedule                     # 128 elements, and the turns that move them
flashsim.trace(best.replay, Q, K, V)          # on the memory, with real numbers
best.certificate()                            # for flashsim.analysis.games.checker, which checks it
                                              on its own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from flashsim.analysis.games.checker import MOST, game_of, text_of
from flashsim.analysis.games.replay import REPLAY, Schedule, turns
from flashsim.analysis.games.search import Search
from flashsim.analysis.proving import Proof, prove
from flashsim.attention.arguments import check_array
from flashsim.attention.problem import Problem
from flashsim.memory.errors import SramOverflow
from flashsim.memory.sram import Observer
from flashsim.reference import attention, error_bound, rounding
from flashsim.reference.rounding import of_bound
from flashsim.simulate.api import count, forward
from flashsim.simulate.results import Result
from flashsim.support.exporting import html_table
from flashsim.support.sizes import Size

MOST_STATES = 10**6  # about 2 GB
CLASS = (
    "Schedules of the row game: rows of Q, K, V, and of O with m and ℓ, move whole, each O in one "
    "place at a time; S_ij and P_ij "
    "are used at once, and never kept."
)


class Optimum:
    """The fewest elements that a schedule of the row game moves, for one head's forward pass: at
    least `lower`, at most `upper`.

    They are equal once `run` has ended, and hold if it is cut off. Arguments as for
    `flashsim.prove`. Raises ValueError for what makes no sense, for an M in which no product can be
    made, and for sizes at which the search would not end.
    """

    def __init__(
        self,
        problem: Problem | None = None,
        *,
        N: int | None = None,
        d: int | None = None,
        M: Size | None = None,
        N_q: int | None = None,
        N_k: int | None = None,
        d_v: int | None = None,
        dtype: Any = "float32",
        causal: bool = False,
        mask: Any = None,
    ) -> None:
        every_head = Problem.from_arguments(
            problem, N=N, d=d, M=M, N_q=N_q, N_k=N_k, d_v=d_v, dtype=dtype, causal=causal, mask=mask
        )
        self.problem = every_head.one_head()
        self.shape = self.problem.shape
        self.dtype = self.problem.dtype
        self.M = self.problem.M
        self.mask = self.problem.mask
        shape = self.shape
        for name, length in (("N" if N else "N_q", shape.N_q), ("N_k", shape.N_k)):
            if length > MOST:
                raise ValueError(
                    f"{name} is {length:,}; expected at most {MOST}, or the search would not end"
                )
        game = game_of(shape.d, shape.d_v, self.M)
        smallest = game.Q + game.K + game.V + game.O + 1
        if smallest > self.M:
            raise ValueError(
                f"M is {self.M:,}; expected at least {smallest:,}, for a row each of Q, K, V and "
                "O, m and ℓ, and S_ij"
            )
        self.allowed = np.array(self.mask.whole(shape, ()), bool)
        queries, keys = np.nonzero(self.allowed)
        pairs = zip(queries.tolist(), keys.tolist(), strict=True)
        self.search = Search(game, frozenset(pairs))
        if self.estimate[0] > MOST_STATES:
            states, seconds = self.estimate
            raise ValueError(
                f"N_q × N_k is {shape.N_q} × {shape.N_k} and M is {self.M:,}: a search of about "
                f"{states:.0e} states, "
                f"{seconds / 3600:,.0f} hours; expected {MOST_STATES:,} states at most: take fewer "
                "rows, or a larger M"
            )
        idle_rows = ~self.allowed.any(axis=1)  # O_i = 0 is written to them
        self._idle = int(idle_rows.sum()) * game.out

    def __repr__(self) -> str:
        return f"Optimum({self._problem_in_words}: {self._bounds_in_words})"

    def _repr_html_(self) -> str:
        rows = [
            ("no schedule moves less than", self.lower),
            ("the best schedule found moves", self.upper),
        ]
        return html_table(
            f"Optimum of the row game: {self._problem_in_words}",
            ("", "elements"),
            [*rows, ("compulsory", self.compulsory)],
        )

    @property
    def _problem_in_words(self) -> str:
        shape = self.shape
        return f"N_q = {shape.N_q:,}, N_k = {shape.N_k:,}, d = {shape.d:,}, M = {self.M:,}"

    @property
    def _bounds_in_words(self) -> str:
        if self.lower == self.upper:
            return f"{self.lower:,} elements, the optimum"
        return f"between {self.lower:,} and {self.upper:,} elements"

    def run(self, tell: Callable[[Search], None] | None = None) -> None:
        """Search until the bounds meet. `tell` is called now and then."""
        self.search.run(tell)

    @property
    def lower(self) -> int:
        """No schedule moves less."""
        return self.search.lower + self._idle

    @property
    def upper(self) -> int:
        """What the schedule moves."""
        return self.search.upper + self._idle

    @property
    def compulsory(self) -> int:
        """What must be moved whatever M is."""
        return self.search.least + self._idle

    @property
    def schedule(self) -> Schedule:
        """The best schedule found, turn by turn."""
        return turns(self.search.first.todo, self.search.steps)

    @cached_property
    def proof(self) -> Proof:
        """What no schedule of a larger class moves less than, and the best tiles that flashsim
        knows.
        """
        return prove(self.problem)

    def tiles(self, name: str) -> Result | None:
        """What `q_outer` or `snake`, schedules of the game, move with their best tiles; None
        where none fit.
        """
        results = []
        for B_r in range(1, self.shape.N_q + 1):
            with suppress(SramOverflow):
                results.append(count(name, self.problem, blocks=(B_r, 1)))
        return min(results, key=lambda result: result.hbm.accesses, default=None)

    @property
    def moved(self) -> list[int]:
        """Elements moved after each turn of the schedule."""
        game = self.search.game
        begun = set()  # rows of O; a new one is not loaded
        total = self._idle
        totals = []
        for turn in self.schedule:
            for X, n in turn.load:
                if X != "O":
                    total += getattr(game, X)
                elif n in begun:
                    total += game.O
                else:
                    begun.add(n)
            total += game.O * sum(X == "O" for X, _ in turn.evict)
            total += game.out * sum(X == "O" for X, _ in turn.done)
            totals.append(total)
        return totals

    def replay(self, Q: Any, K: Any, V: Any, *, observers: Sequence[Observer] = ()) -> Result:
        """Run the schedule on Q (N_q, d), K (N_k, d), V (N_k, d_v), with M enforced. Raises
        ValueError for other shapes.
        """
        shape = self.shape
        expected = [(shape.N_q, shape.d), (shape.N_k, shape.d), (shape.N_k, shape.d_v)]
        arrays = {"Q": Q, "K": K, "V": V}
        shapes = [check_array(name, array).shape for name, array in arrays.items()]
        if shapes != expected:
            raise ValueError(f"Q, K, V are {shapes}; expected {expected}")
        options: dict[str, Any] = {"schedule": self.schedule, "observers": observers}
        return forward(REPLAY, Q, K, V, M=self.M, blocks=(1, 1), mask=self.mask, **options)

    def off(self, run: Result) -> float:
        """Return the difference between O of a replay and naive attention's, divided by the error
        bound.
        """
        Q = run.plan.inputs.Q
        K = run.plan.inputs.K
        V = run.plan.inputs.V
        bound = error_bound(Q, K, V, mask=self.allowed, **rounding(REPLAY, run.blocks))
        return of_bound(run.O, attention(Q, K, V, mask=self.allowed), bound)

    @property
    def estimate(self) -> tuple[int, float]:
        """About how many states a search may go through, and how many seconds that takes; 0 where
        there is nothing to search.

        A rule of thumb, from searches of up to 25 products: 2^{0.65 · products}, or fewer where few
        evictions are in question.
        """
        game = self.search.game
        products = self.allowed.size
        evictions = (self.search.upper - self.search.least) // min(game.Q, game.K, game.V)
        if not evictions:
            return 0, 0.0
        by_products = round(2 ** (0.65 * products))
        by_evictions = 8 * products * 2 ** min(evictions, 100)
        states = min(by_products, by_evictions)
        return states, states * products / 30_000

    def certificate(self) -> dict[str, Any]:
        """Return what `flashsim.analysis.games.checker.check` needs. Raises ValueError before the
        bounds meet.
        """
        if self.lower < self.upper:
            raise ValueError(
                f"the optimum is between {self.lower} and {self.upper}; expected a finished search"
            )
        gap = self.upper - self.compulsory
        table = {}
        for state, evicted in self.search.prices.items():
            if evicted < gap:
                table[text_of(state)] = evicted
        steps = []
        for pair, units in self.search.steps:
            steps.append([*pair, [f"{X}{n}" for X, n in units]])
        return {
            "kind": "optimum",
            "class": CLASS,
            **asdict(self.shape),
            "M": self.M,
            "optimum": self.upper,
            "allowed": ["".join(map(str, row)) for row in self.allowed.astype(int)],
            "steps": steps,
            "table": table,
        }


def optimum(problem: Problem | None = None, **lengths: Any) -> Optimum:
    """Return the optimum of a small problem, after a search to the end; the arguments are
    `Optimum`'s.
    """
    result = Optimum(problem, **lengths)
    result.run()
    return result

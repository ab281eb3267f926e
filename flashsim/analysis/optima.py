"""The optimum of a small problem, found, replayed and proved: `optimum`.

found = flashsim.optimum(N=4, d=4, M=24)
found.upper, found.schedule                   # 128 elements, and the turns that move them
flashsim.trace(found.replay, Q, K, V)         # on the memory, with real numbers
found.certificate()                           # for flashsim.analysis.games.checker, which checks it
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
    """What the schedules of the row game move at least, for one head's forward pass: between
    `lower` and `upper`.

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
        asked = Problem.from_arguments(
            problem, N=N, d=d, M=M, N_q=N_q, N_k=N_k, d_v=d_v, dtype=dtype, causal=causal, mask=mask
        )
        self.problem = asked = asked.one_head()
        self.shape, self.dtype, self.M, self.mask = asked.shape, asked.dtype, asked.M, asked.mask
        shape = self.shape
        for name, length in (("N" if N else "N_q", shape.N_q), ("N_k", shape.N_k)):
            if length > MOST:
                raise ValueError(
                    f"{name} is {length:,}; expected at most {MOST}, or the search would not end"
                )
        game = game_of(shape.d, shape.d_v, self.M)
        least = game.Q + game.K + game.V + game.O + 1
        if least > self.M:
            raise ValueError(
                f"M is {self.M:,}; expected at least {least:,}, for a row each of Q, K, V and O, m "
                "and ℓ, and S_ij"
            )
        self.allowed = np.array(self.mask.whole(shape, ()), bool)
        self.search = Search(
            game, frozenset(zip(*(at.tolist() for at in np.nonzero(self.allowed)), strict=True))
        )
        if self.estimate[0] > MOST_STATES:
            states, seconds = self.estimate
            raise ValueError(
                f"N_q × N_k is {shape.N_q} × {shape.N_k} and M is {self.M:,}: a search of about "
                f"{states:.0e} states, "
                f"{seconds / 3600:,.0f} hours; expected {MOST_STATES:,} states at most: take fewer "
                "rows, or a larger M"
            )
        self._idle = int((~self.allowed.any(1)).sum()) * game.out

    def __repr__(self) -> str:
        return f"Optimum({self._asked}: {self._found})"

    def _repr_html_(self) -> str:
        rows = [
            ("no schedule moves less than", self.lower),
            ("the best schedule found moves", self.upper),
        ]
        return html_table(
            f"Optimum of the row game: {self._asked}",
            ("", "elements"),
            [*rows, ("compulsory", self.compulsory)],
        )

    @property
    def _asked(self) -> str:
        shape = self.shape
        return f"N_q = {shape.N_q:,}, N_k = {shape.N_k:,}, d = {shape.d:,}, M = {self.M:,}"

    @property
    def _found(self) -> str:
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
        found = []
        for B_r in range(1, self.shape.N_q + 1):
            with suppress(SramOverflow):
                found.append(count(name, self.problem, blocks=(B_r, 1)))
        return min(found, key=lambda tally: tally.hbm.accesses, default=None)

    @property
    def moved(self) -> list[int]:
        """Elements moved after each turn of the schedule."""
        game = self.search.game
        begun = set()
        total = self._idle
        found = []
        for turn in self.schedule:
            for X, n in turn.load:
                total += (game.O if n in begun else 0) if X == "O" else getattr(game, X)
                begun |= {n} if X == "O" else set()
            total += sum(game.O for X, _ in turn.evict if X == "O") + sum(
                game.out for X, _ in turn.done if X == "O"
            )
            found.append(total)
        return found

    def replay(self, Q: Any, K: Any, V: Any, *, observers: Sequence[Observer] = ()) -> Result:
        """Run the schedule on Q (N_q, d), K (N_k, d), V (N_k, d_v), with M enforced. Raises
        ValueError for other shapes.
        """
        shape = self.shape
        wanted = [(shape.N_q, shape.d), (shape.N_k, shape.d), (shape.N_k, shape.d_v)]
        found = [check_array(name, a).shape for name, a in zip("QKV", (Q, K, V), strict=True)]
        if found != wanted:
            raise ValueError(f"Q, K, V are {found}; expected {wanted}")
        own: dict[str, Any] = {"schedule": self.schedule}
        return forward(
            REPLAY, Q, K, V, M=self.M, blocks=(1, 1), mask=self.mask, observers=observers, **own
        )

    def off(self, run: Result) -> float:
        """Return by how much O of a replay differs from naive attention's, as a part of its
        error bound.
        """
        given = run.plan.inputs.Q, run.plan.inputs.K, run.plan.inputs.V
        bound = error_bound(*given, mask=self.allowed, **rounding(REPLAY, run.blocks))
        return of_bound(run.O, attention(*given, mask=self.allowed), bound)

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
        states = min(round(2 ** (0.65 * products)), 8 * products * 2 ** min(evictions, 100))
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
        table = {
            text_of(state): evicted
            for state, evicted in self.search.prices.items()
            if evicted < gap
        }
        steps = [[*pair, [f"{X}{n}" for X, n in gone]] for pair, gone in self.search.steps]
        rows = ["".join("01"[int(one)] for one in row) for row in self.allowed]
        said = {"kind": "optimum", "class": CLASS, **asdict(self.shape), "M": self.M}
        return {**said, "optimum": self.upper, "allowed": rows, "steps": steps, "table": table}


def optimum(problem: Problem | None = None, **lengths: Any) -> Optimum:
    """Return the optimum of a small problem, searched for to the end; the arguments are
    `Optimum`'s.
    """
    found = Optimum(problem, **lengths)
    found.run()
    return found

"""Check the certificate of an optimum, with the rules of the game (game.py, beside it) and nothing
else: it does not search.

    python -m flashsim.analysis.games.checker FILE

Reached: the steps are played, and what they cost is added up. Nothing below: a table says of states
what evictions have cost at most when they are reached. The start is in it, for 0. Each move from a
state of the table leads to one of the table, for no more than that and the move's price; or so much
is paid that with what is compulsory it comes to the optimum. The end is not in the table. So a
schedule that costs less would never leave the table, and never end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from flashsim.analysis.games.game import (
    Game,
    State,
    after,
    compulsory,
    in_order,
    moves,
    needs,
    price,
)
from flashsim.theory.bounds.certificate import check_fields, once

MOST = 8  # rows, and columns
SIZES = ("N_q", "N_k", "d", "d_v", "M", "optimum")


def game_of(d: int, d_v: int, M: int) -> Game:
    """Return the game with M elements on chip, of which S_ij takes one."""
    return Game(Q=d, K=d, V=d_v, O=d_v + 2, out=d_v + 1, room=M - 1)


def text_of(state: State) -> str:
    """Return a state as text, by which the table has it."""
    return " ".join(
        [f"{X}{n}" for X, n in sorted(state.chip)] + [f"{i}.{j}" for i, j in sorted(state.todo)]
    )


def check(certificate: Mapping[str, Any]) -> str:
    """Return what is proved, in a sentence. Raises ValueError for a certificate that proves
    nothing, and says why.
    """
    if not isinstance(certificate, Mapping):
        raise ValueError("it is not a JSON object")
    check_fields(certificate, "optimum", (*SIZES, "class", "allowed", "steps", "table"))
    for name in SIZES:
        value = certificate[name]
        if type(value) is not int or not 0 < value < 10**12:
            raise ValueError(f"{name} is {str(value)[:50]}; expected a whole number from 1 to 10¹²")
    N_q, N_k, d, d_v, M, optimum = (int(certificate[name]) for name in SIZES)
    allowed, steps, table = (certificate.get(name) for name in ("allowed", "steps", "table"))
    if max(N_q, N_k) > MOST:
        raise ValueError(f"N_q = {N_q}, N_k = {N_k}; expected at most {MOST}")
    if (
        type(allowed) is not list
        or [len(row) if type(row) is str and {*row} <= {*"01"} else 0 for row in allowed]
        != [N_k] * N_q
    ):
        raise ValueError(
            f"allowed is {str(allowed)[:50]}; expected {N_q} rows of {N_k} digits, 0 or 1"
        )
    if (
        type(steps) is not list
        or type(table) is not dict
        or any(type(value) is not int for value in table.values())
    ):
        raise ValueError("expected steps, a list, and a table of whole numbers")
    game = game_of(d, d_v, M)
    first = State(
        frozenset(),
        frozenset((i, j) for i in range(N_q) for j in range(N_k) if allowed[i][j] == "1"),
    )
    idle = (N_q - len({i for i, _ in first.todo})) * game.out  # rows of O that are 0
    cost = idle + compulsory(game, first.todo) + played(game, first, steps)
    if cost != optimum:
        raise ValueError(f"the optimum is said to be {optimum}; its {len(steps)} steps cost {cost}")
    nothing_below(game, first, optimum - idle, table)
    given = "all" if len(first.todo) == N_q * N_k else f"{len(first.todo)} allowed pairs"
    sizes = f"N_q = {N_q}, N_k = {N_k}, d = {d}, d_v = {d_v}, M = {M}, {given}"
    return (
        f"{len(steps)} steps move {optimum} elements, and no schedule of the row game moves fewer "
        f"({sizes})"
    )


def played(game: Game, state: State, steps: list[Any]) -> int:
    """Return what the evictions of steps [i, j, ["K1", …]] cost. Raises ValueError for steps
    that are against the rules.
    """
    total = 0
    for number, step in enumerate(steps):
        try:
            pair = (step[0], step[1])
            gone = [(name[0], int(name[1:])) for name in step[2]]
            need = needs(frozenset({pair}))
            legal = (
                pair in state.todo and len({*gone}) == len(gone) and {*gone} <= state.chip - need
            )
        except (TypeError, ValueError, IndexError, KeyError):
            legal = False
        if not legal or sum(getattr(game, X) for X, _ in (state.chip - {*gone}) | need) > game.room:
            raise ValueError(
                f"step {number}, {str(step)[:50]}, is not possible there, or does not fit on chip"
            )
        state = after(state, pair, gone)
        total = total + price(game, gone)
    if state.todo:
        raise ValueError(f"the steps leave {len(state.todo)} products to do")
    return total


def nothing_below(game: Game, first: State, optimum: int, table: Mapping[str, int]) -> None:
    """Raise ValueError unless the table shows that no schedule from `first` costs less than the
    optimum.
    """
    gap = optimum - compulsory(game, first.todo)
    reached = [(in_order(first)[0], 0)] if gap > 0 else []
    seen = set()
    while reached:
        state, evicted = reached.pop()
        said = table.get(text_of(state), gap) if state.todo else gap
        if said > evicted:
            raise ValueError(
                f"a state is reached before the optimum, and not in the table for {evicted}: "
                f"{text_of(state)[:50]}"
            )
        if state not in seen:
            seen.add(state)
            further = [
                (pair, gone, said + price(game, gone))
                for pair, gone in moves(game, state, gap - said)
            ]
            reached += [
                (in_order(after(state, pair, gone))[0], cost) for pair, gone, cost in further
            ]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(check(json.load(file, object_pairs_hook=once)))

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
from itertools import product
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
    units = [f"{X}{n}" for X, n in sorted(state.chip)]
    products = [f"{i}.{j}" for i, j in sorted(state.todo)]
    return " ".join([*units, *products])


def check(certificate: Mapping[str, Any]) -> str:
    """Return the theorem that a certificate proves, in a sentence. Raises ValueError, with the
    reason, for a certificate that proves none.
    """
    if not isinstance(certificate, Mapping):
        raise ValueError("it is not a JSON object")
    check_fields(certificate, "optimum", (*SIZES, "class", "allowed", "steps", "table"))
    for name in SIZES:
        value = certificate[name]
        if type(value) is not int or not 0 < value < 10**12:
            raise ValueError(f"{name} is {str(value)[:50]}; expected a whole number from 1 to 10¹²")
    N_q, N_k, d, d_v, M, optimum = (int(certificate[name]) for name in SIZES)
    allowed, steps, table = (certificate[name] for name in ("allowed", "steps", "table"))
    if max(N_q, N_k) > MOST:
        raise ValueError(f"N_q = {N_q}, N_k = {N_k}; expected at most {MOST}")
    are_rows = type(allowed) is list and all(type(row) is str for row in allowed)
    are_rows = are_rows and [len(row) for row in allowed] == [N_k] * N_q
    if not are_rows or {*"".join(allowed)} - {*"01"}:
        raise ValueError(
            f"allowed is {str(allowed)[:50]}; expected {N_q} rows of {N_k} digits, 0 or 1"
        )
    is_table = type(table) is dict and all(type(value) is int for value in table.values())
    if type(steps) is not list or not is_table:
        raise ValueError("expected steps, a list, and a table of whole numbers")
    game = game_of(d, d_v, M)
    pairs = product(range(N_q), range(N_k))
    first = State(frozenset(), frozenset((i, j) for i, j in pairs if allowed[i][j] == "1"))
    idle = (N_q - len({i for i, _ in first.todo})) * game.out  # rows of O that are 0
    cost = idle + compulsory(game, first.todo) + cost_of_steps(game, first, steps)
    if cost != optimum:
        raise ValueError(f"the optimum is said to be {optimum}; its {len(steps)} steps cost {cost}")
    nothing_below(game, first, optimum - idle, table)
    allowed_pairs = "all" if len(first.todo) == N_q * N_k else f"{len(first.todo)} allowed pairs"
    sizes = f"N_q = {N_q}, N_k = {N_k}, d = {d}, d_v = {d_v}, M = {M}, {allowed_pairs}"
    return (
        f"{len(steps)} steps move {optimum} elements, and no schedule of the row game moves fewer "
        f"({sizes})"
    )


def cost_of_steps(game: Game, state: State, steps: list[Any]) -> int:
    """Return the cost of the evictions of steps [i, j, ["K1", …]]. Raises ValueError for steps
    that are against the rules.
    """
    total = 0
    for number, step in enumerate(steps):
        try:
            pair = (step[0], step[1])
            evicted = [(name[0], int(name[1:])) for name in step[2]]
            need = needs(frozenset({pair}))
            chip = (state.chip - {*evicted}) | need
            is_legal = pair in state.todo and {*evicted} <= state.chip - need
            is_legal &= len({*evicted}) == len(evicted)
        except (TypeError, ValueError, IndexError, KeyError):
            is_legal = False
        if not is_legal or sum(getattr(game, X) for X, _ in chip) > game.room:
            raise ValueError(
                f"step {number}, {str(step)[:50]}, is not possible there, or does not fit on chip"
            )
        state = after(state, pair, evicted)
        total += price(game, evicted)
    if state.todo:
        raise ValueError(f"the steps leave {len(state.todo)} products to do")
    return total


def nothing_below(game: Game, first: State, optimum: int, table: Mapping[str, int]) -> None:
    """Raise ValueError unless the table shows that no schedule from `first` costs less than the
    optimum.
    """
    gap = optimum - compulsory(game, first.todo)
    reached = [(in_order(first)[0], 0)] if gap > 0 else []
    visited = set()
    while reached:
        state, cost = reached.pop()
        most = table.get(text_of(state), gap) if state.todo else gap
        if most > cost:
            raise ValueError(
                f"a state is reached before the optimum, and not in the table for {cost}: "
                f"{text_of(state)[:50]}"
            )
        if state not in visited:
            visited.add(state)
            for pair, evicted in moves(game, state, gap - most):
                successor = in_order(after(state, pair, evicted))[0]
                reached.append((successor, most + price(game, evicted)))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(check(json.load(file, object_pairs_hook=once)))

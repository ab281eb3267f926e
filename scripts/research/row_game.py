"""Try all schedules of the backward row game (flashsim.theory.bounds.rows) at the smallest sizes:
does one beat its bound?

    # N_q N_k m: the fewest rows moved, in seconds
    python scripts/research/row_game.py 2 2 5  2 2 6  2 2 7
    # is any below the bound? a minute
    python scripts/research/row_game.py --below  3 3 5  3 4 5  4 3 5

A schedule of the game need not bring a row on chip before a product wants it, nor leave a product
undone whose rows are there, nor send a row away while there is room. A row that is sent away with
products still to make costs its price: a read, or for dQ, dK and dV a write and a read. So the
search takes the product that comes next and the rows that make room for it, in order of price.
Queries may be exchanged, and keys. It shares no code with the bound's proof, nor its ideas.
"""

import argparse
import itertools
from collections import defaultdict

from flashsim.support.entry import run_script
from flashsim.theory import lower_bound_rows

NEEDS = {"dV": ("Q dO", "K dV"), "dK": ("Q dO", "K V dK"), "dQ": ("Q dO dQ", "K V")}
"""For a product: rows of the query, rows of the key."""
State = tuple[int, int]
"""The rows on chip, and the products made, as bits."""


class Game:
    """The rows and products of N_q queries and N_k keys."""

    def __init__(self, N_q: int, N_k: int, m: int) -> None:
        rows = [(of, index) for of in ("Q", "dO", "dQ") for index in range(N_q)]
        rows += [(of, index) for of in ("K", "V", "dK", "dV") for index in range(N_k)]
        products = [(of, i, k) for of in NEEDS for i in range(N_q) for k in range(N_k)]
        self.m, self.compulsory, self.all = m, 3 * N_q + 4 * N_k, (1 << len(products)) - 1
        self.price = [2 if of in NEEDS else 1 for of, _ in rows]
        self.needs = [
            sum(
                1 << rows.index((of, index))
                for side, index in zip(NEEDS[name], pair, strict=True)
                for of in side.split()
            )
            for name, *pair in products
        ]
        self.uses = [
            sum(1 << p for p, needs in enumerate(self.needs) if needs >> row & 1)
            for row in range(len(rows))
        ]
        self.exchanges = []
        for q, k in itertools.product(
            itertools.permutations(range(N_q)), itertools.permutations(range(N_k))
        ):
            row_to = [
                rows.index((of, (q if of in ("Q", "dO", "dQ") else k)[index])) for of, index in rows
            ]
            self.exchanges.append(
                (row_to, [products.index((of, q[i], k[j])) for of, i, j in products])
            )

    def settled(self, chip: int, done: int) -> State:
        """Make what can be made, drop the rows that are done with, and choose one of the states
        that are alike.
        """
        for product, needs in enumerate(self.needs):
            if not needs & ~chip:
                done |= 1 << product
        chip = sum(1 << row for row in bits(chip) if self.uses[row] & ~done)
        return min(
            (
                sum(1 << row_to[row] for row in bits(chip)),
                sum(1 << product_to[product] for product in bits(done)),
            )
            for row_to, product_to in self.exchanges
        )

    def moves(self, state: State) -> set[tuple[int, State]]:
        """Return (price, state) of each next product and each choice of what makes room."""
        (chip, done), result = state, set()
        for product in bits(self.all & ~done):
            expected = self.needs[product] | chip
            room = max(expected.bit_count() - self.m, 0)
            for gone in itertools.combinations(bits(chip & ~self.needs[product]), room):
                price = sum(self.price[row] for row in gone)
                left = expected - sum(1 << row for row in gone)
                result.add((price, left))
        return {(price, self.settled(left, done)) for price, left in result}


def bits(number: int) -> list[int]:
    """Return which bits are set."""
    return [index for index in range(number.bit_length()) if number >> index & 1]


def fewest(N_q: int, N_k: int, m: int, below: int | None = None) -> int | None:
    """Return the fewest rows that a schedule moves; None if that is not `below` a number. m is 5
    at least.
    """
    game = Game(N_q, N_k, m)
    waiting: dict[int, list[State]] = defaultdict(list, {game.compulsory: [(0, 0)]})
    closed: set[State] = set()
    for traffic in itertools.count(game.compulsory):
        if below is not None and traffic >= below:
            return None
        for state in waiting[traffic]:  # grows as it is gone through
            if state not in closed:
                closed.add(state)
                if state[1] == game.all:
                    return traffic
                for price, then in game.moves(state):
                    waiting[traffic + price].append(then)
    raise AssertionError  # pragma: no cover


def main() -> None:
    """Print a line for each game."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--below",
        action="store_true",
        help="only look for schedules that move fewer rows than the bound",
    )
    parser.add_argument(
        "sizes", nargs="+", type=int, metavar="N_q N_k m", help="m rows fit, 5 at least"
    )
    options = parser.parse_args()
    if len(options.sizes) % 3 or min(options.sizes) < 1 or min(options.sizes[2::3]) < 5:
        parser.error(
            "expected three whole numbers for each game, N_q N_k m, with m at least 5, as dK's "
            "product needs 5 rows"
        )
    for N_q, N_k, m in zip(*(options.sizes[index::3] for index in range(3)), strict=True):
        bound = lower_bound_rows(N_q=N_q, N_k=N_k, d=1, M=m)
        result = fewest(N_q, N_k, m, bound if options.below else None)
        print(
            (
                f"N_q = {N_q}, N_k = {N_k}, m = {m}: bound {bound}; fewest "
                f"{result or f'{bound} or more'}"
            ),
            flush=True,
        )


if __name__ == "__main__":
    run_script(main)

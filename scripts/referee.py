"""Compare the best schedules here with AccelForge's, a mapper's: at each SRAM size of its front,
who makes fewer accesses?

    python scripts/referee.py --json figures/referee.json      # a table on stdout; two minutes

The points are tests/referee/points.json, which scripts/research/accelforge_points.py makes. A
schedule here counts the softmax's statistics; AccelForge has none. So where the best here makes
more than 1.02 times its accesses, the table says how much more M would change that, and how much of
the schedule's M its statistic takes.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flashsim.algorithms import PASSES
from flashsim.algorithms.hybrid_streamed import line_3
from flashsim.analysis.tune import Choice, best_of
from flashsim.support.entry import run_script
from flashsim.support.files import write_whole
from flashsim.support.sizes import smallest_true

ROOT = Path(__file__).resolve().parents[1]
POINTS = ROOT / "tests" / "referee" / "points.json"
NEAR = 1.02
STREAMED = ("streamed", "tiles_streamed", "hybrid_streamed")


def best(
    N: int, d: int, M: int, direction: str = "forward", names: tuple[str, ...] = ()
) -> Choice | None:
    """Return the choice of fewest accesses of some algorithms, or of all whose loops have a
    name; None if nothing fits.
    """
    known: Any = PASSES[direction]  # type: ignore[index]
    tried = names or [name for name, algorithm in known.items() if algorithm.loops]
    result = (best_of(name, N=N, d=d, M=M, direction=direction) for name in tried)
    return min(
        (choice for choice in result if choice), key=lambda choice: choice.accesses, default=None
    )


def statistic(choice: Choice, N: int, d: int, M: int, direction: str = "forward") -> int:
    """Return how many elements L takes on chip, of a schedule in STREAMED; backward D_n, of a
    row.
    """
    if direction == "backward":
        return 1
    return (
        max(choice.blocks.B_r, line_3(M, N, d)[0])
        if choice.algorithm == "hybrid_streamed"
        else choice.blocks.B_r
    )


def compared(point: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each point of one front."""
    N = point["N"]
    d = point["d"]
    direction = point["direction"]
    for M, accesses in point["fused"]:
        ours = best(N, d, M, direction)
        row: dict[str, Any] = {"N": N, "d": d, "direction": direction, "M": M, "accesses": accesses}
        row |= {
            "algorithm": ours and ours.algorithm,
            "ours": ours and ours.accesses,
            "more": 0,
            "statistic": 0,
        }
        if ours is None or ours.accesses > NEAR * accesses:
            row |= more(N, d, M, accesses, direction)
        yield row


def more(N: int, d: int, M: int, accesses: int, direction: str) -> dict[str, Any]:
    """Return how much more M makes a streamed schedule move at most 1.02 times as much, and what
    its statistic takes of M.
    """

    def near(room: int) -> bool:
        choice = best(N, d, M + room, direction, STREAMED)
        return choice is not None and choice.accesses <= NEAR * accesses

    room = smallest_true(near)
    choice = best(N, d, M + room, direction, STREAMED)
    assert choice is not None
    return {
        "more": room,
        "statistic": statistic(choice, N, d, M + room, direction),
        "with_more": choice.algorithm,
    }


def main() -> None:
    """Compare all fronts, print a table, and write a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the rows to a file")
    options = parser.parse_args()
    points = json.loads(POINTS.read_text(encoding="utf-8"))
    rows = [row for point in points for row in compared(point)]
    table = Table(
        "N", "d", "pass", "M", "AccelForge", "here", "ratio", "algorithm", "more M", "statistic"
    )
    for row in rows:
        ratio = f"{row['ours'] / row['accesses']:.3f}" if row["ours"] else "–"
        table.add_row(
            f"{row['N']:,}",
            f"{row['d']}",
            row["direction"],
            f"{row['M']:,}",
            f"{row['accesses']:,}",
            f"{row['ours']:,}" if row["ours"] else "–",
            ratio,
            row["algorithm"],
            f"{row['more']:,}",
            f"{row['statistic']:,}",
        )
    Console(width=140).print(table)
    if options.json:
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        write_whole(
            options.json, f'{{"command": "python scripts/referee.py", "rows": [\n{lines}\n]}}\n'
        )


if __name__ == "__main__":
    run_script(main)

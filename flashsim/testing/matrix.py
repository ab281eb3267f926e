"""Which check notices which bug: the museum of mutants tried against every check, and against the textbook's test."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

from flashsim.testing.checks import CHECKS
from flashsim.testing.kernel import Kernel
from flashsim.testing.mutants import ALL, EARLY
from flashsim.testing.running import applicable, survey
from flashsim.testing.usual import TEXTBOOK

EXAMPLES, SEEDS, CASES = 300, 5, 300

# The mutants of `late.py` were tried once on the strategies as they were frozen (commit 656928c), with seed 0. All were
# noticed but this one; since then q, k and v may each lie in memory in their own way ("mixed").
MISSED_WHEN_FROZEN = ("strides_of_K_and_V_swapped",)


def matrix(jobs: int = 1, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Return, for every mutant, how many of 300 cases each check fails on, and when a check-up of 300 examples notices it.

    The check-up is run with five seeds: `first` lists the example that first failed a check, or None.
    """
    rows = []
    with ProcessPoolExecutor(jobs) as pool:
        for number, row in enumerate(pool.map(_row, range(len(ALL))), 1):
            rows.append(row)
            if progress is not None:
                progress(number, len(ALL))
    caught = [row for row in rows if None not in row["first"]]
    return {
        "checks": {check.name: check.about for check in CHECKS.values()},
        "examples": EXAMPLES,
        "cases": CASES,
        "mutants": rows,
        "missed_when_frozen": list(MISSED_WHEN_FROZEN),
        "caught_with_every_seed": len(caught),
        "caught_by_the_textbook_test": sum(row["textbook"] for row in rows),
        "median_first_example": median(k for row in rows for k in row["first"] if k is not None),
    }


def _row(at: int) -> dict[str, Any]:
    mutant = ALL[at]
    built = mutant.build()
    kernel = Kernel(built, built.spec, built.backward, built.keep)
    names = [check.name for check in applicable(kernel)[0]]
    found = survey(kernel, CASES, 0, names)
    first = []
    for seed in range(SEEDS):
        tallies = survey(kernel, EXAMPLES, seed, until_failure=True).tallies.values()
        first.append(min((tally.first for tally in tallies if tally.failed), default=None))
    return {
        "name": mutant.name,
        "bug": mutant.bug,
        "threads": list(mutant.threads),
        "base": mutant.base,
        "part": mutant.part,
        "written": "before" if mutant in EARLY else "after",
        "first": first,
        "failed": {name: tally.failed for name, tally in found.tallies.items()},
        "tried": {name: tally.tried for name, tally in found.tallies.items()},
        "textbook": TEXTBOOK.notices(mutant, built),
    }


def as_markdown(data: dict[str, Any]) -> str:
    """Return the matrix as a table: a row a bug."""
    short = {name: f"{number}" for number, name in enumerate(data["checks"], 1)}
    lines = [
        "# Which check notices which bug",
        "",
        f"Failing cases of {data['cases']}, by check; blank: none; –: does not apply. "
        f"*First*: the example at which a check-up of {data['examples']} first fails, with {SEEDS} seeds. "
        "*Textbook*: whether `np.allclose` on Gaussian inputs of one aligned, square shape notices. "
        "Bugs marked ○ were written after the strategies were frozen, by an author who had not seen them; ● is the one of "
        "these that the frozen strategies missed, and that changed them.",
        "",
        *(f"{number}. `{name}`: {about}" for number, (name, about) in enumerate(data["checks"].items(), 1)),
        "",
        f"| bug | known from | first | textbook | {' | '.join(short.values())} |",
        f"|---|---|--:|---|{'--:|' * len(short)}",
    ]
    for row in data["mutants"]:
        late = " ●" if row["name"] in data["missed_when_frozen"] else " ○" if row["written"] == "after" else ""
        first = ", ".join("never" if k is None else str(k) for k in row["first"])
        cells = (str(row["failed"][name] or "") if name in row["failed"] else "–" for name in short)
        threads = ", ".join(row["threads"])
        told = "yes" if row["textbook"] else ""
        lines.append(f"| {row['name']}{late}: {row['bug']} | {threads} | {first} | {told} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"

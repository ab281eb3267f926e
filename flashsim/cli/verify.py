"""`flashsim verify`: the ledger of the paper's claims."""

from __future__ import annotations

import argparse
from typing import Any

from flashsim.cli.outputs import check_outputs, finish, progress
from flashsim.cli.shared import add
from flashsim.cli.values import whole

SUMMARY = "Check the paper's claims and print the ledger: claim, range tried, measurement, verdict."
EXAMPLES = "flashsim verify\nflashsim verify --full --jobs 8 --json ledger.json"


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("--full", action="store_true", help="sweep far wider ranges (minutes)")
    parser.add_argument(
        "--jobs", type=whole(), metavar="N", help="claims to check at the same time. Default: one a core"
    )
    add(parser, "--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    """Run the command; return 0 if all claims hold, else 1. Raises ValueError where --json cannot be written."""
    from flashsim import report, verify

    check_outputs(options)
    checks = verify.checks()
    names = [check.__name__.replace("_", " ") for check in checks]
    with progress(options) as bar:
        task = bar.add_task(names[0], total=len(checks))

        def on_claim(left: list[int]) -> None:
            bar.update(task, completed=len(checks) - len(left), description=names[left[0]] if left else "")

        claims = verify.run(checks, options.full, jobs=options.jobs or cores(), on_claim=on_claim)
    ledger = {"command": options.command_line, "claims": [claim.as_json() for claim in claims]}
    finish(options, ledger, lambda: report.print_ledger(claims))
    return 0 if all(claim.holds for claim in claims) else 1


def cores() -> int:
    """Return how many cores this process may use."""
    from joblib import cpu_count

    return int(cpu_count())

"""`flashsim verify`: the ledger of the paper's claims."""

from __future__ import annotations

import argparse
from typing import Any

from flashsim.cli.outputs import check_outputs, finish, progress
from flashsim.cli.shared import add

SUMMARY = "Check the paper's claims and print the ledger: claim, range tried, measurement, verdict."
EXAMPLES = "flashsim verify\nflashsim verify --full --json ledger.json"


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("--full", action="store_true", help="sweep far wider ranges (minutes)")
    add(parser, "--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    """Run the command; return 0 if all claims hold, else 1. Raises ValueError where --json cannot be written."""
    from flashsim import report, verify

    check_outputs(options)
    claims = []
    with progress(options) as bar:
        checks = verify.checks()
        task = bar.add_task("verify", total=len(checks))
        for check in checks:
            bar.update(task, description=check.__name__.replace("_", " "))
            claims.append(check(options.full))
            bar.advance(task)
    ledger = {"command": options.command_line, "claims": [claim.as_json() for claim in claims]}
    finish(options, ledger, lambda: report.print_ledger(claims))
    return 0 if all(claim.holds for claim in claims) else 1

"""`flashsim verify`: the ledger of the paper's claims."""

from __future__ import annotations

import argparse
from typing import Any

from flashsim.cli.shared import add_json, add_quiet, check_outputs, progress, write_json

SUMMARY = "Check the paper's claims and print the ledger: claim, range tried, measurement, verdict."
EXAMPLES = "flashsim verify\nflashsim verify --full --json ledger.json"


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("--full", action="store_true", help="sweep far wider ranges (minutes)")
    add_json(parser, "ledger")
    add_quiet(parser)


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
    write_json(options.json, {"command": options.command_line, "claims": [claim.as_json() for claim in claims]})
    if options.json != "-":
        report.print_ledger(claims)
    return 0 if all(claim.holds for claim in claims) else 1

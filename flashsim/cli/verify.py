"""`flashsim verify`: the ledger of the paper's claims."""

import argparse
from dataclasses import asdict

from flashsim.cli.outputs import finish, progress
from flashsim.cli.parser import Parser
from flashsim.cli.shared import FLAG

# Of one core, and of its longest claim: `time flashsim verify --jobs 1` says 56 on an AMD EPYC.
SECONDS = 60
LONGEST = 15
# Likewise, of its claims' processor time added up; of Theorem 1's first, from a part of its shapes.
FULL = 900
FULL_LONGEST = 600
EXAMPLES = (
    "flashsim verify\nflashsim verify theorem2 stream_k\nflashsim verify --full --jobs 8 --json "
    "ledger.json"
)


def add_options(parser: Parser) -> None:
    parser.notes = f"It takes {duration(False, 1)} on one core, less on several.\n\n"
    which = (
        "claims to check: stream_k is one, theorem2 all of Theorem 2; a wrong name lists others. "
        "Default: all"
    )
    parser.add("claims", nargs="*", metavar="NAME", help=which)
    wider = f"sweep far wider ranges: {duration(True, 1)} on one core, {duration(True, 8)} on many"
    parser.add("--full", **FLAG, help=wider)
    parser.add("--jobs", help="claims to check at the same time. Default: one for each core")
    parser.add("--json", "--quiet")


def run(options: argparse.Namespace) -> int:
    from flashsim.analysis import verify
    from flashsim.cli import report

    checks = verify.named(options.claims) if options.claims else verify.checks()
    names = [check.__name__.replace("_", " ") for check in checks]
    jobs = options.jobs or cores()
    announcement = f"{len(checks)} claims, {jobs} at a time"
    if not options.claims:
        announcement += f": {duration(options.full, min(jobs, cores()))}"
    announcement += "; what is left is told as it goes"
    with progress(options, announcement) as update:
        update(0, len(checks), names[0])

        def on_claim(left: list[int]) -> None:
            update(len(checks) - len(left), what=names[left[0]] if left else "")

        claims = verify.run(checks, options.full, jobs=jobs, on_claim=on_claim)
    ledger = {"command": options.command_line, "claims": [asdict(claim) for claim in claims]}
    finish(options, ledger, lambda: report.print_ledger(claims))
    return 0 if all(claim.holds for claim in claims) else 1


def duration(full: bool, jobs: int) -> str:
    """Return in words how long it takes: all claims over so many cores, but no less than the
    longest claim.
    """
    seconds = max(SECONDS / jobs, LONGEST)
    if full:
        seconds = max(FULL / jobs, FULL_LONGEST)
    return f"about {seconds:.0f} s" if seconds < 100 else f"about {seconds / 60:.0f} minutes"


def cores() -> int:
    """Return how many cores this process may use."""
    from joblib import cpu_count

    return int(cpu_count())

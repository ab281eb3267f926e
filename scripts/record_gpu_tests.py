"""Run the GPU's tests on a machine that has one and keep what came of them: figures/gpu_tests.json.

python scripts/record_gpu_tests.py --commit "$(git rev-parse HEAD)"
# the long way round: figures/gpu_soak.json
python scripts/record_gpu_tests.py --soak --commit "$(git rev-parse HEAD)"
"""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from flashsim.gpu.machine import machine
from flashsim.support.entry import run_script
from flashsim.support.files import write_whole

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("", "_hopper", "_masks", "_fp8", "_serving", "_streams", "_delays")
USUAL = tuple(f"tests/gpu/test_gpu{of}.py" for of in KINDS)
SOAK = ("-m", "slow", "tests/gpu/test_gpu_soak.py", "-k")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and write the record; return pytest's exit status, of the first run that
    fails.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commit", required=True, help="of the sources that are tested")
    parser.add_argument(
        "--processes", type=int, default=8, help="how many run tests at once. Default: 8"
    )
    parser.add_argument(
        "--soak", action="store_true", help="tests/gpu/test_gpu_soak.py in place of the usual tests"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="Default: figures/gpu_tests.json, or gpu_soak.json"
    )
    options = parser.parse_args(arguments)
    runs: list[tuple[Sequence[str], int]] = [(USUAL, options.processes)]
    if options.soak:  # launches alone, since they look at the GPU's memory
        runs = [((*SOAK, "not launches"), options.processes), ((*SOAK, "launches"), 0)]
    done = [run(keywords, processes) for keywords, processes in runs]
    cases = [case for _, suite in done for case in suite.iter("testcase")]
    outcomes = {
        kind: [str(case.get("name")) for case in cases if case.find(kind) is not None]
        for kind in ("failure", "error", "skipped")
    }
    soak = ["--soak"] * options.soak
    record = {
        "command": shlex.join(
            ["python", "scripts/record_gpu_tests.py", *soak, "--commit", options.commit]
        ),
        "commit": options.commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "tests": len(cases),
        "passed": len(cases) - sum(map(len, outcomes.values())),
        "seconds": round(sum(float(suite.get("time", "0")) for _, suite in done), 3),
        **outcomes,
    }
    output = options.output or ROOT / "figures" / f"gpu_{'soak' if options.soak else 'tests'}.json"
    write_whole(output, json.dumps(record, indent=1) + "\n")
    return next((status for status, _ in done if status), 0)


def run(options: Sequence[str], processes: int) -> tuple[int, ElementTree.Element]:
    """Run pytest and return its exit status, and what it says of its suite."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "tests.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            *options,
            f"--junitxml={log}",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=",
            "-n",
            str(processes),  # on one GPU: most of the time goes to the reference, on the CPU
            "-p",
            "no:benchmark",  # where it is installed it warns of xdist
        ]
        # else every process has a thread a core, and all wait
        alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        status = subprocess.run(command, cwd=ROOT, check=False, env=alone).returncode
        return status, next(ElementTree.parse(log).getroot().iter("testsuite"))


if __name__ == "__main__":
    run_script(main)

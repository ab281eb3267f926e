"""Run the GPU's tests on a machine that has one and keep what came of them: figures/gpu_tests.json.

python scripts/record_gpu_tests.py --commit "$(git rev-parse HEAD)"
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from flashsim.entry import run_script
from flashsim.files import write_whole
from flashsim.gpu.machine import machine

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the tests and write the record; return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", required=True, help="of the sources that are tested")
    parser.add_argument("--processes", type=int, default=8, help="how many run tests at once. Default: 8")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "figures" / "gpu_tests.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "tests.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "tests/test_gpu.py",
            "tests/test_gpu_hopper.py",
            "tests/test_gpu_fp8.py",
            f"--junitxml={log}",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=",
            "-n",
            str(options.processes),  # on one GPU: most of the time goes to the reference, on the CPU
            "-p",
            "no:benchmark",  # where it is installed it warns of xdist
        ]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        suite = next(ElementTree.parse(log).getroot().iter("testsuite"))
    cases = list(suite.iter("testcase"))
    outcomes = {
        kind: [str(case.get("name")) for case in cases if case.find(kind) is not None]
        for kind in ("failure", "error", "skipped")
    }
    record = {
        "command": shlex.join(["python", "scripts/record_gpu_tests.py", "--commit", options.commit]),
        "commit": options.commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "tests": len(cases),
        "passed": len(cases) - sum(map(len, outcomes.values())),
        "seconds": float(suite.get("time", "0")),
        **outcomes,
    }
    write_whole(options.output, json.dumps(record, indent=1) + "\n")
    return status


if __name__ == "__main__":
    run_script(main)

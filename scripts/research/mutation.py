"""Change flashsim in one place at a time and see which tests notice: figures/mutation.json.

    pip install -e ".[test,mutation]"
    # 500 mutants of the last commit, an hour or two; started again, it goes on
    python scripts/research/mutation.py --jobs 2

The test that noticed a mutant (mutants.py) when the last record was made is tried first. For the
others the tests run once, unchanged, and coverage.py notes which of them executes which line; a
mutant then meets those that execute its statement, the quickest first, up to the first that fails.
What is executed at import, or once for all tests, meets all. Hypothesis draws the same examples
every time. At the end, all tests that noticed a mutant must pass without one. A "reason" in the
record, written by hand and kept, says why no test can tell a mutant; a survivor without one lacks a
test.

Not used: mutmut 3 writes all mutants of a function into its file, where tests that read the source
fail as it is. Cosmic Ray's own runner and pytest-timeout have limits by the clock on the wall: on a
busy machine that is no kill.
"""

import argparse
import ast
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from xml.etree import ElementTree

import pytest
from coverage import CoverageData
from mutants import Entry, Mutant, key, places_and_mutants

from flashsim.support.files import write_whole

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "figures/mutation.json"
PYTEST = [
    "-m",
    "pytest",
    "--tb=no",
    "-pno:cacheprovider",
    "--hypothesis-profile=mutants",
    "-mnot slow or claims",
]
OUT_OF_TIME = "timeout"
# of the tests that execute its statement, the quickest first
ROUNDS = slice(20), slice(20, 200), slice(200, None)
SECONDS = 60  # of processor time, beyond twice what the tests took unchanged, coverage noted
MEMORY = 8 << 30  # bytes
ONE_RUN = Lock()  # of all tests
Seconds = dict[str, float | None]  # of each test; None: it failed


def main() -> None:
    """Draw, try, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=500, help="mutants. Default: 500")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the order in which they are drawn. Default: 0"
    )
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at once. Default: 1")
    options = parser.parse_args()
    last = json.loads(RECORD.read_text("utf-8"))
    known = {key(entry): entry for entry in last["mutants"]}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as jobs:
        copies: SimpleQueue[Path] = SimpleQueue()
        for home in (Path(folder, str(number)) for number in range(options.jobs)):
            subprocess.check_call(["git", "clone", "--quiet", "--shared", ROOT, home])
            copies.put(home)
        places, drawn = places_and_mutants(home, options.sample, options.seed)
        record = {
            "command": (
                f"python scripts/research/mutation.py --sample {options.sample} --seed "
                f"{options.seed}"
            ),
            "versions": {
                name: version(name)
                for name in ("cosmic-ray", "coverage", "pytest", "hypothesis", "numpy")
            },
            "python": sys.version.split()[0],
            "commit": _commit(home),
            "places": places,
        }
        untried = []
        for mutant in drawn:
            before = known.get(key(mutant.entry), {})
            kept = {"reason", "killed_by"} if last.get("commit") == record["commit"] else {"reason"}
            mutant.entry.update((name, before[name]) for name in kept & before.keys())
            if "killed_by" not in mutant.entry:
                test = before.get("killed_by")
                untried.append((mutant, None if test == OUT_OF_TIME else test))
        untried.sort(key=lambda pair: (not pair[1], "reason" in pair[0].entry))
        # what a few tests notice is known before the mutants that meet all are tried
        for tests in ROUNDS:
            started = {
                jobs.submit(killer, *pair, tests, copies, options.jobs): pair for pair in untried
            }
            untried = []
            try:
                for number, result in enumerate(as_completed(started), 1):
                    (mutant, _), error = started[result], result.exception()
                    entry = mutant.entry
                    test = None if error else result.result()
                    if test is None and error is None and tests.stop is not None:
                        untried.append((mutant, None))
                        continue
                    entry |= {} if error else {"killed_by": test}
                    print(
                        (
                            f"{number:4} {entry['file']}:{entry['line']}  {entry['after']}  "
                            f"{error or test}"
                        ),
                        flush=True,
                    )
                    _write(record, drawn)
            except BaseException:
                jobs.shutdown(cancel_futures=True)
                raise
        killers = {
            test for m in drawn if (test := m.entry.get("killed_by")) and test != OUT_OF_TIME
        }
        failed = [
            test
            for test, past in run_tests(home, f"-n{options.jobs}", *killers).items()
            if past is None
        ]
        for entry in [mutant.entry for mutant in drawn if mutant.entry.get("killed_by") in failed]:
            print(f"to try again: {entry.pop('killed_by')} fails without the mutant, too")
        _write(record, drawn)


def _end(entry: Entry) -> str:
    if entry.get("killed_by"):
        return "killed"
    return (
        "equivalent" if "reason" in entry else "survived" if "killed_by" in entry else "not_tried"
    )


def _write(about: Entry, drawn: list[Mutant]) -> None:
    ends = Counter(_end(mutant.entry) for mutant in drawn)
    numbers = {end: ends[end] for end in ("killed", "equivalent", "survived", "not_tried")}
    record = about | numbers | {"mutants": [mutant.entry for mutant in drawn]}
    write_whole(RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def killer(
    mutant: Mutant, last: str | None, some: slice, copies: SimpleQueue[Path], jobs: int
) -> str | None:
    """Return which of some tests fails with the mutant, the last one if it still does, or
    OUT_OF_TIME, or None.
    """
    home = copies.get()
    try:
        if last and (failed := noticed(mutant, home, [last], {})) not in (None, OUT_OF_TIME):
            return failed
        with ONE_RUN:
            seconds, covered = suite(home, jobs)
        few = tests_of(mutant, seconds, covered)[some]
        while few and (failed := noticed(mutant, home, few, seconds)):
            if failed == OUT_OF_TIME or noticed(mutant, home, [failed], {}) == failed:  # alone, too
                return failed
            few = few[few.index(failed) + 1 :]
        return None
    finally:
        copies.put(home)


def suite(home: Path, jobs: int) -> tuple[Seconds, CoverageData]:
    """Return the tests' seconds unchanged, and who executes which line: kept, or found by
    running all.
    """
    kept = ROOT / ".mutation" / _commit(home)
    if not (kept / "seconds.json").exists():
        kept.mkdir(parents=True, exist_ok=True)
        write_whole(
            kept / "ini",
            f"[run]\nrelative_files = true\ndata_file = {kept}/covered\nsource = flashsim\n",
        )
        took = run_tests(
            home,
            f"-n{jobs}",
            "--cov",
            f"--cov-config={kept}/ini",
            "--cov-context=test",
            "--cov-report=",
        )
        print(
            f"{len(took)} tests. These fail unchanged:",
            *(test for test, past in took.items() if past is None),
        )
        write_whole(kept / "seconds.json", json.dumps(took))
    covered = CoverageData(str(kept / "covered"))
    covered.read()
    return json.loads((kept / "seconds.json").read_text("utf-8")), covered


def tests_of(mutant: Mutant, seconds: Seconds, covered: CoverageData) -> list[str]:
    """Return the tests to try a mutant on: those that execute its statement, or all, if that was
    done for all at once.
    """
    line, contexts = mutant.entry["line"], covered.contexts_by_lineno(mutant.entry["file"])

    def executing(lines: Iterable[int]) -> set[str]:
        parts = {
            tuple(name.rpartition("|")[::2]) for line in lines for name in contexts.get(line, ())
        }
        # a fixture may be for all tests of its file
        files = {_file(test) for test, part in parts if part == "setup"}
        return {test for test, _ in parts} & {*seconds} | {
            test for test in seconds if _file(test) in files
        }

    functions = [
        node for node in ast.walk(ast.parse(mutant.source)) if isinstance(node, ast.FunctionDef)
    ]
    around = [node for node in functions if node.body[0].lineno <= line <= (node.end_lineno or 0)]
    once = not around or any(
        "cache" in ast.unparse(decorator) for node in around for decorator in node.decorator_list
    )
    near = executing(contexts) if once else executing(range(line, mutant.end + 1))
    tests = {
        test: past
        for test, past in seconds.items()
        if past is not None and (once or not near or test in near)
    }
    return sorted(tests, key=lambda test: (test not in near, tests[test]))


def noticed(mutant: Mutant, home: Path, tests: list[str], seconds: Seconds) -> str | None:
    """Return which of the tests fails first with the mutant."""
    path = home / mutant.entry["file"]
    source = path.read_text("utf-8")
    _replace(path, mutant.source)
    limit = SECONDS + sum(2 * (seconds.get(test) or 0) for test in tests)
    try:
        result = run_tests(home, "-x", "-n0", *tests, limit=limit)
    finally:
        _replace(path, source)
    return next((test for test, past in result.items() if past is None), None)


def _replace(path: Path, source: str) -> None:
    """Write a module, and forget its bytecode: Python would take that of as long a text written
    within the same second.
    """
    write_whole(path, source)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def run_tests(home: Path, *arguments: str, limit: float | None = None) -> Seconds:
    """Run pytest in a copy; return the tests' seconds. Beyond a limit of processor time, it is
    OUT_OF_TIME that fails.
    """
    text = home / ".report.xml"
    text.unlink(missing_ok=True)
    environment = os.environ | {
        "PYTHONPATH": str(home),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [sys.executable, *PYTEST, f"--junitxml={text}", *arguments]
    null = subprocess.DEVNULL
    with subprocess.Popen(
        command, cwd=home, env=environment, stdin=null, stdout=null, stderr=null
    ) as run:
        if limit is not None:
            resource.prlimit(run.pid, resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit) + 1))
            resource.prlimit(run.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
    if run.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {OUT_OF_TIME: None}
    if run.returncode == pytest.ExitCode.USAGE_ERROR and any(
        "::" in argument for argument in arguments
    ):
        # the mutant renames a test
        return run_tests(home, *dict.fromkeys(map(_file, arguments)), limit=limit)
    if run.returncode not in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.INTERRUPTED,
    ):
        raise RuntimeError(f"{command} ended with {run.returncode}")
    result: Seconds = {}
    for case in ElementTree.parse(text).iter("testcase"):
        file = case.get("classname", "")
        name = case.get("name", "")
        # that cannot be read
        test = f"{file.replace('.', '/')}.py::{name}" if file else f"{name.replace('.', '/')}.py"
        result[test] = (
            None
            if {"failure", "error"} & {part.tag for part in case}
            else float(case.get("time", 0))
        )
    return result


def _file(test: str) -> str:
    return test.partition("::")[0]


def _commit(home: Path) -> str:
    return subprocess.check_output(
        ["git", "rev-parse", "--short", "HEAD"], cwd=home, text=True
    ).strip()


if __name__ == "__main__":
    main()

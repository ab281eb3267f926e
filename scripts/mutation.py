"""Change the core in one place at a time and see which tests notice: figures/mutation.json.

    pip install -e ".[test,mutation]"
    python scripts/mutation.py --jobs 2   # 400 mutants of the last commit, an hour or two; started again, it goes on

A mutant is one change at one place of the core, as Cosmic Ray makes it. Places are drawn first, then a change possible there, so
that a `*`, which can become eleven other signs, counts once; both by a hash of the line and the seed, so that an edit elsewhere
does not change what is drawn. The tests run once, unchanged, and coverage.py notes which of them executes which line. A mutant
then meets those that execute its statement, the likeliest and the quickest first, up to the first that fails. What is executed
at import, or once for all tests, meets all. Hypothesis draws the same examples every time. At the end, the tests that noticed a
mutant must pass without one. Survivors of the last record are tried first. A "reason" in the record, written by hand and kept,
says why no test can tell a mutant (it is tried last); a survivor without one lacks a test.

Not used: mutmut 3 writes all mutants of a function into its file, where tests that read the source fail as it is. Cosmic Ray's
own runner and pytest-timeout have limits by the clock on the wall: on a busy machine that is no kill.
"""

from __future__ import annotations

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
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "figures/mutation.json"
CORE = (
    "memory.py", "matrices.py", "masks.py", "tile_masks.py", "tree_mask.py", "band.py", "live.py", "dropout.py", "groups.py",
    "cache.py", "tune.py", "reference/*.py", "run/*.py", "theory/*.py", "algorithms/*.py",
)  # fmt: skip
PYTEST = ["-m", "pytest", "--tb=no", "-pno:cacheprovider", "--hypothesis-profile=mutants", "-ojunit_family=xunit1"]
OUT_OF_TIME = "timeout"
FIRST = (20, 200)  # so many of the likely tests are tried before the files of the others are read
SECONDS = 60  # of processor time, beyond twice what the tests took unchanged, coverage noted
MEMORY = 8 << 30  # bytes
Seconds = dict[str, float | None]  # of each test; None: it failed


class Mutant(NamedTuple):
    """What the record says of it (`which`: of the lines that read like it); its source; and its statement's last line."""

    entry: dict[str, Any]
    source: str
    end: int


def main() -> None:
    """Draw, run the tests once, try, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=400, help="mutants. Default: 400")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which they are drawn. Default: 0")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at once. Default: 1")
    options = parser.parse_args()
    commit, last = _git("rev-parse", "--short", "HEAD").strip(), json.loads(RECORD.read_text("utf-8"))
    known, kept = {_key(entry): entry for entry in last["mutants"]}, {"reason"}
    if last.get("commit") == commit:
        kept.add("killed_by")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as jobs:
        copies: SimpleQueue[Path] = SimpleQueue()
        for home in (Path(folder, str(number)) for number in range(options.jobs)):
            _git("clone", "--quiet", "--shared", str(ROOT), str(home))
            copies.put(home)
        places, drawn = places_and_mutants(home, options.sample, options.seed)
        seconds, covered = suite(home, commit, options.jobs)
        about = {
            "command": f"python scripts/mutation.py --sample {options.sample} --seed {options.seed}",
            "versions": {name: version(name) for name in ("cosmic-ray", "coverage", "pytest", "hypothesis", "numpy")},
            "python": sys.version.split()[0],
            "commit": commit,
            "places": places,
        }
        for mutant in drawn:
            said = known.get(_key(mutant.entry), {})
            mutant.entry.update((name, said[name]) for name in kept & said.keys())
        untried = [mutant for mutant in drawn if "killed_by" not in mutant.entry]
        untried.sort(key=lambda mutant: ("reason" in mutant.entry, _end(known.get(_key(mutant.entry), {})) == "killed"))
        started = {jobs.submit(killer, mutant, seconds, covered, copies): mutant.entry for mutant in untried}
        try:
            for number, found in enumerate(as_completed(started), 1):
                entry, error = started[found], found.exception()
                entry |= {} if error else {"killed_by": found.result()}
                said = error or entry["killed_by"]
                print(f"{number:4} {entry['file']}:{entry['line']}  {entry['after']}  {said}", flush=True)
                _write(about, drawn)
        finally:
            jobs.shutdown(cancel_futures=True)
        killers = {test for mutant in drawn if (test := mutant.entry.get("killed_by")) in seconds}
        failed = [test for test, past in run_tests(home, f"-n{options.jobs}", *killers).items() if past is None]
        for entry in [mutant.entry for mutant in drawn if mutant.entry.get("killed_by") in failed]:
            print(f"to try again: {entry.pop('killed_by')} fails without the mutant, too")
        _write(about, drawn)


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return Path(entry["file"]).name, entry["which"], entry["before"], entry["after"]


def _end(entry: dict[str, Any]) -> str:
    if entry.get("killed_by"):
        return "killed"
    return "equivalent" if "reason" in entry else "survived" if "killed_by" in entry else "not_tried"


def _write(about: dict[str, Any], drawn: list[Mutant]) -> None:
    ends = Counter(_end(mutant.entry) for mutant in drawn)
    numbers = {end: ends[end] for end in ("killed", "equivalent", "survived", "not_tried")}
    record = about | numbers | {"mutants": [mutant.entry for mutant in drawn]}
    new = RECORD.with_suffix(".new")  # whole or not at all
    new.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    new.replace(RECORD)


def places_and_mutants(home: Path, sample: int, seed: int) -> tuple[int, list[Mutant]]:
    """Return how many places there are, and the first mutants of the seeded order."""

    def order(*what: Any) -> bytes:
        return sha256(repr((seed, *what)).encode()).digest()

    operators = {name: get_operator(name)() for name in operator_names() if not get_operator(name).arguments()}
    at: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for pattern in CORE:
        paths = sorted((home / "flashsim").glob(pattern))
        assert paths, f"a part of the core has another name now: {pattern}"
        for path in paths:
            file, source = str(path.relative_to(home)), path.read_text("utf-8")
            nodes = list(ast_nodes(get_ast(source)))
            for name, operator in operators.items():
                spots = (spot for node in nodes for spot in operator.mutation_positions(node))
                for number, ((line, column), (end, _)) in enumerate(spots):
                    at[path.name, *_line(source, line), column].append((name, file, source, number, line, end))
    drawn: list[Mutant] = []
    for place in sorted(at, key=lambda place: order(*place)):
        changes = sorted(at[place], key=lambda change: order(change[0], {}))
        drawn += next(([mutant] for change in changes if (mutant := made(*change))), [])
        if len(drawn) == sample:
            break
    return len(at), drawn


def made(operator: str, file: str, source: str, number: int, line: int, end: int) -> Mutant | None:
    """Return the mutant, or None if it is no Python or means the same: an annotation."""
    mutated = mutate_code(source, get_operator(operator)(), number)
    if _meaning(mutated) in (None, _meaning(source)):
        return None
    pairs = enumerate(zip(source.splitlines(), mutated.splitlines(), strict=False), 1)
    changed, after = next((number, new.strip()) for number, (old, new) in pairs if old != new)
    if source.count("\n") == mutated.count("\n"):  # else a decorator is gone: the others moved
        line = changed
    before, which = _line(source, line)
    return Mutant({"file": file, "line": line, "which": which, "before": before, "after": after}, mutated, end)


def _line(source: str, number: int) -> tuple[str, int]:
    """Return a line, and which of the lines that read so it is."""
    lines = [line.strip() for line in source.splitlines()[:number]]
    return lines[-1], lines.count(lines[-1])


@cache
def _meaning(source: str) -> str | None:
    with suppress(SyntaxError):
        tree = ast.parse(source)
        for node in ast.walk(tree):
            for name in {"annotation", "returns"}.intersection(node._fields):  # nothing evaluates them
                setattr(node, name, None)
        return ast.dump(tree)
    return None


def suite(home: Path, commit: str, jobs: int) -> tuple[Seconds, CoverageData]:
    """Return the tests' seconds unchanged, and who executes which line: kept, or found by running all."""
    kept = ROOT / ".mutation" / commit
    covered = CoverageData(str(kept / "covered"))
    if not (kept / "seconds.json").exists():
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "ini").write_text(f"[run]\nrelative_files = true\ndata_file = {kept}/covered\nsource = flashsim\n")
        took = run_tests(home, f"-n{jobs}", "--cov", f"--cov-config={kept}/ini", "--cov-context=test", "--cov-report=")
        print(f"{len(took)} tests. These fail unchanged:", *(test for test, past in took.items() if past is None))
        (kept / "seconds.json").write_text(json.dumps(took))
    covered.read()
    return json.loads((kept / "seconds.json").read_text()), covered


def tests_of(mutant: Mutant, seconds: Seconds, covered: CoverageData) -> list[str]:
    """Return the tests to try a mutant on, those likely to be enough first, and of these the quickest."""
    path, line = Path(mutant.entry["file"]), mutant.entry["line"]
    contexts = covered.contexts_by_lineno(str(path))

    def executing(lines: Iterable[int]) -> set[str]:
        parts = {tuple(name.rpartition("|")[::2]) for line in lines for name in contexts.get(line, ())}
        files = {_file(test) for test, part in parts if part == "setup"}  # a fixture may be for all tests of its file
        return {test for test, _ in parts} | {test for test in seconds if _file(test) in files}

    functions = [node for node in ast.walk(ast.parse(mutant.source)) if isinstance(node, ast.FunctionDef)]
    around = [node for node in functions if node.body[0].lineno <= line <= (node.end_lineno or 0)]
    once = not around or any("cache" in ast.unparse(decorator) for node in around for decorator in node.decorator_list)
    near, far = executing(range(line, mutant.end + 1)), executing(contexts)
    tests = [test for test in (near if near and not once else seconds) if seconds.get(test) is not None]
    names = {path.stem, path.parent.stem} - {"flashsim"}
    own = {test for test in near if any(name in _file(test) for name in names)}
    return sorted(tests, key=lambda test: (test not in own, test not in near, test not in far, seconds[test]))


def killer(mutant: Mutant, seconds: Seconds, covered: CoverageData, copies: SimpleQueue[Path]) -> str | None:
    """Return the test that fails with the mutant, or OUT_OF_TIME, or None."""
    tests, home = tests_of(mutant, seconds, covered), copies.get()
    path = home / mutant.entry["file"]
    source = path.read_text("utf-8")
    path.write_text(mutant.source, "utf-8")
    try:
        for few in filter(None, (tests[first:end] for first, end in pairwise((0, *FIRST, len(tests))))):
            found = run_tests(home, "-x", "-n0", *few, limit=SECONDS + sum(2 * (seconds[test] or 0) for test in few))
            if failed := [test for test, past in found.items() if past is None]:
                return failed[0]
        return None
    finally:
        path.write_text(source, "utf-8")
        copies.put(home)


def run_tests(home: Path, *arguments: str, limit: float | None = None) -> Seconds:
    """Run pytest in a copy; return the tests' seconds. Beyond a limit of processor time, it is OUT_OF_TIME that fails."""
    said = home / ".report.xml"
    said.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(home), "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    command, null = [sys.executable, *PYTEST, f"--junitxml={said}", *arguments], subprocess.DEVNULL
    with subprocess.Popen(command, cwd=home, env=environment, stdin=null, stdout=null, stderr=null) as run:
        if limit is not None:
            resource.prlimit(run.pid, resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit) + 1))
            resource.prlimit(run.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
    if run.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {OUT_OF_TIME: None}
    if run.returncode == pytest.ExitCode.USAGE_ERROR and any("::" in argument for argument in arguments):
        return run_tests(home, *dict.fromkeys(map(_file, arguments)), limit=limit)  # the mutant renames a test
    if run.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        raise RuntimeError(f"{command} ended with {run.returncode}")
    found: Seconds = {}
    for case in ElementTree.parse(said).iter("testcase"):
        name, file = case.get("name", ""), case.get("file")
        test = f"{file}::{name}" if file else f"{name.replace('.', '/')}.py"  # a file that could not be read
        found[test] = None if {"failure", "error"} & {part.tag for part in case} else float(case.get("time", 0))
    return found


def _file(test: str) -> str:
    return test.partition("::")[0]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()

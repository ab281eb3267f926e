"""Change the core in one place at a time and see which tests notice: figures/mutation.json.

    pip install -e ".[test,mutation]"
    python scripts/mutation.py            # 400 mutants, an hour or two on one core; started again, it goes on where it stopped
    python scripts/mutation.py --again    # tries those that survived once more, and those whose killer was edited since
    python scripts/mutation.py --most 60  # each meets a minute of tests at most; --again then gives survivors all

A mutant is one change at one place of the core, made by Cosmic Ray in a copy of the last commit. Places are drawn first, then
one of the changes possible there, so that a `*`, which can become eleven other signs, counts once. Both are drawn by a hash of
the line and the seed: an edit elsewhere does not change what is drawn. First the tests run once, unchanged, and coverage.py notes
which of them executes which line. A mutant then meets the tests that execute its statement, the quickest first, up to the first
that fails. What is executed at import, or once for all tests, meets all. Hypothesis draws the same examples every time. A
survivor's "reason" in the record, written by hand and kept, says why no test can tell it; without one, a test is missing.

What tools do not do: mutmut 3 writes all mutants of a function into its file, where tests that read the source fail as it is.
Cosmic Ray's own runner has one command for all mutants, and a limit by the clock on the wall, as pytest-timeout has: on a busy
machine that is no kill. pytest-testmon chooses tests by the function that they call, not by the line.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import json
import math
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from itertools import accumulate, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from cosmic_ray.commands.init import _all_work_items
from cosmic_ray.mutating import mutate_code, use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_item import MutationSpec
from coverage import CoverageData

from flashsim.files import write_whole

Mutant = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "figures/mutation.json"
CORE = (
    "memory.py", "matrices.py", "masks.py", "tile_masks.py", "tree_mask.py", "band.py", "live.py", "dropout.py", "groups.py",
    "cache.py", "tune.py", "reference/*.py", "run/*.py", "theory/*.py", "algorithms/*.py",
)  # fmt: skip
PYTEST = ["--tb=no", "-pno:cacheprovider", "--hypothesis-profile=mutants", "-Wignore:Module already imported"]
WARM = ("hypothesis.extra.numpy", "ml_dtypes", "matplotlib.figure", "matplotlib.backends.backend_agg", "rich.console")
OUT_OF_TIME = "timeout"
FIRST = (20, 200)  # so many of the likely tests are tried before the files of the others are read
SECONDS = 30  # of processor time: for reading the tests, and for a test beyond ten times what it took unchanged
LONGEST = 3600  # for what a test starts
MEMORY = 8 << 30  # bytes
FORK = multiprocessing.get_context("fork")


def main() -> None:
    """Draw, run the tests once, try, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=400, help="mutants. Default: 400")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which they are drawn. Default: 0")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at once. Default: 1")
    parser.add_argument(
        "--most", type=float, default=math.inf, help="seconds of tests that a mutant meets. Default: all"
    )
    parser.add_argument("--again", action="store_true", help="try again what the tests' last changes may have decided")
    options = parser.parse_args()
    commit = _git("rev-parse", "--short", "HEAD").strip()
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs, FORK, _copied, (folder,)) as jobs:
        _copied(folder)
        places, drawn = places_and_mutants(options.sample, options.seed)
        suite(commit, options.jobs)
        known = _known(options.again)
        tried = [known.get(_key(mutant), mutant) | {"line": mutant["line"]} for mutant, _ in drawn]
        untried = [n for n, mutant in enumerate(tried) if not (mutant.get("reason") or mutant.get("commit"))]
        started = {jobs.submit(killer, drawn[n][1], commit, options.most): tried[n] for n in untried}
        try:
            for number, found in enumerate(as_completed(started), 1):
                mutant, error = started[found], found.exception()
                mutant |= {} if error else {"killed_by": found.result(), "commit": commit}
                said = error or mutant["killed_by"]
                print(f"{number:4} {mutant['file']}:{mutant['line']}  {mutant['after']}  {said}", flush=True)
                _write(tried, places, options)
        finally:
            jobs.shutdown(cancel_futures=True)
        _write(tried, places, options)


def _copied(folder: str) -> None:
    """Go to a copy of the last commit, of this process alone."""
    home = str(Path(folder, str(os.getpid())))
    _git("clone", "--quiet", "--shared", str(ROOT), home)
    os.chdir(home)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # The epoch: bytecode goes by the source's hash, for a mutant may be as long as the original, and of the same second.
    os.environ |= {"PYTHONPATH": home, "OPENBLAS_NUM_THREADS": "1", "SOURCE_DATE_EPOCH": "0"}
    compileall.compile_dir("flashsim", quiet=1)


def places_and_mutants(sample: int, seed: int) -> tuple[int, list[tuple[Mutant, MutationSpec]]]:
    """Return how many places there are, and the first mutants of the seeded order."""

    def order(*what: Any) -> bytes:
        return sha256(repr((seed, *what)).encode()).digest()

    at: dict[tuple[Any, ...], list[MutationSpec]] = defaultdict(list)
    for spec in (spec for item in _all_work_items(_core(), {}) for spec in item.mutations):
        line, column = spec.start_pos
        at[spec.module_path.name, *_line(_text(spec.module_path), line), column].append(spec)
    drawn: list[tuple[Mutant, MutationSpec]] = []
    for place in sorted(at, key=lambda place: order(*place)):
        changes = sorted(at[place], key=lambda spec: order(spec.operator_name, spec.operator_args))
        drawn += next(([(mutant, spec)] for spec in changes if (mutant := described(spec))), [])
        if len(drawn) == sample:
            break
    return len(at), drawn


def _core() -> list[Path]:
    found = {pattern: sorted(Path("flashsim").glob(pattern)) for pattern in CORE}
    assert all(found.values()), f"a part of the core has another name now: {found}"
    return [path for paths in found.values() for path in paths]


def described(spec: MutationSpec) -> Mutant | None:
    """Return the mutant as the record has it, or None if it is no Python or means the same: an annotation."""
    source = _text(spec.module_path)
    mutated = mutate_code(source, get_operator(spec.operator_name)(**spec.operator_args), spec.occurrence)
    if mutated is None or _meaning(mutated) in (None, _meaning(source)):
        return None
    pairs = enumerate(zip(source.splitlines(), mutated.splitlines(), strict=False), 1)
    line, after = next((number, new.strip()) for number, (old, new) in pairs if old != new)
    if source.count("\n") != mutated.count("\n"):  # a decorator is gone: the others moved
        line = spec.start_pos[0]
    before, which = _line(source, line)
    return {"file": str(spec.module_path), "line": line, "which": which, "before": before, "after": after}


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


@cache
def suite(commit: str, jobs: int = 1) -> tuple[dict[str, float | None], CoverageData]:
    """Return the tests' seconds unchanged, None if they fail, and who executes which line: kept, or found by running all."""
    kept = ROOT / ".mutation" / commit
    if not (kept / "seconds.json").exists():
        kept.mkdir(parents=True, exist_ok=True)
        core = "".join(f"\n  {path}" for path in _core())
        write_whole(kept / "ini", f"[run]\nrelative_files = true\ndata_file = {kept}/covered\ninclude ={core}\n")
        watch = run_tests([f"-n{jobs}", "--cov", f"--cov-config={kept}/ini", "--cov-context=test", "--cov-report="])
        write_whole(kept / "seconds.json", json.dumps(watch.seconds | dict.fromkeys(watch.failed)))
        print(f"{len(watch.seconds)} tests, of which {len(watch.failed)} fail unchanged: {watch.failed}")
    covered = CoverageData(str(kept / "covered"))
    covered.read()
    return json.loads(_text(kept / "seconds.json")), covered


def tests_of(spec: MutationSpec, commit: str, most: float) -> list[str]:
    """Return the tests to try a mutant on, those likely to be enough first, and of these the quickest."""
    seconds, covered = suite(commit)
    contexts = covered.contexts_by_lineno(str(spec.module_path))

    def executing(lines: Iterable[int]) -> set[str]:
        parts = {tuple(name.rpartition("|")[::2]) for line in lines for name in contexts.get(line, ())}
        files = {_file(test) for test, part in parts if part == "setup"}  # a fixture may be for all tests of its file
        return {test for test, _ in parts} | {test for test in seconds if _file(test) in files}

    functions = [node for node in ast.walk(ast.parse(_text(spec.module_path))) if isinstance(node, ast.FunctionDef)]
    around = [node for node in functions if node.body[0].lineno <= spec.start_pos[0] <= (node.end_lineno or 0)]
    once = not around or any("cache" in ast.unparse(decorator) for node in around for decorator in node.decorator_list)
    near, far = executing(range(spec.start_pos[0], spec.end_pos[0] + 1)), executing(contexts)
    took = {test: past for test in (near if near and not once else seconds) if (past := seconds.get(test)) is not None}
    names = {spec.module_path.stem, spec.module_path.parent.stem} - {"flashsim"}
    own = {test for test in near if any(name in _file(test) for name in names)}
    tests = sorted(took, key=lambda test: (test not in own, test not in near, test not in far, took[test]))
    return [test for test, past in zip(tests, accumulate(map(took.__getitem__, tests)), strict=True) if past <= most]


class _Watch:
    """A plugin of pytest: chooses tests and their order, limits their time, and notes how they end."""

    def __init__(self, limits: dict[str, float], known: set[str]) -> None:
        self.limits = limits  # the tests to run, in order; seconds of processor time. None: all, as long as they take
        self.known = known  # the tests there are without a mutant
        self.seconds: dict[str, float | None] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {test: number for number, test in enumerate(self.limits)}
        if order:  # leave those to run, and those that only the mutant has
            chosen = [item for item in items if item.nodeid in order or item.nodeid not in self.known]
            items[:] = sorted(chosen, key=lambda item: order.get(item.nodeid, len(order)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.limits:
            signal.setitimer(signal.ITIMER_PROF, self.limits.get(nodeid, SECONDS))  # which ends the process

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = (self.seconds.get(report.nodeid) or 0) + report.duration
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        self.failed += [report.nodeid] if report.failed else []


def killer(spec: MutationSpec, commit: str, most: float) -> str | None:
    """Return the test that fails with the mutant, and passes without it, or OUT_OF_TIME, or None."""
    seconds, tests = suite(commit)[0], tests_of(spec, commit, most)

    def first_failure(tests: list[str]) -> str | None:
        limits = {test: 10 * (seconds.get(test) or 0) + SECONDS for test in tests}
        files = sorted(set(map(_file, tests)))
        return next(iter(run_tests(["-x", "-n0", *files], limits, set(seconds)).failed), None) if tests else None

    with use_mutation(spec.module_path, get_operator(spec.operator_name)(**spec.operator_args), spec.occurrence):
        batches = (tests[first:end] for first, end in pairwise((0, *FIRST, len(tests))))
        failed = next(filter(None, map(first_failure, batches)), None)
    if failed in (None, OUT_OF_TIME) or first_failure([failed]) is None:
        return failed
    print(f"{failed} fails without a mutant, too")
    seconds[failed] = None
    return killer(spec, commit, most)


def run_tests(options: list[str], limits: dict[str, float] | None = None, known: set[str] | None = None) -> _Watch:
    """Run pytest in a copy of this process, which has the libraries loaded and flashsim not. Return what was watched."""
    for name in WARM:
        import_module(name)
    watch = _Watch(limits or {}, known or set())
    with tempfile.TemporaryFile("w+") as said:
        reader, writer = FORK.Pipe(duplex=False)
        child = FORK.Process(target=_pytest, args=(options, watch, writer, said.fileno()))
        child.start()
        writer.close()
        try:
            with suppress(EOFError):
                watch = reader.recv()
            child.join()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid or 0, signal.SIGKILL)  # at Ctrl-C; else what a test left running
        if child.exitcode in (-signal.SIGPROF, -signal.SIGXCPU):
            watch.failed = [OUT_OF_TIME]
        if child.exitcode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not watch.failed:
            said.seek(0)
            raise RuntimeError(f"The tests ended with {child.exitcode}:\n{said.read()}")
    return watch


def _pytest(options: list[str], watch: _Watch, writer: Connection, said: int) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    os.dup2(said, 1)
    os.dup2(said, 2)
    if watch.limits:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST))
    for name in [name for name in sys.modules if name.partition(".")[0] == "flashsim"]:
        del sys.modules[name]
    sys.path.insert(0, os.getcwd())
    try:
        sys.exit(pytest.main([*PYTEST, *options], plugins=[watch]))
    finally:  # a mutant may spoil pytest's end, too
        signal.setitimer(signal.ITIMER_PROF, 0)
        writer.send(watch)


def _known(again: bool) -> dict[tuple[Any, ...], Mutant]:
    """Return what the record says of each mutant, less, to try `again`, what an edited test may decide otherwise."""
    known = {_key(mutant): mutant for mutant in json.loads(_text(RECORD))["mutants"]} if RECORD.exists() else {}
    for mutant in known.values() if again else ():
        test, commit = mutant.get("killed_by"), mutant.get("commit")
        if commit and (not test or _git("diff", "--name-only", commit, "HEAD", "--", _file(test))):
            mutant["killed_by"] = None
            del mutant["commit"]
    return known


def _write(tried: list[Mutant], places: int, options: argparse.Namespace) -> None:
    ends = Counter(
        "equivalent" if mutant.get("reason") else "not_tried" if "commit" not in mutant
        else "killed" if mutant["killed_by"] else "survived"
        for mutant in tried
    )  # fmt: skip
    record = {
        "command": f"python scripts/mutation.py --sample {options.sample} --seed {options.seed}",
        "versions": {name: version(name) for name in ("cosmic-ray", "coverage", "pytest", "hypothesis", "numpy")},
        "python": sys.version.split()[0],
        "places": places,
        **{end: ends[end] for end in ("killed", "equivalent", "survived", "not_tried")},
        "commits": dict(Counter(mutant["commit"] for mutant in tried if "commit" in mutant)),
        "mutants": tried,
    }
    write_whole(RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _key(mutant: Mutant) -> tuple[Any, ...]:
    return Path(mutant["file"]).name, mutant["which"], mutant["before"], mutant["after"]


def _file(test: str) -> str:
    return test.partition("::")[0]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()

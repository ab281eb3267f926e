"""Change the core in one place at a time and see which tests notice: figures/mutation.json.

    pip install -e ".[test,mutation]"
    python scripts/mutation.py            # 400 mutants, an hour or two on one core; started again, it goes on where it stopped
    python scripts/mutation.py --again    # tries those that survived once more, and those whose killer was edited since

A mutant is one change at one place of the core, made by Cosmic Ray in a copy of the last commit. Places are drawn first, then
one of the changes possible there, so that a `*`, which can become eleven other signs, counts once. Both are drawn by a hash of
the line and the seed: an edit elsewhere does not change what is drawn. Annotations are left out: nothing evaluates them.

First the tests run once, unchanged, and coverage.py notes which of them executes which line. A mutant then meets the tests that
execute its statement, the quickest first, up to the first that fails. What is executed at import, or once for all tests, meets
those that call the module's functions, then all others. Hypothesis draws the same examples every time. A survivor's "reason" in
the record says why no test can tell it from the original: written there by hand, it is kept. Without a reason, a test is
missing.

Why Cosmic Ray and not mutmut: mutmut 3 writes all mutants of a function into its file, side by side, and chooses one while
tests run. Tests that read the source (`test_labels_run_from_1_to_n_in_order`, for one) fail there before anything is changed.
Cosmic Ray changes the file itself, one place at a time, and also what is outside functions.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import json
import multiprocessing
import os
import platform
import py_compile
import resource
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from io import BytesIO
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from cosmic_ray.commands.init import _all_work_items
from cosmic_ray.mutating import mutate_code, use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_item import MutationSpec
from coverage import CoverageData

Mutant = dict[str, Any]
Key = tuple[str, int, str, str]
Place = tuple[str, str, int, int]  # file's name, line, which of the lines that read so, column
ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "figures/mutation.json"
CORE = (
    "memory.py", "matrices.py", "masks.py", "tile_masks.py", "tree_mask.py", "band.py", "live.py", "dropout.py", "groups.py",
    "cache.py", "tune.py", "reference/*.py", "run/*.py", "theory/*.py", "algorithms/*.py",
)  # fmt: skip
PYTEST = ["--tb=no", "-pno:cacheprovider", "--hypothesis-profile=mutants", "-Wignore:Module already imported"]
WARM = ("hypothesis.extra.numpy", "ml_dtypes", "matplotlib.figure", "matplotlib.backends.backend_agg", "rich.console")
OUT_OF_TIME = "timeout"
FIRST = 100  # of the tests that execute a line are tried before the files of the others are read
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
    parser.add_argument("--again", action="store_true", help="try again what the tests' last changes may have decided")
    options = parser.parse_args()
    commit = _git("rev-parse", "--short", "HEAD").decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        _copied(folder)
        count, drawn = places_and_mutants(options.sample, options.seed)
        run_all_tests(commit, options.jobs)
        known = _known(options.again)
        tried = [known.get(_key(mutant), mutant) | {"line": mutant["line"]} for _, mutant in drawn]
        with ProcessPoolExecutor(options.jobs, FORK, _copied, (f"{folder}/jobs",)) as jobs:
            started = {
                jobs.submit(killer, spec, commit): mutant
                for (spec, _), mutant in zip(drawn, tried, strict=True)
                if not (mutant.get("reason") or mutant.get("commit"))
            }
            for number, found in enumerate(as_completed(started), 1):
                mutant = started[found]
                if found.exception():
                    print(f"{mutant['file']}:{mutant['line']}  {mutant['after']}: {found.exception()}")
                    continue
                mutant |= {"killed_by": found.result(), "commit": commit}
                print(
                    f"{number:4} {mutant['file']}:{mutant['line']}  {mutant['after']}  {mutant['killed_by']}",
                    flush=True,
                )
                _write(tried, count, options)
        _write(tried, count, options)


def _copied(folder: str) -> None:
    """Go to a copy of the last commit, of this process alone."""
    home = Path(folder, str(os.getpid()))
    with tarfile.open(fileobj=BytesIO(_git("archive", "HEAD"))) as archive:
        archive.extractall(home, filter="data")
    os.chdir(home)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ |= {"PYTHONPATH": str(home), "OPENBLAS_NUM_THREADS": "1"}
    # a mutant may be as long as the original, and written in the same second
    compileall.compile_dir("flashsim", quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


# ------------------------------------------------------------------------------------------------------------- mutants


def places_and_mutants(sample: int, seed: int) -> tuple[int, list[tuple[MutationSpec, Mutant]]]:
    """Return how many places there are, and the first mutants of the seeded order with their lines before and after."""

    def order(*what: Any) -> bytes:
        return sha256(repr((seed, *what)).encode()).digest()

    at: dict[Place, list[MutationSpec]] = {}
    for item in _all_work_items(_core(), {}):
        for spec in item.mutations:
            line, column = spec.start_pos
            before, which = _line(spec.module_path.read_text(encoding="utf-8"), line)
            at.setdefault((spec.module_path.name, before, which, column), []).append(spec)
    drawn: list[tuple[MutationSpec, Mutant]] = []
    for place in sorted(at, key=lambda place: order(*place)):
        if len(drawn) == sample:
            break
        changes = sorted(at[place], key=lambda spec: order(spec.operator_name, spec.operator_args))
        drawn += islice(((spec, mutant) for spec in changes if (mutant := described(spec))), 1)
    return len(at), drawn


def _core() -> Iterator[Path]:
    for pattern in CORE:
        if not (found := sorted(Path("flashsim").glob(pattern))):
            sys.exit(f"there is no flashsim/{pattern}")
        yield from found


def described(spec: MutationSpec) -> Mutant | None:
    """Return the mutant as the record has it, or None if it is no Python or means the same: an annotation."""
    source = spec.module_path.read_text(encoding="utf-8")
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
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        for name in {"annotation", "returns"}.intersection(node._fields):
            setattr(node, name, None)
    return ast.dump(tree)


# ---------------------------------------------------------------------------------------------------- which tests to run


@dataclass(frozen=True, eq=False)
class Suite:
    """What the tests do unchanged: seconds by test, None where it fails, and which test executes which line."""

    seconds: dict[str, float | None]
    covered: CoverageData

    def quickest(self, tests: Iterable[str]) -> list[str]:
        """Return those that pass, the quickest first."""
        took = {test: seconds for test in tests if (seconds := self.seconds.get(test)) is not None}
        return sorted(took, key=took.__getitem__)

    def that_execute(self, path: Path, lines: Iterable[int]) -> list[str]:
        """Return the tests that execute one of the lines of a file, the quickest first.

        What a fixture executed may have been for all tests of its file.
        """
        contexts = self.covered.contexts_by_lineno(str(path))
        parts = {tuple(name.rpartition("|")[::2]) for line in lines for name in contexts.get(line, ())}
        files = {_file(test) for test, part in parts if part == "setup"}
        return self.quickest([*(test for test, _ in parts), *(test for test in self.seconds if _file(test) in files)])


def run_all_tests(commit: str, jobs: int) -> None:
    """Run all tests, unchanged, and keep what `suite` reads, unless it is kept already."""
    kept = _kept(commit)
    if (kept / "seconds.json").exists():
        return
    kept.mkdir(parents=True, exist_ok=True)
    core = "".join(f"\n  {path}" for path in _core())
    _save(kept / "coverage.ini", f"[run]\nrelative_files = true\ndata_file = {kept}/covered\ninclude ={core}\n")
    covering = ["--cov", f"--cov-config={kept}/coverage.ini", "--cov-context=test", "--cov-report="]
    watch = run_tests([f"-n{jobs}", *covering], Watch({}, set()))
    _save(kept / "seconds.json", json.dumps(watch.seconds))
    print(f"{len(watch.seconds)} tests, of which {len(watch.failed)} fail unchanged: {watch.failed}")


@cache
def suite(commit: str) -> Suite:
    """Return what is known of the tests at a commit."""
    covered = CoverageData(str(_kept(commit) / "covered"))
    covered.read()
    return Suite(json.loads((_kept(commit) / "seconds.json").read_text()), covered)


def _kept(commit: str) -> Path:
    return ROOT / ".mutation" / commit


def batches(spec: MutationSpec, suite: Suite) -> Iterator[list[str]]:
    """Yield the tests to try a mutant on: first those likely to be enough, then the rest."""
    path, line = spec.module_path, spec.start_pos[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines, at_import = executed_with(tree, line)
    tests = suite.that_execute(path, lines)
    if at_import or not tests:
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        tests += suite.that_execute(path, (line for function in functions for line in _body(function)))
        tests = list(dict.fromkeys([*tests, *suite.quickest(suite.seconds)]))
    yield tests[:FIRST]
    yield tests[FIRST:]


def executed_with(tree: ast.Module, line: int) -> tuple[range, bool]:
    """Return the lines of the statement that a line is in, and whether it is executed at import, or once for all tests.

    Of a function that is defined at import, these are its body's lines: who calls it, meets its defaults.
    """
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and line in _span(node)]
    statement, functions = around[-1], [node for node in around if isinstance(node, ast.FunctionDef)]
    if functions == [statement]:
        return _body(functions[0]), True
    cached = any("cache" in ast.unparse(decorator) for node in functions for decorator in node.decorator_list)
    body = getattr(statement, "body", None)
    return range(_span(statement).start, _span(body[0] if body else statement).stop), cached or not functions


def _span(node: ast.stmt) -> range:
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return range(first, (node.end_lineno or first) + 1)


def _body(function: ast.FunctionDef) -> range:
    return range(function.body[0].lineno, (function.end_lineno or 0) + 1)


def _file(test: str) -> str:
    return test.partition("::")[0]


# --------------------------------------------------------------------------------------------------------------- tests


@dataclass(eq=False)
class Watch:
    """A plugin of pytest: chooses tests and their order, limits their time, and notes how they end."""

    limits: dict[str, float]  # the tests to run, in order; seconds of processor time. None: all, as long as they take
    known: set[str]  # the tests there are without a mutant
    seconds: dict[str, float | None] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave those to run, and those that only the mutant has."""
        if self.limits:
            order = {test: number for number, test in enumerate(self.limits)}
            chosen = [item for item in items if item.nodeid in order or item.nodeid not in self.known]
            items[:] = sorted(chosen, key=lambda item: order.get(item.nodeid, len(order)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Start the clock, which ends the process."""
        if self.limits:
            signal.setitimer(signal.ITIMER_PROF, self.limits.get(nodeid, SECONDS))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a part of a test says of it."""
        if report.failed:
            self.failed.append(report.nodeid)
        past = self.seconds.get(report.nodeid, 0.0)
        self.seconds[report.nodeid] = None if report.failed or past is None else past + report.duration

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be read."""
        if report.failed:
            self.failed.append(report.nodeid)


def killer(spec: MutationSpec, commit: str) -> str | None:
    """Return the test that fails with the mutant, and passes without it, or OUT_OF_TIME, or None."""
    tests = suite(commit)
    operator = get_operator(spec.operator_name)(**spec.operator_args)
    with use_mutation(spec.module_path, operator, spec.occurrence):
        failed = next((failed for batch in batches(spec, tests) if (failed := first_failure(batch, tests))), None)
    if failed in (None, OUT_OF_TIME) or first_failure([failed], tests) is None:
        return failed
    print(f"{failed} fails without a mutant, too")
    tests.seconds[failed] = None
    return killer(spec, commit)


def first_failure(tests: list[str], suite: Suite) -> str | None:
    """Return the first test that fails, or OUT_OF_TIME, or None."""
    limits = {test: 10 * (suite.seconds.get(test) or 0) + SECONDS for test in tests}
    if not tests:
        return None
    watch = run_tests(["-x", "-n0", *sorted({_file(test) for test in tests})], Watch(limits, set(suite.seconds)))
    return next(iter(watch.failed), None)


def run_tests(options: list[str], watch: Watch) -> Watch:
    """Run pytest in a copy of this process, which has the libraries loaded and flashsim not. Return what was watched."""
    for name in WARM:
        import_module(name)
    with tempfile.TemporaryFile("w+") as said:
        reader, writer = FORK.Pipe(duplex=False)
        child = FORK.Process(target=_pytest, args=(options, watch, writer, said.fileno()))
        child.start()
        writer.close()
        with suppress(EOFError):
            watch = reader.recv()
        child.join()
        with suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)  # what a test left running
        if child.exitcode in (-signal.SIGPROF, -signal.SIGXCPU):
            return replace(watch, failed=[OUT_OF_TIME])
        if child.exitcode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not watch.failed:
            said.seek(0)
            raise RuntimeError(f"The tests ended with {child.exitcode}:\n{said.read()}")
    return watch


def _pytest(options: list[str], watch: Watch, writer: Connection, said: int) -> None:
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
    sys.path.insert(0, str(Path.cwd()))
    try:
        sys.exit(pytest.main([*PYTEST, *options], plugins=[watch]))
    finally:  # a mutant may spoil pytest's end, too
        signal.setitimer(signal.ITIMER_PROF, 0)
        writer.send(watch)


# -------------------------------------------------------------------------------------------------------------- record


def _known(again: bool) -> dict[Key, Mutant]:
    """Return what the record says of each mutant, less, to try `again`, what an edited test may decide otherwise."""
    if not RECORD.exists():
        return {}
    known = {_key(mutant): mutant for mutant in json.loads(RECORD.read_text(encoding="utf-8"))["mutants"]}
    for mutant in known.values() if again else ():
        test = mutant.get("killed_by")
        if "commit" in mutant and (
            not test or _git("diff", "--name-only", mutant["commit"], "HEAD", "--", _file(test))
        ):
            mutant |= {"killed_by": None}
            del mutant["commit"]
    return known


def _write(tried: list[Mutant], places: int, options: argparse.Namespace) -> None:
    killed = sum(bool(mutant.get("killed_by")) for mutant in tried)
    equivalent = sum(bool(mutant.get("reason")) for mutant in tried)
    untried = sum("commit" not in mutant and not mutant.get("reason") for mutant in tried)
    arguments = ["--sample", str(options.sample), "--seed", str(options.seed)]
    record = {
        "command": shlex.join(["python", "scripts/mutation.py", *arguments]),
        "versions": {name: version(name) for name in ("cosmic-ray", "coverage", "pytest", "hypothesis", "numpy")},
        "python": platform.python_version(),
        "places": places,
        "killed": killed,
        "equivalent": equivalent,
        "survived": len(tried) - killed - equivalent - untried,
        "not_tried": untried,
        "commits": dict(Counter(mutant["commit"] for mutant in tried if "commit" in mutant)),
        "mutants": tried,
    }
    _save(RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _save(path: Path, text: str) -> None:
    from flashsim.files import write_whole  # not before: the tests' processes load the copy's

    write_whole(path, text)


def _key(mutant: Mutant) -> Key:
    return Path(mutant["file"]).name, mutant["which"], mutant["before"], mutant["after"]


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()

"""Change the core in one place at a time and see which tests notice: figures/mutation.json.

    pip install -e ".[test,mutation]"
    python scripts/mutation.py            # 400 mutants, hours on one core; started again, it goes on where it stopped
    python scripts/mutation.py --again    # tries those that survived once more, and those whose killer was edited since

A mutant is one change at one place of the core, made by Cosmic Ray in a copy of the last commit. Places are drawn first, then
one of the changes possible there, so that a `*`, which can become eleven other signs, counts once. Annotations are left out:
nothing evaluates them. First come the tests that are likely to fail (LIKELY); those that survive them meet all that
`pytest` runs. Hypothesis draws the same examples every time. A survivor's "reason" in the record says why no test can tell it
from the original: written there by hand, it is kept. Without a reason, a test is missing.

Why Cosmic Ray and not mutmut: mutmut 3 writes all mutants of a function into its file, side by side, and chooses one while
tests run. Tests that read the source (`test_labels_run_from_1_to_n_in_order`, for one) fail there before anything is changed.
Cosmic Ray changes the file itself, one place at a time, and also what is outside functions.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

from cosmic_ray.commands.init import _all_work_items
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import MutationSpec, TestOutcome

from flashsim.files import write_whole

Key = tuple[str, int, str, str]
ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "figures/mutation.json"
CORE = (
    "memory.py", "masks.py", "band.py", "live.py",
    "dropout.py", "groups.py", "variant.py", "reference.py", "cache.py", "tune.py", "theory/*.py",
    "algorithms/*.py",
)  # fmt: skip
LIKELY = {  # what is mutated, and the tests that are likely to notice: the first pattern that fits counts
    "memory.py": "memory algorithms trace cache theory",
    "masks.py": "masks tree_masks band",
    "band.py": "band",
    "live.py": "band split_kv block_sparse",
    "dropout.py": "dropout",
    "groups.py": "gqa",
    "variant.py": "api own masks block_sparse dropout split_kv gqa",
    "reference.py": "reference_bounds reference",
    "cache.py": "cache",
    "tune.py": "tune",
    "theory/bounds.py": "theory small_cache block_sparse machines",
    "theory/live.py": "band theory block_sparse",
    "theory/*standard*": "theory tree_masks -k standard",
    "theory/passes.py": "theory tree_masks -k standard",
    "theory/q_outer*": "q_outer theory tree_masks gqa -k q_outer",
    "theory/split_kv.py": "split_kv theory tree_masks gqa -k split_kv",
    "theory/appendix_b*": "theory tree_masks gqa -k rabe_staats or memory_efficient",
    "theory/algorithm_*": "theory tree_masks gqa -k flash or block_sparse",
    "theory/small_cache.py": "small_cache theory -k small_cache",
    "theory/*": "theory small_cache split_kv gqa",
    "algorithms/*q_outer*": "q_outer algorithms backward theory -k q_outer",
    "algorithms/*split_kv*": "split_kv",
    "algorithms/small_cache.py": "small_cache",
    "algorithms/*": "algorithms backward block_sparse dropout theory tree_masks",
}
OUT_OF_TIME = "timeout"  # in Cosmic Ray's word
SECONDS = {"likely": 150, "all": 900}  # of processor time: what never ends is noticed


def main() -> None:
    """Draw, try, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=400, help="mutants. Default: 400")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which they are drawn. Default: 0")
    parser.add_argument("--again", action="store_true", help="try again what the tests' last changes may have decided")
    options = parser.parse_args()
    commit = _git("rev-parse", "--short", "HEAD").decode().strip()
    with tempfile.TemporaryDirectory() as copy:
        with tarfile.open(fileobj=BytesIO(_git("archive", "HEAD"))) as archive:
            archive.extractall(copy, filter="data")
        os.chdir(copy)
        os.environ |= {"PYTHONPATH": copy, "OPENBLAS_NUM_THREADS": "1"}
        count, drawn = places_and_mutants(options.sample, options.seed)
        known = _known(options.again)
        tried = [known.get(_key(mutant), mutant) for _, mutant in drawn]
        for stage in ("likely", "all"):
            for number, ((spec, _), mutant) in enumerate(zip(drawn, tried, strict=True), 1):
                if mutant.get("killed_by") or mutant.get("reason") or mutant.get("tried") in (stage, "all"):
                    continue
                mutant |= {"killed_by": killer(spec, stage), "tried": stage, "commit": commit}
                print(
                    f"{number:4} {mutant['file']}:{mutant['line']}  {mutant['after']}  {mutant['killed_by']}",
                    flush=True,
                )
                _write(tried, count, options)


# ------------------------------------------------------------------------------------------------------------- mutants


def places_and_mutants(sample: int, seed: int) -> tuple[int, list[tuple[MutationSpec, dict[str, Any]]]]:
    """Return how many places there are, and the first mutants of the seeded order with their lines before and after."""
    at: dict[tuple[Path, Any], list[MutationSpec]] = {}
    for item in _all_work_items(_core(), {}):
        for spec in item.mutations:
            at.setdefault((spec.module_path, spec.start_pos), []).append(spec)
    rng = random.Random(seed)
    places = list(at.values())
    rng.shuffle(places)
    drawn: list[tuple[MutationSpec, dict[str, Any]]] = []
    for changes in places:
        if len(drawn) == sample:
            break
        rng.shuffle(changes)
        found = next(((spec, mutant) for spec in changes if (mutant := described(spec))), None)
        drawn += [found] if found else []
    return len(places), drawn


def _core() -> Iterator[Path]:
    for pattern in CORE:
        yield from sorted(Path("flashsim").glob(pattern))


def described(spec: MutationSpec) -> dict[str, Any] | None:
    """Return the mutant as the record has it, or None if it is no Python or means the same: an annotation."""
    source = spec.module_path.read_text(encoding="utf-8")
    mutated = mutate_code(source, get_operator(spec.operator_name)(**spec.operator_args), spec.occurrence)
    if mutated is None or _meaning(mutated) in (None, _meaning(source)):
        return None
    lines = zip(source.splitlines(), mutated.splitlines(), strict=False)
    line, before, after = next((n, a.strip(), b.strip()) for n, (a, b) in enumerate(lines, 1) if a != b)
    return {"file": str(spec.module_path), "line": line, "before": before, "after": after}


def _meaning(source: str) -> str | None:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        for name in {"annotation", "returns"}.intersection(node._fields):
            setattr(node, name, None)
    return ast.dump(tree)


# --------------------------------------------------------------------------------------------------------------- tests


def killer(spec: MutationSpec, stage: str) -> str | None:
    """Return the test that fails with the mutant, and passes without it, or None. Exits if it fails without it, too."""
    chosen = ["tests"]
    if stage == "likely":
        path = spec.module_path.relative_to("flashsim").as_posix()
        files, _, names = next(LIKELY[pattern] for pattern in LIKELY if fnmatch(path, pattern)).partition(" -k ")
        chosen = [f"tests/test_{file}.py" for file in files.split()] + (["-k", names] if names else [])
    result = mutate_and_test([spec], _command(chosen, SECONDS[stage]), timeout=10 * SECONDS[stage])
    if result.test_outcome == TestOutcome.SURVIVED:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", result.output or "", re.MULTILINE)
    if failed is None:
        if OUT_OF_TIME not in (result.output or OUT_OF_TIME):
            sys.exit(f"The tests were ended from outside:\n{result.output}")
        return OUT_OF_TIME
    if not _passes(failed[1]):
        sys.exit(f"{failed[1]} fails without a mutant, too")
    return failed[1]


@cache
def _passes(test: str) -> bool:
    outcome, _ = run_tests(_command([test], SECONDS["all"]), timeout=10 * SECONDS["all"])
    return bool(outcome == TestOutcome.SURVIVED)


def _command(chosen: list[str], seconds: int) -> str:
    pytest = [sys.executable, "-m", "pytest", "-x", "-n0", "--tb=no", "-rfE", "-pno:cacheprovider"]
    tests = shlex.join([*pytest, "--hypothesis-profile=mutants", *chosen])
    return shlex.join(
        ["bash", "-c", f"ulimit -St {seconds}; {tests} || {{ [ $? = 152 ] && echo {OUT_OF_TIME}; false; }}"]
    )


# -------------------------------------------------------------------------------------------------------------- record


def _known(again: bool) -> dict[Key, dict[str, Any]]:
    """Return what the record says of each mutant, less, to try `again`, what an edited test may decide otherwise."""
    if not RECORD.exists():
        return {}
    known = {_key(mutant): mutant for mutant in json.loads(RECORD.read_text(encoding="utf-8"))["mutants"]}
    for mutant in known.values() if again else ():
        file = (mutant.get("killed_by") or "").partition("::")[0]
        if not file or _git("diff", "--name-only", mutant["commit"], "HEAD", "--", file):
            mutant |= {"killed_by": None, "tried": None}
    return known


def _write(tried: list[dict[str, Any]], places: int, options: argparse.Namespace) -> None:
    killed = sum(bool(mutant.get("killed_by")) for mutant in tried)
    equivalent = sum(bool(mutant.get("reason")) for mutant in tried)
    survived = sum(
        mutant.get("tried") == "all" and not mutant["killed_by"] and not mutant.get("reason") for mutant in tried
    )
    record = {
        "command": shlex.join(
            ["python", "scripts/mutation.py", "--sample", str(options.sample), "--seed", str(options.seed)]
        ),
        "versions": {name: version(name) for name in ("cosmic-ray", "pytest", "hypothesis", "numpy")},
        "python": platform.python_version(),
        "places": places,
        "killed": killed,
        "equivalent": equivalent,
        "survived": survived,
        "not_tried_on_all_tests": len(tried) - killed - equivalent - survived,
        "mutants": tried,
    }
    write_whole(RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _key(mutant: dict[str, Any]) -> Key:
    return mutant["file"], mutant["line"], mutant["before"], mutant["after"]


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


if __name__ == "__main__":
    main()

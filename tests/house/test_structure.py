"""The house: what imports what, and what is said in one place only."""

import ast
import io
import re
import subprocess
import sys
import threading
import tokenize
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from inspect import getdoc, signature
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import devices, serving
from flashsim.algorithms.algorithm_1_flash_basic import flash_basic
from flashsim.analysis.verify import checks
from flashsim.cli import main

ROOT = Path(flashsim.__file__).parent
SCRIPTS = Path(__file__).parents[2] / "scripts"
MODULES = {
    ".".join(("flashsim", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in ROOT.rglob("*.py")
}


STATEMENTS = ast.stmt, ast.excepthandler, ast.match_case


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement, but those under `if TYPE_CHECKING`, which never run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, STATEMENTS) and not (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            yield node
            yield from statements(node)


parsed = cache(ast.parse)


def imported(source: str, nodes: Callable[[ast.AST], Iterator[ast.AST]] = statements) -> set[str]:
    """The modules of flashsim that a source imports, in functions too. A name of a package is
    its submodule, if it has one.
    """
    result = set()
    for node in nodes(parsed(source)):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            result |= {name if name in MODULES else str(node.module) for name in names}
    return result & MODULES.keys()


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of modules that reach each other."""
    reached = {name: set(to) for name, to in graph.items()}
    for middle in graph:
        for name, to in reached.items():
            if middle in to:
                reached[name] = to | reached[middle]
    circles = set()
    for name in graph:
        reachable = [other for other in graph if other in reached[name]]
        circle = frozenset(other for other in reachable if name in reached[other])
        if circle:
            circles.add(circle)
    return circles


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {}
    for name, path in MODULES.items():
        graph[name] = imported(path.read_text(encoding="utf-8"))
    assert cycles(graph) == set()


ROOMS = [
    "version",
    "support",
    "memory",
    "attention",
    "algorithms",
    "theory",
    "reference",
    "drawing",
    "simulate",
    "tracing",
    "extensions",
    "devices",
    "serving",
    "hardware",
    "analysis",
    "testing",
    "profiling",
    "gpu",
    "learn",
    "plots",
    "cli",
    *(name for name in flashsim.MODULES if (ROOT / f"{name}.py").is_file()),  # short public names
]
SIBLINGS = {
    ("algorithms", "theory"),
    ("theory", "algorithms"),
    ("theory", "reference"),
    ("reference", "theory"),
}


def named(source: str) -> set[str]:
    """The modules that a source imports in any way: in functions, under `if TYPE_CHECKING`, or
    by name, as a string.
    """
    strings = {
        node.value
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return imported(source, ast.walk) | (strings & MODULES.keys())


def arrows(sources: dict[str, str]) -> set[tuple[str, str]]:
    """The pairs of rooms, (a, b), where a imports what is in b."""
    result = {
        (name, to)
        for name, source in sources.items()
        for to in named(source)
        if to.count(".") and name.count(".")
    }
    return {(a.split(".")[1], b.split(".")[1]) for a, b in result}


def upward(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {
        (a, b)
        for a, b in pairs
        if a != b and (ROOMS.index(b) > ROOMS.index(a) or (a, b) in SIBLINGS)
    }


def test_imports_run_downwards() -> None:
    sources = {
        name: path.read_text(encoding="utf-8")
        for name, path in MODULES.items()
        if name != "flashsim.__main__"
    }
    assert not upward(arrows(sources))


def test_an_arrow_upwards_is_found_however_it_is_written() -> None:
    inside = "def f():\n    from flashsim.plots import plot_run\n"
    for_types = "if TYPE_CHECKING:\n    from flashsim.tracing import Trace\n"
    by_name = 'import_module("flashsim.theory.form")'
    result = arrows(
        {
            "flashsim.memory.a": inside,
            "flashsim.simulate.a": for_types,
            "flashsim.algorithms.a": by_name,
        }
    )
    assert upward(result) == {
        ("memory", "plots"),
        ("simulate", "tracing"),
        ("algorithms", "theory"),
    }
    assert not upward(arrows({"flashsim.simulate.a": "from flashsim.memory.sram import HBM"}))


def way(call: Callable[[], object], file: str, function: str) -> tuple[int, int, int]:
    """How many calls of flashsim's functions, in how many files, a call makes before it calls
    the function in that file; and how many of them have not returned by then: the stack that a
    debugger shows there.
    """
    call()  # what is cached is looked up once
    calls: list[str] = []
    stack: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(ROOT)) or stack:
            return
        if Path(code.co_filename).stem != file or code.co_name != function:
            calls.append(code.co_filename)
            return
        above = frame.f_back
        while above is not None:
            if above.f_code.co_filename.startswith(str(ROOT)):
                stack.append(above.f_code.co_name)
            above = above.f_back
        stack.append("")  # arrived, even where the call comes from the test itself

    before = sys.getprofile()
    threading.setprofile(note)  # devices run in threads
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert stack
    return len(calls), len({*calls}), len(stack) - 1


X = np.random.default_rng(0).normal(size=(12, 4))
RUN = flashsim.forward("flash", X, X, X, M=104)


def forward(**how: Any) -> None:
    flashsim.forward("flash", X, X, X, M=104, **how)


def backward() -> None:
    flashsim.backward("flash", RUN, X, blocks=(2, 2))


def directly() -> None:
    hbm = flashsim.HBM()
    Q, K, V = (hbm.place(name, X) for name in "QKV")
    sram = flashsim.SRAM(hbm, 104)
    blocks = flashsim.Blocks(4, 3, N_q=12, N_k=12)
    flash_basic(hbm, sram, Q, K, V, blocks)


def count_command(*more: str) -> None:
    assert main(["count", "--N", "12", "--d", "4", "--M", "104", *more]) == 0


# to line 1 of what, in how many calls and files at most, and how deep it is in the stack
WAYS: list[tuple[Callable[[], object], str, str, tuple[int, int, int]]] = [
    (directly, "algorithm_1_flash_basic", "flash_basic", (15, 4, 0)),
    (partial(forward, blocks=(4, 3)), "algorithm_2_flash", "flash", (81, 16, 5)),
    # and the search for the largest blocks that fit, by the closed form
    (forward, "algorithm_2_flash", "flash", (279, 22, 5)),
    (backward, "algorithm_4_flash_backward", "flash_backward", (120, 20, 5)),
    (
        partial(serving.count, "paged", queries=[3, 4], keys=[20, 30], d=4, page=4, M=500),
        "paged",
        "paged",
        (130, 17, 6),
    ),
    (partial(devices.count, "ring", P=2, N=12, d=4, M=200), "ring", "ring", (171, 22, 3)),
    (
        partial(count_command, "--blocks", "4", "3"),
        "algorithm_2_flash",
        "flash",
        (153, 27, 12),
    ),
    (count_command, "algorithm_2_flash", "flash", (347, 31, 12)),
]


@pytest.mark.parametrize(("call", "file", "function", "most"), WAYS)
def test_the_way_to_line_1_is_short(
    call: Callable[[], object], file: str, function: str, most: tuple[int, int, int]
) -> None:
    calls, files, depth = way(call, file, function)
    assert calls <= most[0]
    assert files <= most[1]
    assert depth <= most[2]


def test_the_picture_of_the_rooms_is_that_of_the_code() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "draw_house.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout in (SCRIPTS.parent / "docs/code.md").read_text(encoding="utf-8")


def test_the_picture_s_arrows_are_dashed_where_only_functions_import() -> None:
    text = (SCRIPTS.parent / "docs/code.md").read_text(encoding="utf-8")
    arrows = re.findall(r"^    (\w+) (-->|-\.->) (\w+)$", text, re.MULTILINE)
    assert {arrow for _, arrow, _ in arrows} == {"-->", "-.->"}
    for room, arrow, other in arrows:
        of_room = (ROOT / room).rglob("*.py")
        sources = "\n".join(path.read_text(encoding="utf-8") for path in of_room)
        names = rf"^(from|import) flashsim\.{other}\b|^from flashsim import .*\b{other}\b"
        assert bool(re.search(names, sources, re.MULTILINE)) is (arrow == "-->"), (room, other)


LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def tokens_by_line(source: str) -> list[int]:
    """Return how many tokens begin on each line that has code. Docstrings and comments are none."""
    tree = ast.parse(source)
    texts = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = Counter(token.start[0] for token in tokens if token.type not in LAYOUT)
    return [number for line, number in lines.items() if line not in texts]


@pytest.mark.parametrize(
    ("room", "mean", "full"),
    [
        ("flashsim", 9.0, 3.9),
        ("tests", 10.2, 3.1),
        ("scripts", 9.7, 6.0),
        ("docs", 7.9, 3.2),
    ],
)
def test_lines_are_not_filled(
    room: str, mean: float, full: float, record_property: Callable[[str, object], None]
) -> None:
    """Tokens a line are a thermometer: today's values are the ceilings, so that it gets no worse.
    `pytest --junit-xml` reports them.

    mean  tokens per line of code
    full  percentage of lines with more than 25 tokens
    """
    files = (SCRIPTS.parent / room).rglob("*.py")
    lines = [number for path in files for number in tokens_by_line(path.read_text("utf-8"))]
    found_mean = sum(lines) / len(lines)
    found_full = 100 * sum(number > 25 for number in lines) / len(lines)
    record_property("tokens per line", found_mean)
    record_property("% of lines above 25 tokens", found_full)
    print(f"{room}: {found_mean:.2f} tokens per line, {found_full:.2f}% of lines above 25")
    assert found_mean <= mean
    assert found_full <= full


PARTICIPLES = {
    *("asked", "at", "chosen", "found", "given", "got", "made", "moved", "said", "seen", "settled"),
    *("shown", "taken", "together", "told", "turned", "wanted"),
}


def names_of(source: str) -> Iterator[str]:
    """Every variable, argument, function and class that a source names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


@pytest.mark.parametrize(
    ("room", "most"), [("flashsim", 38), ("tests", 117), ("scripts", 15), ("docs", 4)]
)
def test_names_are_nouns_and_verbs(room: str, most: int) -> None:
    """A participle says that something happened to a thing, not what the thing is. Those that are
    left are today's; public names are among them.
    """
    number = 0
    for path in (SCRIPTS.parent / room).rglob("*.py"):
        for name in names_of(path.read_text(encoding="utf-8")):
            number += name.strip("_") in PARTICIPLES
    assert number <= most


def test_the_formatter_skips_nothing() -> None:
    skip = "# fmt: " + "skip"
    for room in ("flashsim", "tests", "scripts", "docs"):
        for path in (SCRIPTS.parent / room).rglob("*.py"):
            assert skip not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(
    ("module", "most"), [("flashsim", 1), ("flashsim.memory", 18), ("flashsim.simulate.api", 71)]
)
def test_an_import_loads_few_modules(module: str, most: int) -> None:
    """Algorithms' own files are not counted: another one costs nothing here."""
    code = (
        f"import sys, {module}\n"
        "records = {name for name, found in sys.modules.items() if 'ALGORITHM' in vars(found)}\n"
        "print(sum(name.split('.')[0] == 'flashsim' for name in sys.modules.keys() - records), "
        "*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    number, *loaded = done.stdout.split()
    assert int(number) <= most
    assert not {"matplotlib", "flashsim.tracing", "flashsim.plots", "flashsim.gpu"} & {*loaded}


FILLED = {  # as something goes on
    "analysis.sweeping.records.Row",
    "gpu.launching.Repeated",
    "hardware.cache.CacheTraffic",
    "learn.exercises.checks.TurnRecorder",
    "memory.hbm.Storage",
    "memory.network._Message",
    "memory.network._Posted",
    "profiling.recording.LineTraffic",
    "profiling.recording.Recorder",
    "simulate.outcome.Outcome",
    "testing.survey.Survey",
    "testing.survey.Tally",
    "tracing.observers.InductionInvariant",
    "tracing.observers.Ledger",
}


def test_records_do_not_change() -> None:
    """Dataclasses are frozen, but those that are filled."""
    result = set()
    for module, path in MODULES.items():
        tree = parsed(path.read_text(encoding="utf-8"))
        for record in (node for node in statements(tree) if isinstance(node, ast.ClassDef)):
            text = " ".join(map(ast.unparse, record.decorator_list))
            if "dataclass" in text and "frozen=True" not in text:
                result.add(f"{module}.{record.name}".removeprefix("flashsim."))
    assert result == FILLED


def always_true(options: ast.expr) -> bool:
    """Whether an expression is true whatever the code under test does: `… or True`, a tuple,
    `"words"`, `x == x`.
    """
    if isinstance(options, ast.BoolOp):
        return (any if isinstance(options.op, ast.Or) else all)(map(always_true, options.values))
    if (
        isinstance(options, ast.Compare)
        and len(options.ops) == 1
        and isinstance(options.ops[0], ast.Eq | ast.Is)
    ):
        called = any(
            isinstance(node, ast.Call) for node in ast.walk(options)
        )  # twice, it may differ
        return not called and ast.dump(options.left) == ast.dump(options.comparators[0])
    return (isinstance(options, ast.Constant) and bool(options.value)) or (
        isinstance(options, ast.Tuple) and bool(options.elts)
    )


def test_every_assert_can_fail() -> None:
    folder = Path(__file__).parents[1]
    sources = [*folder.rglob("*.py"), *MODULES.values(), *SCRIPTS.rglob("*.py")]
    result = [
        f"{path.name}:{node.lineno}"
        for path in sources
        for node in statements(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and always_true(node.test)
    ]
    assert result == []


@pytest.mark.parametrize(
    ("cannot", "can"),
    [
        ("f(x) == 1 or True", "f(x) == 1 or y"),
        ("f(x) == 1 or 'why'", "f(x) == 1 or None"),
        ("(f(x), 'why')", "()"),
        ("x.y is x.y", "x.y is x.z"),
        ("x == x", "f(x) == f(x)"),
        ("True and 1", "True and x"),
    ],
)
def test_an_assert_that_cannot_fail_is_found(cannot: str, can: str) -> None:
    assert always_true(ast.parse(cannot, mode="eval").body)
    assert not always_true(ast.parse(can, mode="eval").body)


def test_a_cycle_is_found() -> None:
    lazy = (
        "def f():\n    from flashsim.attention.masks.rules import All\n\nif TYPE_CHECKING:\n    import "
        "flashsim.simulate.api\n"
    )
    assert imported(lazy) == {"flashsim.attention.masks.rules"}
    assert imported("from flashsim import theory, forward") == {"flashsim.theory", "flashsim"}
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d", "a"}}
    assert cycles(graph) == {frozenset("bc"), frozenset("d")}


def test_what_reads_its_own_sources_says_that_an_archive_is_no_place_for_it(tmp_path: Path) -> None:
    wheel = tmp_path / "flashsim.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in MODULES.values():
            archive.write(path, path.relative_to(ROOT.parent))
    code = f"import sys; sys.path.insert(0, {str(wheel)!r}); import flashsim"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: flashsim is imported from {wheel}, an archive, and it reads its own "
        "sources: "
        "expected it installed, or unpacked"
    )


def test_its_own_files_are_told_from_others_however_its_folder_is_spelt() -> None:
    spelt = str(ROOT.parent / "tests" / "..")
    code = f"import sys; sys.path.insert(0, {spelt!r}); import flashsim.memory.source as s; "
    code += (
        "assert '..' in s.__file__, s.__file__; assert "
        "s.site_of.__code__.co_filename.startswith(s.PACKAGE), s.PACKAGE"
    )
    for spelt in (code, code.replace("/..", "/.././").replace("'..'", "'/./'")):
        subprocess.run([sys.executable, "-c", spelt], check=True)


HEAVY = [
    "matplotlib",
    "rich",
    "ml_dtypes",
    "safetensors",
    "threadpoolctl",
    "cupy",
    "torch",
    "hypothesis",
    "msgspec",
    "secrets",
]
LATER = ["cache", "machines", "observers", "plots", "reference", "testing", "theory", "tune"]
ONE_AFTER_ANOTHER = [  # what a process does, and what that does not import, nor what it did before
    ("", [*HEAVY, *(f"flashsim.{name}" for name in LATER)]),
    # of a megabyte
    ("x = np.ones((4, 2)); flashsim.forward('flash', x, x, x, mask=[[True] * 4])", ["numpy.ma"]),
    (
        "flashsim.prove(N=256, d=16, M=2000)._repr_html_().index('<svg')",
        ["matplotlib", "IPython", "flashsim.plots"],
    ),
    ("found = flashsim.sweep(N=8, d=4); found.to_csv(), found.as_text()", ["pandas", "matplotlib"]),
    (
        "from flashsim.analysis.verify import chapter, run; assert run([chapter.tree_masks])[0].holds",
        ["joblib"],
    ),
    ("import flashsim.testing.wrapping", ["torch", "jax", "cupy"]),
    ("import flashsim.learn.gallery", ["flashsim.cli"]),
    ("import flashsim.gpu, flashsim.cli", ["cupy"]),
    ("import flashsim.plots", ["matplotlib.pyplot"]),  # which opens windows
    ("flashsim.trace, flashsim.plots.roofline, flashsim.plots.l2", ["msgspec"]),
]


def test_what_is_needed_later_is_imported_later() -> None:
    code = "import sys, numpy as np, flashsim\n"
    for done, absent in ONE_AFTER_ANOTHER:
        code += f"{done}\nprint(*[name for name in {absent} if name in sys.modules])\n"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "\n" * len(ONE_AFTER_ANOTHER)


def test_every_check_of_the_ledger_takes_full_alone_and_says_its_source_and_its_claim() -> None:
    """What checks share returns claims, too, and is none."""
    for check in checks():
        assert [*signature(check).parameters] == ["full"]
        source, _, claim = (getdoc(check) or "").partition(". ")
        assert source
        assert claim.endswith("."), check


def test_no_test_imports_a_test_and_rooms_have_their_tests() -> None:
    folder = Path(__file__).parents[1]
    importing = []
    for path in folder.rglob("test_*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                names = [node.module or "", *(alias.name for alias in node.names)]
                if any(name.split(".")[-1].startswith("test_") for name in names):
                    importing.append(f"{path.name}:{node.lineno}")
    assert importing == []
    rooms = {path.name for path in folder.iterdir() if any(path.glob("test_*.py"))}
    assert rooms - {"contract", "golden", "house"} <= {*ROOMS}


def from_the_root(source: str) -> list[int]:
    """Lines that import the package itself, or a public name of it that is no room."""
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir()}
    lines = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            lines += [node.lineno for alias in node.names if alias.name == "flashsim"]
        elif isinstance(node, ast.ImportFrom) and node.module == "flashsim":
            lines += [node.lineno for alias in node.names if alias.name not in rooms]
    return lines


def test_no_module_inside_imports_the_root() -> None:
    inside = {name: path for name, path in MODULES.items() if path.parent != ROOT}
    result = {
        name: from_the_root(path.read_text(encoding="utf-8")) for name, path in inside.items()
    }
    assert {name: lines for name, lines in result.items() if lines} == {}
    assert from_the_root("def f():\n    import flashsim\n") == [2]
    assert from_the_root("from flashsim import forward, theory\n") == [1]
    assert from_the_root("from flashsim import theory\n") == []

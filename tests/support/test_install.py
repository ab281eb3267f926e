"""What a plain install has: the public names, hints that work in a clone, and a word where two
copies of flashsim are meant.
"""

import ast
import bdb
import os
import re
import subprocess
import sys
import tomllib
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import flashsim
from flashsim.cli import main
from flashsim.support import entry, install
from tests.helpers.pages import PAGES, ROOT, text_of

PROJECT: dict[str, Any] = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
SOURCES = sorted((ROOT / "flashsim").rglob("*.py"))
PUBLIC = (*flashsim.MODULES, *flashsim.NAMES)
TRIED: dict[str, str] = {
    "tune": "flashsim.tune(N=64, d=4, M=500).best",
    "algorithms": "flashsim.algorithms()",
    "forward": "flashsim.forward('flash', x, x, x)",
    "backward": "flashsim.backward('flash', flashsim.forward('flash', x, x, x), x)",
    "count": "flashsim.count('flash', N=64, d=4)",
    "sweep": "flashsim.sweep(N=64, d=4)",
    "trace": "flashsim.trace('flash', x, x, x)",
    "load_trace": "flashsim.load_trace(flashsim.trace('flash', x, x, x).save('kept.json.gz'))",
    "run_program": "flashsim.run_program(copy, {'X': x}, blocks=(2,))",
    "count_program": "flashsim.count_program(copy, {'N': 64, 'd': 4}, blocks=(2,))",
    "prove": "flashsim.prove(N=64, d=4, M=500)",
    "optimum": "flashsim.optimum(N=2, d=1, M=8)",
}

COPY = """
def copied(hbm, sram, X, blocks):
    Y = hbm.empty("Y", X.shape, X.dtype, "output").divide(blocks.B)
    X = X.divide(blocks.B)
    for i in sram.loop(len(X)):
        sram.store(Y[i], sram.on_chip(1 * sram.load(X[i])))
    return Y

kinds = {name: flashsim.Kind("N", "d") for name in "XY"}
copy = flashsim.MatrixProgram(
    title="A copy", run=copied, operands={"X": kinds["X"]}, returns={"Y": kinds["Y"]}, blocks={"B": "N"}
)
"""


def test_every_public_function_is_called_here() -> None:
    functions = {name for name in PUBLIC if isfunction(getattr(flashsim, name))}
    modules = {name for name in PUBLIC if isinstance(getattr(flashsim, name), ModuleType)}
    assert TRIED.keys() == functions | {
        name for name in modules if callable(getattr(flashsim, name))
    }
    for name in modules:  # one that is called as its function is called like a function
        assert callable(getattr(flashsim, name)) or not callable(
            getattr(getattr(flashsim, name), name, None)
        ), name


def test_type_checkers_and_python_read_the_same_names() -> None:
    tree = ast.parse(text_of(Path(flashsim.__file__)))
    (block,) = (node for node in tree.body if "if TYPE_CHECKING" in ast.unparse(node))
    imports = [node for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    names = {node.names[0].name: node for node in imports}
    assert names.keys() == {*PUBLIC}
    for name, node in names.items():
        namespace: dict[str, Any] = {}
        exec(ast.unparse(node), namespace)
        assert namespace[name] is getattr(flashsim, name), name
    aliases = [node.names[0].name for node in imports if is_alias(node)]
    modules = [path.stem for path in Path(flashsim.__file__).parent.glob("*.py")]
    assert sorted(modules) == sorted(["__init__", "__main__", "version", *aliases])


def is_alias(node: ast.ImportFrom) -> bool:
    """Return whether an import is of a module whose public name is shorter than its own."""
    return node.module != "flashsim" and node.names[0].name in flashsim.MODULES


@pytest.mark.parametrize(
    "first",
    [
        "import flashsim.NAME",
        "from flashsim import NAME",
        "import flashsim.analysis.tune, flashsim.analysis.sweeping",
    ],
)
def test_a_public_name_means_the_same_however_it_was_imported(first: str, tmp_path: Path) -> None:
    """Modules by `import flashsim.tune`, too; and functions can be called after whatever was
    imported before.
    """
    lines = ["import numpy as np", "x = np.ones((8, 4))", "import flashsim"]
    for name in PUBLIC:
        is_module = isinstance(getattr(flashsim, name), ModuleType)
        if is_module or not first.startswith("import flashsim.NAME"):
            lines.append(first.replace("NAME", name))
        if is_module:
            lines.append(
                f"import flashsim.{name}, sys; assert sys.modules['flashsim.{name}'] is "
                f"flashsim.{name}"
            )
    script = tmp_path / "script.py"
    script.write_text("\n".join([*lines, COPY, *TRIED.values()]), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(script)], check=True, cwd=tmp_path, env=environment)


def test_what_is_no_module_is_not_imported_as_one() -> None:
    for name in ("nosuch", "forward"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named 'flashsim.{name}'"):
            __import__(f"flashsim.{name}")


def test_all_public_names_are_imported_after_a_plain_install(tmp_path: Path) -> None:
    """None of the extras' packages is there: `from flashsim import *` leaves out what needs one,
    and works.
    """
    required = {re.split(r"\W", each)[0] for each in PROJECT["dependencies"]}
    expected = {
        re.split(r"[^\w-]", each)[0].replace("-", "_")
        for extra in EXTRAS.values()
        for each in extra
    }
    absent = sorted(expected - required - {"flashsim", "pytest"})
    assert "hypothesis" in absent
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\nfrom flashsim import *\n"
        "print(*dir())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    names = {name for name in PUBLIC if not name.startswith("_")}
    assert names - set(run.stdout.split()) == {"testing"}
    assert names == set(flashsim.__all__)  # with them


def test_hints_to_install_come_from_one_place_and_name_what_works_in_a_clone() -> None:
    for package, extra in install.EXTRA_OF.items():
        assert install.extra_with(package) == f'pip install -e ".[{extra}]" (in the clone)'
        assert any(re.match(rf"{package}\b|{package}-", each) for each in EXTRAS[extra]), package
    for path in SOURCES:
        if path != Path(install.__file__).resolve():
            assert not re.search(r"pip install\b|flashsim\[", text_of(path)), path
    for page in PAGES:
        for extra in re.findall(r"pip install (.*?)[`\n]", text_of(page)):
            if "flashsim" in extra or "." in extra:
                assert re.match(
                    r'-e \.( && flashsim run)?$|-e "\.\[([\w,]+)\]"( && pytest)?$|\.$', extra
                ), (page, extra)


def test_the_kit_brings_what_its_tests_are_run_with() -> None:
    assert any(each.startswith("pytest") for each in EXTRAS["testing"])


def a_clone(folder: Path) -> Path:
    (folder / "flashsim" / "memory").mkdir(parents=True)
    (folder / "flashsim" / "memory" / "sram.py").touch()
    (folder / "pyproject.toml").touch()
    (folder / "docs").mkdir()
    return folder


def test_two_copies_are_told_where_they_are_mistaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "")
    command = [
        "debug",
        "flash_basic",
        "--line",
        "12",
        "--at",
        "j=1,i=1",
        "--commands",
        str(tmp_path / "commands"),
    ]
    (tmp_path / "commands").write_text("q\n", encoding="utf-8")
    clone = a_clone(tmp_path / "clone")
    text = f"flashsim runs from {install.PACKAGE}, a copy: what you edit in {clone} does not run"
    for place, is_warned in (
        (tmp_path, False),
        (ROOT, False),
        (ROOT / "docs", False),
        (clone, True),
        (clone / "docs", True),
    ):
        monkeypatch.chdir(place)
        assert main(command) == 0
        assert (text in capsys.readouterr().err) is is_warned, place
        bdb.Breakpoint.clearBreakpoints()  # each of a process of its own

    def bug() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        entry.guarded("flashsim", bug)
    assert text in caught.value.__notes__[0]


def test_the_citation_has_a_date_and_a_place_for_the_doi() -> None:
    text = text_of(ROOT / "CITATION.cff")
    assert re.search(r"^date-released: \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert re.search(r"^(# )?doi: ", text, re.MULTILINE)

"""The site: what a strict build refuses, how docstrings become pages, and lessons cards. Needs
flashsim[docs]; .ci/run has it.
"""

import argparse
import io
import json
import re
import runpy
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flashsim
from flashsim.cli import COMMANDS, parser_of
from flashsim.learn import gallery
from flashsim.simulate import api
from tests.conftest import PHONE
from tests.helpers.pages import ROOT, text_of

pytest.importorskip("sphinx", reason='needs the site\'s tools: pip install ".[docs]"')
pytest.importorskip("myst_parser", reason='needs the site\'s tools: pip install ".[docs]"')
sys.path.insert(0, str(ROOT / "docs" / "_site"))
docstrings: Any = __import__("docstrings")
lessons: Any = __import__("lessons")
made: Any = __import__("made")
commands: Any = __import__("commands")

pytestmark = pytest.mark.packages
CONF = f"""
import runpy
globals().update(runpy.run_path({str(ROOT / "docs" / "conf.py")!r}))
SECTIONS = {{"Pages": ["docs/page"]}}
include_patterns = ["README.md", "docs/*.md", "docs/*.rst"]
html_theme, html_static_path, html_css_files = "basic", [], []
"""


def built(folder: Path, page: str, reference: str = "", listed: str = "") -> tuple[int, str]:
    """Return the exit status of a strict build of two pages, perhaps the lessons' too, and a
    file, and what it says.
    """
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    (folder / "docs").mkdir()
    (folder / "docs" / "conf.py").write_text(CONF, encoding="utf-8")
    (folder / "README.md").write_text("# Door\n\n[page](docs/page.md#a-part)\n", encoding="utf-8")
    (folder / "docs" / "page.md").write_text(f"# Page\n\n## A part\n\n{page}\n", encoding="utf-8")
    (folder / "file.py").write_text("x = 1\n", encoding="utf-8")
    (folder / "figures").mkdir()
    (folder / "figures" / "numbers.json").write_text("{}", encoding="utf-8")
    if listed:
        (folder / "docs" / "lessons.md").write_text(
            f"---\norphan: true\n---\n{listed}\n", encoding="utf-8"
        )
    if reference:
        (folder / "docs" / "called.rst").write_text(
            f":orphan:\n\nCalled\n======\n\n{reference}\n", encoding="utf-8"
        )
    text = io.StringIO()
    with warnings.catch_warnings(), patch_docutils(), docutils_namespace():
        warnings.simplefilter("ignore")  # of the libraries
        out = folder / "out"
        trees = folder / "trees"
        site = Sphinx(
            folder,
            folder / "docs",
            out,
            trees,
            "html",
            status=None,
            warning=text,
            warningiserror=True,
        )
        site.build()
    return site.statuscode, text.getvalue()


def test_a_sound_page_is_built_and_files_that_it_links_to_are_shown(tmp_path: Path) -> None:
    status, text = built(
        tmp_path, "[file](../file.py) [numbers](../figures/numbers.json) With --causal it is so."
    )
    assert (status, text) == (0, "")
    page = text_of(tmp_path / "out" / "docs" / "page.html")
    assert 'href="../source/file.py.html"' in page
    assert "With --causal it is so." in page  # an option keeps its two dashes
    assert 'href="../figures/numbers.json"' in page
    assert (tmp_path / "out" / "figures" / "numbers.json").exists()
    assert "1" in text_of(tmp_path / "out" / "source" / "file.py.html")
    assert text_of(tmp_path / "out" / "index.html") == text_of(tmp_path / "out" / "README.html")


@pytest.mark.parametrize(
    ("page", "reference", "complaint"),
    [
        ("[nowhere](nowhere.md)", "", "cross-reference target not found: 'nowhere.md'"),
        ("[no part](#no-part)", "", "cross-reference target not found: 'no-part'"),
        ("[no part](../README.md#no-part)", "", "local id not found in doc 'README': 'no-part'"),
        ("[no folder](../flashsim/nothing)", "", "cross-reference target not found"),
        ("", ".. autofunction:: flashsim.nothing", "nothing' from module 'flashsim'"),
        (
            "",
            ".. py:function:: f\n\n   :py:obj:`flashsim.gone`",
            "py:obj reference target not found: flashsim.gone",
        ),
    ],
)
def test_what_leads_nowhere_fails_the_build(
    tmp_path: Path, page: str, reference: str, complaint: str
) -> None:
    status, text = built(tmp_path, page, reference)
    assert status == 1
    assert complaint in text


def test_a_docstring_that_names_nothing_fails_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.count, "__doc__", "Count, as `flashsim.conut` does.")
    status, text = built(tmp_path, "", ".. autofunction:: flashsim.count")
    assert status == 1
    assert "docstring of flashsim.count: `flashsim.conut` names nothing" in text


@pytest.mark.parametrize(
    ("page", "gone"),
    [
        ("![no picture](../figures/none.png)", "figures/none.png"),
        ('<iframe data-src="gone.html"></iframe> <a href="#a-part">here</a>', "gone.html"),
    ],
)
def test_a_missing_picture_and_a_link_in_raw_html_fail_it(
    tmp_path: Path, page: str, gone: str
) -> None:
    with pytest.raises(Exception, match=rf"docs/page\.html: there is no {gone}"):
        built(tmp_path, page)


def test_docs_named_as_the_source_is_the_repository() -> None:
    """`sphinx-build docs out`: what it then builds, the strict build above does."""
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    for source in (ROOT / "docs", ROOT):
        app = SimpleNamespace(srcdir=source, add_lexer=lambda name, lexer: None)
        conf["setup"](app)
        assert app.srcdir == ROOT


def test_the_matrix_of_the_kit_can_be_read_and_clicked(browser: Any, tmp_path: Path) -> None:
    data = json.loads(text_of(ROOT / "figures" / "kit_matrix.json"))["data"]
    output = made.matrix(data)
    targets = set(
        re.findall(
            r'<a id="([^"]+)"></a>', made.anchored(text_of(ROOT / "figures" / "kit_matrix.md"))
        )
    )
    assert targets == set(re.findall(r'href="#([^"]+)"', output))
    assert len(targets) == len(data["checks"]) + len(data["mutants"])
    (tmp_path / "a.html").write_text(
        f"<style>{text_of(ROOT / 'docs' / '_site' / 'site.css')}</style>{output}", "utf-8"
    )
    page = browser.new_page(viewport=PHONE)
    page.goto((tmp_path / "a.html").as_uri())
    row = page.locator("tr", has_text="lse times ln 2").locator("td").all_inner_texts()
    (known,) = (row for row in data["mutants"] if row["name"] == "lse_times_ln_2")
    failed = [name for name in data["checks"] if known["failed"].get(name)]
    shares = [round(100 * known["failed"][name] / known["tried"][name]) for name in failed]
    assert [int(cell) for cell in row if cell not in ("", "–")] == shares  # –: not tried
    assert (
        float(page.evaluate("parseFloat(getComputedStyle(document.querySelector('td')).fontSize)"))
        >= 11
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.close()


NOTHING: Any = docstrings.Names({})


def rst(text: str, **names: Any) -> list[str]:
    lines = docstrings.as_rst(
        text, docstrings.Names({id(flashsim.count): "flashsim.count"}, api, **names)
    )
    return [line for line in lines if line]


def test_rows_become_lists_code_stays_and_names_become_links() -> None:
    assert rst("""Do it.

    M, N      sizes, of which
              M is the larger
    undecided a row whose name reaches its text
    Call `count`, or `x*y`, |S| ≤ S_ij.

        code(M)  # as it stands
    """) == [
        "Do it.",
        "* **M**, **N** – sizes, of which M is the larger",
        "* **undecided** – a row whose name reaches its text",
        r"Call :py:obj:`count <flashsim.count>`, or \ ``x*y``\ , \|S\| ≤ S\_ij.",
        "::",
        "        code(M)  # as it stands",
    ]
    assert rst("`count` of rows. Raises ValueError.", taken=frozenset({"count"})) == [
        r"\ ``count``\  of rows. **Raises** ValueError."
    ]
    with pytest.raises(LookupError, match=r"`flashsim\.nothing` names nothing"):
        rst("As `flashsim.nothing`.")


def test_indented_rows_are_rows_too() -> None:
    words = rst("Words:\n\n    full(a, b)  all of it\n    empty       nothing")
    assert words == ["Words:", "* **full(a, b)** – all of it", "* **empty** – nothing"]


def test_numbered_steps_go_on_in_their_indented_lines() -> None:
    assert docstrings.as_rst(
        "Proof.\n1. One\n   and more\n       x = y\n   of it.\n2. Two", NOTHING
    ) == [
        *("Proof.", ""),
        *("1. One and more", "", "   ::", "", "           x = y", "", "   of it.", ""),
        *("", "2. Two", "", ""),
    ]


def test_the_lessons_are_written_beside_the_page_that_lists_them(tmp_path: Path) -> None:
    """A link to a lesson that is not there fails the build."""
    status, text = built(tmp_path, "[lessons](lessons.md)", listed="# Lessons")
    assert (status, text) == (0, "")
    page = text_of(tmp_path / "out" / "docs" / "lessons.html")
    output = {path.stem for path in (tmp_path / "out" / "lessons").glob("*.html")}
    assert output == {*gallery.pages(), "index", "playground"}
    assert all(f"../lessons/{name}.html" in page for name in output)
    # a card each
    assert re.findall(r'data-src="\.\./lessons/(\w+)\.html"', page) == [
        *gallery.pages(),
        "playground",
    ]
    assert page.count("<svg") == len(gallery.pages())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_the_command_line_has_every_option_with_what_it_does(name: str) -> None:
    parser = parser_of(name)
    text = commands._section(name, parser).astext()
    for action in parser.options:
        if action.help != argparse.SUPPRESS:
            assert (action.option_strings or [str(action.metavar or action.dest)])[-1] in text
            assert str(action.help) in text
    assert parser.examples.split()[:3] == text.rpartition("examples:")[2].split()[:3]

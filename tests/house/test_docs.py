"""What README and docs/ show is what happens: code runs, output is real, links lead somewhere,
numbers are the recorded ones.
"""

import ast
import doctest
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

import flashsim
from flashsim.algorithms import FORWARD
from flashsim.attention.inputs import REFERENCE_D, REFERENCE_N
from flashsim.attention.masks import rules as masks
from flashsim.cli import main, parser_of
from flashsim.plots import FIGURES
from flashsim.testing import CHECKS
from flashsim.testing.mutants import ALL, SERVING
from flashsim.theory.measured import FIGURE_2
from tests.helpers.implementations import IMPLEMENTATIONS
from tests.helpers.pages import (
    OWN,
    PAGES,
    README,
    ROOT,
    blocks,
    has_numbers,
    links,
    paragraphs,
    pictures,
    table,
    text_of,
)

COMMANDS = [
    pytest.param(page, block, id=block.splitlines()[0])
    for page in PAGES
    for block in blocks(page, "console")
]


def matches(output: str, line: str) -> bool:
    """Whether an output line is as shown, where … stands for anything."""
    return re.fullmatch(re.escape(output).replace("…", ".*"), line.rstrip()) is not None


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("page", "block"), COMMANDS)
def test_commands_print_what_is_shown(
    page: Path,
    block: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *output = block.splitlines()
    assert command.startswith("$ flashsim ")
    assert main(shlex.split(command.removeprefix("$ flashsim "))) == (1 if "FAILS" in block else 0)
    printed = capsys.readouterr().out.rstrip().splitlines()
    index = 0
    for line, expected in enumerate(output):
        if expected == "…":  # any lines
            following = output[line + 1]
            while not matches(following, printed[index]):
                index += 1
        else:
            assert matches(expected, printed[index])
            index += 1
    assert index == len(printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_whole_and_outputs_have_single_empty_lines(page: Path) -> None:
    """Markdown ends a table at an empty line: what follows without a head is shown as text."""
    for rows in re.findall(r"^(?:\|.*\n)+", text_of(page), re.MULTILINE):
        head, rule = (rows.splitlines() * 2)[:2]
        assert re.fullmatch(r"\|(?: ?:?-+:? ?\|)+", rule), rows
        assert rule.count("|") == head.count("|") - head.count(r"\|"), rows
    assert not any("\n\n\n" in block for block in blocks(page, "console"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_named_have_the_options_that_are_named(page: Path) -> None:
    """Those that are shown without their output, in blocks or within a sentence."""
    for command, rest in re.findall(
        r"(?:^|[`(] ?|&& |\$ )flashsim ([a-z]+)([^`\n#|]*)", text_of(page), re.MULTILINE
    ):
        known = parser_of(command).flags
        options = [word for word in rest.split() if re.match("-.", word)]
        assert {option.partition("=")[0] for option in options} <= {*known}


def sessions(page: Path) -> list[str]:
    return [block for block in blocks(page, "python") if block.startswith(">>>")]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if sessions(page)], ids=lambda page: page.name
)
def test_python_sessions_print_what_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of a page are one session, in a folder that has own.md's mine.py."""
    (mine,) = (block for block in blocks(OWN, "python") if block.startswith("# mine.py"))
    (tmp_path / "mine.py").write_text(mine, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # another's
    text = "".join(sessions(page))
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    result = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test)
    assert result.failed == 0, capsys.readouterr().out
    sys.modules.pop("mine", None)


def test_the_overflow_that_is_shown_is_the_message() -> None:
    text = text_of(ROOT / "docs" / "use.md")
    (overflow,) = re.findall(r"^flashsim\.memory\.errors\.SramOverflow: (.*)$", text, re.MULTILINE)
    with pytest.raises(flashsim.SramOverflow, match=re.escape(overflow)):
        exec(re.findall(r">>> (.*blocks=\(64, 100\)\))", text)[0], {"flashsim": flashsim})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_other_python_is_at_least_python(page: Path) -> None:
    for block in blocks(page, "python"):
        if not block.startswith(">>>"):
            ast.parse(block)


def in_order(output: list[str], printed: str) -> None:
    index = 0
    for line in output:
        pattern = re.escape(line).replace("…", ".*")
        result = re.search(pattern, printed[index:])
        assert result, f"{line!r} not printed, in order, in:\n{printed}"
        index += result.end()


def session(block: str) -> tuple[list[str], list[str]]:
    """Return what a debugging session types, and what it shows."""
    lines = block.splitlines()[1:]
    typed = [line.removeprefix("(Pdb) ") for line in lines if line.startswith("(Pdb) ")]
    return typed, [line for line in lines if not line.startswith("(Pdb)")]


@pytest.mark.parametrize("script", ["walk.py", "try_it.py"])
def test_the_debugging_walk_is_real(script: str, tmp_path: Path) -> None:
    debug = ROOT / "docs" / "debug.md"
    sessions_of_pdb = blocks(debug, "pdb")
    (block,) = (block for block in sessions_of_pdb if script in block.splitlines()[0])
    for page in (debug, OWN):
        for text in blocks(page, "python"):
            if text.startswith(("# walk.py", "# try_it.py", "# mine.py")):
                (tmp_path / re.findall(r"\w+\.py", text)[0]).write_text(text, encoding="utf-8")
    typed, output = session(block)
    done = subprocess.run(
        [sys.executable, "-m", "pdb", script],
        input="\n".join([*typed, "q", ""]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    in_order(output, done.stdout.replace("(Pdb) ", ""))


def test_debugging_at_a_tile_is_real(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = blocks(ROOT / "docs" / "debug.md", "text")
    typed, output = session(block)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join([*typed, "q", ""])))
    assert main(shlex.split(block.splitlines()[0].removeprefix("$ flashsim "))) == 0
    in_order(output, capsys.readouterr().out.replace("(Pdb) ", ""))


def test_debugging_an_algorithm_of_ones_own_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (mine,) = (block for block in blocks(OWN, "python") if block.startswith("# mine.py"))
    (tmp_path / "mine.py").write_text(mine, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("p i, j\nq\n"))
    (command,) = re.findall(
        r"^flashsim (debug [^#\n]*)", text_of(ROOT / "docs" / "own.md"), re.MULTILINE
    )
    assert main(shlex.split(command)) == 0
    assert "(0, 1)" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------
# links


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text_of(page), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The headings of a page, as a code host links to them."""
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S)
    links_to = set()
    for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        links_to.add(words.replace(" ", "-"))
    return links_to


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(without_code(page)):
        if not link.startswith("https://"):
            file, _, anchor = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_can_be_read_on_a_phone(page: Path) -> None:
    """A figure is a printed column wide, 700 pixels, or has another for phones;
    `tests/tracing/test_player.py` reads a film's words.
    """
    for output, phone in pictures(without_code(page)):
        for picture in (output, phone):
            assert not picture or (page.parent / picture).exists(), output
        if output.endswith(".png"):
            wide = imread(page.parent / (phone or output)).shape[1]
            assert wide == 2 * 390 if phone else wide <= 700, output


def test_readme_has_every_page_and_pages_are_questions() -> None:
    pages = {}
    for page in (ROOT / "docs").glob("*.md"):
        pages[page.name] = text_of(page).splitlines()[0]
    of_the_readme = [link for link in links(text_of(README)) if link.startswith("docs/")]
    assert {Path(link).name for link in of_the_readme} == set(pages)
    assert [title for title in pages.values() if not re.fullmatch(r"# .*\?", title)] == []


# --------------------------------------------------------------------------------------------------
# numbers and words


def test_the_words_that_the_code_leaves_to_the_page_are_there() -> None:
    assert "docs/words.md" in (masks.__doc__ or "")
    words = re.findall(r"\*\*(\w+)\*\*", text_of(ROOT / "docs" / "words.md"))
    assert {"full", "partial", "empty", "live", "row", "grouped", "folded"} <= {
        word.lower() for word in words
    }


def test_what_line_1_s_blocks_need_is_counted() -> None:
    rows = re.findall(
        r"^\| N = (\d+), d = (\d+), M = (\d+) \| (.*?) \| (\d+%) of M \| (.*?) \| (\d+) → (\d+) \|$",
        text_of(ROOT / "docs" / "questions.md")
        .replace(",", "")
        .replace(" d =", ", d =")
        .replace(" M =", ", M ="),
        re.MULTILINE,
    )
    assert len(rows) == 2
    for N, d, M, own, needs, fitting, traffic, moved_fitting in rows:
        size: dict[str, Any] = {"N": int(N), "d": int(d), "M": int(M)}
        for sizing, output, accesses in (("paper", own, traffic), ("fit", fitting, moved_fitting)):
            exact = flashsim.theory.exact("flash_basic", **size, sizing=sizing)
            assert (f"{exact.blocks.B_r} × {exact.blocks.B_c}", str(exact.accesses)) == (
                output,
                accesses,
            )
            assert (exact.sram.peak <= exact.sram.capacity) is (sizing == "fit")
            assert sizing == "fit" or f"{exact.sram.peak / exact.sram.capacity:.0%}" == needs


def test_what_is_set_beside_the_papers_figure_2_is_counted() -> None:
    result = re.findall(
        r"^\| (\d+) KB[^|]*\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+%) of M \|$",
        text_of(ROOT / "docs" / "paper.md"),
        re.MULTILINE,
    )
    fit = FIGURES["traffic"].data(sizing="fit")["model"]
    paper = FIGURES["traffic"].data(sizing="paper")["model"]
    of = zip(fit["standard"]["by_M"], fit["flash"]["by_M"], paper["flash"]["by_M"], strict=True)
    counted = [
        (
            str(a["KB"]),
            *(f"{index['bytes'] / 1e9:.3g}" for index in (a, b, c)),
            f"{c['peak'] / c['M']:.0%}",
        )
        for a, b, c in of
    ]
    assert result == counted


def test_what_is_wrong_with_the_papers_gflops_is_counted() -> None:
    """Six and seven products of 2N²d each for each head; the paper's numbers are of something
    else.
    """
    page = paragraphs(text_of(ROOT / "docs" / "paper.md"))
    head = 2 * 1024**2 * 64
    counted = {}
    for name, products in (("standard", 6), ("flash", 7)):
        ways = [
            flashsim.count(name, N=1024, d=64, heads=1024, direction=way).flops.matmul
            for way in ("forward", "backward")
        ]
        counted[name] = sum(ways)
        assert (
            counted[name]
            == products * head * 1024
            == FIGURES["traffic"].data()["model"][name]["flops"]["matmul"]
        )
        if name == "standard":
            assert has_numbers(page, "{:.1f} {:.1f}".format(*(n / 1e9 for n in ways)))
    standard, flash = (counted[name] / 1e9 for name in ("standard", "flash"))
    printed = {name: FIGURE_2[name]["GFLOPs"] for name in ("standard", "flash")}
    assert has_numbers(page, f"{printed['standard']} {printed['flash']} {standard:.1f} {flash:.1f}")
    assert has_numbers(page, f"{standard / printed['standard']:.1f} {flash / printed['flash']:.1f}")
    assert has_numbers(page, f"{printed['flash'] - printed['standard']:.1f} 64")
    assert f"{64 * head / 1e9:.1f}" == "8.6"
    assert has_numbers(page, f"64 {6 * 64 * head / 1e9:.1f} {printed['standard']}")
    assert has_numbers(page, f"{flash / standard:.2f} {printed['flash'] / printed['standard']:.2f}")


def test_what_is_saved_follows_M_over_d2_as_is_said() -> None:
    page = paragraphs(text_of(ROOT / "docs" / "run.md"))
    saved = FIGURES["saved"].data()
    near, far = (saved["marks"][name] for name in ("reference", "figure_2"))
    for mark in (near, far):
        factor = count("standard", mark["M"]) / count("flash", mark["M"])
        assert mark["factor"] == pytest.approx(factor, abs=1e-4)
        assert has_numbers(page, f"{mark['M'] / REFERENCE_D**2:.3g} {factor:.3g}")
    assert has_numbers(page, f"{saved['paper']:.1f}", about="measured")
    for curve in saved["curves"][:2]:  # forward, at d and d/2
        index = dict(zip(curve["M"], curve["factor"], strict=True))
        for M in (8 * curve["d"] ** 2, 16 * curve["d"] ** 2):
            assert index[M] == pytest.approx(M / 3 / curve["d"] ** 2, rel=0.15)


def count(name: str, M: int) -> int:
    return flashsim.count(name, N=REFERENCE_N, d=REFERENCE_D, M=M, sizing="fit").hbm.accesses


def test_what_grouped_heads_save_with_queries_outermost_is_counted() -> None:
    options: dict[str, Any] = {"N": 1024, "d": 64, "heads": 32, "kv_heads": 8, "sizing": "fit"}
    separate, grouped = (
        flashsim.count("q_outer", **options, gqa=way).hbm.accesses
        for way in ("separate", "grouped")
    )
    assert has_numbers(
        paragraphs(text_of(ROOT / "docs" / "paper.md")), f"{1 - grouped / separate:.1%} 1,024 64"
    )


def record(name: str) -> Any:
    return json.loads((ROOT / "figures" / f"{name}.json").read_text(encoding="utf-8"))


def test_speeds_are_the_benchmarked_ones() -> None:
    measured = re.findall(
        r"^\| [^|]+ \| ([\d.]+) \| [≤≥] [\d.]+ \|$",
        text_of(ROOT / "docs" / "speed.md"),
        re.MULTILINE,
    )
    values = [
        row["value"] for row in record("bench_cpu")["rows"] if "interpret=True" not in row["what"]
    ]
    order = [*values[:5], values[6], values[5]]  # the page puts Triton first
    assert len(measured) == len(order)
    for number, value in zip(measured, order, strict=True):
        digits = len(number.partition(".")[2])
        assert number == f"{value:.{digits}f}"


def test_numbers_about_real_data_are_the_measured_ones() -> None:
    statistics = record("qkv_statistics")["statistics"]
    page = paragraphs(text_of(ROOT / "docs" / "real-data.md"))
    first = statistics["layer 0"]
    gaussian = statistics["gaussian"]
    assert has_numbers(page, f"{-first['score_min']:.0f} {first['score_max']:.0f}")
    assert has_numbers(page, f"{first['by_key_block']['32']['largest_rise']:.0f} 32")
    assert has_numbers(page, f"{max(-gaussian['score_min'], gaussian['score_max']) + 0.05:.1f}")
    assert has_numbers(page, f"{gaussian['by_key_block']['32']['largest_rise']:.1f}")
    layers = [statistics[f"layer {n}"] for n in range(6)]
    assert has_numbers(page, f"{sum(layer['rows'] for layer in layers):,}")
    assert sum(layer["rows_with_negative_max"] for layer in layers) == 1
    shares = [
        round(100 * layer["rows_with_max_at_first_token"] / layer["rows"]) for layer in layers
    ]
    assert has_numbers(page, " ".join(map(str, shares)))
    rising = gaussian["by_key_block"]["32"]["mean_rising_blocks"]
    assert all(layer["by_key_block"]["32"]["mean_rising_blocks"] < rising for layer in layers[1:])


def test_numbers_about_the_kit_are_the_recorded_ones() -> None:
    data = record("kit_matrix")["data"]
    page = paragraphs(text_of(ROOT / "docs" / "kernels.md"))
    late = [row["name"] for row in data["mutants"] if row["written"] == "after"]
    own = [row for row in data["mutants"] if row["part"] != "serving"]
    assert [row["name"] for row in own] == [mutant.name for mutant in ALL]
    names = {row["name"] for row in data["mutants"]}
    of_serving = names - {row["name"] for row in own}
    assert of_serving <= {mutant.name for mutant in SERVING}
    for row in data["mutants"]:
        assert None not in row["first"], "a bug that some seed does not show"
    for check in CHECKS:
        failures = [row["failed"].get(check) for row in data["mutants"]]
        assert any(failures), f"{check} never fails"
    assert has_numbers(page, f"{len(ALL)} {sum(row['textbook'] for row in own)}")
    assert has_numbers(page, f"{len(late)} {len(late) - len(data['missed_when_frozen'])}")

    kit = record("kit_conformance")
    subjects = kit["implementations"]
    # a new algorithm may come later
    assert set(IMPLEMENTATIONS) - set(FORWARD) <= set(subjects) <= set(IMPLEMENTATIONS)
    assert all(subject["ok"] for subject in subjects.values())
    assert has_numbers(page, f"{kit['examples']:,}", about="examples")
    fewer = [name for name, subject in subjects.items() if subject["examples"] < kit["examples"]]
    assert set(fewer) == set(kit["fewer_examples"]) == {"jax_pallas", "triton"}
    assert {subjects[name]["examples"] for name in fewer} == {200}


def test_numbers_about_usual_tests_are_the_recorded_ones() -> None:
    data = record("usual_tests")["data"]
    assert data["bugs"] == len(ALL)
    assert table("docs/kernels.md", "bugs that pass") == [
        [what, str(count)] for what, count in data["pass"].items()
    ]
    assert table("docs/kernels.md", "errors over the baseline's") == [
        [
            what,
            *(f"{of[index]:.2f}" for index in ("rms", "largest_median", "largest")),
            str(of["beyond_2"]),
        ]
        for what, of in data["errors"].items()
    ]
    output = f"{data['N']:,} {data['d']} {data['B_r']} {data['draws']}"
    assert has_numbers(paragraphs(text_of(ROOT / "docs" / "kernels.md")), output)


@pytest.mark.slow
def test_numbers_about_usual_tests_are_measured_again() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "usual_tests.py"))
    data = record("usual_tests")["data"]
    assert script["bugs_that_pass"]() == data["pass"]
    # other machines round sums in another order
    for what, (largest, mean) in script["errors"](0).items():
        assert largest <= 1.1 * data["errors"][what]["largest"]
        assert mean == pytest.approx(data["errors"][what]["rms"], rel=0.1)

"""README: its table is the registry, Algorithm 1 is its source, its example runs, and it is
short.
"""

import inspect
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

import flashsim
from flashsim.algorithms import (
    BACKWARD,
    FORWARD,
    Algorithm,
    algorithm_1_flash_basic,
    backward_passes,
)
from flashsim.algorithms.own import PARTS as PARTS_OF_ONES_OWN
from flashsim.cli import ROUTE, parse
from flashsim.cli.step import recorded
from flashsim.learn.exercises import exercises
from flashsim.learn.gallery import pages
from flashsim.plots.film import STAY
from flashsim.tracing.planting import pattern_of
from tests.helpers.pages import (
    OWN,
    README,
    ROOT,
    blocks,
    links,
    listing,
    pictures,
    said,
    table,
    text_of,
)

TEXT = text_of(README)


def test_it_is_short_and_its_two_commands_are_what_they_were() -> None:
    assert len(TEXT.splitlines()) <= 150
    assert len(pictures(TEXT)) == 3
    assert (
        blocks(README, "sh")[0]
        == 'pip install -e . && flashsim run\npip install -e ".[test]" && pytest\n'
    )


def test_its_route_of_ten_minutes_is_what_flashsim_alone_says() -> None:
    route = dict(re.split(" +# ", line) for line in blocks(README, "sh")[1].splitlines())
    assert route == ROUTE
    # `flashsim lessons 3`: "Algorithm 1, played line by line"
    assert list(pages()).index("flash_basic") + 1 == 3
    assert exercises()["inner_loop"].number == 5


@pytest.mark.parametrize(
    "named",
    [
        "notebooks",
        "slides",
        "flashsim example",
        "flashsim playground",
        "check --init FILE.py:NAME",
        "flashsim tune mine.py:f",
    ],
)
def test_it_names(named: str) -> None:
    assert named in said("README.md")


def test_its_example_is_one_where_flash_attention_moves_less() -> None:
    """Its numbers are run as they stand (test_docs.py); this one is beside them."""
    (traffic, N, d, M) = re.findall(
        r"moves ([\d,]+) \(`flashsim count standard --N (\d+) --d (\d+) --M (\d+)`\)", TEXT
    )[0]
    sizes: dict[str, Any] = {"N": int(N), "d": int(d), "M": int(M)}
    standard = flashsim.count("standard", **sizes, sizing="fit")
    assert traffic == f"{standard.hbm.accesses:,}"
    flash = flashsim.count("flash_basic", **sizes, blocks=(4, 12))
    assert f"accesses {flash.hbm.accesses:,}\n" in TEXT
    assert f"Blocks(B_r=4, B_c=12, N_q={N}, N_k={N})" in TEXT
    assert f"SRAM(hbm, {M})" in TEXT
    assert flash.hbm.accesses < standard.hbm.accesses / 2


def test_the_moving_picture_is_small_and_of_the_steps_that_its_command_names(
    tmp_path: Path,
) -> None:
    (command,) = re.findall(r"`flashsim (step .*) -o figures/loop.gif`", TEXT)
    options = parse(shlex.split(command))
    trace, _ = recorded(options)
    first, last = options.gif
    exact = flashsim.theory.exact("flash_basic", N=12, d=4, M=104, sizing="fit")
    last_event = trace.events[-1]
    assert trace.about.M == 104
    assert last_event.reads == exact.reads
    assert last_event.writes == exact.writes
    steps = trace.steps[first + 1 : last + 1]
    assert {dict(step.loops)["j"] for step in steps} == {0}
    assert dict(trace.steps[last + 1].loops)["j"] == 1
    with Image.open(ROOT / "figures" / "loop.gif") as film:
        assert [frame.info["duration"] for frame in ImageSequence.Iterator(film)].count(
            STAY
        ) == last - first + 1
    assert (ROOT / "figures" / "loop.gif").stat().st_size < 400_000


def test_every_algorithm_has_its_row() -> None:
    """Name, and a link to the file that holds it, forward and backward; no other rows, and no
    numbers.
    """
    rows = {name.strip("`"): cells for name, *cells in table("README.md", "table of algorithms")}
    assert list(rows) == list(FORWARD)
    for name, (forward, backward) in rows.items():
        assert links(forward) == [file_of(FORWARD[name])], name
        assert links(backward) == [file_of(BACKWARD[back]) for back in backward_passes(name)], name
    named = {name for _, backward in rows.values() for name in re.findall(r"`(\w+)`: ", backward)}
    assert named == BACKWARD.keys() - FORWARD.keys()


def file_of(algorithm: Algorithm) -> str:
    """The file that ends in the record; its function may be another's, as `sliding_window`'s is."""
    return str(Path(inspect.getfile(sys.modules[algorithm.home])).relative_to(ROOT))


def test_tables_are_as_made_and_only_they_are_written() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "docs_tables.py"))
    written = script["written"]
    pages = script["TABLES"]
    for page in pages:
        assert written(page, text_of(ROOT / page)) == text_of(ROOT / page), page
    text = text_of(ROOT / "docs" / "gpu.md")
    first, marker, rest = text.partition("<!-- table of kernels -->\n")
    old = re.sub(r"\| \d+\.\d \|", "| 1.0 |", rest, count=1)
    assert old != rest
    assert (
        written("docs/gpu.md", first + marker + old + "| `standard` | 74.6 |\n")
        == text + "| `standard` | 74.6 |\n"
    )
    with pytest.raises(ValueError, match="end of table of algorithms"):
        written("README.md", TEXT.replace("<!-- end of table of algorithms -->", ""))


def test_algorithm_1_s_table_is_its_source() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| .*? \| (.*) \|$", TEXT, re.MULTILINE))
    assert list(map(int, rows)) == list(range(1, 17))
    source = inspect.getsource(algorithm_1_flash_basic.flash_basic)
    for line, cell in rows.items():
        for code in re.findall(r"`([^`]+)`", cell):
            assert pattern_of(code).search(source), f"line {line}"
    printed = listing(algorithm_1_flash_basic.__doc__ or "")
    for line, text in re.findall(r"^\| (\d+) \| (.*?) \|", TEXT, re.MULTILINE):
        assert printed[int(line)] == text


def test_an_algorithm_of_ones_own_does_what_is_said(tmp_path: Path) -> None:
    (script,) = (block for block in blocks(OWN, "python") if block.startswith("# mine.py"))
    assert len(script.splitlines()) <= 25
    scope: dict[str, Any] = {}
    exec(script, scope)
    mine = scope["two_sweeps"]
    Q, K, V = np.random.default_rng(0).normal(size=(3, 50, 8))
    run = flashsim.forward(mine, Q, K, V, M=4096)
    assert run.O.shape == (50, 8)
    assert flashsim.trace(mine, Q, K, V).save(tmp_path / "mine.html").exists()
    assert "`, `".join(PARTS_OF_ONES_OWN) in said("docs/own.md")


def test_the_version_is_one() -> None:
    of_package = re.search(r'^version = "(.*)"$', text_of(ROOT / "pyproject.toml"), re.MULTILINE)
    of_citation = re.search(r"^version: (.*)$", text_of(ROOT / "CITATION.cff"), re.MULTILINE)
    assert of_package
    assert of_citation
    assert of_package[1] == of_citation[1] == flashsim.__version__

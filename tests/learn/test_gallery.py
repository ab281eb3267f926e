"""The gallery: what its texts say is in the traces and on the pages.

What a moment is said to be is looked up here, independently of what makes the pages.
"""

import ast
import base64
import gzip
import html
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import theory
from flashsim.cli import main
from flashsim.extensions import mlp
from flashsim.learn import gallery
from flashsim.learn.gallery.page import Page, parts_of
from flashsim.tracing import Lesson, Moment, Step, Stop, Trace
from flashsim.tracing.loading import _TraceFile, trace_of
from flashsim.tracing.page import LARGEST_PAGE, MOST_STEPS
from flashsim.tracing.typeset import typeset
from tests.conftest import DESK, PHONE, until

FRAME = {"width": 960, "height": 480}

ROOT = Path(__file__).resolve().parents[2]
LESSONS = list(gallery.pages())
TRACE = re.compile(r'(?<=<script id="trace" type="text/plain">)[^<]+')
LINK = re.compile(
    r'<a href="(?:(\w+)\.html)?#t=(\d+)" data-event="([^"]*)">.*?</a>, .*?: '
    r"(?:<details>.*?)?<span>(.*?)</span>(?:</details>)?</li>"
)


@cache
def made() -> dict[str, str]:
    return dict(gallery.files())


def data_of(page: str) -> list[dict[str, Any]]:
    match = TRACE.search(page)
    assert match is not None
    data: list[dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(match[0])))
    return data


@cache
def traces(name: str) -> list[Trace]:
    file_names = {field.name for field in fields(_TraceFile)}
    traces = []
    for data in data_of(made()[f"{name}.html"]):
        # A page has more than the file of a trace: what its player shows.
        traces.append(trace_of({name: data[name] for name in file_names & data.keys()}))
    return traces


@dataclass(frozen=True)
class Link:
    page: str
    step: int
    event: str
    words: str


def links(text: str) -> list[Link]:
    return [
        Link(page, int(step), html.unescape(event), words)
        for page, step, event, words in LINK.findall(text)
    ]


def plain(fragment: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", fragment)).split())


def paragraphs(page: str) -> list[str]:
    lesson = re.search(r'<details id="lesson" open>(.*?)</details>', page, re.DOTALL)
    assert lesson is not None
    return re.findall(r"<p>(.*?)</p>", lesson[1], re.DOTALL)


def text_of(name: str) -> str:
    return plain(" ".join(paragraphs(made()[f"{name}.html"])))


# --------------------------------------------------------------------------------------------------
# the files


def test_there_is_a_page_for_each_lesson_in_the_order_of_a_course() -> None:
    assert set(made()) == {
        "index.html",
        "playground.html",
        *(f"{lesson}.html" for lesson in LESSONS),
    }
    orders = [page.order for page in gallery.pages().values()]
    assert len(set(orders)) == len(orders)
    assert LESSONS[:5] == ["online_softmax", "standard", "flash_basic", "causal", "backward"]
    later = [
        LESSONS.index(name) for name in ("backward", "pinned", "optimum", "streamed", "hybrid")
    ]
    assert later == sorted(later)  # what needs the first five


@pytest.mark.slow
def test_every_run_makes_the_same_bytes(tmp_path: Path) -> None:
    """Also one with hashes of its own, in whose sets words lie in another order."""
    code = (
        "import sys; from flashsim.cli import main; sys.exit(main(['lessons', '-o', sys.argv[1]]))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "12345"}
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=env, stdout=subprocess.DEVNULL, check=True
    )
    assert {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()} == made()


def test_the_command_writes_the_pages_over_its_own_files_and_no_others_and_opens_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    pages = made()
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("flashsim.learn.gallery.files", lambda names: iter(pages.items()))
    monkeypatch.chdir(tmp_path)
    index = tmp_path / "flashsim-lessons" / "index.html"
    for _ in range(2):
        assert main(["lessons", "--open"]) == 0
        assert {
            file.name: file.read_text(encoding="utf-8") for file in index.parent.iterdir()
        } == pages
        assert "Saved flashsim-lessons/index.html" in capsys.readouterr().out
    assert opened == [index.as_uri()] * 2
    index.write_text("lessons of my own", encoding="utf-8")
    assert main(["lessons"]) == 2
    assert (
        "has an index.html of its own; expected a folder for the lessons" in capsys.readouterr().err
    )
    assert index.read_text(encoding="utf-8") == "lessons of my own"


def test_the_command_writes_a_lesson_that_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours are not there: nothing links to them."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert (
        main(["lessons", "causal", "online_softmax", "-o", str(tmp_path / "a" / "b"), "--open"])
        == 0
    )
    files = sorted((tmp_path / "a" / "b").iterdir())
    assert [file.name for file in files] == ["causal.html", "online_softmax.html"]
    assert not re.findall(r'href="\w+\.html"', files[0].read_text(encoding="utf-8"))
    assert opened == [files[0].as_uri()]


@pytest.mark.parametrize("name", LESSONS)
def test_pages_are_small_and_keep_their_values_and_the_index_shows_their_size_and_tiles(
    name: str,
) -> None:
    page = made()[f"{name}.html"]
    assert len(page.encode("utf-8")) < LARGEST_PAGE
    for trace in traces(name):
        assert len(trace.steps) <= MOST_STEPS
        assert all(
            event.value is not None
            for event in trace.events
            if event.kind in ("load", "compute", "store")
        )
        assert trace.about.notes == ()
    assert f'<span class="size">{len(page.encode()) / 1000:,.0f} kB</span>' in article(name)
    (entry,) = re.findall(rf'<li>(<svg .*?</svg>)<article id="{name}">', made()["index.html"])
    blocks = traces(name)[0].about.blocks
    assert entry.count("<rect") == blocks.T_r * blocks.T_c
    visited = {step.tile for step in traces(name)[0].steps} - {None}
    assert entry.count("var(--ground)") == blocks.T_r * blocks.T_c - len(visited)


@pytest.mark.parametrize(
    "name", ["index.html", "playground.html", *(f"{lesson}.html" for lesson in LESSONS)]
)
def test_pages_are_self_contained(name: str) -> None:
    text = TRACE.sub("", made()[name])
    assert "default-src 'none'" in text
    # a name, which nothing is loaded from
    addresses = text.replace("http://www.w3.org/2000/svg", "")
    assert (
        re.findall(
            r"""(?:src|srcset)\s*=\s*["']|url\(|@import|<link|https?://|fetch\(|XMLHttpRequest|\bimport\(""",
            addresses,
        )
        == []
    )
    assert re.findall(r"\{\{|/\* player\.", addresses) == []  # of the template
    targets = set(re.findall(r'href="([^"#]*)', text)) - {""}
    if name == "index.html":
        assert targets == {"playground.html", *(f"{lesson}.html" for lesson in LESSONS)}
    else:
        assert targets == (set() if name == "playground.html" else {"index.html"})


def test_another_lesson_changes_no_other_s_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a page's number, nor its neighbours': what is generated and changes is the index."""
    pages = made()
    fewer = dict([*gallery.pages().items()][1:5])
    monkeypatch.setattr(import_module("flashsim.learn.gallery.files"), "pages", lambda: fewer)
    of_few = dict(gallery.files())
    assert {*of_few} == {"index.html", "playground.html", *(f"{name}.html" for name in fewer)}
    assert {name for name, content in of_few.items() if pages[name] != content} == {"index.html"}


def article(name: str) -> str:
    match = re.search(rf'<article id="{name}">(.*?)</article>', made()["index.html"], re.DOTALL)
    assert match is not None
    return match[1]


def broken(page: Page) -> list[str]:
    """The rules of `flashsim/learn/gallery/page.py` that a lesson breaks, in words."""
    lesson = page.lesson
    steps = [moment.step for moment in page.lesson.moments]
    rules = {
        f"its docstring has {len(page.about)} characters; expected at least 20, for the index": len(
            page.about
        )
        >= 20,
        f"its text has {len(lesson.text.split())} words; expected at least 80": len(
            lesson.text.split()
        )
        >= 80,
        f"it has {len(steps)} moments; expected at least 3": len(steps) >= 3,
        f"its moments are at steps {steps}; expected each at another": len(set(steps))
        == len(steps),
        "it asks nothing; expected at least one question": bool(lesson.stops),
        f"it has {len(page.traces[0].steps)} steps; expected at most {MOST_STEPS}": len(
            page.traces[0].steps
        )
        <= MOST_STEPS,
    }
    for stop in lesson.stops:
        text = f"its question {stop.asks!r}"
        rules |= {
            f"{text} is asked before the first step; expected a later one": stop.step > 0,
            f"{text} ends with no question mark and no full stop": stop.asks.endswith(("?", ".")),
            f"{text} has {len(stop.choices)} choice; expected two or more": len(stop.choices) > 1,
        }
    return [f"{page.name}: {rule}" for rule, holds in rules.items() if not holds]


@pytest.mark.parametrize("name", LESSONS)
def test_lessons_keep_the_rules_and_call_others_by_name(name: str) -> None:
    """Not by their place, as another may come between."""
    lesson = gallery.pages()[name].lesson
    assert broken(gallery.pages()[name]) == []
    words = " ".join(
        [
            lesson.text,
            *(m.words for m in lesson.moments),
            *(s.asks + s.because for s in lesson.stops),
        ]
    )
    place = r"(?:next|previous|following|preceding|first|last|\w+th) lesson|lessons? (?:before|after|\d+)"
    assert re.findall(place, " ".join(words.split())) == []


def test_a_lesson_that_breaks_the_rules_is_told_which() -> None:
    bad = """Too short.

        [read K] One.
        [asks @ last step] Which
        [choices] this
        [right] this
        [because] It is.
        """
    page = replace(gallery.pages()["standard"], name="bad", about="Short.", teach=lambda trace: bad)
    assert broken(page) == [
        "bad: its docstring has 6 characters; expected at least 20, for the index",
        "bad: its text has 2 words; expected at least 80",
        "bad: it has 1 moments; expected at least 3",
        "bad: its question 'Which' ends with no question mark and no full stop",
        "bad: its question 'Which' has 1 choice; expected two or more",
    ]
    asks_nothing = replace(page, teach=lambda trace: bad.partition("[asks")[0])
    assert "bad: it asks nothing; expected at least one question" in broken(asks_nothing)
    asks_at_once = replace(page, teach=lambda trace: bad.replace("asks @ last step", "asks @ 0"))
    assert (
        "bad: its question 'Which' is asked before the first step; expected a later one"
        in broken(asks_at_once)
    )


@pytest.mark.parametrize("name", LESSONS)
def test_the_index_has_each_lesson_s_text_and_folds_what_it_asks_before_it_shows(name: str) -> None:
    """And what the page tells after its questions; it promises a question where the page asks
    one.
    """
    page = made()[f"{name}.html"]
    lesson = gallery.pages()[name].lesson
    later = re.findall(r'<div class="after" hidden><p>(.*?)</p></div>', page, re.DOTALL)
    for paragraph in paragraphs(page):
        text = (
            f"</summary><span>{paragraph}</span></details>"
            if paragraph in later
            else f"<p>{paragraph}</p>"
        )
        assert text in article(name)
    promised = re.findall(
        r'#t=(\d+)"(?:(?!</li>).)*<summary>the page asks first</summary>',
        lesson.html(f"{name}.html"),
    )
    stops = {stop.step for stop in lesson.stops}
    moments = {moment.step for moment in lesson.moments}
    assert {*map(int, promised)} == stops & moments
    events = re.sub(
        r"<details><summary>(the page asks first|after the question)</summary>.*?</details>",
        "",
        article(name),
    )
    assert {moment.step for moment in lesson.moments if typeset(moment.words) in events} == {
        index for index in moments if index < min(stops)
    }
    assert all(typeset(moment.words) in article(name) for moment in lesson.moments)


def commands_of(name: str) -> str:
    """What the index says makes a lesson's page: a command line, or Python."""
    commands = re.search(r"<pre>(.*?)</pre>", article(name), re.DOTALL)
    assert commands is not None
    return html.unescape(commands[1])


def test_python_that_makes_a_page_is_whole() -> None:
    sources = [source for source in map(commands_of, LESSONS) if not source.startswith("flashsim ")]
    assert sources
    for source in sources:
        *_, last = ast.parse(source).body
        assert ast.unparse(last).startswith("trace.save(")


@pytest.mark.slow
@pytest.mark.parametrize("name", LESSONS)
def test_the_same_commands_make_the_same_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the index says makes a page, run as it stands there, makes its traces."""
    code = commands_of(name)
    if code.startswith("flashsim "):
        command = code.removesuffix(f" -o {name}.html")
        path = tmp_path / "page.html"
        assert main([*shlex.split(command)[1:], "-o", str(path)]) == 0
        fresh = data_of(path.read_text(encoding="utf-8"))
        for data in fresh:
            data["about"]["command"] = command  # without -o …
    else:
        monkeypatch.chdir(tmp_path)  # the code writes the page where it runs
        exec(code, {})
        fresh = data_of((tmp_path / f"{name}.html").read_text(encoding="utf-8"))
    assert data_of(made()[f"{name}.html"]) == fresh


# --------------------------------------------------------------------------------------------------
# moments


def events(trace: Trace, step: Step) -> list[tuple[str, str]]:
    return [
        (event.kind, event.name.partition("[")[0])
        for event in trace.events[step.first : step.last + 1]
    ]


def maxima(trace: Trace, step: Step) -> tuple[Any, Any]:
    """Return the largest score of each row before and after a step that computes one, from the
    events alone.
    """
    inside = trace.events[step.first : step.last + 1]
    after = next(event.value for event in inside if event.name == "m_i_new")
    before = None
    for event in reversed(trace.events[: step.first]):
        if (event.kind == "load" and event.array == "m") or (
            event.kind == "compute" and event.name == "m_i"
        ):
            before = event.value
            break
    return before, after


def tile_leaves(trace: Trace, step: Step) -> int:
    assert trace.about.tiles is not None
    assert step.tile is not None
    return trace.about.tiles[step.tile[0]][step.tile[1]]


def skips(trace: Trace, step: Step) -> bool:
    """Say whether tiles lie between this step's tile, or its row's end, and the one before it,
    and none is ever visited.
    """
    visited = {s.tile for s in trace.steps}
    before = reversed(trace.steps[: step.number])
    i, j = next(s.tile for s in before if s.tile is not None)
    if step.tile is None:
        between = [(i, after) for after in range(j + 1, trace.about.blocks.T_c)]
    else:
        assert step.tile[1] == j
        between = [(after, j) for after in range(i + 1, step.tile[0])]
    return bool(between) and not visited.intersection(between)


def is_rise(trace: Trace, step: Step) -> bool:
    before, after = maxima(trace, step)
    return bool(((after > before) & np.isfinite(before)).any())


def is_start(trace: Trace, step: Step) -> bool:
    before, after = maxima(trace, step)
    return bool(np.isneginf(before).all() and np.isfinite(after).any())


def is_still(trace: Trace, step: Step) -> bool:
    before, after = maxima(trace, step)
    return bool(np.isfinite(before).all() and np.array_equal(before, after))


def is_first_difference(name: str, step: Step) -> bool:
    right, wrong = traces(name)
    differ = []
    for n, (a, b) in enumerate(zip(right.events, wrong.events, strict=True)):
        if a.value is None or b.value is None:
            continue
        if not np.array_equal(a.value, b.value):
            differ.append(n)
    return step.first <= differ[0] <= step.last


def holds(name: str, link: Link) -> bool:
    """Say whether the step is the kind of event that it is called."""
    trace = traces(name)[0]
    step = trace.steps[link.step]
    word, _, array = link.event.partition(" ")
    if word == "line":
        return step.label == link.event
    if word in ("read", "write", "initialize"):
        return ({"read": "load", "write": "store", "initialize": "init"}[word], array) in events(
            trace, step
        )
    if word == "over":
        return trace.events[step.last].occupancy > trace.about.M and ("compute", "S_ij") in events(
            trace, step
        )
    checks: dict[str, Callable[[], bool]] = {
        "rescale": lambda: is_rise(trace, step),
        "first maximum": lambda: is_start(trace, step),
        "maximum stays": lambda: is_still(trace, step),
        "tiles skipped": lambda: skips(trace, step),
        "partial tile": lambda: (
            tile_leaves(trace, step) == 2 and ("compute", "S_masked_ij") in events(trace, step)
        ),
        "full tile": lambda: (
            tile_leaves(trace, step) == 1 and ("compute", "S_masked_ij") in events(trace, step)
        ),
        "first difference": lambda: is_first_difference(name, step),
        "last step": lambda: step is trace.steps[-1],
    }
    return checks[link.event]()


@pytest.mark.parametrize("name", LESSONS)
def test_links_are_in_the_trace_and_what_they_are_said_to_be(name: str) -> None:
    page_links = links(article(name))
    assert [link.step for link in page_links] == sorted({link.step for link in page_links})
    for link in page_links:
        assert link.page == name
        assert link.step < len(traces(name)[0].steps)
        assert holds(name, link), link
    in_page = links(made()[f"{name}.html"])
    assert [(link.step, link.event, link.words) for link in in_page] == [
        (k.step, k.event, k.words) for k in page_links
    ]


# -------------------------------------------------------------- what the texts say, worked out anew


def test_online_softmax_has_the_numbers_of_its_scores() -> None:
    """The largest score and the sum so far, worked out from all scores so far."""
    scores = np.array([2.0, 5.0, 1.0, 4.0])
    m = [max(scores[:i]) for i in range(1, 5)]
    s = [np.exp(scores[:i] - most).sum() for i, most in enumerate(m, 1)]
    trace = traces("online_softmax")[0]
    drawings = [
        e.value.item()
        for e in trace.events
        if e.name == "l_i" and e.value is not None and e.label == "line 5"
    ]
    np.testing.assert_allclose(drawings, s, rtol=1e-6)
    assert len(trace.about.listing) == 9
    assert not [line for line in trace.about.listing if "MASK" in line or "dropout" in line.lower()]
    (rise,) = [i for i in range(1, 4) if m[i] > m[i - 1]]
    text = text_of("online_softmax")
    assert f"m rises from {m[rise - 1]:g} to {m[rise]:g}" in text
    assert f"{np.exp(m[rise - 1] - m[rise]):.4g}" in text
    assert f"ℓ = {s[-1]:.4g}" in text


def test_real_data_is_where_the_maximum_moves_most() -> None:
    record = json.loads((ROOT / "figures" / "qkv_statistics.json").read_text(encoding="utf-8"))
    by_block = record["statistics"]["layer 0"]["by_key_block"]
    most = {int(size): block["largest_rise"] for size, block in by_block.items()}
    size = max(most, key=lambda block: most[block])
    trace = traces("real_data")[0]
    assert trace.about.blocks.B_c == size
    (rise,) = [link for link in links(article("real_data")) if link.event == "rescale"]
    before, after = maxima(trace, trace.steps[rise.step])
    # the sample is kept in 16 bits
    rise_of_m = float((after - before).max())
    assert rise_of_m == pytest.approx(most[size], abs=2e-3)
    text = text_of("real_data")
    assert f"here by {most[size]:.4g}, the most in any head for blocks of {size} keys" in text
    assert f"for blocks of {min(most)} it is {most[min(most)]:.4g}" in text
    row = int((after - before).argmax())
    assert f"Row {row} is token" in text
    assert plain(rise.words).startswith(
        f"Row {row}: m from {before[row, 0]:.4g} to {after[row, 0]:.4g}"
    )


@pytest.mark.parametrize(
    ("name", "algorithm", "options"),
    [
        ("standard", "standard", {}),
        ("flash_basic", "flash_basic", {}),
        ("causal", "q_outer", {"mask": flashsim.Causal()}),
        ("block_sparse", "block_sparse", {"block_mask": flashsim.patterns.butterfly}),
        ("backward", "flash", {"direction": "backward"}),
    ],
)
def test_counts_in_texts_are_the_closed_forms(
    name: str, algorithm: str, options: dict[str, Any]
) -> None:
    about = traces(name)[0].about
    sizes: dict[str, Any] = {"N": about.shape.N_q, "d": about.shape.d, "M": about.M}
    blocks = (about.blocks.B_r, about.blocks.B_c)
    exact = theory.exact(algorithm, **sizes, blocks=blocks, **options)
    text = text_of(name) + plain(article(name))
    assert f"{exact.hbm.accesses:,} " in text
    if name == "causal":
        by_array = exact.hbm.by_array
        whole = theory.exact("q_outer", N=12, d=4, M=about.M, blocks=blocks).hbm
        assert f"K and V cost {by_array['K'].reads + by_array['V'].reads} accesses" in text
        assert (
            "without the mask they would cost "
            f"{whole.by_array['K'].reads + whole.by_array['V'].reads}."
        ) in text
        assert f"{exact.hbm.accesses} accesses of {whole.accesses} without a mask" in text
    if name == "block_sparse":
        dense = theory.exact("flash", **sizes, blocks=blocks)
        most = f"{dense.hbm.accesses:,}"
        assert (
            f"This run makes {exact.hbm.accesses:,} accesses, and with all tiles it would make "
            f"{most}."
        ) in text
    if name in ("flash_basic", "backward"):
        direction = options.get("direction", "forward")
        standard = theory.exact("standard", **sizes, direction=direction)
        assert f"{standard.hbm.accesses:,}." in text


def test_streams_save_what_it_says_beside_the_best_blocks_of_q_outer() -> None:
    """Each side has its best blocks at the same M, of all that fit."""
    text = text_of("streamed") + plain(article("streamed"))
    sides = {}
    for trace, name in zip(traces("streamed"), ("streamed", "q_outer"), strict=True):
        pairs = itertools.product(range(1, 7), range(1, 7))
        counted = {pair: theory.exact(name, N=6, d=4, M=34, blocks=pair) for pair in pairs}
        moves = {
            pair: tally.hbm.accesses for pair, tally in counted.items() if tally.sram.peak <= 34
        }
        here = (trace.about.blocks.B_r, trace.about.blocks.B_c)
        assert trace.about.algorithm == name
        assert moves[here] == min(moves.values())
        tally = counted[here]
        sides[name] = (tally.hbm.accesses, tally.sram.peak, here[0])
    few, peak, rows = sides["streamed"]
    many, other, fewer = sides["q_outer"]
    assert (
        f"{6 // rows} times instead of {6 // fewer}: {few} accesses, and q_outer makes {many} with"
        in text
    )
    assert f"At most {peak} elements are on chip here, and {other} there." in text
    loads = [event for event in traces("streamed")[0].events if event.kind == "load"]
    elements = [event for event in loads if event.array in ("K", "V")]
    assert {np.size(event.value) for event in elements if event.value is not None} == {1}
    tuned = flashsim.tune.tune(N=4096, d=64, M=25_600)
    long = {name: tuned.by_loops[name].accesses for name in sides}
    assert f"that is {long['streamed']:,} accesses against {long['q_outer']:,}: 4.3% fewer." in text
    saved = 1 - long["streamed"] / long["q_outer"]
    assert 100 * saved == pytest.approx(4.3, abs=0.05)


def test_numbers_of_programs_texts_are_counts_and_formulas() -> None:
    text = text_of("sparse_mlp")
    mask = np.array([[1, 1, 0, 0], [1, 0, 0, 1]], bool)
    small: dict[str, Any] = {"N": 4, "d": 4, "f": 8, "o": 2}
    small |= {"mask1": mask, "blocks": (2, 2, 2, 2)}
    fused = mlp.count(**small, fused=True).hbm.accesses
    unfused = mlp.count(**small, fused=False).hbm.accesses
    assert (
        f"This run moves {fused} elements; with H in HBM and the same blocks it would be {unfused}."
        in text
    )
    for M, words in (
        (1024**2 // 9, "moves {0:g} elements for each element of H if fused, and {1:g} in"),
        (1024**2, "{0:g} instead of {1:g}."),
    ):
        ways: tuple[dict[str, Any], ...] = ({}, {"fused": False, "tiles": "square"})
        accesses = []
        for way in ways:
            exact = mlp.exact(N=2048, d=1024, f=4096, M=M, **way)
            accesses.append(exact.hbm.accesses / 2048 / 4096)
        assert words.format(*accesses) in text


def test_the_missing_rescale_is_wrong_where_it_says() -> None:
    """Against the oracle on the operands that both runs loaded."""
    right, wrong = traces("missing_rescale")

    def gathered(trace: Trace, kind: str, array: str) -> Any:
        events = [event for event in trace.events if event.kind == kind]
        blocks = {event.indices: event.value for event in events if event.array == array}
        return np.concatenate([blocks[index] for index in sorted(blocks)])

    Q, K, V = (gathered(right, "load", name) for name in "QKV")
    want = flashsim.reference.attention(Q, K, V, scale=1.0)  # Algorithm 1 has the scale in its Q
    np.testing.assert_allclose(gathered(right, "store", "O"), want, atol=1e-5)
    error = np.abs(gathered(wrong, "store", "O") - want).max(axis=1)
    bad = int((error > 1e-3).sum())
    text = text_of("missing_rescale")
    assert (
        f"At the end {bad} of {len(error)} rows are wrong, row {error.argmax()} by "
        f"{error.max():.4g}."
    ) in text
    assert f"({', '.join(map(str, np.flatnonzero(error <= 1e-3)))})" in text
    assert [(a.reads, a.writes) for a in right.about.arrays] == [
        (a.reads, a.writes) for a in wrong.about.arrays
    ]
    assert [e.occupancy for e in right.events] == [e.occupancy for e in wrong.events]
    assert np.array_equal(gathered(right, "store", "l"), gathered(wrong, "store", "l"))


# -------------------------------------------------------------------------------------------------
# a lesson, by itself


def short_trace() -> Trace:
    rng = np.random.default_rng(0)
    return flashsim.trace("flash", *rng.standard_normal((3, 4, 2)), blocks=(2, 2), M=64)


def test_symbols_are_set_and_all_else_is_escaped() -> None:
    html_text = typeset(
        "m_i^new of B_r rows, a factor e^{−3}, 10^{−14} & <b>; row’s `S_ij` L6-v2 A"
    )
    assert plain(html_text) == "mnewi of Br rows, a factor e−3, 10−14 & <b>; row’s S_ij L6-v2 A"
    assert html_text.startswith(
        '<span class="symbol"><i>m</i><span '
        'class="ss"><sup>new</sup><sub><i>i</i></sub></span></span> of '
    )
    assert "10<sup>−14</sup> &amp; &lt;" in html_text
    assert html_text.endswith("row’s <code>S_ij</code> L6-v2 A")
    assert (
        typeset("loss_i of loss")
        == '<span class="symbol"><i>loss</i><sub><i>i</i></sub></span> of loss'
    )
    assert typeset("W1_cj, W1, X_{i,T_d}") == (
        '<span class="symbol"><i>W</i>1<sub><i>cj</i></sub></span>, W1, <span '
        'class="symbol"><i>X</i><sub>'
        '<span class="symbol"><i>i</i></span>,<span '
        'class="symbol"><i>T</i><sub><i>d</i></sub></span></sub></span>'
    )
    page = short_trace().html(
        lesson=Lesson("<b>", "$trace $$ </details><script>", (Moment(0, '"', "&"),))
    )
    assert "<summary>&lt;b&gt;</summary>" in page
    assert "</details>&lt;script&gt;" not in page
    assert "$trace $$ &lt;/details&gt;&lt;script&gt;" in page
    assert page.count('<script id="trace"') == 1


# --------------------------------------------------------------------------------------------------
# the browser


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a folder with the gallery's files."""
    made_in = tmp_path_factory.mktemp("gallery")
    for name, content in made().items():
        (made_in / name).write_text(content, encoding="utf-8")
    return f"{made_in.as_uri()}/"


@pytest.fixture
def page(browser: Any, folder: str) -> Iterator[Any]:
    """A page of a desk's size; at the end, see that nothing but the gallery's files was asked
    for, and no complaint made.
    """
    context = browser.new_context(viewport=DESK, base_url=folder)
    new_page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    new_page.on("console", lambda message: complaints.append(message.text))
    new_page.on("pageerror", lambda error: complaints.append(str(error)))
    new_page.on("request", lambda request: requests.append(request.url))
    yield new_page
    context.close()
    assert complaints == []
    assert [
        url for url in requests if not re.fullmatch(rf"{re.escape(folder)}\w+\.html(#.*)?", url)
    ] == []


def opened(page: Any, name: str, index: str = "") -> Any:
    page.goto("about:blank")
    page.goto(f"{name}.html{index}")
    page.wait_for_selector("html[data-ready], #message:not([hidden])", state="attached")
    return page


@pytest.mark.slow
@pytest.mark.parametrize("name", LESSONS)
def test_every_moment_shows_in_the_page_what_is_said_of_it(page: Any, name: str) -> None:
    opened(page, name)
    assert page.locator("#message").is_hidden()
    assert plain(paragraphs(made()[f"{name}.html"])[0]) == plain(
        page.locator("#lesson p").first.text_content()
    )
    assert page.locator("#lesson p").first.is_visible()
    for number, link in enumerate(links(article(name))):
        if number == 0:
            opened(page, name, f"#t={link.step}")
        else:
            page.evaluate(f"location.hash = '#t={link.step}'")
        until(page, f"player.t === {link.step}")
        assert page.locator("#lesson p").first.is_hidden()
        assert page.locator("#lesson summary").is_visible()
        assert plain(page.text_content("#moment")) == plain(link.words)
        now = page.locator(".now").first.text_content()
        if link.event == "rescale":
            assert "rescaled" in now
            assert page.locator(".pairs .rises").count() > 0
        if link.event.startswith("line "):
            assert now.startswith(link.event)
        if link.event.startswith(("read ", "write ")):
            assert page.locator(".hbm .active").count() > 0
        if link.event == "last step":
            assert page.evaluate("player.t === player.length - 1")
            # a search's schedule has no closed form
            text = "times this run's" if name == "optimum" else "equal the prediction."
            assert text in page.locator(".versus").first.text_content()
    assert page.locator("#lesson .moments .here").count() == 1
    page.evaluate("player.lesson.stops = []")
    page.keyboard.press("Home")
    steps = [link.step for link in links(article(name))]
    for want in filter(None, steps):
        page.click("#next-moment")
        assert page.evaluate("player.t") == want
    page.evaluate(f"player.go({next(step for step in range(len(steps) + 1) if step not in steps)})")
    assert page.text_content("#moment") == ""
    for of in (f"#{name}", "#lesson"):  # the links of the index, and of the page
        if of == "#lesson":
            opened(page, name)
        else:
            page.goto("index.html")
            page.locator(f"{of} summary").first.click()
        page.locator(f"{of} .moments a").nth(1).click()
        page.wait_for_selector("html[data-ready]", state="attached")
        until(page, f"player.t === {steps[1]}")
        assert page.evaluate("location.pathname.split('/').pop()") == f"{name}.html"


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["1280×720", "390×844"])
def test_the_index_fits_and_follows_the_colour_scheme(
    browser: Any, folder: str, viewport: dict[str, int]
) -> None:
    page = browser.new_page(viewport=viewport, base_url=folder)
    page.goto("index.html")
    fits_and_follows_the_colour_scheme(page)
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height <= 5 * viewport["height"]  # what a lesson tells is folded
    page.goto("index.html#causal")
    page.reload()
    assert page.evaluate("document.documentElement.scrollHeight") > height
    assert page.locator("#causal .moments").is_visible()
    assert page.locator(".moments:visible").count() == 1
    page.close()


def fits_and_follows_the_colour_scheme(page: Any) -> None:
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(n) for n in ground[4:-1].split(",")) < 380) == (scheme == "dark")


UNSEEN = """(selectors) => {
  const bar = document.querySelector("#transport").getBoundingClientRect(), found = [];
  const parts = selectors.flatMap((selector) => [...document.querySelectorAll(`.view :is(${selector})`)]);
  for (const part of parts.filter((part) => part.checkVisibility())) {
    const box = part.getBoundingClientRect(), name = `${part.className || part.tagName} ${part.textContent.trim().slice(0, 20)}`;
    if (box.bottom > bar.top + 0.5 || box.top < 0 || box.left < 0) found.push(`${name}: behind the bar or beyond`);
    for (let up = part.parentElement; up; up = up.parentElement) {
      const around = up.getBoundingClientRect(), clips = getComputedStyle(up).overflowY !== "visible";
      const cut = box.top < around.top - 1.5 || box.bottom > around.bottom + 1.5;
      if (clips && cut) found.push(`${name}: cut off by ${up.className || up.tagName}`);
    }
    const inside = (length) => Math.min(length / 2, 9), x = Math.min(box.x + inside(box.width), innerWidth - 2);
    const over = document.elementFromPoint(x, box.y + inside(box.height));
    if (!part.contains(over) && !over?.contains(part)) found.push(`${name}: under ${over?.className || over?.tagName}`);
  }
  for (const button of document.querySelectorAll("#transport :is(button, select, input)")) {
    if (!button.checkVisibility()) continue;
    const box = button.getBoundingClientRect(), over = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    if (box.bottom > innerHeight || !button.contains(over)) found.push(`${button.id}: not to be clicked`);
  }
  return found;
}"""
FITS = """(() => {
  const { scrollWidth, scrollHeight } = document.documentElement;
  return scrollWidth <= innerWidth && scrollHeight <= innerHeight;
})()"""
CUT = """[...document.querySelectorAll(".two :is(.pairs, .memory .scroll)")]
  .filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.innerText)"""
SEEN = (
    ".now",
    ".listing .on, .source .on",
    ".grid",
    ".pairs thead th:nth-child(-n + 4)",
    ".pairs tbody tr:first-child > *",
)


TALLER = """() => [...document.querySelectorAll(".source")].some((box) => {
  const lit = [...box.querySelectorAll(".on")].map((line) => line.getBoundingClientRect());
  return lit.length && lit.at(-1).bottom - lit[0].top > box.clientHeight; })"""
"""Whether a statement that is lit has more lines than its panel shows: its first ones are seen."""


@pytest.mark.slow
@pytest.mark.parametrize("viewport", [DESK, PHONE, FRAME], ids=["1280×720", "390×844", "960×480"])
@pytest.mark.parametrize("name", LESSONS)
def test_what_a_step_is_about_is_seen_without_scrolling(
    page: Any, name: str, viewport: dict[str, int]
) -> None:
    """The lit line, the picture, m, ℓ, O and their first row, at each moment and some steps
    between; nothing covers them.

    Where panels are below each other, m, ℓ, O to their last row. On a desk no table of two runs is
    cut.
    """
    events = [
        *SEEN,
        *([".pairs tbody tr:last-child > :nth-child(-n + 2)"] if viewport == PHONE else []),
    ]
    page.set_viewport_size(viewport)
    opened(page, name)
    fits_and_follows_the_colour_scheme(page)
    moments = {link.step for link in links(article(name))}
    steps = sorted(moments | set(range(0, len(traces(name)[0].steps), 17)))
    # where it would hide the picture
    assert page.locator("#lesson p").first.is_visible() == (viewport != PHONE)
    for step in steps:
        page.evaluate(f"player.go({step})")
        # it folds later
        assert page.locator("#lesson p").first.is_visible() == (step == 0 and viewport != PHONE)
        if step:
            page.evaluate(
                "() => new Promise((done) => requestAnimationFrame(() => "
                "requestAnimationFrame(done)))"
            )
            expected = events
            if page.evaluate(TALLER):
                expected = [part.removesuffix(", .source .on") for part in events]
            assert page.evaluate(UNSEEN, expected) == [], step
        assert viewport != DESK or page.evaluate(CUT) == [], step
    assert page.evaluate(FITS)


def test_a_covered_part_is_found(page: Any) -> None:
    opened(page, "flash_basic", "#t=30")
    page.evaluate("document.querySelector('.listing').scrollTop = 0")
    unseen = page.evaluate(UNSEEN, list(SEEN))
    assert [part for part in unseen if "cut off by listing" in part]
    page.evaluate("document.querySelector('#views').style.flex = 'none'")
    assert [
        part
        for part in page.evaluate(UNSEEN, list(SEEN))
        if "beyond" in part or "not to be clicked" in part
    ]


TOTALS = """() => [...document.querySelectorAll(".hbm tbody tr")].flatMap((row) => [3, 5].map((n) => row.cells[n].textContent))"""
NAMED = """[...document.querySelectorAll("#lesson .later")].every((entry) =>
    entry.innerText.trim().startsWith([...entry.childNodes].slice(0, -1).map((part) => part.textContent).join("").trim()))"""
SEEN_AHEAD = """(stop) => [...document.querySelectorAll("#lesson .moments li")].filter((entry) =>
  Number(entry.querySelector("a").hash.slice(3)) >= stop && entry.lastElementChild.checkVisibility()).length"""


@pytest.mark.slow
@pytest.mark.parametrize("name", LESSONS)
def test_lessons_ask_before_they_show(page: Any, name: str) -> None:
    """A stop opens when one steps onto its step; it says right and wrong, and why; it asks once,
    and can be skipped.

    What it asks is shown before neither in the predicted totals nor in the moments; the last step,
    reached by a key, shows all.
    """
    opened(page, name)
    stops = page.evaluate("player.lesson.stops.map(([step]) => step)")
    assert stops
    for t in (0, stops[0] - 1):
        page.evaluate(f"player.go({t}), document.querySelector('#lesson').open = true")
        assert set(page.evaluate(TOTALS)) == {"?"}
        assert page.evaluate(SEEN_AHEAD, stops[0]) == 0
        assert page.evaluate(NAMED)
    for stop in stops:
        page.evaluate(f"player.go({stop - 1})")
        page.click("#forward")
        assert page.evaluate("[player.t, document.querySelector('#stop').open]") == [stop - 1, True]
        assert page.inner_text("#stop-asks").endswith(("?", "."))
        wrong = page.locator("#stop-choices button:not([data-right])")
        assert wrong.count() >= 1
        wrong.first.click()
        assert page.inner_text("#stop-because").startswith("No. ")
        page.locator("#stop-choices [data-right]").click()
        assert page.inner_text("#stop-because").startswith("Yes. ")
        assert page.evaluate("player.t") == stop - 1
        page.click("#stop-on")
        until(page, f"player.t === {stop}")  # a dialog closes in a task of its own
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("[player.t, document.querySelector('#stop').open]") == [stop, False]
    opened(page, name, f"#t={stops[0] - 1}")
    page.click("#play")
    until(page, "document.querySelector('#stop').open")
    page.evaluate("player.redraw()")
    assert set(page.evaluate(TOTALS)) == {"?"}
    page.keyboard.press("Escape")
    until(page, f"player.t === {stops[0]}")
    assert page.evaluate("player.playing") is False
    page.keyboard.press("End")
    assert "?" not in page.evaluate(TOTALS)
    page.evaluate("document.querySelector('#lesson').open = true")
    assert page.evaluate(SEEN_AHEAD, 0) == page.locator("#lesson .moments li").count()


@pytest.mark.parametrize("name", ["standard", "flash_basic"])
def test_a_lesson_s_text_leaves_the_answer_to_the_stop(name: str) -> None:
    """Its totals are in the answer alone; and it is asked before the accesses so far tell."""
    page = gallery.pages()[name]
    (trace,) = page.traces
    lesson = page.lesson
    stop = lesson.stops[0]
    totals = re.findall(r"\d[\d,]+", stop.because)
    assert totals
    assert not [total for total in totals if total in re.findall(r"\d[\d,]+", lesson.text)]
    before = trace.events[trace.steps[stop.step].first - 1]
    assert before.reads + before.writes < sum(a.reads + a.writes for a in trace.about.arrays) / 2


ANSWERS = {
    "online_softmax": "0.04979",
    "line_1": "all of M",
    "real_data": "smaller than float32 can add",
    "optimum": "turns around",
    "pinned": "saves 2 of 3",
    "streamed": "150",
    "hybrid": "252",
    "causal": "leave these tiles out",
    "sliding_window": "Twice the length",
    "block_sparse": "768",
    "decoding": "No split is rescaled",
    "missing_rescale": "is right everywhere",
    "kernel_product": "nothing is rescaled",
    "ring": "3 times its 4 rows",
    "sparse_mlp": "leaves the tile out",
}
GIVEN_AWAY = [
    ("pinned", "whole run"),
    ("pinned", "stay"),
    ("streamed", "fewer"),
    ("sparse_mlp", "tiles of H pass before"),
]


@pytest.mark.parametrize(("name", "answer"), GIVEN_AWAY)
def test_no_moment_answers_a_question_that_is_still_to_come(name: str, answer: str) -> None:
    """Neither the text that is seen at first nor a moment that is not folded in the index."""
    whole = gallery.pages()[name].lesson.html()
    events = re.sub(
        r'<div class="after" hidden>.*?</div>|<details>.*?</details>', "", whole, flags=re.DOTALL
    )
    assert len(events) < len(whole)
    assert answer not in html.unescape(re.sub(r"<[^>]*>", "", events))


@pytest.mark.parametrize("name", ANSWERS)
def test_no_text_answers_its_question_before_it_is_asked(name: str) -> None:
    """What answers it is told by the page once it has asked, and is folded in the index."""
    lesson = gallery.pages()[name].lesson
    answer = ANSWERS[name]
    text = re.sub(r'<ul class="moments">.*', "", lesson.html(), flags=re.DOTALL)
    assert answer in html.unescape(re.sub(r"<[^>]*>", "", text))
    before = re.sub(r'<div class="after" hidden>.*?</div>', "", text, flags=re.DOTALL)
    assert answer not in html.unescape(re.sub(r"<[^>]*>", "", before))


def test_a_page_tells_what_answers_its_question_once_it_has_asked(page: Any) -> None:
    opened(page, "causal")
    assert page.locator("#lesson .after").count() == 2
    assert page.evaluate(
        "[...document.querySelectorAll('#lesson .after')].every(one => one.hidden)"
    )
    (stop,) = gallery.pages()["causal"].lesson.stops
    for _ in range(stop.step):
        page.keyboard.press("ArrowRight")
    page.click("#stop-on")
    until(page, "[...document.querySelectorAll('#lesson .after')].every(one => !one.hidden)")


def test_lessons_lead_to_each_other_through_the_index(page: Any) -> None:
    """Which has them in order, and where one stays at either end."""
    assert re.findall(r'<article id="(\w+)">', made()["index.html"]) == LESSONS

    def follow(link: str, to: str) -> None:
        page.click(f"[rel={link}]")
        page.wait_for_url(re.compile(rf"/{to}\.html"))

    opened(page, LESSONS[0])
    for name in LESSONS[1:3]:
        follow("next", name)
        page.wait_for_selector("html[data-ready]", state="attached")
    opened(page, LESSONS[-1])
    follow("prev", LESSONS[-2])
    follow("next", LESSONS[-1])
    follow("next", "index")
    opened(page, LESSONS[0])
    follow("prev", "index")
    page.go_back()
    page.wait_for_url(re.compile(rf"/{LESSONS[0]}\.html"))


def right_answers(name: str) -> list[str]:
    answers = re.findall(r"<button data-right>(.*?)</button>", made()[f"{name}.html"])
    return [plain(answer) for answer in answers]


def test_right_answers_are_right() -> None:
    """Worked out anew, from theory or from the events."""

    def most(name: str, kinds: tuple[str, ...], arrays: str) -> str:
        sums = dict.fromkeys(arrays.split(), 0)
        for event in traces(name)[0].events:
            if event.kind in kinds and event.array in sums:
                sums[event.array] += event.elements
        return max(sums, key=lambda array: sums[array])

    assert right_answers("standard") == ["S and P"]
    assert most("standard", ("load", "store", "init"), "Q K V S P O") in "SP"
    assert right_answers("flash_basic") == [
        most("flash_basic", ("load", "store", "init"), "Q K V O")
    ]
    assert right_answers("backward") == [most("backward", ("store", "init"), "dQ dK dV")]
    line_1 = traces("line_1")[0].about
    assert right_answers("line_1") == ["all of it"]
    assert 2 * line_1.shape.d * (line_1.blocks.B_r + line_1.blocks.B_c) == line_1.M
    twice = [
        theory.exact("sliding_window", N=n, d=4, M=64, blocks=(2, 2), window=4)
        .hbm.by_array["K"]
        .reads
        for n in (16, 32)
    ]
    assert right_answers("sliding_window") == [f"{round(twice[1] / twice[0])} times"]
    assert right_answers("decoding") == ["never"]
    assert right_answers("missing_rescale") == ["O"]
    assert right_answers("causal") == ["none"]
    assert right_answers("online_softmax") == ["e−3"]
    loads = [e.name for e in traces("sparse_mlp")[0].events if e.kind == "load"]
    assert right_answers("sparse_mlp") == ["never"]
    assert "W2[1, 0]" in loads and "W2[2, 0]" not in loads  # noqa: PT018


def test_a_marked_text_comes_apart() -> None:
    """Marks begin a line; moments and stops are in order of their steps, wherever the text has
    them.
    """
    (trace,) = traces("standard")
    marked = """
        One [line 3] stays.

        Two.

        [asks @ last step] Which?
        [choices] a | b c
        [right] b c
        [because] As it
        is.
        [read S] Back
        again.
        [a name @ write S] Out.
        [read K, i = 1] Anew.
        """
    text, moments, stops = parts_of(marked, trace)
    assert text.split() == ["One", "[line", "3]", "stays.", "Two."]
    assert stops == (Stop(trace.steps[-1].number, "Which?", ("a", "b c"), "b c", "As it is."),)
    assert [(moment.event, moment.words) for moment in moments] == [
        ("a name", "Out."),
        ("read K", "Anew."),
        ("read S", "Back again."),
    ]
    out, anew, back = (trace.steps[moment.step] for moment in moments)
    assert (("store", "S") in events(trace, out), ("load", "S") in events(trace, back)) == (
        True,
        True,
    )
    assert dict(anew.loops)["i"] == 1
    with pytest.raises(
        ValueError, match=r"event is 'reed K' with \{\}; expected one that a step after -1 is"
    ):
        parts_of("[reed K] x", trace)


def test_a_lesson_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    """A right answer that cannot be chosen, moments and stops at no step, a file that is no
    page.
    """
    trace = short_trace()
    steps = rf"expected steps from 0 to {len(short_trace().steps) - 1}$"
    with pytest.raises(ValueError, match="right is 'c'; expected one of the choices, a, b"):
        Stop(0, "?", ("a", "b"), "c", "")
    with pytest.raises(ValueError, match=steps):
        trace.html(lesson=Lesson("x", "y", (Moment(len(trace.steps), "last step", "z"),)))
    with pytest.raises(ValueError, match=rf"moments and stops \[99\]; {steps}"):
        trace.html(lesson=Lesson("x", "y", (), (Stop(99, "?", ("a",), "a", ""),)))
    with pytest.raises(ValueError, match=r"a lesson is a page: expected \.html"):
        trace.save(tmp_path / "x.json.gz", lesson=Lesson("x", "y"))
    assert not (tmp_path / "x.json.gz").exists()

"""Files that are damaged, or made to do harm: what comes of them is a trace that works, or a
ValueError that says why not.
"""

import base64
import gzip
import json
import tracemalloc
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import flashsim
from flashsim.tracing import Trace, text


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of one small trace."""
    rng = np.random.default_rng(0)
    Q, K, V = rng.standard_normal((3, 4, 2)).astype(np.float32)
    sizing = flashsim.Fixed(2, 2, enforced=False)
    trace = flashsim.trace("flash", Q, K, V, sizing=sizing, M=32)
    return trace.save(tmp_path_factory.mktemp("good") / "run.json.gz").read_bytes()


def read(folder: Path, content: bytes, **options: Any) -> Trace:
    path = folder / "hostile.json.gz"
    path.write_bytes(content)
    return flashsim.load_trace(path, **options)


def works_or_is_refused(folder: Path, content: bytes) -> None:
    """See that a file is refused in so many words, or makes a page and a text."""
    try:
        trace = read(folder, content)
    except ValueError as error:
        if str(error).startswith(f"{folder / 'hostile.json.gz'} cannot be read as a trace: "):
            return
        raise
    assert trace.html()
    assert list(text.lines(trace))


# -------------------------------------------------------------------------- one entry that is wrong

ENTRIES: list[tuple[str, Any, str]] = [
    ("about", [], "about is"),
    ("about.title", 3, "about.title is 3; expected `str`, got `int`"),
    ("about.title", "\ud800", "damaged JSON.*surrogate"),
    ("about.algorithm", None, "about.algorithm is None; expected `str`, got `null`"),
    ("about.enforced", 1, "about.enforced is 1; expected `bool`, got `int`"),
    ("about.M", "32", "about.M is '32'; expected `int`, got `str`"),
    ("about.M", 0, "about.M is 0; expected at least 1"),
    ("about.M", 10**400, "about.M is 1000.*; expected a whole number from 0 to 9223"),
    ("about.dtype", "object", "about.dtype is 'object'; expected one of float32, float64"),
    ("about.direction", "sideways", "about.direction is 'sideways'"),
    ("about.shape", {"N_q": 4}, "about.shape is .* missing required field `N_k`"),
    ("about.shape.N_q", True, "about.shape.N_q is True"),
    (
        "about.shape.N_q",
        10**100,
        "about.shape.N_q is 1000.*; expected a whole number from 0 to 9223",
    ),
    ("about.blocks.B_r", 0, "about.blocks.B_r is 0; expected `int` >= 1"),
    ("about.blocks.T_c", 10**9, "about.blocks has T_r, T_c"),
    ("about.tiles", [[1, 1]], "about.tiles is of another size"),
    ("about.tiles", [[1, 1], [1, 3]], "about.tiles holds"),
    ("about.arrays", {}, "about.arrays is {}; expected `array`, got `object`"),
    ("about.arrays.0.reads", 1.5, r"about.arrays\[0\].reads is 1.5"),
    (
        "about.arrays.0.shape",
        [4],
        r"about.arrays\[0\].shape is \[4\]; expected `array` of length 2",
    ),
    ("about.arrays.1.name", "Q", "two arrays of one name"),
    ("about.arrays.0.name", "W", "names.* expected a block of W"),
    ("about.standard", [1], "about.standard is"),
    ("about.listing", [1], r"about.listing\[0\] is 1"),
    ("about.source", [["a", 1]], r"about.source\[0\] is"),
    ("names", {"0": "Q"}, "names is"),
    ("names.0", ["Q"], r"names\[0\] is \['Q'\]; expected `str`, got `array`"),
    ("names.0", "Q[<b>]", r"names\[0\] is 'Q\[<b>\]'; expected a block of"),
    ("names.0", "Q[" + "9" * 5000 + "]", r"names\[0\] is .* expected a block of"),
    ("places.0", ["a", "1", None], r"places\[0\]\[1\] is '1'"),
    ("places.0.2", "line nine", r"places\[0\] has label 'line nine'"),
    ("loops.1", [["i"]], r"loops\[1\]\[0\] is \['i'\]"),
    ("residents.0", [], r"residents\[0\] is"),
    ("residents.0", [1], r"residents\[0\] is \[1\]; expected at most 0"),
    ("residents.1", [0, 999, 1], r"residents\[1\]\[1::2\]\[0\] is 999"),
    ("residents.1", [0, -1, 1], r"residents\[1\]\[1\] is -1; expected `int` >= 0"),
    ("events", None, "events is None"),
    ("events.kind", "load", "events.kind is 'load'"),
    ("events.kind", [], "events.name has .* entries; expected 0"),
    ("events.kind.0", ["load"], r"events.kind\[0\] is \['load'\]"),
    ("events.kind.0", "explode", r"events.kind\[0\] is 'explode'; expected one of"),
    ("events.name.0", -1, r"events.name\[0\] is -1; expected a whole number from 0 to"),
    ("events.name.0", 10**6, r"events.name\[0\] is 1000000"),
    ("events.elements.0", 2.0, r"events.elements\[0\] is 2.0"),
    (
        "events.elements.0",
        2**63,
        r"events.elements\[0\] is 9223372036854775808; expected `int` <= 9223",
    ),
    ("events.loops.0", None, r"events.loops\[0\] is None"),
    ("events.place.0", 10**6, r"events.place\[0\] is"),
    ("events.resident.0", "0", r"events.resident\[0\] is '0'"),
    ("events.value.0", -2, r"events.value\[0\] is -2; expected a whole number from -1"),
    ("events.where.0", [0, 1], r"events.where\[0\] is \[0, 1\]; expected `array` of length 4"),
    ("events.where.0", [0, 99, 0, 1], r"events.where\[0\] is \[0, 99, 0, 1\]; expected a part of"),
    ("shapes.0", [0, 2], r"shapes\[0\]\[0\] is 0; expected `int` >= 1"),
    ("shapes.0", [10**300, 10**300], r"shapes\[0\]\[0\] is 1000.*; expected `int` <= 9223"),
    ("values", "****", "values is not base64"),
    ("values", [0.5], r"values is \[0.5\]; expected `str`, got `array`"),
    ("version", True, "its version is True"),
    ("version", 10**300, "its version is 1000"),
]


@pytest.mark.parametrize(("entry", "value", "message"), ENTRIES, ids=lambda x: str(x)[:30])
def test_a_wrong_entry_is_named(
    good: bytes, tmp_path: Path, entry: str, value: Any, message: str
) -> None:
    data = json.loads(gzip.decompress(good))
    keys = [int(part) if part.isdigit() else part for part in entry.split(".")]
    *way, last = keys
    inside = data
    for part in way:
        inside = inside[part]
    inside[last] = value
    with pytest.raises(ValueError, match=f"hostile.json.gz cannot be read as a trace: .*{message}"):
        read(tmp_path, gzip.compress(json.dumps(data).encode()))


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ("", "it"),
        ("about", "about"),
        ("about.shape", "about.shape"),
        ("about.blocks", "about.blocks"),
        ("about.arrays.1", r"about.arrays\[1\]"),
        ("events", "events"),
    ],
)
def test_an_unknown_name_is_refused(good: bytes, tmp_path: Path, record: str, place: str) -> None:
    """Within one version there are no others: a reader would leave out what it does not know."""
    data = json.loads(gzip.decompress(good))
    inside = data
    for part in record.split(".") if record else ():
        inside = inside[int(part) if part.isdigit() else part]
    names = ", ".join(inside)
    inside["unknown"] = ["<script>"]
    with pytest.raises(ValueError, match=f"trace: {place} has 'unknown'; expected ") as refusal:
        read(tmp_path, gzip.compress(json.dumps(data).encode()))
    expected = str(refusal.value).rpartition("expected ")[2]
    assert sorted(expected.split(", ")) == sorted(names.split(", "))


def test_a_trace_without_a_step_is_refused_and_residents_cannot_multiply(
    good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("flashsim.tracing.loading"), "MOST_RESIDENTS", 1000)
    data = json.loads(gzip.decompress(good))
    for changed, message in (
        ({"events": {name: [] for name in data["events"]}}, "events has no step"),
        # 1, 2, …, 100 entries
        ({"residents": [[n, 0, 1] for n in range(100)]}, "residents has more than 1,000 entries"),
    ):
        with pytest.raises(ValueError, match=message):
            read(tmp_path, gzip.compress(json.dumps(data | changed).encode()))


# --------------------------------------------------------------------------------------------------
# whole files


ZIPPED: dict[str, tuple[bytes | Callable[[bytes], bytes], str]] = {
    "cut": (lambda good: good[:-10], "not a gzip file, or a damaged one"),
    "flipped": (
        lambda good: good[:100] + bytes([good[100] ^ 255]) + good[101:],
        "not a gzip file, or a damaged one",
    ),
    "deep": (gzip.compress(b"[" * 10**6), "nested too deeply"),
    "not utf-8": (gzip.compress(b'"\xff"'), "damaged JSON"),
    "not json": (gzip.compress(b"{"), "damaged JSON"),
    "long number": (gzip.compress(b"9" * 10_000), "damaged JSON"),
    "none": (gzip.compress(b"null"), 'expected "format"'),
}


@pytest.mark.parametrize("name", ZIPPED)
def test_a_damaged_file_is_refused(good: bytes, tmp_path: Path, name: str) -> None:
    made, message = ZIPPED[name]
    with pytest.raises(
        ValueError, match=rf"hostile\.json\.gz cannot be read as a trace: .*{message}"
    ):
        read(tmp_path, made if isinstance(made, bytes) else made(good))


def test_what_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.json\.gz"):
        flashsim.load_trace(tmp_path / "none.json.gz")
    with pytest.raises(TypeError, match="path is 3"):
        flashsim.load_trace(3)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------
# bombs

ZEROS = 30_000_000


def bomb(says: int | None) -> bytes:
    """Return a small file that unpacks to ZEROS bytes, and says so; or says what it is told to."""
    packed = gzip.compress(bytes(ZEROS), 1)
    return packed if says is None else packed[:-4] + says.to_bytes(4, "little")


@pytest.mark.parametrize("says", [None, 500])
def test_a_bomb_is_not_unpacked(tmp_path: Path, says: int | None) -> None:
    content = bomb(says)
    assert len(content) < 200_000
    tracemalloc.start()
    try:
        with pytest.raises(
            ValueError, match=r"more than 200,000 bytes; load\(path, max_bytes=|damaged"
        ):
            read(tmp_path, content, max_bytes=200_000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_the_limit_can_be_raised_and_lowered(good: bytes, tmp_path: Path) -> None:
    for most in (len(good) - 1, len(good)):  # the file's size, and what it unpacks to
        with pytest.raises(
            ValueError, match=f"more than {most:,} bytes; load.path, max_bytes=…. reads more"
        ):
            read(tmp_path, good, max_bytes=most)
    assert read(tmp_path, good, max_bytes=10**9).steps
    with pytest.raises(ValueError, match="max_bytes is 0; expected at least 1"):
        read(tmp_path, good, max_bytes=0)


# --------------------------------------------------------------------------------------------------
# whatever else

HOW = st.sampled_from(["flip", "cut", "drop", "double"])
EDITS = st.lists(
    st.tuples(HOW, st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4
)


def edited(content: bytes, edits: list[tuple[str, float, int]]) -> bytes:
    """Return bytes with some flipped, the end cut off, some left out, or some said twice."""
    for how, where, what in edits:
        index = int(where * len(content))
        if how == "flip":
            content = (
                content[:index] + bytes([content[index] ^ what]) + content[index + 1 :]
                if content
                else content
            )
        else:
            rest = {
                "cut": b"",
                "drop": content[index + what :],
                "double": content[max(index - what, 0) :],
            }[how]
            content = content[:index] + rest
    return content


@example(part="values", edits=[("double", 0.25, 1)])  # a maximum that falls
@given(part=st.sampled_from(["file", "json", "values"]), edits=EDITS)
def test_a_file_with_bytes_changed_works_or_is_refused(
    good: bytes,
    tmp_path_factory: pytest.TempPathFactory,
    part: str,
    edits: list[tuple[str, float, int]],
) -> None:
    """In the file as it is, in the JSON before it is zipped, and in the values before they are
    base64.
    """
    folder = tmp_path_factory.getbasetemp()
    if part == "file":
        works_or_is_refused(folder, edited(good, edits))
    elif part == "json":
        changed = edited(gzip.decompress(good), edits)
        works_or_is_refused(folder, gzip.compress(changed, 1))
    else:
        data = json.loads(gzip.decompress(good))
        changed = edited(base64.b64decode(data["values"]), edits)
        data["values"] = base64.b64encode(changed).decode()
        works_or_is_refused(folder, gzip.compress(json.dumps(data).encode(), 1))


KINDS = st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)
VALUES = st.one_of(*KINDS, st.sampled_from([10**400, [], {}, [0], "Q[0]"]))


@given(
    way=st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8),
    value=VALUES,
    kept=st.integers(1, 4),
)
def test_a_file_with_an_entry_changed_works_or_is_refused(
    good: bytes, tmp_path_factory: pytest.TempPathFactory, way: list[float], value: Any, kept: int
) -> None:
    data = json.loads(gzip.decompress(good))
    inside = data
    for depth, part in enumerate(way):
        keys = sorted(inside) if isinstance(inside, dict) else range(len(inside))
        key = keys[int(part * len(keys))]
        if not isinstance(inside[key], dict | list) or not inside[key] or depth == kept:
            inside[key] = value
            break
        inside = inside[key]
    content = gzip.compress(json.dumps(data).encode(), 1)
    works_or_is_refused(tmp_path_factory.getbasetemp(), content)

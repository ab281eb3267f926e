"""Every program that is no attention: its counts are theory's, its lines are labelled, and it runs through the same rooms."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flashsim import load_trace
from flashsim.algorithms.beyond import programs
from flashsim.algorithms.program import Program
from flashsim.memory import SramOverflow
from flashsim.observers import Ledger
from flashsim.records import Sizes
from flashsim.run.programs import ProgramRun, _first, count_program, run_program
from flashsim.theory import exact_program
from flashsim.theory.program import program_forms

NAMES = sorted(programs())
every = pytest.mark.parametrize("program", [programs()[name] for name in NAMES], ids=NAMES)


def lengths(program: Program, pick: Any) -> Sizes:
    """A length for each symbol."""
    return Sizes(**{symbol: pick(symbol) for symbol in program.symbols})


def tried(program: Program, sizes: Sizes, blocks: tuple[int, ...], seed: int = 0) -> tuple[dict[str, Any], Any]:
    """Operands and options to try a program with."""
    rng = np.random.default_rng(seed)
    clipped = {n: min(b, sizes[s]) for (n, s), b in zip(program.blocks.items(), blocks, strict=True)}
    given, options = program.example(rng, sizes, Sizes(**clipped))
    operands = {name: rng.normal(size=kind.shape(sizes)) for name, kind in program.operands.items()}
    return {**operands, **given}, options


def index_of(program: Program, operands: dict[str, Any]) -> dict[str, Any]:
    """The operands that say where to go on."""
    return {name: operands[name] for name, kind in program.operands.items() if kind.type == "index"}


def test_records_and_forms_are_of_the_same_programs() -> None:
    assert sorted(program_forms()) == NAMES
    for name, program in programs().items():
        assert program.name == name == program.run.__name__
        assert pickle.loads(pickle.dumps(program)) is program
        assert {*program.follows} <= {*program.kinds}
        assert {*program.plane} <= {*program.symbols}


@every
@given(data=st.data())
def test_counts_are_theorys_array_by_array(program: Program, data: st.DataObject) -> None:
    sizes = lengths(program, lambda symbol: data.draw(st.integers(1, 24), label=symbol))
    blocks = tuple(data.draw(st.integers(1, 24), label=name) for name in program.blocks)
    operands, options = tried(program, sizes, blocks, data.draw(st.integers(0, 99), label="seed"))
    want = exact_program(program.name, sizes, M=10**6, blocks=blocks, dtype="float64", options=options)
    run = run_program(program, operands, M=10**6, blocks=blocks, options=options)
    tally = count_program(
        program, sizes, M=10**6, blocks=blocks, dtype="float64", options=options, index=index_of(program, operands)
    )
    assert run.hbm == tally.hbm == want.hbm
    assert run.sram == tally.sram == want.sram
    assert run.blocks == tally.blocks == want.blocks
    assert tally.flops.matmul == want.matmul
    with pytest.raises(SramOverflow):
        run_program(program, operands, M=want.sram.peak - 1, blocks=blocks, options=options)


@every
@given(data=st.data())
def test_the_blocks_that_are_chosen_are_theorys(program: Program, data: st.DataObject) -> None:
    if program.line_1 is None:
        pytest.skip("its blocks must be given")
    sizes = lengths(program, lambda symbol: data.draw(st.integers(1, 60), label=symbol))
    options = tried(program, sizes, (1,) * len(program.blocks))[1]
    sizing = data.draw(st.sampled_from(["fit", "paper"]))
    M = data.draw(st.integers(1, 3_000), label="M")
    want = exact_program(program.name, sizes, M=M, sizing=sizing, options=options)
    if sizing == "fit" and want.sram.peak > M:
        with pytest.raises(
            ValueError, match=f"M = {M:,} elements is too small .* needs at least M = {want.sram.peak:,}$"
        ):
            count_program(program, sizes, M=M, options=options)
        return
    assume(sizing == "fit" or max(sizes.values()) <= M)
    tally = count_program(program, sizes, M=M, sizing=sizing, options=options)
    assert (tally.blocks, tally.hbm, tally.sram) == (want.blocks, want.hbm, want.sram)
    assert sizing == "paper" or tally.sram.peak <= M


@every
def test_each_line_is_labelled_as_in_the_listing(program: Program) -> None:
    source, listing = inspect.getsource(program.run), sys.modules[program.run.__module__].__doc__ or ""
    numbers = {int(n) for n in re.findall(r"^    (\d+) ", listing, re.MULTILINE)}
    labels = {int(n) for n in re.findall(r"# line (\d+)", source)}
    assert labels == numbers == set(range(1, max(numbers) + 1))
    body = source[source.index('"""', source.index('"""') + 3) + 3 :]
    plain = [line for line in body.splitlines() if line.strip() and "# line" not in line]
    assert [line.strip() for line in plain if "on_chip = sram.on_chip" not in line] == []


def small(program: Program, **more: Any) -> ProgramRun:
    """A run of a few tiles."""
    sizes, blocks = lengths(program, lambda symbol: 5), (2,) * len(program.blocks)
    operands, options = tried(program, sizes, blocks)
    return run_program(program, operands, M=10**4, blocks=blocks, options=options, **more)


@every
def test_it_can_be_stepped_through(program: Program, tmp_path: Any) -> None:
    ledger = Ledger()
    trace = small(program, trace=True, observers=[ledger]).trace
    assert trace is not None
    about = trace.about
    assert (about.algorithm, about.title, about.words) == (program.name, program.title, program.words)
    assert all(array.exact == (array.reads, array.writes) for array in about.arrays)
    assert about.exact_peak == about.peak
    assert {event.label for event in trace.events if event.kind in ("load", "compute", "store")} <= {
        f"line {line.split()[0]}" for line in about.listing
    }
    gathers = any(event.name.startswith("Q[[") for event in trace.events)  # rows from anywhere are no tile
    assert any(step.tile is not None for step in trace.steps) != gathers
    assert not gathers or {step.rows for step in trace.steps if step.label == "line 5"} == {None}  # words of an order
    assert sum(each.elements for each in ledger.movements) == sum(a.reads + a.writes for a in about.arrays)
    again = load_trace(trace.save(tmp_path / "t.json.gz"))
    assert again.about == about
    assert len(trace.html()) > 10_000


@every
def test_a_run_shows_itself(program: Program) -> None:
    run = small(program)
    assert f"{run.hbm.accesses:,} HBM accesses" in repr(run)
    assert run.to_dict()["sizes"] == dict(run.sizes)
    assert '"by_array"' in run.to_json()
    with pytest.raises(AttributeError, match="the run has no 'nothing'"):
        run.nothing  # noqa: B018
    assert pickle.loads(pickle.dumps(run)).hbm == run.hbm


@every
@pytest.mark.parametrize("how", ["missing", "shape", "axes", "empty", "NaN", "dtype", "text"])
def test_operands_that_do_not_fit_are_refused(program: Program, how: str) -> None:
    sizes, blocks = lengths(program, lambda symbol: 5), (2,) * len(program.blocks)
    operands, options = tried(program, sizes, blocks)
    floats = [name for name, kind in program.operands.items() if kind.type == "inputs"]
    last = floats[-1]
    array = operands[last]
    operands[last] = {
        "missing": None, "shape": np.ones((len(array) + 1, array.shape[1] + 1)), "axes": np.ones((2, 2, 2)),
        "empty": array[:0], "NaN": np.full_like(array, np.nan), "dtype": array.astype(np.complex128), "text": "X",
    }[how]  # fmt: skip
    if how == "missing":
        del operands[last]
    with pytest.raises(ValueError, match="operands are" if how == "missing" else rf"^{last} (has|is|holds) "):
        run_program(program, operands, blocks=blocks, options=options)
    if how == "dtype" and len(floats) > 1:
        operands[last] = array.astype(np.float32)
        with pytest.raises(ValueError, match=f"{floats[0]} has dtype float64 and {last} has dtype float32"):
            run_program(program, operands, blocks=blocks, options=options)


@every
def test_sizes_that_are_none_are_refused(program: Program) -> None:
    sizes = lengths(program, lambda symbol: 5)
    blocks = (2,) * len(program.blocks)
    options = tried(program, sizes, blocks)[1]
    index = index_of(program, tried(program, sizes, blocks)[0])
    first = program.symbols[0]
    for wrong, match in (
        ({"sizes": {**sizes, first: 0}}, f"{first} is 0; expected at least 1"),
        ({"sizes": {}}, "sizes are none; expected"),
        ({"blocks": 3}, r"blocks is 3; expected \("),
        ({"blocks": (0,) * len(blocks)}, "blocks, .*, is 0; expected at least 1"),
        ({"options": {"nosuch": 1}}, "options are nosuch; expected"),
        ({"M": 0}, "M is 0"),
        ({"dtype": "int8"}, "dtype int8 is not supported"),
        ({"blocks": None, "sizing": "none"}, "unknown sizing 'none'"),
    ):
        arguments: dict[str, Any] = {"sizes": sizes, "blocks": blocks, "options": options, "index": index, **wrong}
        with pytest.raises(ValueError, match=match):
            count_program(program, arguments.pop("sizes"), **arguments)
    with pytest.raises(ValueError, match="no closed form for 'nosuch'"):
        exact_program("nosuch", sizes)


def test_the_first_size_is_found_by_halving() -> None:
    """Up by doubling, then between the last two powers of two: n = 1000 takes 11 questions and 9."""
    for least in (1, 2, 3, 64, 1000):
        asked: list[int] = []

        def enough(n: int, least: int = least, asked: list[int] = asked) -> bool:
            asked.append(n)
            return n >= least

        assert _first(enough) == least
        assert len(asked) <= max(1, 2 * (least - 1).bit_length())

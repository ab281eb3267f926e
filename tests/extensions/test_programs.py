"""Every program that is not attention runs through the same rooms, and says what it refuses. What
programs of all kinds must satisfy is in tests/contract.
"""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flashsim.algorithms.program import MatrixProgram
from flashsim.algorithms.record import Bug
from flashsim.analysis.verify.beyond_attention import unnoticed
from flashsim.analysis.verify.shared import drawn
from flashsim.attention.matrices import Kind
from flashsim.attention.shapes import Sizes
from flashsim.extensions import approximate, kernels, mlp
from flashsim.extensions.parts.kernel_functions import Radial
from flashsim.extensions.programs import programs
from flashsim.memory.errors import MemoryModelError, NotOnChip, SramOverflow
from flashsim.memory.sram import Event
from flashsim.simulate.matrices import count_program, run_program
from flashsim.simulate.results import Result
from flashsim.support.sizes import smallest_true
from flashsim.theory import exact_program
from flashsim.tracing.observers import Ledger
from flashsim.tracing.planting import planted
from tests.helpers.cases import with_trace

NAMES = sorted(programs())
every = pytest.mark.parametrize("program", [programs()[name] for name in NAMES], ids=NAMES)


def lengths(program: MatrixProgram, pick: Any) -> Sizes:
    """A length for each symbol."""
    return Sizes(**{symbol: pick(symbol) for symbol in program.symbols})


def index_of(program: MatrixProgram, operands: dict[str, Any]) -> dict[str, Any]:
    """The operands that say where to go on."""
    indices = {}
    for name, kind in program.operands.items():
        if kind.type == "index":
            indices[name] = operands[name]
    return indices


def test_what_a_record_leaves_out_follows_from_the_rest() -> None:
    for program in programs().values():
        assert program.name == program.run.__name__
        assert {*program.follows} <= {*program.kinds}
        assert {*program.plane} <= {*program.symbols}
    result = programs()["linformer"]
    assert (result.name, result.options, result.by, result.plane) == (
        "linformer",
        ("tau",),
        ("B_r", "B_k"),
        ("N", "k"),
    )
    assert result.follows == ("O", "L")
    assert programs()["reformer"].plane == ("N", "N")
    assert programs()["sparse_mlp_fused"].plane == ("N", "f")


@pytest.mark.parametrize("instead", ["None", "X", "(Y, Y)", 'HBM().empty("Y", (5, 5), float)'])
def test_what_is_returned_must_be_what_the_record_says(instead: str) -> None:
    program = planted(
        programs()["kernel_x_outer"], ("return Y  # line 13", f"return {instead}  # line 13")
    )
    with pytest.raises(MemoryModelError, match=r"'kernel_x_outer' .* returned .*; expected "):
        small(program)


@pytest.mark.parametrize(
    ("blocks", "enforce", "enforced"),
    [
        ((2, 2), None, True),
        ((2, 2), True, True),
        ((2, 2), False, False),
        (None, None, False),
        (None, True, True),
    ],
)
def test_blocks_that_are_given_are_enforced_whatever_sizing_says(
    blocks: Any, enforce: Any, enforced: bool
) -> None:
    how: dict[str, Any] = {
        "M": 10**4,
        "blocks": blocks,
        "sizing": "paper",
        "enforce": enforce,
        "options": {"k": Radial("gaussian")},
    }
    sizes = {"N": 5, "n": 5, "d": 2, "e": 2}
    assert count_program(programs()["kernel_x_outer"], sizes, **how).sram.enforced == enforced
    assert exact_program("kernel_x_outer", sizes, **how).sram.enforced == enforced


A = np.random.default_rng(0).normal(size=(5, 5))
KERNEL = kernels.product(A, A, A, M=99)
BY_2: dict[str, Any] = {"blocks": (2, 2)}
BY_4: dict[str, Any] = {"blocks": (2, 2, 2, 2)}
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "product": (partial(kernels.product, A, A, A), BY_2),
    "its gradient": (partial(kernels.gradient, KERNEL, A), BY_2),
    "MLP": (partial(mlp.run, A, A, A), BY_4),
    "Linformer": (partial(approximate.linformer, A, A, A, A, A), BY_4),
    "Performer": (partial(approximate.performer, A, A, A, A), BY_4),
}


@pytest.mark.parametrize("name", CALLS)
def test_how_a_run_is_asked_for_reaches_it(name: str) -> None:
    call, blocks = CALLS[name]
    events: list[Event] = []
    run, trace = with_trace(call, M=7, enforce=False, observers=[events.append], **blocks)
    assert run.sram.capacity == 7
    assert not run.sram.enforced
    assert {*run.blocks.values()} == {2}
    assert len(trace.events) == len(events) > 0
    with pytest.raises(SramOverflow):
        call(M=7, **blocks)
    if call.func is not mlp.run:
        assert not call(M=7, sizing="paper").sram.enforced
    if name == "its gradient":
        assert call().sram.capacity == 99  # the M of what it is of


@every
@given(data=st.data())
def test_the_blocks_that_are_chosen_are_theorys(
    program: MatrixProgram, data: st.DataObject
) -> None:
    if program.line_1 is None:
        pytest.skip("its blocks must be given")
    sizes = lengths(program, lambda symbol: data.draw(st.integers(1, 40), label=symbol))
    options = drawn(program, sizes, (1,) * len(program.blocks))[1]
    sizing = data.draw(st.sampled_from(["fit", "paper"]))
    M = data.draw(st.integers(1, 3_000), label="M")
    want = exact_program(program.name, sizes, M=M, sizing=sizing, options=options)
    if sizing == "fit" and want.sram.peak > M:
        with pytest.raises(
            ValueError,
            match=f"M = {M:,} elements is too small .* needs at least M = {want.sram.peak:,}$",
        ):
            count_program(program, sizes, M=M, options=options)
        return
    assume(sizing == "fit" or max(sizes.values()) <= M)
    tally = count_program(program, sizes, M=M, sizing=sizing, options=options)
    assert tally.blocks == want.blocks
    assert tally.hbm == want.hbm
    assert tally.sram == want.sram
    assert sizing == "paper" or tally.sram.peak <= M


def small(program: MatrixProgram, **more: Any) -> Result:
    """A run of a few tiles."""
    sizes = lengths(program, lambda symbol: 5)
    blocks = (2,) * len(program.blocks)
    operands, options = drawn(program, sizes, blocks)
    return run_program(program, operands, M=10**4, blocks=blocks, options=options, **more)


def test_what_is_no_bug_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = programs()["kernel_x_outer"]
    transposed = replace(
        program, bugs=(Bug("turned round", "Y_i + K_ij @ V_j", "K_ij @ V_j + Y_i"), *program.bugs)
    )
    assert [*unnoticed(transposed)] == ["turned round"]
    zeros = np.zeros((11, 6))
    wrong = lambda inputs, blocks: {"Y": (zeros, zeros)}  # noqa: E731
    monkeypatch.setattr(
        "flashsim.analysis.verify.shared.naive_programs", lambda: {"kernel_x_outer": wrong}
    )
    assert [*unnoticed(program)] == ["none"]


@every
def test_steps_have_numbers_and_tiles_to_look_at(program: MatrixProgram) -> None:
    ledger = Ledger()
    _, trace = with_trace(small, program, observers=[ledger])
    about = trace.about
    assert about.words == program.words
    assert dict(about.cuts).keys() == program.blocks.keys()
    traffic = [event for event in trace.events if event.kind in ("load", "compute", "store")]
    assert all(event.value is not None for event in traffic), "labels, too, are numbers to look at"
    # rows from anywhere are not tiles
    gathers = any(event.name.startswith("Q[[") for event in trace.events)
    assert any(step.tile is not None for step in trace.steps) != gathers
    # words of an order
    assert not gathers or {step.rows for step in trace.steps if step.label == "line 5"} == {None}
    accesses = sum(array.reads + array.writes for array in about.arrays)
    assert sum(movement.elements for movement in ledger.movements) == accesses
    assert len(trace.html()) > 10_000


@every
def test_a_run_shows_itself(program: MatrixProgram) -> None:
    run = small(program)
    assert f"{run.hbm.accesses:,} HBM accesses" in repr(run)
    assert run.to_dict()["sizes"] == dict(run.problem.lengths)
    assert '"by_array"' in run.to_json()
    with pytest.raises(AttributeError, match="the result has no 'nothing'"):
        run.nothing  # noqa: B018
    assert pickle.loads(pickle.dumps(run)).hbm == run.hbm


@every
@pytest.mark.parametrize("how", ["missing", "shape", "axes", "empty", "NaN", "dtype", "text"])
def test_operands_that_do_not_fit_are_refused(program: MatrixProgram, how: str) -> None:
    sizes = lengths(program, lambda symbol: 5)
    blocks = (2,) * len(program.blocks)
    operands, options = drawn(program, sizes, blocks)
    floats = [name for name, kind in program.operands.items() if kind.type == "inputs"]
    last = floats[-1]
    array = operands[last]
    operands[last] = {
        "missing": None,
        "shape": np.ones((len(array) + 1, array.shape[1] + 1)),
        "axes": np.ones((2, 2, 2)),
        "empty": array[:0],
        "NaN": np.full_like(array, np.nan),
        "dtype": array.astype(np.complex128),
        "text": "X",
    }[how]
    if how == "missing":
        del operands[last]
    with pytest.raises(
        ValueError, match="operands are" if how == "missing" else rf"^{last} (has|is|holds) "
    ):
        run_program(program, operands, blocks=blocks, options=options)
    if how == "dtype" and len(floats) > 1:
        operands[last] = array.astype(np.float32)
        with pytest.raises(
            ValueError, match=f"{floats[0]} has dtype float64 and {last} has dtype float32"
        ):
            run_program(program, operands, blocks=blocks, options=options)


@every
def test_sizes_that_are_none_are_refused(program: MatrixProgram) -> None:
    sizes = lengths(program, lambda symbol: 5)
    blocks = (2,) * len(program.blocks)
    options = drawn(program, sizes, blocks)[1]
    index = index_of(program, drawn(program, sizes, blocks)[0])
    first = program.symbols[0]
    for wrong, match in (
        ({"sizes": {**sizes, first: 0}}, f"{first} is 0; expected at least 1"),
        ({"sizes": {}}, "sizes are none; expected"),
        ({"blocks": 3}, r"blocks is 3; expected \("),
        ({"blocks": (2,) * (len(blocks) + 1)}, r"blocks is \(.*\); expected \("),
        ({"blocks": (0,) * len(blocks)}, "blocks, .*, is 0; expected at least 1"),
        ({"options": {"nosuch": 1}}, "options are nosuch; expected"),
        ({"index": {"nosuch": 1}}, "index holds nosuch; expected"),
        ({"M": 0}, "M is 0"),
        ({"dtype": "int8"}, "dtype int8 is not supported"),
        ({"blocks": None, "sizing": "none"}, "unknown sizing 'none'"),
    ):
        arguments: dict[str, Any] = {"blocks": blocks, "options": options, "index": index, **wrong}
        lengths_: Any = arguments.pop("sizes", sizes)
        with pytest.raises(ValueError, match=match):
            count_program(program, lengths_, **arguments)
        del arguments["index"]
        if not wrong.keys() & {"options", "index"}:
            with pytest.raises(
                ValueError, match=match.replace("unknown sizing", "no closed form for sizing")
            ):
                exact_program(program.name, lengths_, **arguments)
    with pytest.raises(ValueError, match="no closed form for 'nosuch'"):
        exact_program("nosuch", sizes)


def test_sizes_do_not_change() -> None:
    sizes = Sizes(N=3, d=4)
    unsound: Any = sizes
    with pytest.raises(AttributeError, match=r"N is 3; sizes do not change"):
        unsound.N = 5
    with pytest.raises(TypeError, match="item assignment"):
        unsound["N"] = 5
    with pytest.raises(AttributeError, match="there is no size 'M'; there are N, d"):
        _ = sizes.M
    assert sizes == {"N": 3, "d": 4} == {**sizes}
    assert pickle.loads(pickle.dumps(sizes)) == sizes
    assert sizes.N == 3
    assert sizes["d"] == 4
    assert sizes.get("e", 1) == 1
    assert repr(sizes) == "N = 3, d = 4"


def test_the_first_size_is_found_by_halving() -> None:
    """Up by doubling, then between the last two powers of two: n = 1000 takes 11 questions and
    9.
    """
    for least in (1, 2, 3, 64, 1000):
        options: list[int] = []

        def enough(n: int, least: int = least, options: list[int] = options) -> bool:
            options.append(n)
            return n >= least

        assert smallest_true(enough) == least
        assert len(options) <= max(1, 2 * (least - 1).bit_length())


def test_in_a_notebook_a_run_is_a_table() -> None:
    program = programs()["kernel_x_outer"]
    assert small(program)._repr_html_().startswith("<table")


@pytest.mark.parametrize("options", ["count", "exact"])
@pytest.mark.parametrize(
    ("module", "sizes", "wrong"),
    [
        (kernels, {"N": 4, "d": 2}, ("size", "options", "index")),
        (mlp, {"N": 4, "d": 2, "f": 3}, ("size", "sizing", "options")),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_argument_that_there_is_not_is_named(
    module: Any, sizes: dict[str, int], wrong: Sequence[str], options: str
) -> None:
    for name in wrong:
        with pytest.raises(TypeError, match=rf"^{options} takes no argument '{name}'"):
            getattr(module, options)(**sizes, **{name: (2,)})


def test_a_program_that_keeps_what_a_turn_computed_is_told_so() -> None:
    def keeps(hbm: Any, sram: Any, X: Any, blocks: Any) -> Any:
        s = hbm.empty("s", (X.shape[0], 1), X.dtype, "output")
        X_i = X.divide(blocks.B)
        s_i = s.divide(blocks.B)
        kept = []
        for i in sram.loop(len(X_i)):
            x = sram.load(X_i[i])
            kept.append(x * 1)
        for i in sram.loop(len(X_i)):
            sums = kept[i].sum(axis=1, keepdims=True)
            sram.store(s_i[i], sram.on_chip(sums))
        return s

    kinds: dict[str, Any] = {
        "operands": {"X": Kind("N", "d")},
        "returns": {"s": Kind("N", "1")},
        "blocks": {"B": "N"},
    }
    program = MatrixProgram(title="Row sums", run=keeps, **kinds)
    X = np.random.default_rng(0).normal(size=(40, 4))
    with pytest.raises(MemoryModelError, match=r"'keeps' \(Row sums\) returned s with NaN in it"):
        run_program(program, {"X": X}, M=100, blocks=(5,))
    with pytest.raises(NotOnChip, match="a turn that has ended"):
        count_program(program, {"N": 40, "d": 4}, M=100, blocks=(5,))


def product(hbm: Any, sram: Any, A: Any, B: Any, blocks: Any) -> Any:
    """Y = A Bᵀ, of the first blocks of B alone."""
    shape = (A.shape[0], B.shape[0])
    Y = hbm.empty("Y", shape, A.dtype, "output").divide(blocks.B_r, blocks.B_c)
    A = A.divide(blocks.B_r)
    B = B.divide(blocks.B_c)
    for i in sram.loop(len(A)):
        A_i = sram.load(A[i])
        for j in sram.loop(max(len(B) - 1, 1)):
            B_j = sram.load(B[j])
            sram.store(Y[i, j], sram.on_chip(A_i @ B_j.T))
    return Y


PRODUCT = MatrixProgram(
    title="A Bᵀ",
    run=product,
    operands={"A": Kind("N", "k"), "B": Kind("n", "k")},
    returns={"Y": Kind("N", "n")},
    blocks={"B_r": "N", "B_c": "n"},
    line_1=lambda rows, lengths: (rows, rows),
)


def test_a_program_that_does_not_store_a_whole_result_is_refused() -> None:
    """To count it would be to count what is not the problem."""
    message = r"'product' \(A Bᵀ\) stores 480 of the 600 elements of Y; expected all of them"
    how: dict[str, Any] = {"M": 300, "blocks": (5, 6)}
    with pytest.raises(MemoryModelError, match=message):
        count_program(PRODUCT, {"N": 20, "n": 30, "k": 4}, **how)
    operands = {"A": np.ones((20, 4)), "B": np.ones((30, 4))}
    with pytest.raises(MemoryModelError, match=message):
        run_program(PRODUCT, operands, **how)
    whole = replace(PRODUCT, run=planted(PRODUCT, ("max(len(B) - 1, 1)", "len(B)")).run)
    run = run_program(whole, operands, **how)
    assert run.Y.sum() == 2400


def test_a_count_of_a_program_that_stores_a_part_twice_is_refused() -> None:
    """As many elements are stored as the result has, and not all of them."""
    twice = planted(
        PRODUCT, ("max(len(B) - 1, 1)", "len(B)"), ("Y[i, j], sram", "Y[i, max(j, 1)], sram")
    )
    sizes = {"N": 20, "n": 30, "k": 4}
    how: dict[str, Any] = {"M": 300, "blocks": (5, 6)}
    message = r"'product' \(A Bᵀ\) leaves 14 of the 49 elements of Y without a store"
    with pytest.raises(MemoryModelError, match=message):
        count_program(replace(PRODUCT, run=twice.run), sizes, **how)
    whole = replace(PRODUCT, run=planted(PRODUCT, ("max(len(B) - 1, 1)", "len(B)")).run)
    tally = count_program(whole, sizes, **how)
    assert tally.hbm.by_array["Y"].writes == 600


def test_fit_needs_line_1_and_paper_its_rows() -> None:
    operands = {"A": np.ones((20, 4)), "B": np.ones((30, 4))}
    whole = replace(PRODUCT, run=planted(PRODUCT, ("max(len(B) - 1, 1)", "len(B)")).run)
    run = run_program(whole, operands, M=100)
    assert dict(run.blocks) == {"B_r": 6, "B_c": 6}  # 2·6·4 + 6·6 = 84; of 7, 105
    with pytest.raises(ValueError, match="the record of 'product' has no rows"):
        run_program(whole, operands, M=100, sizing="paper")
    with pytest.raises(ValueError, match="the record of 'product' has no line_1"):
        run_program(replace(whole, line_1=None), operands, M=100)


def test_a_function_without_its_record_is_refused() -> None:
    for run in (run_program, count_program):
        with pytest.raises(ValueError, match=r"program is <function product .*; expected a Matrix"):
            run(product, {})  # type: ignore[arg-type]

"""Attention over devices: words on links, and the rules of the links. What each program must
satisfy is in tests/contract.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import devices, plots
from flashsim.attention.inputs import float_dtype
from flashsim.cli import devices as command
from flashsim.devices import Device, LinkError, Network
from flashsim.devices.layouts import LAYOUTS, positions
from flashsim.devices.programs import programs
from flashsim.devices.record import DevicesProgram
from flashsim.devices.theory import balance
from flashsim.memory.errors import NotOnChip


def agrees(tally: devices.DevicesResult) -> None:
    """What was counted is what theory says, device by device and array by array."""
    for exact, device in zip(devices.exact(tally), tally.devices, strict=True):
        assert exact.words == device.words
        assert exact.hbm == device.hbm


@pytest.mark.parametrize("name", sorted(programs()))
def test_rows_without_a_key_are_zeros(name: str) -> None:
    Q, K, V = np.random.default_rng(0).normal(size=(3, 5, 2))
    how: dict[str, Any] = {
        "P": 2,
        "M": 100,
        "blocks": (2, 2),
        "mask": flashsim.KeyPadding(0),
    }
    run = devices.forward(name, Q, K, V, **how)
    assert not run.O.any()
    agrees(run)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_types_are_the_inputs_and_travel_as_such(dtype: str) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(4, 2, 24, 4))
    Q, K, V, dO = inputs.astype(float_dtype(dtype))
    run = devices.forward("ring", Q, K, V, P=3, causal=True, M=300)
    one = flashsim.forward("q_outer", Q, K, V, causal=True, M=300, sizing="fit")
    assert run.O.dtype == one.O.dtype == Q.dtype
    O = run.O.astype(float)
    np.testing.assert_allclose(O, one.O.astype(float), rtol=2e-2, atol=2e-2)
    first = run.devices[0]
    assert first.links[1].bytes == Q.itemsize * first.words
    back = devices.backward("ring", run, dO)
    keys = (24 - 8) * 2 * 8
    gradients = 24 * 2 * 8
    assert back.dK.dtype == Q.dtype
    sent = back.devices[0].links[1].bytes
    assert sent == Q.itemsize * keys + max(Q.itemsize, 4) * gradients


def test_a_tree_sends_as_much_whatever_the_number_of_keys() -> None:
    """Each of 7 devices but the root is sent Q, 2 words a head, and sends a part, 2 + 2 words a
    head; the root has 3 children.
    """
    for N in (16, 64):
        tally = devices.count("tree", N=N, N_q=1, d=2, heads=3, P=7, M=100)
        assert tally.words == 6 * 3 * (2 + 2 + 2)
        assert sorted(tally.devices[0].links) == [1, 2, 4]


def test_the_blocks_that_fit_are_taken() -> None:
    how: dict[str, Any] = {
        "N": 256,
        "d": 16,
        "P": 4,
        "M": 2000,
    }
    tally = devices.count("ring", **how)
    assert max(device.sram.peak for device in tally.devices) <= 2000
    one_row_more = (tally.share.B_r + 1, tally.share.B_c)
    with pytest.raises(flashsim.SramOverflow):
        devices.count("ring", **how, blocks=one_row_more)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["ring", "ulysses", "mesh"])
def test_a_block_that_is_counted_stands_for_those_of_its_kind_alone(name: str, layout: str) -> None:
    """Of a device's many blocks some meet another device's keys in a window, and others do not."""
    how: dict[str, Any] = {
        "P": 2,
        "layout": layout,
        "blocks": (2, 3),
        "M": 100,
        "mask": flashsim.SlidingWindow(5, 2),
    }
    arrays = np.random.default_rng(0).normal(size=(3, 1, 29, 2))
    run = devices.forward(name, *arrays, **how)
    back = devices.backward(name, run, run.O, blocks=how["blocks"])
    for direction, counted in (("forward", run), ("backward", back)):
        tally = devices.count(name, N=29, d=2, dtype="float64", direction=direction, **how)
        assert tally.devices == counted.devices


def reads_of_keys(device: Any) -> int:
    """Of K, and of what else of keys a device has."""
    reads = 0
    for name, array in device.hbm.by_array.items():
        if name.startswith("K"):
            reads += array.reads
    return reads


@pytest.mark.parametrize(
    ("name", "causal"),
    [("ring", True), ("ulysses", True), ("mesh", True), ("mesh", False)],
)
def test_equal_heads_and_row_blocks_are_counted_once(name: str, causal: bool) -> None:
    """Running each of 64 heads of 65,536 rows would take hours. Of 8 devices each has an eighth
    of Ulysses's heads.
    """
    options: dict[str, Any] = {
        "P": 8,
        "N": 65_536,
        "d": 128,
        "M": 25_600,
        "causal": causal,
        "columns": 2 if name == "mesh" else None,
    }
    began = time.process_time()
    many = devices.count(name, **options, heads=64, kv_heads=8)
    assert time.process_time() - began < 3  # half a second on a quiet machine
    agrees(many)
    few = devices.count(name, **options, heads=8)
    for of_many, of_few in zip(many.devices, few.devices, strict=True):
        assert reads_of_keys(of_many) == 8 * reads_of_keys(of_few) > 0


# --------------------------------------------------------------------------------------------------
# words, by hand


def test_words_by_hand() -> None:
    """4 devices of 4 rows, d = d_v = 2: a ring sends 3 times 4 rows of K and V; Ulysses, with 4
    heads, a quarter of each.
    """
    how: dict[str, Any] = {"N": 16, "d": 2, "P": 4, "M": 100}
    ring = devices.count("ring", **how)
    assert [device.words for device in ring.devices] == [3 * 4 * 4] * 4
    links = ring.devices[0].links
    assert list(links) == [1]
    assert links[1].messages == 6
    assert links[1].bytes == 4 * ring.devices[0].words
    ulysses = devices.count("ulysses", **how, heads=4)
    columns = 2 + 2 + 2 + 2
    assert [device.words for device in ulysses.devices] == [3 * 4 * columns] * 4
    mesh = devices.count("mesh", **how, columns=2)
    words = 4 * 2 + 4 * 4 + 4 * (2 + 2)
    assert [device.words for device in mesh.devices] == [words] * 4
    back = devices.count("ring", **how, direction="backward")
    words = (3 + 4) * 4 * 4
    assert [device.words for device in back.devices] == [words] * 4


def test_ring_beats_ulysses_where_groups_are_large() -> None:
    """Ring ÷ Ulysses = P·H_kv / (H_q + max(H_kv, P)) words: 0.89 with 64 and 8 heads on 8
    devices, P/2 without groups.
    """
    ratios = {
        8: Fraction(8 * 8, 64 + 8),
        64: Fraction(8 * 64, 64 + 64),
    }
    how: dict[str, Any] = {
        "N": 16,
        "d": 2,
        "P": 8,
        "heads": 64,
        "M": 100,
    }
    for H_kv, ratio in ratios.items():
        ring = devices.count("ring", **how, kv_heads=H_kv)
        ulysses = devices.count("ulysses", **how, kv_heads=H_kv)
        assert Fraction(ring.words, ulysses.words) == ratio


@pytest.mark.slow
def test_the_figure_has_what_is_counted() -> None:
    how: dict[str, Any] = {"N": 64, "d": 2, "heads": 8}
    figure = plots.FIGURES["words_sent"]
    data = figure.data(**how, kv_heads=2, P=(2, 16), devices=4)
    of = data["of_shared"]
    points = []
    for index, P in enumerate(data["P"]):
        points.append((data, index, P, 2))
    for index, H_kv in enumerate((1, 2, 4, 8)):
        points.append((of, index, 4, H_kv))
    for lines, index, P, H_kv in points:
        for name, words in lines["words"].items():
            if (name, P) == ("ulysses", 16):
                assert words[index] is None
                continue
            options = how | {"kv_heads": H_kv, "P": P}
            tally = devices.count(name, **options, layout="contiguous", M=100)
            assert words[index] == max(device.words for device in tally.devices)
    words = of["words"]
    for ring, ulysses, H_kv in zip(words["ring"], words["ulysses"], of["kv_heads"], strict=True):
        assert (ring <= ulysses) == (8 // H_kv >= 4 - 1)


def test_balance() -> None:
    """Causally, contiguous rows leave the last device nearly twice the mean; striped and zigzag
    rows are shared out evenly.
    """
    N = 4096
    P = 8
    busiest = {}
    for name in LAYOUTS:
        rows_of = positions(name, N, P)
        busiest[name] = balance(rows_of, lambda rows, cols: rows[:, None] >= cols)
    n = N // P
    by_hand = (2 * P - 1 + Fraction(1, n)) / (P + Fraction(1, n))
    assert busiest["contiguous"] == by_hand
    assert busiest["striped"] == Fraction(N + P, N + 1)
    assert busiest["zigzag"] == 1


# --------------------------------------------------------------------------------------------------
# rules of the links


def place(device: Device) -> tuple[Any, Any]:
    """One matrix that is there, and one that is empty."""
    X = device.hbm.place("X", np.full((2, 2), device.rank + 1.0))
    Y = device.hbm.empty("Y", (2, 2), np.float64)
    return X, Y


def right(device: Device) -> int:
    return (device.rank + 1) % device.size


def left(device: Device) -> int:
    return (device.rank - 1) % device.size


def rotate(device: Device, X: Any, Y: Any) -> Any:
    """X to the right, Y from the left: the ticket of it."""
    return device.post(sends=[(X, right(device))], receives=[(Y, left(device))])


def test_a_message_arrives_at_wait_and_reads_as_nan_before() -> None:
    events: dict[int, tuple[bool, Any]] = {}

    def program(device: Device) -> None:
        X, Y = place(device)
        ticket = rotate(device, X, Y)
        (Y_0,) = [device.sram.load(Y[i]) for i in range(1)]
        before = np.isnan(Y_0).all()
        device.wait(ticket)
        events[device.rank] = bool(before), device.hbm.peek("Y").copy()

    Network(3, 100).run(program)
    for rank, sender in ((0, 2), (1, 0), (2, 1)):
        before, received = events[rank]
        assert before
        assert received[0, 0] == sender + 1.0


def changes_what_it_sends(device: Device) -> None:
    X, Y = place(device)
    ticket = rotate(device, Y, X)
    fives = device.sram.full((2, 2), 5.0)
    device.sram.store(Y[0], fives)
    device.wait(ticket)


def writes_where_it_receives(device: Device) -> None:
    X, Y = place(device)
    ticket = rotate(device, X, Y)
    fives = device.sram.full((2, 2), 5.0)
    device.sram.store(Y[0], fives)
    device.wait(ticket)


def is_never_received(device: Device) -> None:
    X, _ = place(device)
    if device.rank == 0:
        device.wait(device.post(sends=[(X, 1)]))


def receives_from_nobody(device: Device) -> None:
    _, Y = place(device)
    device.wait(device.post(receives=[(Y, left(device))]))


def waits_for_nothing(device: Device) -> None:
    X, Y = place(device)
    rotate(device, X, Y)


def waits_twice(device: Device) -> None:
    X, Y = place(device)
    ticket = rotate(device, X, Y)
    device.wait(ticket)
    device.wait(ticket)


def sends_another_shape(device: Device) -> None:
    X, Y = place(device)
    ticket = rotate(device, X.rows(0, 1), Y)
    device.wait(ticket)


def sends_to_itself(device: Device) -> None:
    X, _ = place(device)
    device.post(sends=[(X, device.rank)])


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            changes_what_it_sends,
            r"sends Y to rank \d, and it was changed before rank \d, at line \d+ of test_devices.py, waited",
        ),
        (writes_where_it_receives, r"receives Y from rank \d, and it was written to before"),
        (
            is_never_received,
            r"wait for ever: rank 0, at line \d+ .* with X to be received by rank 1, which has ended",
        ),
        (
            receives_from_nobody,
            r"wait for ever: rank 0, .*; rank 1, .*; rank 2, at line \d+ .* for a message from rank 1",
        ),
        (
            waits_for_nothing,
            r"rank 0, at line \d+ .* posts a message, and ends without waiting for it",
        ),
        (waits_twice, "expected a ticket of its own, once"),
        (
            sends_another_shape,
            r"sends X\[0:1\] \(1, 2\) float64 to rank \d, .* which expects Y \(2, 2\) float64",
        ),
        (sends_to_itself, "expected another one of 3 ranks"),
    ],
)
def test_what_breaks_a_rule_is_refused(program: Callable[[Device], None], message: str) -> None:
    with pytest.raises(LinkError, match=message):
        Network(3, 100).run(program)


def test_a_rank_that_fails_ends_the_run() -> None:
    def program(device: Device) -> None:
        _, Y = place(device)
        if device.rank == 1:
            raise KeyError("gone")
        if device.rank == 0:
            device.wait(device.post(receives=[(Y, 1)]))
        else:
            device.wait(device.post())

    with pytest.raises(KeyError) as result:
        Network(3, 100).run(program)
    assert result.value.__notes__ == ["on rank 1 of 3"]


def test_a_network_runs_once() -> None:
    network = Network(2, 100)
    network.run(lambda device: None)
    with pytest.raises(LinkError, match="expected a new one"):
        network.run(lambda device: None)


def test_a_run_is_the_same_every_time() -> None:
    order: list[list[int]] = []

    def program(device: Device) -> None:
        X, Y = place(device)
        for _ in range(3):
            order[-1].append(device.rank)
            ticket = rotate(device, X, Y)
            device.wait(ticket)

    for _ in range(5):
        order.append([])
        Network(4, 100).run(program)
    assert all(one == order[0] for one in order)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "rings"}, "name is 'rings'; expected"),
        ({"P": 0}, "P is 0"),
        ({"layout": "random"}, "layout is 'random'"),
        ({"columns": 2}, "columns is 2; expected None, because 'ring' has no columns"),
        ({"name": "mesh", "columns": 3}, "columns is 3; expected a divisor of P = 4: 1, 2, 4"),
        (
            {"name": "tree", "direction": "backward"},
            "'tree' has no backward pass over devices; 'mesh', 'ring', 'ulysses' have one",
        ),
        ({"mask": np.ones((8, 8), bool)}, "expected a mask that depends on positions alone"),
        ({"M": 5}, "M = 5 elements is too small for 'ring'"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    how: dict[str, Any] = {
        "name": "ring",
        "N": 8,
        "d": 2,
        "P": 4,
        "M": 100,
    }
    with pytest.raises(ValueError, match=message):
        devices.count(**how | options)


def test_the_command_offers_what_there_is() -> None:
    assert set(command.PROGRAMS) == set(programs())
    assert set(command.LAYOUTS) == set(LAYOUTS)


def test_n_q_and_n_k_must_be_one() -> None:
    Q = np.ones((4, 2))
    K = np.ones((6, 2))
    with pytest.raises(ValueError, match="expected as many queries as keys over devices"):
        devices.forward("ring", Q, K, K, P=2)


@pytest.mark.parametrize(("P", "columns"), [(4, 2), (6, 3), (6, 2)])
def test_gradients_of_a_mesh_of_rows_and_columns(P: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    Q, K, V, dO = rng.normal(size=(4, 1, 7 * P, 3))
    run = devices.forward("ring", Q, K, V, P=P, M=1000)
    back = devices.backward("mesh", run, dO, columns=columns)
    run_of_one = flashsim.forward("q_outer", Q, K, V, M=1000, sizing="fit")
    one = flashsim.backward("q_outer", run_of_one, dO)
    for X in ("dQ", "dK", "dV"):
        gradient = getattr(back, X)
        np.testing.assert_allclose(gradient, getattr(one, X), rtol=0, atol=1e-12)
    agrees(back)


@pytest.mark.parametrize("leading", [(), (4,), (2, 4)])
def test_gradients_are_shaped_as_the_inputs(leading: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    of_keys = (*leading[:-1], leading[-1] // 2) if leading else ()
    Q, dO = rng.normal(size=(2, *leading, 6, 2))
    K, V = rng.normal(size=(2, *of_keys, 6, 2))
    run = devices.forward("ring", Q, K, V, P=3, M=100)
    back = devices.backward("ring", run, dO, M=200)
    run_of_one = flashsim.forward("flash", Q, K, V, M=1000)
    alone = flashsim.backward("flash", run_of_one, dO)
    for name, like in (("dQ", Q), ("dK", K), ("dV", V)):
        gradient = getattr(back, name)
        assert gradient.shape == like.shape
        assert np.allclose(gradient, getattr(alone, name))


def test_a_run_keeps_copies_of_what_its_backward_pass_needs() -> None:
    Q, K, V, dO = np.random.default_rng(0).normal(size=(4, 6, 2))
    run = devices.forward("ring", Q, K, V, P=3, M=100)
    before = devices.backward("ring", run, dO, M=200).dK
    K[:] = 0
    assert np.array_equal(devices.backward("ring", run, dO, M=200).dK, before)


def test_results_are_equal_if_each_device_moved_the_same() -> None:
    how: dict[str, Any] = {
        "P": 2,
        "N": 5,
        "d": 2,
        "M": 100,
        "blocks": (2, 2),
    }
    tally = devices.count("ring", **how)
    first, second = tally.devices
    assert first != second  # 3 rows and 2
    assert tally == devices.count("ring", **how)
    assert tally != replace(tally, devices=(second, first))


def test_every_turn_of_a_program_of_the_users_own_is_counted() -> None:
    def every_other_row(device: Any, share: Any, Q: Any, K: Any, V: Any) -> Any:
        O = device.hbm.empty("O", Q.shape, Q.dtype, "output")
        L = device.hbm.empty("L", (Q.shape[0], 1), Q.dtype, "output")
        Q = Q.divide(1)
        for i in device.sram.loop(len(Q)):
            if i % 2:
                device.sram.load(Q[i])
        return O, L

    program = DevicesProgram(name="every_other_row", title="Every other row", run=every_other_row)

    counted = devices.count(program, P=2, N=14, d=3, M=100, blocks=(1, 1))
    reads = [device.hbm.by_array["Q"].reads for device in counted.devices]
    assert reads == [3 * 3, 3 * 3]


def test_a_program_of_the_users_own_says_what_it_lacks() -> None:
    def scores(device: Any, share: Any, Q: Any, K: Any, V: Any) -> Any:
        O = device.hbm.empty("O", Q.shape, Q.dtype, "output")
        L = device.hbm.empty("L", (Q.shape[0], 1), Q.dtype, "output")
        blocks_of_Q = Q.divide(Q.shape[0])
        blocks_of_O = O.divide(Q.shape[0])
        (Q_i,) = (device.sram.load(blocks_of_Q[0]),)
        twice = 2.0 * Q_i
        device.sram.store(blocks_of_O[0], device.sram.on_chip(twice + Q_i))
        return O, L

    program = DevicesProgram(name="scores", title="Scores", run=scores)
    Q = np.random.default_rng(0).normal(size=(8, 3))
    with pytest.raises(ValueError, match=r"no closed form of 'scores'.*; expected blocks=\(B_r"):
        devices.forward(program, Q, Q, Q, P=2, M=100)
    with pytest.raises(
        NotOnChip, match=r"twice \(4×3\) was not put on chip, and line \d+ computes"
    ):
        devices.forward(program, Q, Q, Q, P=2, M=100, blocks=(1, 1))
    counted = devices.count(program, P=2, N=8, d=3, M=100, blocks=(1, 1))
    with pytest.raises(ValueError, match="no closed form of 'scores'"):
        devices.exact(counted)
    ring = devices.count("ring", P=2, N=8, d=3, M=100)
    with pytest.raises(ValueError, match="is of each device"):
        ring.plan.exact()


def test_what_is_no_result_on_devices_is_refused() -> None:
    X = np.ones((4, 2))
    run = flashsim.forward("flash", X, X, X, M=100)
    counted = flashsim.count("flash", N=4, d=2, M=100)
    with pytest.raises(
        ValueError,
        match=r"tally is Result\('flash'.*; expected what flashsim.devices' functions return",
    ):
        devices.exact(run)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError,
        match=r"run is Result\('flash'.*; expected what flashsim.devices.forward returned",
    ):
        devices.backward("ring", run, X)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError,
        match=r"run is Result\('flash': \d+ HBM accesses.*; expected what flashsim.forward",
    ):
        flashsim.backward("flash", counted, X)

"""Traces of programs over devices: the observer that traces all else, and a lane for each
device.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import devices
from flashsim.devices.programs import programs
from flashsim.devices.tracing import trace
from flashsim.tracing import Trace

HOW: dict[str, Any] = {"blocks": (2, 2), "M": 64}


def operands(N: int = 12) -> Any:
    return np.random.default_rng(0).normal(size=(3, N, 2))


@pytest.mark.parametrize("name", sorted(programs()))
def test_a_trace_counts_what_the_run_does_and_its_messages_are_the_links(name: str) -> None:
    run = devices.forward(name, *operands(), P=4, **HOW)
    for rank in (0, 2):
        result = trace(name, *operands(), P=4, rank=rank, **HOW)
        by_array = run.devices[rank].hbm.by_array
        assert {array.name for array in result.about.arrays} == set(by_array)
        columns: dict[str, set[str]] = {"Q": set(), "K": set(), "V": set(), "O": set()}
        for array in result.about.arrays:
            assert array.reads == by_array[array.name].reads
            assert array.writes == by_array[array.name].writes
            assert array.exact == (array.reads, array.writes)
            letter = array.name[0]
            if letter in columns:
                columns[letter].add(array.kind[1])
        assert columns == {"Q": {"d"}, "K": {"d"}, "V": {"d_v"}, "O": {"d_v"}}
    assert result.lanes is not None
    sent: dict[tuple[int, int], int] = {}
    for from_, posted, to, arrived, _ in result.lanes.messages:
        sent[from_, to] = sent.get((from_, to), 0) + 1
        assert result.lanes.kinds[from_][posted] == "post"
        assert result.lanes.kinds[to][arrived] == "wait"
    assert sent == {
        (p, to): link.messages
        for p, one in enumerate(run.devices)
        for to, link in one.links.items()
    }


@pytest.fixture(scope="module")
def ring() -> Trace:
    return trace("ring", *operands(), P=3, rank=1, **HOW)


def test_messages_are_in_flight_while_the_ring_computes() -> None:
    result = trace("ring", *operands(), P=3, layout="contiguous", **HOW)
    assert result.lanes is not None
    steps = {step.number: step for step in result.steps}
    mine = [message for message in result.lanes.messages if message[0] == 0]
    assert [(message[2], message[4]) for message in mine] == [
        (1, "K"),
        (1, "V"),
        (1, "K_0"),
        (1, "V_0"),
    ]
    for _, posted, _, arrived, _ in mine:
        assert (steps[posted].label, steps[arrived].label) == ("line 3", "line 15")
        in_flight = [result.lanes.kinds[0][t] for t in range(posted, arrived)]
        assert "compute" in in_flight


def test_a_saved_trace_has_its_lanes_when_it_is_read(ring: Trace, tmp_path: Path) -> None:
    read = flashsim.load_trace(ring.save(tmp_path / "ring.json.gz"))
    assert ring.lanes is not None
    assert read.lanes == ring.lanes
    assert read.html() == ring.html()
    alone = flashsim.trace("q_outer", *operands(), M=100)
    assert flashsim.load_trace(alone.save(tmp_path / "alone.json.gz")).lanes is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rank": 3}, "lanes.rank is 3; expected one of 3 lanes"),
        ({"rank": True}, "lanes.rank is True"),
        (
            {"kinds": [["post"], ["wait"], ["evict"]]},
            "lanes.kinds is 'evict'; expected one of init",
        ),
        (
            {"messages": [[0, 0, 3, 0, "K"]]},
            r"lanes.messages\[0\] is .*; expected lanes and steps that there are",
        ),
        (
            {"messages": [[0, 10**6, 1, 0, "K"]]},
            r"lanes.messages\[0\] is .*; expected lanes and steps that there are",
        ),
        ({"messages": [[0, 0, -1, 0, "K"]]}, r"lanes.messages\[0\]\[2\] is -1"),
    ],
)
def test_lanes_that_are_damaged_are_refused(
    change: dict[str, Any], text: str, ring: Trace, tmp_path: Path
) -> None:
    file = ring.save(tmp_path / "ring.json.gz")
    data = json.loads(gzip.decompress(file.read_bytes()))
    data["lanes"] |= change
    file.write_bytes(gzip.compress(json.dumps(data).encode()))
    with pytest.raises(ValueError, match=text):
        flashsim.load_trace(file)


def test_a_trace_is_of_one_head_and_of_a_rank_that_there_is() -> None:
    with pytest.raises(ValueError, match="a trace is of one head"):
        trace("ring", *np.ones((3, 2, 4, 2)), P=2, **HOW)
    with pytest.raises(ValueError, match="rank is 2"):
        trace("ring", *operands(), P=2, rank=2, **HOW)


def test_the_page_has_a_lane_for_each_device(browser: Any, tmp_path: Path) -> None:
    """The picture below is higher by four lanes; at a step in which messages are in flight, more
    of it is red.
    """
    file = trace("ring", *operands(16), P=4, layout="contiguous", **HOW).save(
        tmp_path / "ring.html"
    )
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    page.goto(file.as_uri())
    page.wait_for_function("document.documentElement.dataset.ready")
    assert page.evaluate("find('#sparks').clientHeight") == 40 + 4 * 15 + 8
    assert "a lane for each device" in page.locator("#sparks").get_attribute("aria-label")
    red = """t => { player.go(t); const c = find('#sparks'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      let n = 0; for (let i = 0; i < d.length; i += 4) n += d[i] > 140 && d[i + 1] < 90 && d[i + 2] < 90; return n }"""
    flying = page.evaluate(red, 8)
    none = page.evaluate(red, 80)
    assert flying > 2 * none > 0
    assert "post" in page.evaluate("player.go(0), find('.now').textContent")
    page.close()

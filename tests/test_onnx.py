"""ONNX's own node tests of its operator Attention, as an outside suite: pip install "flashsim[onnx]", pytest -m packages.

Each says inputs, attributes, and what ONNX's reference gives; the operator's documentation says what they mean. All that this
file does not know of is an error: an attribute, an input, an output or a test of a new version.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import numpy as np
import pytest

import flashsim
from flashsim import Causal, KeyPadding, SlidingWindow, SoftCap
from flashsim.problem.inputs import Array
from flashsim.testing import CHECKS, Case, wrap
from flashsim.testing.running import try_check
from flashsim.testing.subject import Subject

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytestmark = pytest.mark.packages
CLOSE = {"float32": 2e-6, "float16": 4e-3, "bfloat16": 3e-2}
KNOWN = {
    "is_causal", "scale", "softcap", "q_num_heads", "kv_num_heads", "left_window_size", "right_window_size",
    "qk_matmul_output_mode", "softmax_precision",
}  # fmt: skip


class NodeTest(NamedTuple):
    """Inputs and outputs by the operator's names for them."""

    inputs: dict[str, Array]
    attributes: dict[str, Any]
    outputs: dict[str, Array]


@contextmanager
def recorded(tests: dict[str, NodeTest]) -> Iterator[None]:
    """Keep tests instead of making models of them."""
    import onnx.backend.test.case.node as suite

    schema, expect = onnx.defs.get_schema("Attention"), suite.expect

    def keep(node: Any, inputs: Any, outputs: Any, name: str, **_: Any) -> None:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        each = []
        for names, formal, arrays in ((node.input, schema.inputs, inputs), (node.output, schema.outputs, outputs)):
            present = [known.name for given, known in zip(names, formal, strict=False) if given]
            each.append(dict(zip(present, arrays, strict=True)))
        tests[name] = NodeTest(each[0], attributes, each[1])

    suite.expect = keep
    try:
        yield
    finally:
        suite.expect = expect


def masks(test: NodeTest, N_q: int, N_k: int, upto: int = 2) -> Any:
    """Return the mask that attributes and inputs make; `upto` 0: none, 1: the soft cap alone."""
    given, attributes = test.inputs, test.attributes
    found: list[Any] = []
    offset: Any = given["past_key"].shape[2] if "past_key" in given else 0
    if attributes.get("softcap") and upto:
        found.append(SoftCap(attributes["softcap"]))
    if "nonpad_kv_seqlen" in given:
        offset = given["nonpad_kv_seqlen"][:, None] - N_q
        found.append(KeyPadding(given["nonpad_kv_seqlen"][:, None]))
    if attributes.get("is_causal"):
        found.append(Causal(offset=offset))
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if (left, right) != (-1, -1):
        found.append(SlidingWindow(left, right, offset=offset))
    if "attn_mask" in given:
        added = given["attn_mask"]
        short = [(0, 0)] * (added.ndim - 1) + [(0, N_k - added.shape[-1])]
        allowed = np.pad(added if added.dtype == bool else added > -np.inf, short)
        found.append(allowed)
        if added.dtype != bool:
            added = np.pad(added.astype(np.float32), short)
            found.insert(0, flashsim.Bias(np.where(allowed, added, 0)))
    found = [each for each in found if upto == 2 or isinstance(each, SoftCap)]
    return reduce(and_, found) if found else None


def attention(test: NodeTest) -> dict[str, Array]:
    """Return what flashsim gives for a node test, by the names of its outputs."""
    given, attributes = test.inputs, test.attributes
    assert attributes.keys() <= KNOWN
    assert given.keys() <= {"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"}
    Q, K, V = given["Q"], given["K"], given["V"]
    flat = Q.ndim == 3
    if flat:
        heads = attributes["q_num_heads"], *[attributes["kv_num_heads"]] * 2
        Q, K, V = (a.reshape(*a.shape[:2], H, -1).swapaxes(1, 2) for a, H in zip((Q, K, V), heads, strict=True))
    if "past_key" in given:
        K, V = np.concatenate([given["past_key"], K], 2), np.concatenate([given["past_value"], V], 2)

    def run(name: str, upto: int = 2, **more: Any) -> Any:
        mask = masks(test, Q.shape[2], K.shape[2], upto)
        how: dict[str, Any] = {"mask": mask, "scale": attributes.get("scale"), "check_finite": False, "blocks": (3, 4)}
        return flashsim.forward(name, Q, K, V, **how, **more)

    O = run("flash").O
    found = {
        "Y": O.swapaxes(1, 2).reshape(*O.shape[:1], O.shape[2], -1) if flat else O,
        "present_key": K,
        "present_value": V,
    }
    if "qk_matmul_output" in test.outputs:
        mode, kept = attributes.get("qk_matmul_output_mode", 0), dict[int, Any]()
        run("standard", min(mode, 2), observers=[lambda event: kept.__setitem__(id(event.sram.hbm), event.sram.hbm)])
        S = [hbm.peek("P" if mode == 3 else "S") for hbm in kept.values()]
        found["qk_matmul_output"] = np.reshape(S, (*Q.shape[:3], K.shape[2]))
    return {name: found[name] for name in test.outputs}


@pytest.fixture(scope="module")
def tests() -> Mapping[str, NodeTest]:
    found: dict[str, NodeTest] = {}
    with recorded(found):
        importlib.import_module("onnx.backend.test.case.node.attention")
    return found


def test_every_node_test_of_attention_gives_what_onnx_s_reference_gives(tests: Mapping[str, NodeTest]) -> None:
    assert len(tests) >= 93  # version 1.23 has these; none has gone
    wrong = {}
    for name, test in tests.items():
        found, close = attention(test), CLOSE[test.inputs["Q"].dtype.name]
        for output, expected in test.outputs.items():
            assert found[output].shape == expected.shape, name
            if not np.allclose(found[output].astype(float), expected.astype(float), rtol=close, atol=close):
                wrong[f"{name}, {output}"] = found[output], expected
    assert not wrong


@pytest.mark.parametrize(
    ("case", "right"),
    [
        (Case(group=2, N_q=3, N_k=5, d=8, d_v=5, causal=True), True),
        (Case(B=2, N_q=4, N_k=3, d=8, mask="dense", bias="dense", softcap=0.5, window=(1, 1)), True),
        (Case(N_q=2, N_k=2, mask="rows"), True),  # a last axis of 1, which the operator would pad
        (Case(N_q=2, N_k=2, causal=True, bias="keys"), False),  # of one row: every query is masked as the first
    ],
)
def test_the_kit_finds_a_bug_of_onnx_s_reference_and_no_other(case: Case, right: bool) -> None:
    """In 1.23 is_causal with a mask of one row is wrong; the graph that defines the operator is right."""
    from onnx.reference.ops.op_attention import Attention

    kernel = wrap(Attention.eval, "numpy", convention="onnx")
    found = try_check(CHECKS["oracle"], Subject(kernel, kernel.spec()), case)
    assert found is not None
    assert found.failed != right

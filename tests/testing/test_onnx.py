"""ONNX's own node tests of its operator Attention, as an outside suite: pip install -e ".[onnx]",
pytest -m packages.

Each has inputs, attributes, and what ONNX's reference gives for them. What `attention` does not
know is a TypeError: an input or attribute of a new version.
"""

import importlib
from collections.abc import Iterable
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pytest

import flashsim
from flashsim import Causal, KeyPadding, SlidingWindow, SoftCap
from flashsim.attention.inputs import Array
from flashsim.testing import CHECKS, Case, wrap
from flashsim.testing.kernel import Kernel
from flashsim.testing.survey import try_check

onnx = pytest.importorskip("onnx", reason='onnx is not installed: pip install -e ".[onnx]"')
pytestmark = pytest.mark.packages
CLOSE = {"float32": 2e-6, "float16": 4e-3, "bfloat16": 3e-2}


def node_tests(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """Return the inputs, outputs and attributes of each test, by the operator's names for them;
    no model is made.
    """
    suite: Any = importlib.import_module("onnx.backend.test.case.node")
    schema = onnx.defs.get_schema("Attention")
    tests = {}

    def keep(node: Any, inputs: Any, outputs: Any, name: str, **_: Any) -> None:
        attributes = {}
        for attribute in node.attribute:
            attributes[attribute.name] = onnx.helper.get_attribute_value(attribute)
        tests[name] = [attributes]
        for operands, formal, arrays in (
            (node.input, schema.inputs, inputs),
            (node.output, schema.outputs, outputs),
        ):
            names = [known.name for name, known in zip(operands, formal, strict=False) if name]
            tests[name].append(dict(zip(names, arrays, strict=True)))

    monkeypatch.setattr(suite, "expect", keep)
    importlib.import_module("onnx.backend.test.case.node.attention")
    return tests


def attention(
    expected: Iterable[str],
    Q: Array,
    K: Array,
    V: Array,
    attn_mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    nonpad_kv_seqlen: Any = None,
    is_causal: int = 0,
    scale: Any = None,
    softcap: float = 0.0,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    qk_matmul_output_mode: int = 0,
    softmax_precision: int = 1,
) -> dict[str, Array]:
    """Return the operator's outputs, by flashsim, which computes in float32 or more."""
    flat = Q.ndim == 3
    if flat:
        heads = q_num_heads, kv_num_heads, kv_num_heads
        Q, K, V = (
            a.reshape(*a.shape[:2], H, -1).swapaxes(1, 2)
            for a, H in zip((Q, K, V), heads, strict=True)
        )
    if past_key is not None:
        K = np.concatenate([past_key, K], 2)
        V = np.concatenate([past_value, V], 2)
    N_q = Q.shape[2]
    N_k = K.shape[2]
    masks = list[Any]()
    offset: Any = 0 if past_key is None else past_key.shape[2]
    if nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen[:, None] - N_q
        masks.append(KeyPadding(nonpad_kv_seqlen[:, None]))
    masks += [Causal(offset=offset)] if is_causal else []
    if max(left_window_size, right_window_size) >= 0:
        masks.append(SlidingWindow(left_window_size, right_window_size, offset=offset))
    if attn_mask is not None:
        missing = N_k - attn_mask.shape[-1]
        short = [(0, 0)] * (attn_mask.ndim - 1) + [(0, missing)]
        if attn_mask.dtype == bool:
            masks.append(np.pad(attn_mask, short))
        else:
            allowed = np.pad(attn_mask > -np.inf, short)
            bias = np.pad(attn_mask.astype(np.float32), short)
            masks.append(allowed)
            masks.append(flashsim.Bias(np.where(allowed, bias, 0)))
    cap = [SoftCap(softcap)] if softcap else []

    def run(name: str, masks: list[Any], **more: Any) -> Any:
        mask = reduce(and_, masks) if masks else None
        how: dict[str, Any] = {"scale": scale, "check_finite": False, "blocks": (3, 4)}
        return flashsim.forward(name, Q, K, V, mask=mask, **how, **more)

    O = run("flash", cap + masks).O
    Y = O
    if flat:
        Y = O.swapaxes(1, 2).reshape(len(O), N_q, -1)
    result = {
        "Y": Y,
        "present_key": K,
        "present_value": V,
    }
    if "qk_matmul_output" in expected:
        memories: dict[int, Any] = {}

        def keep(event: Any) -> None:
            memories.setdefault(id(event.sram.hbm), event.sram.hbm)

        before_output = ([], cap, cap + masks, cap + masks)[qk_matmul_output_mode]
        run("standard", before_output, observers=[keep])
        matrix = "P" if qk_matmul_output_mode == 3 else "S"
        of_heads = [hbm.peek(matrix) for hbm in memories.values()]
        result["qk_matmul_output"] = np.reshape(of_heads, (*Q.shape[:3], N_k))
    return result


def test_every_node_test_of_attention_gives_what_onnx_s_reference_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tests = node_tests(monkeypatch)
    wrong = []
    assert len(tests) >= 93  # version 1.23 has these; none has gone
    for name, (attributes, inputs, outputs) in tests.items():
        result = attention(outputs, **inputs, **attributes)
        close = CLOSE[inputs["Q"].dtype.name]
        for output, expected in outputs.items():
            assert result[output].shape == expected.shape, name
            if not np.allclose(
                result[output].astype(float), expected.astype(float), rtol=close, atol=close
            ):
                wrong.append((name, output))
    assert not wrong


@pytest.mark.parametrize(
    ("case", "right"),
    [
        (
            Case(group=2, N_q=3, N_k=5, d=8, d_v=5, causal=True),
            True,
        ),
        (
            Case(
                B=2,
                N_q=4,
                N_k=3,
                d=8,
                mask="dense",
                bias="dense",
                softcap=0.5,
                window=(1, 1),
            ),
            True,
        ),
        (Case(N_q=2, N_k=2, mask="rows"), True),  # a last axis of 1, which the operator would pad
        # one row: every query is masked as the first
        (Case(N_q=2, N_k=2, causal=True, bias="keys"), False),
    ],
)
def test_the_kit_finds_a_bug_of_onnx_s_reference(case: Case, right: bool) -> None:
    """In 1.23 is_causal with a mask of one row is wrong; the graph that defines the operator is
    right.
    """
    operator = importlib.import_module("onnx.reference.ops.op_attention").Attention
    kernel = wrap(operator.eval, "numpy", convention="onnx")
    result = try_check(CHECKS["oracle"], Kernel(kernel, kernel.spec()), case)
    assert result is not None
    assert result.failed != right

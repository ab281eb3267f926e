# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Operators of PyTorch, JAX and NumPy, counted as `standard` is: operands once, results once."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashsim.cli import main
from flashsim.memory.traffic import ArrayTraffic
from flashsim.profiling import Profile, ProfilingError, count, fused
from flashsim.profiling.arrays import Array, Block, Memory
from flashsim.profiling.jax_operators import Jax
from flashsim.profiling.numpy_operators import NumPy
from flashsim.profiling.recording import Line, Recorder
from flashsim.theory import exact
from tests.helpers.eager_attention import model_attention, softmax_attention

HERE = str(Path(__file__))
LIBRARIES = ["numpy", "torch", "jax"]
Shape = tuple[int, int, int, int, int]
"""Heads, N_q, N_k, d and d_v."""
SHAPES: list[Shape] = [
    (1, 16, 16, 8, 8),
    (2, 16, 24, 8, 4),
    (3, 40, 24, 4, 12),
    (1, 1, 1, 1, 1),
]
Operator = Callable[[Any], Any]
Rule = tuple[Operator, tuple[int, int]]
"""An operator on x, and how many elements of x it reads and writes."""
MOST = 10**6
"""More SRAM than any of these needs: then a row of S fits."""


def need(name: str) -> None:
    """Skip a test whose library is not installed."""
    if name != "numpy":
        pytest.importorskip(name, reason=f"{name} is not installed")


@pytest.fixture(params=LIBRARIES)
def name(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return str(request.param)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def jnp() -> Any:
    return pytest.importorskip("jax.numpy", reason="JAX is not installed")


def array(name: str, *shape: int, seed: int = 0) -> Any:
    """Return a library's array of float32, normally distributed; (4, 6) where no shape is given."""
    shape = shape or (4, 6)
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    if name == "torch":
        import torch

        return torch.from_numpy(values)
    if name == "jax":
        import jax.numpy as jnp

        return jnp.asarray(values)
    return values


def operands(name: str, shape: Shape, batch: int | None = None) -> tuple[Any, ...]:
    """Q, K and V; their first axis is that of the batch, where it is given."""
    heads, N_q, N_k, d, d_v = shape
    first = (heads,) if batch is None else (batch, heads)
    return (
        array(name, *first, N_q, d, seed=1),
        array(name, *first, N_k, d, seed=2),
        array(name, *first, N_k, d_v, seed=3),
    )


def standard(shape: Shape, direction: str = "forward") -> Mapping[str, ArrayTraffic]:
    """What Algorithm 0 moves, or 3, with each operand of a product read once."""
    heads, N_q, N_k, d, d_v = shape
    form = exact(
        "standard",
        N_q=N_q,
        N_k=N_k,
        d=d,
        d_v=d_v,
        heads=heads,
        kv_heads=heads,
        M=MOST,
        blocks=(N_q, N_k),
        direction=direction,
        dtype="float32",
    )
    return form.hbm.by_array


def by_role(profile: Profile, names: Mapping[str, str]) -> dict[str, ArrayTraffic]:
    """What a call moves, by array; of those in `names`, by the name there."""
    return {names.get(name, name): traffic for name, traffic in profile.by_array.items()}


def moves(profile: Profile, name: str) -> tuple[int, int]:
    traffic = profile.by_array[name]
    return traffic.reads, traffic.writes


def totals(profile: Profile) -> tuple[int, int]:
    return profile.hbm.reads, profile.hbm.writes


def all_moves(profile: Profile) -> dict[str, tuple[int, int]]:
    return {name: moves(profile, name) for name in profile.by_array}


def kernels(profile: Profile) -> list[str]:
    return [launch.kernel for launch in profile.launches]


def in_pytorch(q: Any, k: Any, v: Any) -> Any:
    S = q @ k.mT
    P = S.softmax(-1)
    return P @ v


def plus_one(view: Operator) -> Operator:
    return lambda x: view(x) + 1


def line_of(function: Callable[..., Any], text: str) -> Line:
    """The line of a function in this file that has this text."""
    lines, first = inspect.getsourcelines(function)
    places = [place for place, line in enumerate(lines) if text in line]
    assert len(places) == 1
    return Line(HERE, first + places[0])


# Attention.


@pytest.mark.parametrize("shape", SHAPES)
def test_matmul_softmax_matmul_in_pytorch_is_algorithm_0(torch: Any, shape: Shape) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        S = q @ k.transpose(-1, -2)
        P = torch.softmax(S, -1)
        return P @ v

    profile = count(attention, *operands("torch", shape))
    assert by_role(profile, {"bmm_1": "S", "softmax_1": "P"}) == standard(shape)
    assert kernels(profile) == ["bmm", "softmax", "bmm"]
    assert all(launch.grid == () for launch in profile.launches)
    assert profile.blocks is None
    assert profile.tiles == ()
    assert profile.nearest is not None
    assert profile.nearest.algorithm == "standard"
    assert profile.nearest.blocks is None
    heads, N_q, N_k, _, _ = shape
    assert profile.nearest.others == 4 * heads * N_q * N_k  # S and P
    assert profile.nearest.equal
    assert profile.to_dict()["nearest"]["blocks"] is None
    lines = {finding.array: finding.line for finding in profile.findings}
    assert {finding.kind for finding in profile.findings} >= {"kept in HBM"}
    assert lines["bmm_1"] == line_of(attention, "torch.softmax")
    assert lines["softmax_1"] == line_of(attention, "return P @ v")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_fused_softmax_makes_it_algorithm_0_in_every_library(name: str, shape: Shape) -> None:
    profile = count(softmax_attention(name, "softmax"), *operands(name, shape))
    product, _, _ = kernels(profile)
    assert kernels(profile) == [product, "softmax", product]
    quotients = [array for array in profile.by_array if array.startswith("div")]
    names = {f"{product}_1": "S", quotients[0]: "P"}
    assert by_role(profile, names) == standard(shape)


def test_unfused_operators_move_the_same_in_every_library() -> None:
    shape = (2, 16, 24, 8, 4)
    heads, N_q, N_k, d, d_v = shape
    square = heads * N_q * N_k
    rows = heads * N_q
    expected = {
        "Q": (heads * N_q * d, 0),
        "K": (heads * N_k * d, 0),
        "V": (heads * N_k * d_v, 0),
        "S": (2 * square, square),  # for its largest elements, and to subtract them
        "m": (rows, rows),
        "S − m": (square, square),
        "E": (2 * square, square),  # for its sum, and to divide by it
        "l": (rows, rows),
        "P": (square, square),
        "O": (0, heads * N_q * d_v),
    }
    for library_name in LIBRARIES:
        if importlib.util.find_spec(library_name) is None:
            continue
        profile = count(softmax_attention(library_name), *operands(library_name, shape))
        counts = all_moves(profile)
        assert sorted(counts.values()) == sorted(expected.values()), library_name
        for role in ("Q", "K", "V", "O"):
            assert counts[role] == expected[role], library_name
        assert len(profile.launches) == 7


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_the_backward_pass_of_pytorch_is_algorithm_3(name: str) -> None:
    need(name)
    shape = (2, 24, 16, 8, 4)  # with fewer keys than queries, a block of queries holds all keys

    attention = in_pytorch if name == "torch" else softmax_attention("jax")
    profile = count(attention, *operands(name, shape), direction="backward")
    assert profile.nearest is not None
    assert profile.nearest.algorithm == "standard"
    assert profile.nearest.equal
    if name == "torch":
        expected = dict(standard(shape, "backward"))
        counts = by_role(
            profile, {"softmax_1": "P", "bmm_3": "dP", "softmax_backward_data_1": "dS"}
        )
        assert counts.pop("O").accesses == 0
        for array, traffic in expected.items():
            assert counts[array].reads == traffic.reads, array
            assert counts[array].writes == traffic.writes, array
        assert counts.keys() == expected.keys()


def test_multi_head_attention_of_pytorch(torch: Any) -> None:
    L, E, heads = 12, 16, 2
    module = torch.nn.MultiheadAttention(E, heads, batch_first=True)
    x = torch.randn(1, L, E)
    profile = count(module, x, x, x)
    expected = ["addmm", "clone", "mul", "bmm", "softmax", "bmm", "clone", "addmm", "mean"]
    assert kernels(profile) == expected
    rows = L * E
    square = heads * L * L
    assert all_moves(profile) == {
        "query": (rows, 0),
        "in_proj_weight": (3 * E * E, 0),
        "in_proj_bias": (3 * E, 0),
        "out_proj.weight": (E * E, 0),
        "out_proj.bias": (E, 0),
        "addmm_1": (3 * rows, 3 * rows),
        "clone_1": (3 * rows, 3 * rows),
        "mul_1": (rows, rows),
        "bmm_1": (square, square),
        "softmax_1": (2 * square, square),  # the mean of P over heads is returned
        "bmm_2": (rows, rows),
        "clone_2": (rows, rows),
        "addmm_2": (0, rows),
        "mean_1": (0, L * L),
    }
    assert profile.problem is None  # it computes more than attention
    assert profile.nearest is None
    expected_line = line_of(test_multi_head_attention_of_pytorch, "count(module, x, x, x)\n")
    assert {line.line for line in profile.lines} == {expected_line}


def test_multi_head_attention_in_one_operator(torch: Any) -> None:
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 12, 16)
    with torch.no_grad():
        profile = count(module, x, x, x, need_weights=False)
    assert kernels(profile) == ["native_multi_head_attention"]
    assert moves(profile, "query") == (12 * 16, 0)
    assert [finding.kind for finding in profile.findings] == ["not seen inside"]


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_the_attention_of_model_libraries(torch: Any, groups: int, masked: bool) -> None:
    kv_heads, N, d = 2, 16, 8
    heads = kv_heads * groups
    square = heads * N * N
    Q = torch.randn(1, heads, N, d)
    K = torch.randn(1, kv_heads, N, d)
    V = torch.randn(1, kv_heads, N, d)
    mask = torch.zeros(1, 1, N, 2 * N) if masked else None
    profile = count(model_attention, Q, K, V, mask, scaling=0.5, groups=groups)
    copies = ["clone"] * (2 if groups > 1 else 0)
    bias = ["add"] if masked else []
    expected = [*copies, "bmm", "mul", *bias, "softmax", "bmm", "clone"]
    assert kernels(profile) == expected
    rows = heads * N * d
    arrays = {
        "Q": (rows, 0),
        "K": (rows // groups, 0),
        "V": (rows // groups, 0),
        "bmm_1": (square, square),
        "mul_1": (square, square),
        "softmax_1": (square, square),
        "bmm_2": (rows, rows),
        "O": (0, rows),
    }
    if groups > 1:
        arrays["clone_1"] = (rows, rows)
        arrays["clone_2"] = (rows, rows)
    if masked:
        arrays["mask"] = (N * N, 0)
        arrays["add_1"] = (square, square)
    assert all_moves(profile) == arrays
    assert profile.nearest is not None
    assert profile.nearest.equal == (groups == 1)  # standard reads K for every query head


def test_scaled_dot_product_attention_is_one_operator(torch: Any) -> None:
    heads, N_q, N_k, d = 2, 16, 24, 8
    Q = torch.randn(1, heads, N_q, d)
    K = torch.randn(1, heads, N_k, d)
    V = torch.randn(1, heads, N_k, d)
    profile = count(torch.nn.functional.scaled_dot_product_attention, Q, K, V)
    (launch,) = profile.launches
    assert launch.kernel == "scaled_dot_product_flash_attention_for_cpu"
    assert "not seen" in launch.unseen
    assert all_moves(profile) == {
        "Q": (Q.numel(), 0),
        "K": (K.numel(), 0),
        "V": (V.numel(), 0),
        "O": (0, Q.numel()),
        f"{launch.kernel}_2": (0, heads * N_q),  # the log-sum-exp
    }
    (finding,) = profile.findings
    assert finding.kind == "not seen inside"
    assert launch.kernel in finding.text
    assert profile.hbm.accesses == profile.fewest() + heads * N_q


def test_the_math_path_of_scaled_dot_product_attention(torch: Any) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attention(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    profile = count(attention, *operands("torch", (2, 16, 16, 8, 8), batch=1))
    # It scales Q and K, each by the root of the scale, before it multiplies them.
    assert kernels(profile) == ["mul", "mul", "bmm", "safe_softmax", "bmm"]
    assert moves(profile, "mul_1") == (256, 256)
    assert moves(profile, "bmm_1") == (512, 512)
    assert profile.nearest is not None
    assert profile.nearest.equal


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_without_a_kernel(torch: Any) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def attention(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, score_mod=double)

    def double(score: Any, *places: Any) -> Any:
        return score * 2

    profile = count(attention, *operands("torch", (2, 32, 32, 8, 8), batch=1))
    assert profile.nearest is not None
    assert profile.nearest.equal
    square = 2 * 32 * 32
    assert moves(profile, "matmul_1") == (square, square)
    assert moves(profile, "safe_softmax_1") == (square, square)
    sizes = [traffic.size for traffic in profile.by_array.values()]
    assert sizes.count(square) > 4  # S, scaled, changed, masked, compared with −∞, and P


# What moves nothing.


VIEWS: list[Operator] = [
    lambda x: x.reshape(-1),
    lambda x: x.reshape(2, 2, 6),
    lambda x: x.swapaxes(0, 1),
]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_moves_nothing(name: str, view: Operator) -> None:
    x = array(name)
    profile = count(lambda x: view(x) + 1.0, x)
    assert kernels(profile) == ["add"]
    assert moves(profile, "x") == (24, 0)
    assert moves(profile, "add_1") == (0, 24)


def test_views_of_pytorch(torch: Any) -> None:
    views: list[tuple[Operator, int]] = [
        (lambda x: x.detach(), 24),
        (lambda x: x.unsqueeze(0).squeeze(0), 24),
        (lambda x: x.expand(5, 4, 6), 24),
        (lambda x: x[:, ::2], 12),
        (lambda x: x[1], 6),
        (lambda x: x.contiguous(), 24),
        (lambda x: torch.view_as_complex(x.view(4, 3, 2)), 24),
        (lambda x: x.view(torch.int32), 24),
        (lambda x: x.chunk(2)[1], 12),
        (lambda x: x.unfold(1, 3, 1), 24),
        (lambda x: x.permute(1, 0).as_strided((3,), (7,)), 3),
    ]
    for view, elements in views:
        profile = count(plus_one(view), torch.ones(4, 6))
        assert kernels(profile) == ["add"]
        reads, writes = moves(profile, "x")
        assert reads == elements, inspect.getsource(view)
        assert writes == 0


def test_a_reshape_that_cannot_be_a_view_copies(name: str) -> None:
    if name == "jax":
        pytest.skip("XLA gives a transposed array another layout")
    profile = count(lambda x: x.swapaxes(0, 1).reshape(-1), array(name))
    assert len(profile.launches) == 1
    assert profile.hbm.reads == profile.hbm.writes == 24


def test_views_of_numpy() -> None:
    views: list[tuple[Operator, int]] = [
        (lambda x: x[::-1, ::-2], 12),
        (lambda x: x.T[1:], 20),
        (lambda x: np.broadcast_to(x[0], (9, 6)), 6),
        (lambda x: np.asarray(x)[:, None], 24),
        (lambda x: np.expand_dims(x, 0)[0].ravel(), 24),
        (lambda x: x.astype(np.float32, copy=False), 24),
        (lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, axis=1), 24),
    ]
    for view, elements in views:
        profile = count(plus_one(view), array("numpy"))
        assert kernels(profile) == ["add"]
        reads, writes = moves(profile, "x")
        assert reads == elements, inspect.getsource(view)
        assert writes == 0


def test_what_xla_makes_free(jnp: Any) -> None:
    def free(x: Any) -> Any:
        y = x.T.reshape(3, 8)
        y = jnp.expand_dims(y, 0)
        y = jnp.squeeze(y, 0)
        y = y * jnp.float32(2)
        return y + jnp.zeros((3, 8))

    profile = count(free, array("jax"))
    assert kernels(profile) == ["mul", "add"]
    assert profile.hbm.reads == profile.hbm.writes == 48
    profile = count(lambda x: jnp.broadcast_to(x, (5, 4, 6)), array("jax"))
    assert totals(profile) == (24, 120)
    profile = count(lambda x: x[1:3], array("jax"))
    assert totals(profile) == (12, 12)


def test_a_broadcast_operand_is_read_once(name: str) -> None:
    profile = count(lambda x, y: x + y, array(name), array(name, 4, 1))
    assert moves(profile, "x") == (24, 0)
    assert moves(profile, "y") == (4, 0)
    assert moves(profile, "add_1") == (0, 24)


def test_an_argument_that_is_broadcast_has_its_elements_once(torch: Any) -> None:
    bias = torch.ones(4, 1).expand(4, 6)
    profile = count(lambda x, bias: x + bias, torch.ones(4, 6), bias)
    assert moves(profile, "bias") == (4, 0)
    bias = np.broadcast_to(np.ones((4, 1)), (4, 6))
    profile = count(lambda x, bias: x + bias, np.ones((4, 6)), bias)
    assert moves(profile, "bias") == (4, 0)


def test_an_operand_that_an_operator_takes_twice_is_read_once(name: str) -> None:
    profile = count(lambda x: x * x, array(name))
    assert moves(profile, "x") == (24, 0)


def test_parts_of_one_array_are_arrays_of_their_own(torch: Any) -> None:
    heads, N, d = 2, 16, 8
    Q, K, V = torch.randn(1, heads, N, 3 * d).chunk(3, dim=-1)
    profile = count(in_pytorch, Q, K, V)
    for role in ("Q", "K", "V"):
        assert moves(profile, role) == (heads * N * d, 0)
    packed = torch.randn(N, 3 * d)
    profile = count(lambda x: x[:, d:] + x[:, :-d], packed)
    assert moves(profile, "x") == (N * 3 * d, 0)  # the middle once


# In place.


def test_operators_in_place_read_and_write(torch: Any) -> None:
    rules: list[Rule] = [
        (lambda x: x.mul_(2), (24, 24)),
        (lambda x: x[:, :2].add_(1), (8, 8)),
        (lambda x: x.masked_fill_(torch.ones(4, 1, dtype=torch.bool), 0.0), (24, 24)),
        (lambda x: x.zero_(), (0, 24)),
        (lambda x: x.fill_(1), (0, 24)),
        (lambda x: x.copy_(torch.ones(6)), (0, 24)),
        (lambda x: x.uniform_(), (0, 24)),
        (lambda x: torch.exp(torch.ones(4, 6), out=x), (0, 24)),
        (lambda x: torch.exp(x, out=x), (24, 24)),
        (lambda x: x[2:].copy_(x[:2]), (12, 12)),
        (lambda x: x.index_copy_(0, torch.tensor([2]), torch.ones(1, 6)), (0, 6)),
    ]
    for operator, expected in rules:
        profile = count(operator, torch.zeros(4, 6))
        assert moves(profile, "x") == expected, inspect.getsource(operator)


def test_operators_in_place_of_numpy() -> None:
    def add(x: Any) -> Any:
        x += 1
        return x

    def set_rows(x: Any) -> None:
        x[1:3] = np.ones((1, 6))

    def set_chosen(x: Any) -> None:
        x[[0, 3]] = 1

    rules: list[Rule] = [
        (add, (24, 24)),
        (set_rows, (0, 12)),
        (set_chosen, (0, 12)),
        (lambda x: x.fill(1), (0, 24)),
        (lambda x: x.sort(), (24, 24)),
        (lambda x: np.copyto(x, 1), (0, 24)),
        (lambda x: np.exp(np.ones(6), out=x), (0, 24)),
        (lambda x: np.exp(x, out=x), (24, 24)),
    ]
    for operator, expected in rules:
        profile = count(operator, np.zeros((4, 6), np.float32))
        assert moves(profile, "x") == expected


def test_gathers_read_what_they_return(torch: Any) -> None:
    table = torch.randn(100, 8)
    places = torch.tensor([3, 5, 7])
    for gather in (
        lambda x, places: x[places],
        lambda x, places: torch.index_select(x, 0, places),
        lambda x, places: torch.nn.functional.embedding(places, x),
    ):
        profile = count(gather, table, places)
        assert moves(profile, "x") == (24, 0)
        assert moves(profile, "places") == (3, 0)
    profile = count(lambda x, places: x[places], table.numpy(), places.numpy())
    assert moves(profile, "x") == (24, 0)


def test_empty_memory_is_no_traffic(torch: Any) -> None:
    def fill(x: Any) -> Any:
        result = torch.empty(4, 16)
        result[:, :8] = x
        result[:, 8:] = x
        return result

    profile = count(fill, torch.ones(4, 8))
    assert kernels(profile) == ["copy", "copy"]
    assert moves(profile, "empty_1") == (0, 64)
    assert profile.findings == ()


def test_the_result_of_a_view_is_the_array_that_it_is_of(torch: Any) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        y = v + 1
        return y[..., None].squeeze(-1)

    profile = count(function, *operands("torch", SHAPES[0]))
    assert moves(profile, "O") == (0, 128)


# Groups.


def test_a_group_moves_what_it_takes_and_what_is_used_outside(name: str) -> None:
    def function(x: Any, y: Any) -> Any:
        with fused("group"):
            a = x + y
            b = a * x
            c = b - a
        return c * b

    profile = count(function, array(name), array(name, seed=1))
    assert len(profile.launches) == 2
    assert kernels(profile)[0] == "group"
    assert moves(profile, "x") == (24, 0)
    assert moves(profile, "y") == (24, 0)
    assert not any(array.startswith("add") for array in profile.by_array)
    assert sorted(all_moves(profile).values()) == [
        (0, 24),  # the result
        (24, 0),  # x
        (24, 0),  # y
        (24, 24),  # b
        (24, 24),  # c
    ]


def test_a_group_writes_what_is_returned(name: str) -> None:
    def function(x: Any) -> Any:
        with fused("group"):
            a = x + 1
            b = a * 2
        return a, [b]

    profile = count(function, array(name))
    assert kernels(profile) == ["group"]
    assert totals(profile) == (24, 48)


def test_each_use_of_a_group_is_a_kernel(name: str) -> None:
    def function(x: Any) -> Any:
        for _ in range(3):
            with fused("outer"), fused("inner"):
                x = x * 2 + 1
        return x

    profile = count(function, array(name))
    assert kernels(profile) == ["outer"] * 3
    assert totals(profile) == (72, 72)


def test_a_group_reads_parts_once(torch: Any) -> None:
    def rotate(x: Any) -> Any:
        with fused("rotate"):
            y = torch.cat([x[:, 3:], x[:, :3]], 1)
            return y * 2 + x

    for x in (torch.ones(4, 6), np.ones((4, 6))):
        function = rotate
        if isinstance(x, np.ndarray):

            def function(x: Any) -> Any:
                with fused("rotate"):
                    y = np.concatenate([x[:, 3:], x[:, :3]], 1)
                    return y * 2 + x

        profile = count(function, x)
        assert kernels(profile) == ["rotate"]
        assert moves(profile, "x") == (24, 0)
        assert profile.hbm.writes == 24


def test_a_group_changes_an_array_from_outside_once(torch: Any) -> None:
    def function(x: Any) -> Any:
        with fused("group"):
            x += 1
            x *= 2
            y = torch.empty_like(x)
            y[:, :3] = x[:, :3]
            y[:, 3:] = 0
            return y.sum(1)

    profile = count(function, torch.ones(4, 6))
    assert kernels(profile) == ["group"]
    assert moves(profile, "x") == (24, 24)
    assert profile.hbm.writes == 24 + 4


@pytest.mark.parametrize("bad", ["", 3, None])
def test_a_group_needs_a_name(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"name is .*; expected a name"), fused(bad):
        pass


# Kernels and operators in one call.


@pytest.fixture
def triton_attention(torch: Any) -> Callable[..., Any]:
    pytest.importorskip("triton", reason="Triton is not installed")
    from flashsim.profiling.triton_example import attention

    return attention


def test_kernels_and_operators_are_launches_of_one_call(
    torch: Any, triton_attention: Callable[..., Any]
) -> None:
    heads, N, d = 2, 32, 16

    def function(q: Any, k: Any, v: Any) -> Any:
        o = triton_attention(q * 2, k.contiguous(), v, B_r=16, B_c=16)
        return o.to(torch.float16)

    Q = torch.randn(1, heads, N, d)
    K = torch.randn(1, N, heads, d).transpose(1, 2)
    V = torch.randn(1, heads, N, d)
    profile = count(function, Q, K, V)
    assert kernels(profile) == ["mul", "clone", "forward_kernel", "to_copy"]
    assert [launch.grid for launch in profile.launches] == [(), (), (2, heads), ()]
    rows = heads * N * d
    assert all_moves(profile) == {
        "Q": (rows, 0),
        "mul_1": (rows, rows),
        "K": (rows, 0),
        "clone_1": (2 * rows, rows),  # for each block of queries
        "V": (2 * rows, 0),
        "L": (0, heads * N),
        "O_1": (rows, rows),  # what the kernel calls O
        "O": (0, rows),
    }
    assert profile.by_array["O"].itemsize == 2
    kept = {finding.array for finding in profile.findings if finding.kind == "kept in HBM"}
    assert kept == {"mul_1", "clone_1", "O_1"}


def test_a_kernel_uses_what_a_group_made(torch: Any, triton_attention: Callable[..., Any]) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        with fused("scale"):
            q = q * 2 + 1
        return triton_attention(q, k, v, B_r=16, B_c=16)

    profile = count(function, *operands("torch", (1, 16, 16, 16, 16), batch=1))
    assert kernels(profile) == ["scale", "forward_kernel"]
    assert moves(profile, "add_1") == (256, 256)
    assert "mul_1" not in profile.by_array


def test_operators_need_no_triton(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashsim.profiling import torch_operators

    monkeypatch.setattr(torch_operators, "find_spec", lambda name: None)
    profile = count(lambda x: x + 1, torch.ones(4, 6))
    assert kernels(profile) == ["add"]


def test_an_operator_of_a_custom_library_is_its_kernels(
    torch: Any, triton_attention: Callable[..., Any]
) -> None:
    @torch.library.custom_op("flashsim_test::attention", mutates_args=())
    def custom(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return triton_attention(q, k, v, B_r=16, B_c=16)

    def function(q: Any, k: Any, v: Any) -> Any:
        return custom(q, k, v)

    profile = count(function, *operands("torch", (1, 16, 16, 16, 16), batch=1))
    assert "forward_kernel" in kernels(profile)
    assert "attention" not in kernels(profile)


# JAX.


def test_jitted_functions_are_seen_inside(jnp: Any) -> None:
    import jax

    attention = jax.jit(softmax_attention("jax", "softmax"))
    shape = (2, 16, 24, 8, 4)
    for _ in range(2):  # the second time, JAX has it compiled
        profile = count(attention, *operands("jax", shape))
        names = {"dot_general_1": "S", "div_1": "P"}
        assert by_role(profile, names) == standard(shape)


def test_a_function_of_jax_is_on_the_users_line(jnp: Any) -> None:
    def first(x: Any) -> Any:
        return jnp.where(x > 0, x, 0.0)

    def second(x: Any) -> Any:
        return jnp.where(x > 0, x, 0.0)

    for function in (first, second):  # JAX traces the inside of `where` but once
        profile = count(function, array("jax"))
        lines = {line.line for line in profile.lines}
        assert lines == {line_of(function, "jnp.where")}


def test_loops_run_as_often_as_they_do(jnp: Any) -> None:
    import jax

    def doubled(x: Any) -> Any:
        def body(carry: Any) -> Any:
            turn, y = carry
            return turn + 1, y * 2

        _, y = jax.lax.while_loop(lambda carry: carry[0] < 5, body, (0, x))
        return y

    profile = count(doubled, array("jax"))
    assert kernels(profile) == ["mul"] * 5
    assert moves(profile, "x") == (24, 0)
    assert totals(profile) == (5 * 24, 5 * 24)

    def branch(x: Any, index: int) -> Any:
        branches = [jnp.exp, lambda x: x + x * 2]
        return jax.lax.switch(jnp.int32(index), branches, x)

    profile = count(branch, array("jax"), 0)
    assert kernels(profile) == ["exp"]
    profile = count(branch, array("jax"), 1)
    assert kernels(profile) == ["mul", "add"]


def test_a_scan_slices_and_stacks(jnp: Any) -> None:
    import jax

    def running(x: Any) -> Any:
        def step(total: Any, row: Any) -> tuple[Any, Any]:
            total = total + row
            return total, total * 2

        return jax.lax.scan(step, jnp.zeros(6), x, reverse=True)[1]

    x = array("jax")
    profile = count(running, x)
    assert kernels(profile) == ["dynamic_slice", "add", "mul", "dynamic_update_slice"] * 4
    assert moves(profile, "x") == (24, 0)
    assert moves(profile, "scan_1") == (0, 24)
    # The first sum reads a slice alone; the others read the sum before, too.
    reads = 24 + (24 + 18) + 24 + 24
    assert totals(profile) == (reads, 4 * 24)
    assert not any(finding.kind == "written again" for finding in profile.findings)


def test_a_loops_variables_that_live_together_lie_apart(jnp: Any) -> None:
    import jax

    def step(pair: Any, _: Any) -> tuple[Any, None]:
        before, last = pair
        return (last, before + last), None

    def fibonacci(x: Any, y: Any) -> Any:
        return jax.lax.scan(step, (x, y), length=6)[0][1]

    profile = count(fibonacci, array("jax", 5), array("jax", 5, seed=1))
    assert kernels(profile) == ["add"] * 6
    assert totals(profile) == (6 * 10, 6 * 5)


def test_a_group_in_a_loop_is_a_kernel_each_turn(jnp: Any) -> None:
    import jax

    def step(c: Any, _: Any) -> tuple[Any, None]:
        with fused("step"):
            return c * 2 + 1, None

    profile = count(lambda x: jax.lax.scan(step, x, length=3)[0], array("jax"))
    assert kernels(profile) == ["step"] * 3
    assert totals(profile) == (72, 72)


def test_the_same_jitted_function_twice_makes_two_arrays(jnp: Any) -> None:
    import jax

    function = jax.jit(lambda x: x * 2 + 1)
    x = array("jax", 6)
    y = array("jax", 6, seed=1)
    profile = count(lambda x, y: function(x) + function(y), x, y)
    assert kernels(profile) == ["mul", "add", "mul", "add", "add"]
    for name in ("mul_1", "mul_2", "add_1", "add_2"):
        assert moves(profile, name) == (6, 6)


def test_rules_of_differentiation_are_seen_through(jnp: Any) -> None:
    import jax

    profile = count(jax.nn.relu, array("jax"))
    assert kernels(profile) == ["max"]
    profile = count(jax.checkpoint(lambda x: jnp.sin(x) * 2), array("jax"))
    assert kernels(profile) == ["sin", "mul"]


def test_a_function_that_jax_cannot_trace_is_refused(jnp: Any) -> None:
    with pytest.raises(ProfilingError, match="JAX cannot trace the function"):
        count(lambda x: x * 2 if x[0] > 0 else x, array("jax", 4))


def test_a_function_of_jax_returns_what_it_returns(jnp: Any) -> None:
    def function(x: Any, scale: float) -> Any:
        return {"sum": x + scale, "rest": (x * 2, None)}

    frontend = Jax()
    x = array("jax", 4)
    with frontend.listening(Recorder()):
        results = frontend.run(function, (x,), {"scale": 0.5})
    assert results.keys() == {"sum", "rest"}
    assert results["sum"].tolist() == (x + 0.5).tolist()
    assert results["rest"][0].tolist() == (x * 2).tolist()
    assert results["rest"][1] is None


# NumPy.


def test_arrays_that_a_function_creates() -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        q = np.asarray(q)
        scores = np.matmul(q, k.swapaxes(-1, -2))
        mask = np.arange(16)[:, None] >= np.arange(16)
        scores = np.where(mask, scores, 0)
        result = np.empty((1, 16, 8), np.float32)
        result[:] = scores @ v
        return result

    profile = count(function, *operands("numpy", SHAPES[0]))
    expected = ["matmul", "arange", "arange", "greater_equal", "where", "matmul", "setitem"]
    assert kernels(profile) == expected
    assert moves(profile, "O") == (0, 128)
    assert moves(profile, "greater_equal_1") == (256, 256)


def test_what_numpy_does_inside_is_not_the_users() -> None:
    def function(x: Any) -> Any:
        y = np.pad(x, 1) + np.tri(6, 8)
        weights = np.ones((6, 8))
        return y + np.average(weights, axis=0)

    profile = count(function, array("numpy"))
    expected = ["pad", "tri", "add", "ones", "average", "add"]
    assert kernels(profile) == expected


def test_methods_and_reductions_of_numpy() -> None:
    def function(x: Any) -> Any:
        y = x.astype(np.float64)
        y = y.sum(0)
        y = y + np.add.reduce(x)
        return y + x.max(axis=0)

    profile = count(function, array("numpy"))
    assert kernels(profile) == ["astype", "sum", "add_reduce", "add", "max", "add"]
    assert moves(profile, "x") == (72, 0)
    assert moves(profile, "astype_1") == (24, 24)


def test_nothing_of_numpy_is_counted_after_the_call() -> None:
    products = []

    def function(x: Any) -> Any:
        products.append(x * 2)
        return x + 1

    def structured(x: Any) -> Any:
        return [x + 1, (x.sum(), None)]

    empty = np.empty
    profile = count(function, array("numpy"))
    assert np.empty is empty
    accesses = profile.hbm.accesses
    product = products[0] + 1
    assert product.tolist() == (array("numpy") * 2 + 1).tolist()
    assert profile.hbm.accesses == accesses
    frontend = NumPy()
    with frontend.listening(Recorder()):
        results = frontend.run(structured, (np.ones(3),), {})
    assert type(results[0]) is np.ndarray
    assert results[1] == (3.0, None)


def test_a_result_that_was_not_seen_is_refused() -> None:
    def function(x: Any) -> Any:
        result = np.ndarray((4, 6))
        result[:] = x + 1
        return result

    with pytest.raises(ProfilingError, match=r"returns an array of \(4, 6\) that was made where"):
        count(function, array("numpy"))


# What cannot be counted.


def test_calls_without_operators_are_refused(name: str) -> None:
    with pytest.raises(ProfilingError, match="ran none of"):
        count(lambda x: x, array(name))


def test_tensors_without_memory_are_refused(torch: Any) -> None:
    with pytest.raises(ProfilingError, match="on the device meta; expected"):
        count(lambda x: x + 1, torch.ones(4, device="meta"))
    with pytest.raises(ProfilingError, match=r"of layout torch\.sparse_coo"):
        count(lambda x: x.to_sparse(), torch.ones(4))


def test_numpy_has_no_backward_pass() -> None:
    with pytest.raises(ProfilingError, match="NumPy differentiates no function"):
        count(softmax_attention("numpy"), *operands("numpy", SHAPES[0]), direction="backward")


def test_one_array_that_is_q_k_and_v_is_not_compared(torch: Any) -> None:
    x = torch.randn(1, 2, 16, 8)
    profile = count(in_pytorch, x, x, x)
    assert profile.problem is None
    assert moves(profile, "Q") == (2 * x.numel(), 0)


# Views in memory.


def view(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int = 4) -> Array:
    return Array("x", shape, strides, itemsize, "", BLOCK.start, 0)


BLOCK = Block(64, 64 + 96)
WHOLE = view((4, 6), (6, 1))


def test_extents_tell_whether_two_views_have_the_same_elements() -> None:
    assert WHOLE.extents == ((96, 1),)
    turned_axes = view((6, 4), (1, 6))
    assert turned_axes.extents == WHOLE.extents
    wide_elements = view((12,), (1,), 8)
    assert wide_elements.extents == WHOLE.extents
    every_second = view((3, 4, 3), (0, 6, 2), 8)
    assert every_second.extents == ((12, 16), (8, 1))
    broadcast = view((3, 4, 6), (0, 6, 1))
    assert broadcast.extents == WHOLE.extents
    assert broadcast.elements == 24


def positions(part: Array, bytes_from_start: int = 0) -> list[int] | None:
    """The positions in `WHOLE` of a view's elements; None: all."""
    memory = Memory()
    assert memory.parts(part, BLOCK) == []
    memory.add(WHOLE, BLOCK)
    part = replace(part, address=part.address + bytes_from_start)
    ((_, places),) = memory.parts(part, BLOCK)
    return None if places is None else list(places)


def test_parts_are_the_elements_of_a_view() -> None:
    assert positions(view((6, 4), (1, 6))) is None
    rows = view((2, 3), (12, 2))
    assert positions(rows, 4) == [1, 3, 5, 13, 15, 17]
    overlapping = view((2, 2), (1, 1), 8)
    assert positions(overlapping) == [0, 1, 2, 3, 4, 5]
    halves = view((3,), (1,), 2)
    assert positions(halves, 2) == [0, 1]


def test_flashsim_count_prints_operators(
    torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def attention(q, k, v):\n    return (q @ k.mT).softmax(-1) @ v\n")
    assert main(["count", f"{file}:attention", "--N", "16", "--d", "8"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "operator bmm operator softmax operator bmm" in output
    assert "bmm_1 256 256" in output
    text = "Q, K, V and O: exactly what standard moves with each operand of a product read once"
    assert text in output
    assert "mine.py:2 256 elements of softmax_1 are read" in output

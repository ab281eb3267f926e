"""Trees of drafted tokens: the mask a book chapter prints, each path as if alone, and words counted
to the last bit.

What a tree means is said once more here, by walking from each node to its root. Planted bugs, at
the end, must be caught by the checks that the tests above them make.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashsim
from flashsim import Causal, Dense, KeyPadding, SlidingWindow, Tree, theory
from flashsim.algorithms import BACKWARD, FORWARD, backward_passes
from flashsim.attention.masks import tree as tree_mask
from flashsim.attention.masks.rules import Mask
from flashsim.attention.shapes import Blocks, Shape, pass_tiles
from flashsim.memory.errors import MemoryModelError, SramOverflow
from flashsim.memory.hbm import HBM
from flashsim.memory.sram import SRAM
from flashsim.reference import (
    attention,
    backward_rounding,
    error_bound,
    gradient_bounds,
    gradients,
    rounding,
)
from flashsim.simulate import tile_masks
from flashsim.simulate.tile_masks import TileMask
from flashsim.theory.problem import live_tiles
from tests.helpers.cases import (
    DTYPES,
    FEW,
    Arguments,
    Array,
    count_equals_theory,
    of_bound,
    room_for,
    same,
    swap,
    unnoticed,
)

MASKED = [name for name, algorithm in FORWARD.items() if "MASK" in algorithm.parts]
PASSES = [("forward", name) for name in MASKED] + [
    ("backward", back) for name in MASKED for back in backward_passes(name)
]
GRADIENTS = ("dQ", "dK", "dV")

CHAPTER = [-1, 0, 1, 1, 2, 2, 3, 3, 4]
PRINTED = """
     A  B  C  D  E  F  G  H  I
A  [ 1  0  0  0  0  0  0  0  0 ]
B  [ 1  1  0  0  0  0  0  0  0 ]
C  [ 1  1  1  0  0  0  0  0  0 ]
D  [ 1  1  0  1  0  0  0  0  0 ]
E  [ 1  1  1  0  1  0  0  0  0 ]
F  [ 1  1  1  0  0  1  0  0  0 ]
G  [ 1  1  0  1  0  0  1  0  0 ]
H  [ 1  1  0  1  0  0  0  1  0 ]
I  [ 1  1  1  0  1  0  0  0  1 ]
"""


def ancestry(parents: list[int], node: int) -> list[int]:
    """The node's path from its root, itself included."""
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path[::-1]


def allowed(parents: list[int], prefix: int) -> Array:
    n = len(parents)
    tree = np.zeros((n, n), bool)
    for row in range(n):
        tree[row, ancestry(parents, row)] = True
    return np.hstack([np.ones((n, prefix), bool), tree])


def words_overlapped(n: int, prefix: int, left: int, right: int) -> int:
    """Counted one key at a time."""
    keys = range(max(left, prefix), min(right, prefix + n))
    return len({(key - prefix) // 32 for key in keys})


# -------------------------------------------------------------------------------------------------
# what is drawn

SHAPES: dict[str, Callable[[np.random.Generator, int], int]] = {
    "any": lambda rng, node: int(rng.integers(-1, node)),
    "long": lambda rng, node: int(rng.integers(max(node - 3, -1), node)),
    "bushy": lambda rng, node: int(rng.integers(-1, min(node, 4))),
    "chain": lambda rng, node: node - 1,
}


@dataclass(frozen=True)
class Draft:
    """A tree and its problem, said in few words so that failures shrink."""

    n: int
    prefix: int
    kind: str
    d: int
    d_v: int
    dtype: str
    seed: int
    B_r: int
    B_c: int

    @cached_property
    def parents(self) -> list[int]:
        rng = np.random.default_rng((self.seed, 1))
        return [SHAPES[self.kind](rng, node) for node in range(self.n)]

    @property
    def N_k(self) -> int:
        return self.prefix + self.n

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.parents)

    @cached_property
    def oracle(self) -> Array:
        return allowed(self.parents, self.prefix)

    def inputs(self) -> tuple[Array, Array, Array, Array]:
        rng = np.random.default_rng(self.seed)
        dtype = DTYPES[self.dtype]
        Q = rng.normal(size=(self.n, self.d)).astype(dtype)
        K = rng.normal(size=(self.N_k, self.d)).astype(dtype)
        V = rng.normal(size=(self.N_k, self.d_v)).astype(dtype)
        dO = rng.normal(size=(self.n, self.d_v)).astype(dtype)
        return Q, K, V, dO

    @property
    def tiled(self) -> dict[str, Any]:
        room = room_for(self.B_r, self.B_c, self.d, self.d_v, self.N_k)
        words = max(self.B_r, self.B_c) * (self.n // 32 + 1)
        return {"M": room + words, "blocks": (self.B_r, self.B_c)}

    @property
    def shape(self) -> dict[str, Any]:
        lengths = {"N_q": self.n, "N_k": self.N_k, "d": self.d, "d_v": self.d_v}
        return {**lengths, "dtype": self.dtype}


def drafts(
    most: int = 33, dtypes: tuple[str, ...] = ("float64", "float32", "float16")
) -> st.SearchStrategy[Draft]:
    ends_of_words = [n for n in (31, 32, 33, 63, 64, 65) if n <= most]
    at_words_ends = st.sampled_from(ends_of_words or [1])
    block = st.integers(1, most + 10)
    return st.builds(
        Draft,
        n=st.integers(1, min(most, 20)) | at_words_ends,
        prefix=st.sampled_from((0, 1, 37)) | st.integers(0, 12),
        kind=st.sampled_from(tuple(SHAPES)),
        d=st.integers(1, 3),
        d_v=st.integers(1, 3),
        dtype=st.sampled_from(dtypes),
        seed=st.integers(0, 2**16),
        B_r=block,
        B_c=block | st.sampled_from((16, 31, 32, 33)),
    )


# -------------------------------------------------------------------------------------------------
# what it is


def test_the_chapters_nine_nodes_as_printed() -> None:
    rows = PRINTED.strip("\n").splitlines()[1:]
    digits = [row.split("[")[1].strip(" ]").split() for row in rows]
    want = np.array(digits) == "1"
    result = Tree(CHAPTER).whole(Shape(9, 9, 4, 4), ())
    assert np.array_equal(result, want)
    assert Tree(CHAPTER).paths() == [[0, 1, 2, 5], [0, 1, 3, 6], [0, 1, 3, 7], [0, 1, 2, 4, 8]]
    with_prefix = Tree(CHAPTER).whole(Shape(9, 12, 4, 4), ())
    assert np.array_equal(with_prefix, np.hstack([np.ones((9, 3), bool), want]))
    parents = [-1, 0]
    tree = Tree(parents)
    from_array = Tree(np.array([-1, 0], np.int8))
    parents[1] = -1  # a tree keeps its own copy
    assert repr(tree) == repr(from_array) == repr(Tree([None, 0])) == "Tree([-1, 0])"
    assert flashsim.Tree is Tree
    assert Tree([-1, -1, 1]).paths() == [[0], [1, 2]]


def test_256_nodes_take_a_bit_for_each_pair() -> None:
    tree = Tree([-1, *range(255)])
    assert tree.words.nbytes == 256 * 256 // 8 == 8 * 1024
    sizes: Arguments = {"N_q": 256, "N_k": 1024, "d": 8, "M": 10**6}
    tally = flashsim.count("flash", **sizes, blocks=(64, 64), mask=tree)
    array = tally.hbm.by_array["tree"]
    assert array.size * array.itemsize == 8 * 1024  # no bits for the prefix of 768
    assert array.bytes == 8 * 1024  # tiles of whole words: each once
    assert (array.role, array.writes) == ("input", 0)


@given(draft=drafts(65))
def test_it_is_each_nodes_ancestry_and_the_prefix(draft: Draft) -> None:
    tree = draft.tree
    shape = Shape(draft.n, draft.N_k, 1, 1)
    assert np.array_equal(tree.whole(shape, ()), draft.oracle)
    bits = (tree.words[:, :, None] >> np.arange(32, dtype=tree.words.dtype)) & 1
    padded = np.pad(draft.oracle[:, draft.prefix :], ((0, 0), (0, -draft.n % 32)))
    assert np.array_equal(bits.reshape(draft.n, -1).astype(bool), padded)
    leaves = [node for node in range(draft.n) if node not in draft.parents]
    assert tree.paths() == [ancestry(draft.parents, leaf) for leaf in leaves]


def test_what_is_no_tree_is_refused() -> None:
    refused: list[tuple[Any, str]] = [
        ([0], r"parents\[0\] is 0; expected -1 or None for a root"),
        (
            [-1, 0, 2],
            r"parents\[2\] is 2; expected the index of an earlier node \(at most 1\), or -1 or None",
        ),
        ([-1, 2, 0], r"parents\[1\] is 2; expected .* \(at most 0\)"),
        ([-1, -2], r"parents\[1\] is -2"),
        ([-1, 0.0], r"parents\[1\] is 0\.0"),
        ([-1, False], r"parents\[1\] is False"),
        ([-1, "A"], r"parents\[1\] is 'A'"),
        (np.zeros((2, 2), int), r"parents\[0\] is \[0, 0\]"),
        (3, r"parents is 3; expected one entry for each node"),
        (np.array(3), r"parents is array\(3\); expected one entry for each node"),
    ]
    for parents, message in refused:
        with pytest.raises(ValueError, match=f"Tree's {message}"):
            Tree(parents)


def test_what_does_not_fit_the_problem_is_refused() -> None:
    x = np.ones((3, 2))
    for parents in ([-1, 0], []):
        with pytest.raises(ValueError, match=f"Tree has {len(parents)} nodes; expected N_q = 3"):
            flashsim.forward("flash", x, x, x, mask=Tree(parents))
    with pytest.raises(
        ValueError, match="N_k is 2; expected at least 3, as Tree's nodes are the last keys"
    ):
        flashsim.forward("flash", x, x[:2], x[:2], mask=Tree([-1, 0, 0]))
    causal = Causal() & Tree([-1, 0, 1])
    two = KeyPadding(3) & Tree([-1, 0, 0]) & causal
    with pytest.raises(ValueError, match="expected one Tree at most"):
        theory.exact("flash", N=3, d=2, mask=two)
    for name in {*FORWARD} - {*MASKED}:
        with pytest.raises(ValueError, match="mask"):
            flashsim.forward(name, x, x, x, mask=Tree([-1, 0, 0]))


# -------------------------------------------------------------------------------------------------
# numbers


@pytest.mark.parametrize("name", MASKED)
@FEW
@given(
    draft=drafts(),
    other=st.sampled_from(("none", "none", "causal", "padding", "window", "dense", "all")),
)
def test_every_algorithm_equals_the_oracle_beside_other_masks_too(
    name: str, draft: Draft, other: str
) -> None:
    rng = np.random.default_rng(draft.seed)
    shape = Shape(draft.n, draft.N_k, 1, 1)
    beside: list[Mask] = []
    if other in ("padding", "all"):
        beside.append(KeyPadding(int(rng.integers(0, draft.N_k + 1))))
    if other in ("window", "all"):
        left = int(rng.integers(0, draft.N_k))
        right = int(rng.integers(-1, 3))
        beside.append(SlidingWindow(left, right))
    if other in ("dense", "all"):
        beside.append(Dense(rng.random((draft.n, draft.N_k)) < 0.8))
    mask = draft.tree & Causal() if other == "causal" else draft.tree
    oracle = draft.oracle
    for more in beside:
        mask = more & mask
        oracle = oracle & more.whole(shape, ())
    equals_the_oracle(
        name, draft, mask, oracle, 0.3 * (other == "dense" and "dropout" in FORWARD[name].parts)
    )


def equals_the_oracle(
    name: str, draft: Draft, mask: Mask, oracle: Array, dropout_p: float = 0.0
) -> None:
    Q, K, V, dO = draft.inputs()
    tiled = draft.tiled
    tiled["M"] += 2 * (draft.B_r + draft.B_c) ** 2
    dropout: dict[str, Any] = {"dropout_p": dropout_p, "seed": draft.seed}
    run = flashsim.forward(name, Q, K, V, mask=mask, **dropout, **tiled)
    keep = None
    if dropout_p:
        keep = flashsim.dropout.keep_mask(draft.seed, dropout_p, draft.n, draft.N_k)
    reference_options: Arguments = {"mask": oracle, "keep": keep, "dropout_p": dropout_p}
    bound = error_bound(Q, K, V, **rounding(name, run.blocks), **reference_options)
    assert of_bound(run.O, attention(Q, K, V, **reference_options), bound) <= 1
    for back in backward_passes(name):
        result = flashsim.backward(back, run, dO)
        rounded = backward_rounding(back, run.blocks, result.blocks)
        bounds = gradient_bounds(Q, K, V, dO, **rounded, **reference_options)
        expected = gradients(Q, K, V, dO, **reference_options)
        for part, want, most in zip(GRADIENTS, expected, bounds, strict=True):
            assert of_bound(getattr(result, part), want, most) <= 1, part


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
@FEW
@given(draft=drafts(dtypes=("float64", "float32")))
def test_each_path_is_what_it_is_alone(name: str, draft: Draft) -> None:
    """A path's tokens after the prefix, causal, one by one: the same rows of O, and the same
    gradient of its last row.
    """
    Q, K, V, dO = draft.inputs()
    run = flashsim.forward(name, Q, K, V, mask=draft.tree, **draft.tiled)
    bound = error_bound(Q, K, V, mask=draft.oracle, **rounding(name, run.blocks))
    paths = draft.tree.paths()
    for path in paths[:6]:
        keys = [*range(draft.prefix), *(draft.prefix + node for node in path)]
        operands = (Q[path], K[keys], V[keys])
        alone = flashsim.forward(name, *operands, causal=True, **draft.tiled)
        causal = Causal().whole(Shape(len(path), len(keys), 1, 1), ())
        own = error_bound(*operands, mask=causal, **rounding(name, alone.blocks))
        assert of_bound(run.O[path], alone.O, bound[path] + own) <= 1
    others = np.setdiff1d(np.arange(draft.N_k), keys)  # of the last path
    loss = np.zeros_like(dO)
    loss[path[-1]] = dO[path[-1]]
    for back in backward_passes(name):
        result = flashsim.backward(back, run, loss)
        by_itself = flashsim.backward(back, alone, loss[path])
        rounded = backward_rounding(back, run.blocks, result.blocks)
        wide = gradient_bounds(Q, K, V, loss, mask=draft.oracle, **rounded)
        rounded = backward_rounding(back, alone.blocks, by_itself.blocks)
        narrow = gradient_bounds(*operands, loss[path], mask=causal, **rounded)
        rows_of_parts = (path, keys, keys)
        for part, rows, most, own in zip(GRADIENTS, rows_of_parts, wide, narrow, strict=True):
            gradient = getattr(result, part)[rows]
            error = of_bound(gradient, getattr(by_itself, part), most[rows] + own)
            assert error <= 1, part
        assert (result.dK[others] == 0).all()
        assert (result.dV[others] == 0).all()


@pytest.mark.parametrize("name", MASKED)
@FEW
@given(
    draft=drafts(dtypes=("float64",)),
    poison=st.sampled_from((np.nan, np.inf)),
    where=st.sampled_from("KV"),
)
def test_poison_in_a_node_reaches_its_descendants_alone(
    name: str, draft: Draft, poison: float, where: str
) -> None:
    Q, K, V, dO = draft.inputs()
    node = draft.seed % draft.n
    reached = draft.oracle[:, draft.prefix + node]
    bad_K = K.copy()
    bad_V = V.copy()
    (bad_K if where == "K" else bad_V)[draft.prefix + node] = poison
    run = flashsim.forward(
        name, Q, bad_K, bad_V, mask=draft.tree, check_finite=False, **draft.tiled
    )
    bound = error_bound(Q, K, V, mask=draft.oracle, **rounding(name, run.blocks))
    want = attention(Q, K, V, mask=draft.oracle)
    assert of_bound(run.O[~reached], want[~reached], bound[~reached]) <= 1
    dQ = gradients(Q, K, V, dO, mask=draft.oracle).dQ
    if where == "V" or np.isnan(poison):
        assert not np.isfinite(run.O[reached]).any()
    for back in backward_passes(name):
        result = flashsim.backward(back, run, dO, check_finite=False)
        rounded = backward_rounding(back, run.blocks, result.blocks)
        bounds = gradient_bounds(Q, K, V, dO, mask=draft.oracle, **rounded)
        most = bounds.dQ[~reached]
        assert of_bound(result.dQ[~reached], dQ[~reached], most) <= 1


def test_numbers_come_from_the_words_in_hbm(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a chain's bits in HBM, whatever else the mask object knows, every node attends to all
    before it.
    """
    draft = Draft(33, 5, "any", 4, 3, "float64", 0, 4, 9)
    Q, K, V, _ = draft.inputs()
    packed = tree_mask._packed
    chain = np.tri(33, dtype=bool)
    monkeypatch.setattr(tree_mask, "_packed", lambda attends: packed(chain))
    causal = np.tri(33, 38, 5, dtype=bool)
    for name in MASKED:
        run = flashsim.forward(name, Q, K, V, mask=draft.tree, **draft.tiled)
        bound = error_bound(Q, K, V, mask=causal, **rounding(name, run.blocks))
        assert of_bound(run.O, attention(Q, K, V, mask=causal), bound) <= 1


# -------------------------------------------------------------------------------------------------
# counts


@st.composite
def options(draw: st.DrawFn, name: str, draft: Draft) -> dict[str, Any]:
    """Arguments of `count` and `exact`."""
    implicit = (None, None, Causal(), SlidingWindow(5, -1), KeyPadding(draft.N_k // 2))
    dense = (
        Dense(np.ones((draft.n, draft.N_k), bool)),
        Dense(np.ones((draft.n, 1), bool)),
    )
    other: Any = draw(st.sampled_from((*implicit, *dense)))
    drawn: Arguments = {
        **draft.shape,
        "mask": draft.tree if other is None else other & draft.tree,
    }
    drawn["causal"] = draw(st.booleans())
    if "dropout" in (FORWARD.get(name) or BACKWARD[name]).parts:
        drawn["dropout_p"] = draw(st.sampled_from((0.0, 0.0, 0.25)))
    # a tree's turns are walked one by one: in larger ones, no tiles of one element
    small = draft.n * draft.N_k <= 300
    least = max(draft.d, draft.d_v)
    drawn["M"] = draw(st.integers(least if small else 16 * least, 900))
    match draw(st.sampled_from(("paper", "fit" if small else "paper", "blocks"))):
        case "blocks":
            least = 1 if small else 4
            drawn["blocks"] = (max(draft.B_r, least), max(draft.B_c, least))
            drawn["M"] += 20_000 * draw(st.booleans())
        case sizing:
            drawn["sizing"] = sizing
    if name == "block_sparse":
        seed = draw(st.integers(0, 99))

        def scattered(T_r: int, T_c: int) -> Any:
            return np.random.default_rng(seed).random((T_r, T_c)) < 0.5

        kinds: tuple[Any, ...] = (None, "live", scattered)
        drawn["block_mask"] = draw(st.sampled_from(kinds))
    return drawn


@pytest.mark.parametrize(("direction", "name"), PASSES)
@given(draft=drafts(), data=st.data())
def test_counts_equal_theory(direction: str, name: str, draft: Draft, data: st.DataObject) -> None:
    drawn = {**data.draw(options(name, draft)), "direction": direction}
    count_equals_theory((FORWARD if direction == "forward" else BACKWARD)[name], drawn)


def keeps_blocks(drawn: dict[str, Any]) -> bool:
    """Whether a backward pass has its forward pass's blocks: a mask of tiles is on them."""
    of_tiles = drawn.get("block_mask")
    return of_tiles is not None and not isinstance(of_tiles, str)


@pytest.mark.parametrize("name", MASKED)
@FEW
@given(draft=drafts(), data=st.data())
def test_runs_equal_counts_and_theory(name: str, draft: Draft, data: st.DataObject) -> None:
    drawn = data.draw(options(name, draft))
    Q, K, V, dO = draft.inputs()
    arguments = {key: drawn[key] for key in drawn.keys() - draft.shape.keys()}
    try:
        run = flashsim.forward(name, Q, K, V, **arguments)
        same(run, theory.exact(name, **drawn))
        tally = flashsim.count(name, **drawn)
        assert run.hbm == tally.hbm
        assert run.sram == tally.sram
        assert run.blocks == tally.blocks
        for back in backward_passes(name):
            asked_back = {**drawn, "direction": "backward"}
            if keeps_blocks(drawn) and drawn.get("sizing") == "fit":
                asked_back |= {"blocks": (run.blocks.B_r, run.blocks.B_c)}
            same(flashsim.backward(back, run, dO), theory.exact(back, **asked_back))
    except SramOverflow:
        passes = [("forward", name), *(("backward", back) for back in backward_passes(name))]
        kept = {**drawn, "direction": "backward"}
        # its backward pass keeps the forward pass's blocks, also of "fit"
        if keeps_blocks(drawn):
            sizes = theory.exact(name, **drawn).blocks
            kept["blocks"] = sizes.B_r, sizes.B_c
        uses = [
            theory.exact(each, **(drawn if way == "forward" else kept)).sram for way, each in passes
        ]
        assert any(use.enforced and use.peak > use.capacity for use in uses)
    except ValueError:  # not even blocks of one row
        assert drawn.get("sizing") == "fit"


@given(draft=drafts(65), M=st.integers(2, 200), dense=st.booleans())
def test_standard_attentions_masking_pass_fits_m(draft: Draft, M: int, dense: bool) -> None:
    """Tiles of S, of an array, and words: all of M is used as far as words allow, and no more."""
    hbm = HBM(arithmetic=False)
    sram = SRAM(hbm, M, fold=False)
    S = hbm.empty("S", (draft.n, draft.N_k), np.float32)
    mask: Mask = draft.tree
    if dense:
        mask = mask & Dense(np.ones((draft.n, draft.N_k), bool))
    blocks = Blocks(1, 1, N_q=draft.n, N_k=draft.N_k)
    shape = Shape(draft.n, draft.N_k, 1, 1)
    if M < 3 and dense:
        return
    TileMask(mask, hbm, sram, blocks, shape, ()).whole(sram, S)
    traffic = hbm.traffic.by_array
    assert traffic["S"].reads == traffic["S"].writes == draft.n * draft.N_k
    words = -(-draft.n // 32)
    assert traffic["tree"].reads >= draft.n * words
    whole = draft.N_k * (1 + dense) + words
    if whole <= M:
        assert traffic["tree"].reads == draft.n * words
        assert sram.peak == min(M // whole, draft.n) * whole


def test_pieces_of_a_row_are_the_longest_that_surely_fit() -> None:
    """Where a row of a wide tree is longer than M: c keys and the words that they overlap
    wherever they begin.
    """
    for M, held, words in itertools.product(range(4, 90, 3), (1, 2), range(1, 8)):
        overlapped = [0]
        for keys in range(1, 400):
            overlapped.append(min(-(-(keys - 1) // 32) + 1, words))
        if held * 300 + words <= M:
            continue
        fitting = [c for c in range(1, 300) if held * c + overlapped[c] <= M]
        longest = max(fitting, default=1)
        assert tile_masks._pass_tiles_with_words(M, 300, held, words) == (1, longest)
    # 200 nodes, 7 words: pieces of 39 keys and 3 words, not of 35 and 7
    tree = Tree([-1, *range(199)])
    options: Arguments = {"N": 200, "d": 2, "M": 42, "mask": tree}
    tally = flashsim.count("standard", **options)
    words = 0
    for left in range(0, 200, 39):
        right = min(left + 39, 200)
        words += -(-right // 32) - left // 32
    assert tally.hbm.by_array["tree"].reads == 200 * words
    same(tally, theory.exact("standard", **options))


@pytest.mark.parametrize(
    "mask",
    [
        Tree(range(-1, 69)),
        Dense(np.ones((70, 70), bool)) & Tree(range(-1, 69)),
        None,
    ],
)
def test_standard_attention_where_passes_over_rows_decide_the_peak(mask: Mask | None) -> None:
    """They need more than products of tiles of 3 × 3."""
    options: Arguments = {
        "N_q": 70 if mask else 3,
        "N_k": 70,
        "d": 1,
        "blocks": (3, 3),
        "mask": mask,
    }
    rooms: Sequence[int] = (16, 20, 30, 35, 69, 71, 72, 73, 80, 143, 220)
    directions = ["forward"]
    if mask is None:
        rooms = range(16, 220, 3)
        directions.append("backward")
    for M in rooms:
        for direction in directions:
            how = {**options, "M": M, "direction": direction}
            same(flashsim.count("standard", **how), theory.exact("standard", **how))


@pytest.mark.parametrize("name", MASKED)
def test_against_the_same_mask_as_booleans(name: str) -> None:
    """Tiles of whole words: a 32nd of the elements and an eighth of the bytes. Others as often
    as they overlap a word.
    """
    n = 64
    prefix = 96
    N_k = n + prefix
    parents = Draft(n, prefix, "any", 4, 4, "float32", 0, 1, 1).parents
    # so that the same tiles are skipped, where any are
    booleans = Causal() & Dense(allowed(parents, prefix))
    for B_c in (32, 64, 20, 33, 160):
        B_r = 1 if name == "memory_efficient" else 16
        options: Arguments = {"N_q": n, "N_k": N_k, "d": 4, "M": 10**5}
        options["blocks"] = (B_r, B_c)
        tree = flashsim.count(name, **options, mask=Tree(parents))
        dense = flashsim.count(name, **options, mask=booleans)
        a = tree.hbm.by_array["tree"]
        b = dense.hbm.by_array["mask"]
        assert tree.hbm.accesses - a.accesses == dense.hbm.accesses - b.accesses
        assert tree.sram.peak <= dense.sram.peak
        whole = flashsim.count(name, **options)
        skips = name != "standard" and whole.hbm.accesses != dense.hbm.accesses - b.accesses
        if name == "standard":  # its pass over S takes whole rows
            B_c = N_k
        elements = words = on_the_tree = 0
        for top in range(0, n, B_r):
            for left in range(0, N_k, B_c):
                right = min(left + B_c, N_k)
                if not skips or left <= top + B_r - 1 + prefix:
                    elements += B_r * (right - left)
                    on_the_tree += B_r * (right - max(left, prefix)) * (right > prefix)
                    words += B_r * words_overlapped(n, prefix, left, right)
        passes, rest = divmod(b.reads, elements)
        assert (rest, a.reads) == (0, passes * words)
        if B_c in (32, 160):
            assert words * 32 == on_the_tree
            assert a.bytes * 8 == passes * on_the_tree * b.itemsize


@given(draft=drafts(65))
def test_live_tiles_are_the_causal_ones(draft: Draft) -> None:
    B_r = min(draft.B_r, draft.n)
    B_c = min(draft.B_c, draft.N_k)
    blocks = Blocks(B_r, B_c, N_q=draft.n, N_k=draft.N_k)
    for more in (None, KeyPadding(draft.N_k // 2), SlidingWindow(3, 4)):
        mask: Mask = draft.tree
        causal: Mask = Causal()
        if more is not None:
            mask = more & mask
            causal = more & causal
        assert live_tiles(mask, draft.n, draft.N_k, blocks, 1) == live_tiles(
            causal, draft.n, draft.N_k, blocks, 1
        )
    options: Arguments = {**draft.shape, "M": 10**5, "blocks": (B_r, B_c)}
    tree = flashsim.count(
        "block_sparse", **options, mask=draft.tree, block_mask="live"
    ).hbm.by_array
    implicit = flashsim.count(
        "block_sparse", **options, mask=Causal(), block_mask="live"
    ).hbm.by_array
    assert {**tree, "tree": None} == {**implicit, "tree": None}


def test_turns_are_folded_only_where_asked() -> None:
    assert not Tree([-1]).folds
    assert not (Causal() & Tree([-1])).folds
    assert (Causal() & KeyPadding(1)).folds
    for fold, turns in ((True, 2), (False, 7)):
        counting = SRAM(HBM(arithmetic=False), 1, fold=fold)
        running = SRAM(HBM(), 1, fold=fold)
        assert len(list(counting.loop(7))) == turns
        assert len(list(running.loop(7))) == 7
    where = np.array([True, False, True, False])
    sram = SRAM(HBM(arithmetic=False), 1, fold=False)
    assert list(sram.loop(4, where=where)) == [0, 2]


# -------------------------------------------------------------------------------------------------
# planted bugs

CASES = [
    Draft(9, 0, "any", 2, 1, "float64", 3, 3, 5),
    Draft(33, 37, "any", 2, 1, "float64", 1, 8, 23),  # a tile ends at node 31
    Draft(65, 1, "bushy", 1, 2, "float64", 2, 16, 32),  # one begins there
]
PLANTED = [
    (
        "siblings see each other",
        tree_mask._ancestors,
        "|= attends[parent]",
        "|= attends[parent] | (np.array(parents) == parent)",
        {"numbers", "poison"},
    ),
    (
        "parents see their children",
        tree_mask._ancestors,
        "attends[node] |= attends[parent]",
        "attends[node] |= attends[parent]; attends[parent, node] = True",
        {"numbers"},
    ),
    (
        "no ancestor beyond the parent",
        tree_mask._ancestors,
        "attends[node] |= attends[parent]",
        "attends[node, parent] = True",
        {"numbers"},
    ),
    (
        "a node does not see itself",
        tree_mask._ancestors,
        "np.eye(len(parents), dtype=bool)",
        "np.zeros((len(parents), len(parents)), bool)",
        {"numbers"},
    ),
    (
        "the first root is an ancestor of all",
        tree_mask._ancestors,
        "if parent != -1",
        "if node",
        {"numbers", "poison"},
    ),
    ("bits in the wrong order", tree_mask._packed, '"little"', '"big"', {"numbers"}),
    ("bytes in the wrong order", tree_mask._packed, '"<u4"', '">u4"', {"numbers"}),
    (
        "words begin at bit 1",
        TileMask._attends,
        "% WORD).astype",
        "% WORD ^ 1).astype",
        {"numbers"},
    ),
    (
        "bits of words counted from the first key",
        TileMask._attends,
        "(keys - prefix) % WORD",
        "keys % WORD",
        {"numbers"},
    ),
    (
        "the first word too late by one node",
        TileMask._attends,
        "(first - prefix) // WORD",
        "(first - prefix + 1) // WORD",
        {"numbers", "counts"},
    ),
    (
        "the last, part word left out",
        TileMask._attends,
        "-(-(end - prefix) // WORD)",
        "(end - prefix) // WORD",
        {"numbers", "counts"},
    ),
    (
        "the word of the 32nd bit left out",
        TileMask._attends,
        "-(-(end - prefix) // WORD)",
        "-(-(end - prefix - 1) // WORD)",
        {"numbers", "counts"},
    ),
    (
        "all words so far loaded",
        TileMask._attends,
        "range((first - prefix) // WORD,",
        "range(0,",
        {"counts"},
    ),
    (
        "one word too many",
        TileMask._attends,
        "-(-(end - prefix) // WORD)",
        "min((end - prefix) // WORD + 1, words.blocks[1])",
        {"counts"},
    ),
    ("prefix forgotten", TileMask._attends, "prefix = self._prefix", "prefix = 0", {"numbers"}),
    (
        "prefix masked",
        TileMask._attends,
        "np.ones((rows, cols), bool)",
        "np.zeros((rows, cols), bool)",
        {"numbers"},
    ),
    (
        "rows of the first block everywhere",
        TileMask._attends,
        "words[i, w]",
        "words[0, w]",
        {"numbers"},
    ),
    (
        "words of the first column everywhere",
        TileMask._attends,
        "words[i, w]",
        "words[i, 0]",
        {"numbers"},
    ),
    (
        "words not loaded",
        TileMask._attends,
        "self._sram.load(words[i, w])",
        "words[i, w]._values",
        {"counts"},
    ),
    (
        "mask left out",
        TileMask.__call__,
        "if self._words is not None",
        "if False",
        {"numbers", "poison", "counts"},
    ),
    (
        "columns counted in rows' blocks",
        TileMask.__call__,
        "j * self._B_c, *S_ij.shape",
        "j * self._B_r, *S_ij.shape",
        {"numbers"},
    ),
]
WHOLE_ROWS = {  # Algorithm 0's pass takes whole rows here, and every word of each
    "the first word too late by one node",
    "all words so far loaded",
    "one word too many",
    "rows of the first block everywhere",
    "columns counted in rows' blocks",
}


def objections(
    name: str, checks: Collection[str] = ("numbers", "poison", "counts")
) -> Iterator[str]:
    """Make these checks of both passes on each tree, and yield those that object or that the
    memory refuses.
    """
    made: dict[str, Callable[[str, Draft], None]] = {"poison": poisoned, "counts": counted}
    made["numbers"] = lambda name, draft: equals_the_oracle(name, draft, draft.tree, draft.oracle)
    for draft, check in itertools.product(CASES, sorted(checks)):
        try:
            with np.errstate(all="ignore"):
                made[check](name, replace(draft))
        except (AssertionError, MemoryModelError, LookupError, ValueError):
            yield check


def poisoned(name: str, draft: Draft) -> None:
    """The last leaf's K and V are NaN: no other node may notice."""
    Q, K, V, _ = draft.inputs()
    K[-1] = V[-1] = np.nan
    options: Arguments = {"mask": draft.tree, **draft.tiled}
    run = flashsim.forward(name, Q, K, V, check_finite=False, **options)
    assert np.isfinite(run.O[:-1]).all()


def counted(name: str, draft: Draft) -> None:
    options: Arguments = {**draft.shape, **draft.tiled, "mask": draft.tree}
    Q, K, V, dO = draft.inputs()
    run = flashsim.forward(name, Q, K, V, mask=draft.tree, **draft.tiled)
    same(run, theory.exact(name, **options))
    same(flashsim.count(name, **options), theory.exact(name, **options))
    for back in backward_passes(name):
        result = flashsim.backward(back, run, dO)
        same(result, theory.exact(back, **options, direction="backward"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
def test_the_original_is_not_accused(name: str) -> None:
    assert list(objections(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "function", "before", "after", "by"), PLANTED, ids=[bug[0] for bug in PLANTED]
)
def test_planted_bugs_are_caught_in_every_algorithm(
    bug: str, function: Any, before: str, after: str, by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a tree's own words, in one that tiles, one that takes rows, and one that takes
    whole rows of S.
    """
    swap(function, before, after, monkeypatch)
    for name in (
        MASKED
        if function.__qualname__.startswith("TileMask")
        else ("flash", "memory_efficient", "standard")
    ):
        if name != "standard" or bug not in WHOLE_ROWS:
            assert unnoticed(by, objections(name, by)) == set(), name


def test_planted_words_kept_as_divided_first_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another pass takes other tiles: the closed form's backward pass, and Algorithm 0's
    pass over S.
    """
    before = "self._words = None if self._tree is None"
    swap(
        TileMask._divide,
        before,
        "self._words = self._words if hasattr(self, '_words')",
        monkeypatch,
    )
    for name in ("memory_efficient", "standard"):
        assert "numbers" in objections(name, ["numbers"])


def test_planted_folding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mask, "folds", True)
    # whole rows, or three turns at most
    for name in {*MASKED} - {"standard", "q_outer_pinned", "snake", "streamed"}:
        assert "counts" in objections(name, ["counts"])


def test_a_planted_pass_without_room_for_words_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tile_masks, "_pass_tiles_with_words", lambda M, N_k, held, words: pass_tiles(M, N_k, held)
    )
    options: Arguments = {
        "N_q": 9,
        "N_k": 9,
        "d": 1,
        "M": 81,
        "blocks": (3, 3),
        "mask": Tree(CHAPTER),
    }
    with pytest.raises(SramOverflow):
        flashsim.count("standard", **options)
    monkeypatch.undo()
    same(flashsim.count("standard", **options), theory.exact("standard", **options))

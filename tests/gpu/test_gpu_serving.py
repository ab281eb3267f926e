"""Keys in pages and packed batches on a GPU of compute capability 90: results, counts against
`flashsim.serving`, and the kit.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from flashsim import gpu, serving
from flashsim.attention.inputs import float_dtype
from flashsim.gpu import hopper, hopper_paged, hopper_varlen
from flashsim.gpu.compiling import KERNELS, import_cupy
from flashsim.gpu.counters import Moved
from tests.helpers.gpu_serving import (
    Array,
    among_others,
    in_pages,
    run_kit,
    through_pages,
)
from tests.helpers.hopper import ON_HOPPER
from tests.helpers.ragged import attention


def normal(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    return np.asarray(rng.normal(size=shape).astype(float_dtype(dtype)))


Counts = dict[str, tuple[int, int]]


def totals(tally: Any, twice: tuple[str, ...] = ()) -> Counts:
    """Return what the simulator counts by array, (reads, writes); what a cluster's two blocks
    both read is read twice.
    """
    counts = {}
    for name, array in tally.hbm.by_array.items():
        reads = array.reads * (2 if name in twice else 1)
        if reads or array.writes:
            counts[name] = (reads, array.writes)
    return counts


def moved(counters: dict[str, Moved]) -> Counts:
    counts = {}
    for name, array in counters.items():
        if array.reads or array.writes:
            counts[name] = (array.reads, array.writes)
    return counts


def near(result: Any, q: Array, k: Array, v: Array, causal: bool) -> bool:
    """Whether O and lse of one sequence are near float64's; P̃ is rounded to the inputs' type,
    and O.
    """
    O, lse = (x.get().astype(np.float64) for x in result)
    Q, K, V = (x.astype(np.float64) for x in (q, k, v))
    want, want_lse = attention(Q, K, V, causal)
    eps = 2.0 ** (-9 if q.dtype.name == "bfloat16" else -12)
    largest = np.abs(v.astype(np.float64)).max(initial=0)
    both = np.isfinite(lse) == np.isfinite(want_lse)
    return bool(
        (np.abs(O - want) <= 4 * eps * largest).all()
        and both.all()
        and np.allclose(lse, want_lse, atol=1e-4, rtol=1e-5)
    )


RAGGED = [700, 0, 64, 65, 1, 129, 3000]
MANY = list(range(0, 900, 9))
PAGED = {  # N, lengths, H_q, H_kv, d, page
    "one": (1, [1], 1, 1, 64, 16),
    "ragged": (1, RAGGED, 8, 2, 128, 16),
    "pages of 8": (2, [100, 9, 8, 0, 7], 4, 4, 64, 8),
    "pages of 32": (4, [333, 1000, 31], 16, 2, 128, 32),
    "pages of 64": (1, [4096, 4000, 2], 8, 1, 128, 64),
    "pages of 128": (3, [1, 2, 300, 128], 8, 4, 64, 128),
    "pages of 192": (1, [500, 191, 193], 4, 4, 128, 192),
    "64 rows, many pages": (8, [9000, 8999], 8, 1, 128, 16),
    "many sequences": (1, MANY, 8, 4, 128, 16),
}


@ON_HOPPER
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("splits", [None, 1, 3], ids=str)
@pytest.mark.parametrize("case", PAGED.values(), ids=PAGED)
def test_paged_decoding_is_attention_and_its_counts_are_the_simulators(
    case: tuple[Any, ...], splits: int | None, dtype: str, causal: bool
) -> None:
    N, lengths, H_q, H_kv, d, page = case
    cupy = import_cupy()
    rng = np.random.default_rng(len(lengths))
    q = normal(rng, dtype, len(lengths), H_q, N, d)
    k = [normal(rng, dtype, H_kv, n, d) for n in lengths]
    v = [normal(rng, dtype, H_kv, n, d) for n in lengths]
    Q = cupy.asarray(q)
    K, table, n = in_pages(k, page)
    V, *_ = in_pages(v, page)
    options: dict[str, Any] = {"causal": causal, "splits": splits, "return_lse": True}
    O, lse = gpu.paged(Q, K, V, table, n, **options)
    for s in range(len(lengths)):
        assert near((O[s], lse[s]), q[s], k[s], v[s], causal), s
    again, _, counted = gpu.paged(Q, K, V, table, n, count=True, **options)
    assert (again == O).all()
    places = 2 * cupy.cuda.Device().attributes["MultiProcessorCount"]
    rows = N * H_q // H_kv
    t = splits or hopper_paged.parts(len(lengths) * H_kv, max(lengths), rows, places)
    pair = splits is None and t % 2 == 0
    sizes: dict[str, Any] = {
        "queries": N,
        "keys": lengths,
        "d": d,
        "heads": H_q,
        "kv_heads": H_kv,
        "M": 10**9,
    }
    sizes |= {
        "causal": causal,
        "page": page,
        "tail": "page",
        "blocks": (64, min(64, page)),
    }
    parts = t // 2 if pair else t
    cut: dict[str, Any] = {"splits": parts} if parts > 1 else {}
    tally = serving.count("paged_split" if cut else "paged", **sizes, **cut)
    assert moved(counted) == totals(tally, ("Q", "lengths") if pair else ())


@ON_HOPPER
def test_pools_of_any_strides_and_pages_of_two_sequences() -> None:
    """(pages, page, H_kv, d) with its axes swapped gives the same bits; so do pages of two
    sequences, and no look at words.
    """
    cupy = import_cupy()
    rng = np.random.default_rng(0)
    q = cupy.asarray(normal(rng, "float16", 2, 8, 1, 128))
    k = [normal(rng, "float16", 2, 100, 128)] * 2
    v = [normal(rng, "float16", 2, 100, 128)] * 2
    K, table, n = in_pages(k, 32)
    V, *_ = in_pages(v, 32)
    result = gpu.paged(q, K, V, table, n)
    K_swapped = cupy.ascontiguousarray(K.swapaxes(1, 2)).swapaxes(1, 2)
    V_swapped = cupy.ascontiguousarray(V.swapaxes(1, 2)).swapaxes(1, 2)
    assert (result == gpu.paged(q, K_swapped, V_swapped, table, n)).all()
    table[1] = table[0]
    checked = gpu.paged(q, K, V, table.get(), n.get().tolist(), check=True)
    assert (result == checked).all()
    unchecked = gpu.paged(q, K, V, table, n, check=False)
    assert (result == unchecked).all()


VARLEN = {  # N_s, n_s, H_q, H_kv, d
    "one": ([1], [1], 1, 1, 64),
    "zeros": (
        [0, 5, 0, 130, 7, 0],
        [3, 0, 0, 130, 300, 9],
        2,
        1,
        128,
    ),
    "alike": ([256] * 4, [256] * 4, 4, 4, 128),
    "ragged": (
        [1, 2, 63, 64, 65, 127, 128, 129, 1000],
        [1, 5, 63, 64, 70, 127, 500, 129, 1000],
        4,
        2,
        64,
    ),
    "ragged, d = 128": (
        [1000, 17, 16, 15, 500, 257],
        [1000, 17, 900, 15, 100, 257],
        4,
        2,
        128,
    ),
    "many": (
        list(range(0, 300, 7)),
        list(range(0, 300, 7)),
        12,
        3,
        64,
    ),
    "no keys at all": ([3, 200], [0, 0], 2, 2, 128),
}


def packed(
    rng: np.random.Generator,
    dtype: str,
    heads: int,
    lengths: list[int],
    d: int,
    spare: int = 0,
) -> Any:
    """Return sequences end to end, with rows of NaN before and behind; and where each begins,
    and the last ends.
    """
    around = np.full((heads, spare, d), np.nan, float_dtype(dtype))
    inside = normal(rng, dtype, heads, sum(lengths), d)
    rows = np.concatenate([around, inside, around], axis=1)
    return rows, np.cumsum([spare, *lengths])


@ON_HOPPER
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", VARLEN.values(), ids=VARLEN)
def test_packed_batches_are_attention_and_their_counts_are_the_simulators(
    case: tuple[Any, ...], dtype: str, causal: bool
) -> None:
    """And of a sequence the same bits as alone. cu_q's words are read where the row block is
    there, as cu_k's: order says so.
    """
    N, n, H_q, H_kv, d = case
    cupy = import_cupy()
    rng = np.random.default_rng(len(N))
    q, cu_q = packed(rng, dtype, H_q, N, d, 5)
    k, cu_k = packed(rng, dtype, H_kv, n, d, 5)
    v, _ = packed(rng, dtype, H_kv, n, d, 5)
    Q, K, V = (cupy.asarray(x) for x in (q, k, v))
    how: dict[str, Any] = {"causal": causal, "return_lse": True}
    O, lse = gpu.varlen(Q, K, V, cu_q, cu_k, **how)
    assert not O[:, :5].any()
    assert not O[:, cu_q[-1] :].any()
    assert (lse[:, :5] == -np.inf).all()
    for s in range(len(N)):
        rows = slice(*cu_q[s : s + 2])
        keys = slice(*cu_k[s : s + 2])
        of_sequence = (O[:, rows], lse[:, rows])
        assert near(of_sequence, q[:, rows], k[:, keys], v[:, keys], causal), s
        own = (Q[:, rows], K[:, keys], V[:, keys])
        alone = gpu.varlen(*own, [0, N[s]], [0, n[s]], causal=causal)
        assert (alone == O[:, rows]).all(), s
    ends_q = cupy.asarray(cu_q)
    ends_k = cupy.asarray(cu_k)
    again, _, counted = gpu.varlen(Q, K, V, ends_q, ends_k, count=True, **how)
    assert (again == O).all()
    tiles = hopper.varlen_tiles(d, causal)
    options: dict[str, Any] = {
        "d": d,
        "heads": H_q,
        "kv_heads": H_q,
        "M": 10**9,
        "blocks": (tiles.B_r, tiles.B_c),
    }
    expected = totals(serving.count("varlen", queries=N, keys=n, causal=causal, **options))
    words = expected["cu_k"]
    assert moved(counted) == {**expected, "cu_q": words, "order": words}


@ON_HOPPER
def test_an_other_sequences_nan_reaches_nobody() -> None:
    cupy = import_cupy()
    rng = np.random.default_rng(0)
    lengths = [100, 70, 200]
    q, cu = packed(rng, "float16", 2, lengths, 128)
    k, _ = packed(rng, "float16", 2, lengths, 128)
    v, _ = packed(rng, "float16", 2, lengths, 128)
    Q, K, V = (cupy.asarray(x) for x in (q, k, v))
    for causal in (False, True):
        right = gpu.varlen(Q, K, V, cu, cu, causal=causal)
        for X in (Q, K, V):
            kept = X[:, 100:170].copy()
            X[:, 100:170] = np.nan
            result = gpu.varlen(Q, K, V, cu, cu, causal=causal)
            X[:, 100:170] = kept
            assert (result[:, :100] == right[:, :100]).all()
            assert (result[:, 170:] == right[:, 170:]).all()


@ON_HOPPER
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [64, 128])
def test_short_row_blocks_one_after_another(d: int, causal: bool) -> None:
    """The producer is at one when consumers are at the one before the last: 450 sequences, row
    blocks of a tile or two.
    """
    cupy = import_cupy()
    rng = np.random.default_rng(0)
    often = 150
    lengths = [1, 129, 40]
    q, cu = packed(rng, "float16", 16, lengths, d)
    k, _ = packed(rng, "float16", 16, lengths, d)
    v, _ = packed(rng, "float16", 16, lengths, d)
    one = [cupy.asarray(x) for x in (q, k, v)]
    Q, K, V = one
    alone = gpu.varlen(Q, K, V, cu, cu, causal=causal)
    expected = cupy.tile(alone, (1, often, 1))
    Q, K, V = (cupy.tile(x, (1, often, 1)) for x in one)
    ends = np.cumsum([0, *lengths * often])
    for _ in range(20):
        result = gpu.varlen(Q, K, V, ends, ends, causal=causal)
        assert (result == expected).all()


@ON_HOPPER
def test_a_scale_may_be_negative_or_0() -> None:
    cupy = import_cupy()
    rng = np.random.default_rng(0)
    lengths = [100, 70, 200]
    q, cu = packed(rng, "float16", 2, lengths, 128)
    k, _ = packed(rng, "float16", 2, lengths, 128)
    v, _ = packed(rng, "float16", 2, lengths, 128)
    k_in_float64 = k.astype(np.float64)
    v_in_float64 = v.astype(np.float64)
    for scale in (-0.5, 0.0):
        Q, K, V = map(cupy.asarray, (q, k, v))
        O = gpu.varlen(Q, K, V, cu, cu, scale=scale)
        scaled = q.astype(np.float64) * scale * 128**0.5
        for s in range(3):
            rows = slice(*cu[s : s + 2])
            want, _ = attention(scaled[:, rows], k_in_float64[:, rows], v_in_float64[:, rows])
            assert np.allclose(O[:, rows].get(), want, atol=4e-3)


@ON_HOPPER
def test_torch_tensors_serve() -> None:
    torch = pytest.importorskip("torch")
    cupy = import_cupy()
    rng = np.random.default_rng(0)
    q, cu = packed(rng, "float16", 2, [100, 70], 128)
    k, _ = packed(rng, "float16", 2, [100, 70], 128)
    Q, K = map(cupy.asarray, (q, k))
    theirs = torch.from_dlpack(K)
    ends = torch.tensor(cu.tolist(), dtype=torch.int32, device="cuda")
    O = gpu.varlen(torch.from_dlpack(Q), theirs, theirs, ends, ends)
    assert isinstance(O, torch.Tensor)
    expected = gpu.varlen(Q, K, K, cu, cu)
    assert (cupy.from_dlpack(O) == expected).all()
    sequences = [k[:, :100], k[:, 100:]]
    pool, table, n = in_pages(sequences, 16)
    few = Q[:, :2].swapaxes(0, 1).reshape(2, 2, 1, 128).copy()
    theirs, words, lengths = (torch.from_dlpack(X) for X in (pool, table, n))
    O = gpu.paged(torch.from_dlpack(few), theirs, theirs, words, lengths)
    assert isinstance(O, torch.Tensor)
    expected = gpu.paged(few, pool, pool, table, n)
    assert (cupy.from_dlpack(O) == expected).all()


@ON_HOPPER
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", [through_pages, among_others])
def test_the_kit_finds_nothing(way: Any, dtype: str, d: int) -> None:
    run_kit(way, dtype, d, 40)


# --------------------------------------------------------------------------------------------------
# without a GPU


def test_row_blocks_that_see_most_keys_come_first() -> None:
    """Each row block once, whatever the lengths; an empty sequence has none. Groups of long
    sequences come first.
    """
    N = np.array([300, 0, 5, 128])
    n = np.array([300, 7, 0, 1000])
    for causal in (False, True):
        listed = hopper_varlen.order(N, n, 128, causal, 10_000, 64)
        row_blocks = sorted(map(tuple, listed.tolist()))
        assert row_blocks == [(0, 0), (0, 1), (0, 2), (2, 0), (3, 0)]
        keys = []
        for s, i in listed:
            last_row = min(128 * (i + 1), N[s])
            visible_keys = max(last_row + n[s] - N[s], 0)
            keys.append(min(visible_keys, n[s]) if causal else n[s])
        assert keys == sorted(keys, reverse=True)
    of_empty = hopper_varlen.order(N[1:2], n[1:2], 128, True, 10, 1)
    assert of_empty.shape == (0, 2)
    alike = np.array([256] * 4 + [512])  # 2 row blocks each, and 4
    in_groups = (
        (1000, 64, [[0, 4], [1, 2, 3]]),
        (10_000, 2, [[0, 4], [1, 2], [3]]),
    )
    for most_keys, most, groups in in_groups:
        listed = hopper_varlen.order(alike, alike, 128, True, most_keys, most)[:, 0]
        row_blocks_of = [sum(alike[group]) // 128 for group in groups]
        ends = np.cumsum([0, *row_blocks_of])
        for group, (a, b) in zip(groups, pairwise(ends), strict=True):
            assert sorted(set(listed[a:b].tolist())) == group


@pytest.mark.parametrize(
    ("heads", "longest", "t"),
    [
        (256, 8192, 1),
        (64, 8192, 2),
        (8, 131_072, 32),
        (512, 8192, 1),
        (1, 0, 1),
    ],
)
def test_heads_are_cut_where_they_do_not_fill_the_machine(heads: int, longest: int, t: int) -> None:
    assert hopper_paged.parts(heads, longest, 8, 264) == t


def test_a_row_blocks_sequence_is_written_where_nobody_reads_it() -> None:
    """In hopper.cu, as its number is: once Q_i is free. Before, who still was at the last but
    one read the new one's lengths.
    """
    code = (KERNELS / "hopper.cu").read_text(encoding="utf-8")
    producer = code[code.index("void produce(") : code.index("struct Consumer {")]
    free = producer.index("sram.Q_i.wait_free(q);")
    for written in ("sram.row_block(q) =", "sram.sequences[q % (sram.Q_STAGES + 1)] ="):
        assert free < producer.index(written) < producer.index("sram.Q_i.start(q, ")


def test_pages_that_no_tile_is_made_of_are_refused() -> None:
    for page in (1, 4, 24, 96):
        with pytest.raises(
            ValueError,
            match=rf"k has pages of {page} rows; expected 8, 16, 32, or a multiple of 64",
        ):
            hopper_paged.check_page(page)
    for page in (8, 16, 32, 64, 128, 192):
        hopper_paged.check_page(page)


def test_errors_name_sequence_and_page() -> None:
    from flashsim.serving.checks import check_mapped, check_pages

    table = np.array([[1, 0], [3, 4]], np.uint32)
    n = np.array([20, 17], np.uint32)
    with pytest.raises(
        ValueError,
        match=r"table\[1, 1\] is 4, but sequence 1 has keys on its page 1; expected one of 4",
    ):
        check_mapped(table, n, 16, 4)
    with pytest.raises(
        ValueError, match=r"lengths\[1\] is 33; expected at most 32, as table has 2 pages of 16"
    ):
        check_pages(table, [20, 33], 2, 16)
    check_mapped(table, np.array([20, 16], np.uint32), 16, 4)  # what is not needed may be anything

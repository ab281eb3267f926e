"""What the paper's Figure 3 compares attention with: approximations, linear in N, each on the same
memory.

    # run.O, run.L, run.hbm, run.sram
    run = flashsim.approximate.linformer(Q, K, V, E, F)
    W = flashsim.approximate.features(256, 64, seed=0)              # and .performer(Q, K, V, W)
    # and .reformer(Q, K, V, buckets)
    buckets = flashsim.approximate.lsh_buckets(Q, 4, 2)
    hashes = flashsim.approximate.lsh_hashes(Q, K, 4)               # and .smyrf(Q, K, V, *hashes)
    # cost, by shapes alone; .exact(…) by formula
    flashsim.approximate.count("linformer", N=4096, d=64, k=256)

How well they approximate is not modelled: each computes its own formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flashsim.attention.arguments import (
    check_array,
    check_choice,
    check_count,
    check_scale,
    check_seed,
    short_repr,
)
from flashsim.attention.inputs import DEFAULT_DTYPE, Array, float_dtype
from flashsim.extensions.parts.clusters import homes, sorted_rows
from flashsim.extensions.programs import programs
from flashsim.memory.sram import Observer
from flashsim.simulate.matrices import check_operands, count_program, run_program
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size
from flashsim.theory.closed_form import Exact
from flashsim.theory.matrices import exact_program

METHODS: Mapping[str, str] = {"linformer": "tau", "performer": "c", "performer_materialised": "c"}
"""Methods of k mixtures or features, each with its option, which moves nothing."""
CLUSTERS = ("reformer", "smyrf")
"""Methods of clusters of C rows, in rounds."""
MOST_WORDS = 2**28
"""Words of an order up to which `count` makes one."""
PHI = {"on_chip": "performer", "in_hbm": "performer_materialised"}


def compressed(N: int) -> int:
    """Return the k that the paper's measurements have at length N: N/8, at least 1 and at most 256.

    Source: T. Dao et al., "FlashAttention", Appendix E.6. Raises ValueError for an N below 1.
    """
    return max(1, min(check_count("N", N) // 8, 256))


def linformer(
    Q: Any,
    K: Any,
    V: Any,
    E: Any,
    F: Any,
    *,
    scale: float | None = None,
    M: Size | None = None,
    blocks: tuple[int, int, int, int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Return softmax(τ Q (E K)ᵀ) F V of Q, K (N, d), V (N, e), E, F (k, N) as `run.O`, with
    log-sum-exps `run.L` (N,).

    scale    τ; None: 1/√d
    blocks   (B_r, B_c, B_e, B_k): rows of Q; keys to a mixture; mixtures that are made at once, and
             that are attended to
    M, sizing, enforce, observers  as in `flashsim.forward`, but that sizing is "fit" by default

    Raises ValueError for arguments that make no sense, and for inputs so large that O overflows;
    SramOverflow.
    """
    return run_program(
        programs()["linformer"],
        {"Q": Q, "K": K, "V": V, "E": E, "F": F},
        M=M,
        blocks=blocks,
        sizing=sizing,
        enforce=enforce,
        options={"tau": _scale(Q, scale)},
        observers=observers,
    )


def performer(
    Q: Any,
    K: Any,
    V: Any,
    W: Any,
    *,
    scale: float | None = None,
    phi: str = "on_chip",
    M: Size | None = None,
    blocks: tuple[int, int, int, int] | None = None,
    sizing: str = "fit",
    enforce: bool | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Return φ(Q) (φ(K)ᵀ V), divided by φ(Q) (φ(K)ᵀ 1), of Q, K (N, d), V (N, e), features W (k,
    d), as `run.O`.

    φ(x)_f = e^{w_f · x′ − ‖x′‖²/2}, x′ = √τ x: over random w_f, φ(q) · φ(k) is e^{τ q · k} on
    average.

    W        such as `features(k, d)`
    scale    τ ≥ 0; None: 1/√d
    phi      "on_chip"; "in_hbm": the logarithms of φ(Q) and φ(K) are written, and read again, as
             method "performer_materialised" of `count` and `exact`
    blocks   (B_r, B_c, B_f, B_g): rows of Q; keys to a feature; features that read keys at once,
             and that are read
    M, sizing, enforce, observers  as in `linformer`

    Raises ValueError for arguments that make no sense, and for inputs so large that O overflows;
    SramOverflow.
    """
    tau = _scale(Q, scale)
    method = PHI[check_choice("phi", phi, PHI)]
    if tau < 0:
        raise ValueError(f"scale is {tau}; expected at least 0, as features take its root")
    return run_program(
        programs()[method],
        {"Q": Q, "K": K, "V": V, "W": W},
        M=M,
        blocks=blocks,
        sizing=sizing,
        enforce=enforce,
        options={"c": tau**0.5},
        observers=observers,
    )


def features(k: int, d: int, *, seed: int = 0, dtype: Any = "float64") -> Array:
    """Return k random features (k, d), each of independent normal numbers, those of one d × d block
    orthogonal to each other.

    Orthogonal ones approximate better, say Performer's authors. Raises ValueError for what is not a
    size, seed or type.
    """
    k = check_count("k", k)
    d = check_count("d", d)
    stored = float_dtype(dtype)
    rng = np.random.default_rng(check_seed(seed))
    lengths = np.linalg.norm(rng.normal(size=(k, d)), axis=1, keepdims=True)
    directions, R = np.linalg.qr(rng.normal(size=(-(-k // d), d, d)))
    directions = directions * np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]
    W: Array = (lengths * directions.swapaxes(1, 2).reshape(-1, d)[:k]).astype(stored)
    return W


def reformer(
    Q: Any,
    K: Any,
    V: Any,
    buckets: Any,
    *,
    C: int = 64,
    scale: float | None = None,
    M: Size | None = None,
    enforce: bool | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Return attention of each row of Q (N, d) to those of K (N, d), V (N, e) that it meets in any
    round, as `run.O`.

    In each round rows are sorted by bucket, of equal ones the earlier first, and cut into clusters
    of C. Two meet if they are in one bucket, and the key is in the query's cluster or the one
    before.

    buckets  (rounds, N), whole numbers, such as `lsh_buckets(Q, rounds, number)`
    C        rows of a cluster; the last may be smaller
    scale    τ; None: 1/√d
    M, enforce, observers  as in `flashsim.forward`; M is enforced by default

    Raises ValueError for arguments that make no sense, an M too small for a cluster, and inputs so
    large that O overflows.
    """
    C = check_count("C", C)
    hashes = _of_rounds("buckets", buckets, Q, "iu", "whole numbers")
    order, home = homes(hashes, min(C, hashes.shape[1]))
    return _clustered(
        "reformer",
        {"Q": Q, "K": K, "V": V, "order": order, "home": home},
        C,
        scale,
        M,
        enforce,
        observers,
    )


def smyrf(
    Q: Any,
    K: Any,
    V: Any,
    hashes_Q: Any,
    hashes_K: Any,
    *,
    C: int = 64,
    scale: float | None = None,
    M: Size | None = None,
    enforce: bool | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Return attention of each row of Q (N, d) to each of K (N, d), V (N, e) as often as they meet,
    as `run.O`.

    In each round queries and keys are sorted by hash, of equal ones the earlier first, and cut into
    clusters of C. The queries of a cluster meet the keys of the cluster of the same number.

    hashes_Q, hashes_K  (rounds, N), real numbers, such as `lsh_hashes(Q, K, rounds)`
    C, scale, M, enforce, observers  as in `reformer`

    Raises ValueError as there.
    """
    C = check_count("C", C)
    orders = {
        f"order_{of}": sorted_rows(
            _of_rounds(f"hashes_{of}", hashes, Q, "iuf", "finite real numbers")
        )
        for of, hashes in (("Q", hashes_Q), ("K", hashes_K))
    }
    if len(orders["order_Q"]) != len(orders["order_K"]):
        raise ValueError(
            f"hashes_Q has {len(orders['order_Q'])} rounds, hashes_K {len(orders['order_K'])}; "
            "expected as many"
        )
    return _clustered("smyrf", {"Q": Q, "K": K, "V": V, **orders}, C, scale, M, enforce, observers)


def lsh_buckets(X: Any, rounds: int, number: int, *, seed: int = 0) -> Array:
    """Return buckets (rounds, N) of the rows of X (N, d), from 0 to number − 1: Reformer's angular
    hashing.

    Each round has its own random R (d, number/2), of normal numbers; a row's bucket is where [xR,
    −xR] is largest. The authors take twice as many buckets as clusters. Raises ValueError for an
    odd number, and for what is not a finite array, size or seed.
    """
    X = _rows("X", X)
    rounds = check_count("rounds", rounds)
    number = check_count("number", number, 2)
    if number % 2:
        raise ValueError(f"number is {number}; expected an even number of buckets")
    R = np.random.default_rng(check_seed(seed)).normal(size=(rounds, X.shape[1], number // 2))
    rotated = X / _largest(X) @ R
    buckets: Array = np.concatenate([rotated, -rotated], axis=2).argmax(2)
    return buckets


def lsh_hashes(Q: Any, K: Any, rounds: int, *, seed: int = 0) -> tuple[Array, Array]:
    """Return hashes (rounds, N) of the rows of Q and of K (N, d): SMYRF's, of its asymmetric
    transformations.

    F(q) = [q, 0, √(r² − ‖q‖²)] and G(k) = [k, √(r² − ‖k‖²), 0], r² = max ‖q‖² + max ‖k‖², are of
    length r, and the nearer to each other, the larger q · k. A hash is a projection of these on a
    random direction, one a round. The authors' E2LSH shifts and rounds it besides, which only makes
    ties. Raises ValueError for what is not a finite array, a size or a seed.
    """
    Q = _rows("Q", Q)
    K = _rows("K", K)
    rounds = check_count("rounds", rounds)
    if Q.shape[1] != K.shape[1]:
        raise ValueError(f"K has shape {K.shape}; expected (N, d) with d = {Q.shape[1]}, as Q has")
    directions = np.random.default_rng(check_seed(seed)).normal(size=(Q.shape[1] + 2, rounds))
    most = max(_largest(Q), _largest(K))
    # no square overflows
    Q = Q / most
    K = K / most
    q, k = ((X * X).sum(1, keepdims=True) for X in (Q, K))
    F = np.hstack([Q, 0 * q, np.sqrt(q.max() + k.max() - q)])
    G = np.hstack([K, np.sqrt(q.max() + k.max() - k), 0 * k])
    return (F @ directions).T, (G @ directions).T


def count(
    method: str,
    *,
    N: int,
    d: int,
    k: int | None = None,
    e: int | None = None,
    rounds: int | None = None,
    C: int | None = None,
    **how: Any,
) -> Result:
    """Count what a method would move, on shapes alone. `e`, V's width, is d by default.

    `k`: mixtures, or features. "reformer" and "smyrf" have none, and no `blocks`, but `rounds` of
    clusters of `C` rows. The rest is `flashsim.simulate.matrices.count_program`'s: M, blocks,
    sizing, enforce, dtype, observers.
    """
    name, sizes, how = _plan_arguments(method, N, d, k, e, rounds, C, how)
    index: dict[str, Array] = {}
    if name in CLUSTERS:
        _check_fits(
            name,
            sizes,
            how["blocks"],
            how.get("M"),
            how.get("enforce"),
            how.get("dtype", DEFAULT_DTYPE),
        )
        if sizes["h"] * sizes["N"] > MOST_WORDS:
            raise ValueError(
                f"rounds · N is {sizes['h'] * sizes['N']:,}; expected at most {MOST_WORDS:,}, as "
                "`count` reads so many words of "
                f"an order; `exact` has no such limit"
            )
        order = np.broadcast_to(np.arange(sizes["N"], dtype=np.uint32), (sizes["h"], sizes["N"]))
        index = {a: order for a, kind in programs()[name].operands.items() if kind.type == "index"}
    return count_program(
        programs()[name], sizes, options={METHODS.get(name, "tau"): 1.0}, index=index, **how
    )


def exact(
    method: str,
    *,
    N: int,
    d: int,
    k: int | None = None,
    e: int | None = None,
    rounds: int | None = None,
    C: int | None = None,
    **how: Any,
) -> Exact:
    """Return the same by formula: equal, whatever the arguments."""
    name, sizes, how = _plan_arguments(method, N, d, k, e, rounds, C, how)
    return exact_program(name, sizes, **how)


def _plan_arguments(
    method: Any, N: Any, d: Any, k: Any, e: Any, rounds: Any, C: Any, how: dict[str, Any]
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return a program's name, its lengths, and how to run it. Raises ValueError for what is
    another method's.
    """
    name = check_choice("method", method, (*METHODS, *CLUSTERS))
    sizes = {"N": N, "d": d, "e": d if e is None else e}
    of_k = name in METHODS
    for argument, value in (
        (("rounds", rounds), ("C", C)) if of_k else (("k", k), ("blocks", how.get("blocks")))
    ):
        if value is not None:
            has = "k mixtures or features" if of_k else "rounds of clusters of C rows"
            raise ValueError(
                f"{argument} is {short_repr(value)}; expected none, as {name!r} has {has}"
            )
    if of_k:
        return name, {**sizes, "k": k}, how
    return (
        name,
        {**sizes, "h": check_count("rounds", rounds)},
        {**how, "blocks": (check_count("C", C),)},
    )


def _clustered(
    name: str, operands: Mapping[str, Any], C: int, scale: Any, M: Any, enforce: Any, observers: Any
) -> Result:
    program = programs()[name]
    _, sizes, dtype = check_operands(program, operands)
    _check_fits(name, sizes, (C,), M, enforce, dtype)
    return run_program(
        program,
        operands,
        M=M,
        blocks=(C,),
        enforce=enforce,
        options={"tau": _scale(operands["Q"], scale)},
        observers=observers,
    )


def _check_fits(
    name: str, sizes: Mapping[str, Any], blocks: tuple[int], M: Any, enforce: Any, dtype: Any
) -> None:
    use = exact_program(name, sizes, M=M, blocks=blocks, enforce=enforce, dtype=dtype).sram
    if use.enforced and use.over:
        raise ValueError(
            f"M = {use.capacity:,} elements is too small for {name!r} with C = {blocks[0]}: it "
            f"needs at least M = {use.peak:,}, "
            f"or smaller clusters"
        )


def _of_rounds(name: str, value: Any, Q: Any, kinds: str, expected: str) -> Array:
    array = check_array(name, value)
    N = len(_rows("Q", Q))
    if array.ndim != 2 or array.dtype.kind not in kinds or not len(array) or array.shape[1] != N:
        raise ValueError(
            f"{name} has shape {array.shape}, dtype {array.dtype}; expected {expected}, (rounds, "
            f"N) with N = {N}, as Q has"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or ∞; expected {expected}")
    return array


def _rows(name: str, value: Any) -> Array:
    """Return rows (N, d) to hash, in float64."""
    array = check_array(name, value)
    if (
        array.ndim != 2
        or 0 in array.shape
        or (array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16")
    ):
        raise ValueError(
            f"{name} has shape {array.shape}, dtype {array.dtype}; expected real numbers, (N, d)"
        )
    wide: Array = array.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError(f"{name} holds NaN or ∞; expected finite numbers")
    return wide


def _largest(X: Array) -> float:
    return float(abs(X).max()) or 1.0


def _scale(Q: Any, scale: Any) -> float:
    shape = check_array("Q", Q).shape
    return check_scale(scale, shape[-1] if shape and shape[-1] else 1)

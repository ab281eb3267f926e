"""Bugs by which both passes compute attention of other inputs than were given."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flashsim.attention.inputs import Array, float_dtype
from flashsim.testing.problem import Problem
from flashsim.testing.spec import Spec
from flashsim.testing.suspects.family import FA, Changes, key_blocks, reads
from flashsim.testing.suspects.reading import Question, Reading


def _causal(allowed: Callable[..., Array]) -> Callable[..., Changes]:
    """If attention is causal, other keys are allowed."""
    return lambda q, r, *given: (
        {"allowed": allowed(q.problem, *given)} if q.problem.causal else None
    )


def _masked(allowed: Callable[..., Array]) -> Callable[..., Changes]:
    """If a mask is given, other keys are allowed."""
    return lambda q, r, *given: (
        None if q.problem.mask is None else {"allowed": allowed(q.problem, *given)}
    )


def _windowed(window: Callable[..., tuple[tuple[int, int] | None, int]]) -> Callable[..., Changes]:
    """If a window is given, another window or another shift is used."""

    def change(q: Question, r: Reading, *given: Any) -> Changes:
        p = q.problem
        if p.window is None:
            return None
        other, shift = window(p, *given)
        return {"allowed": p.but(window=None).allowed & p.within(other, shift)}

    return change


def _wider(p: Problem, says: str, left: int, right: int) -> tuple[tuple[int, int], int]:
    assert p.window is not None
    one, other = (
        side if side < 0 else max(side + more, 0)
        for side, more in zip(p.window, (left, right), strict=True)
    )
    return (one, other), p.window_shift


def _biased(bias: Callable[..., Array]) -> Callable[..., Changes]:
    """If a bias is given, another bias is added."""
    return lambda q, r, *given: (
        None if q.problem.bias is None else {"bias": bias(q.problem, r.bias, *given)}
    )


def _scaled(tau: Callable[[Question, Reading], float], given: bool) -> Callable[..., Changes]:
    """If a scale is given (or, with `given` False, is not), another scale is used."""
    return lambda q, r: {"tau": tau(q, r)} if (q.problem.scale is not None) == given else None


def _dropping(factor: Callable[..., Array]) -> Callable[..., Changes]:
    """With dropout, weights have another factor, made of the keep mask and p."""
    return lambda q, r, *given: (
        None if q.keep is None else {"Z": factor(q.keep, q.problem.dropout_p, *given)}
    )


def _mask_of_the_first(q: Question, r: Reading, says: str, axis: int) -> Changes:
    if q.problem.mask is None or q.problem.mask.shape[axis] == 1:
        return None
    return {"allowed": q.problem.but(mask=q.problem.mask.take([0], axis=axis)).allowed}


def _one_of_two_masks(q: Question, r: Reading, used: str, ignored: str) -> Changes:
    if q.problem.mask is None or not q.problem.causal:
        return None
    return {
        "allowed": (
            q.problem.but(causal=False) if used == "mask" else q.problem.but(mask=None)
        ).allowed
    }


def _rounded(q: Question, r: Reading, narrow: str) -> Changes:
    if q.problem.q.dtype != np.float32:
        return None
    arrays = {"q": r.q, "k": r.k, "v": r.v}
    if narrow != "TF32":
        return {
            name: a.astype(float_dtype(narrow)).astype(np.float64) for name, a in arrays.items()
        }
    bits = {name: a.astype(np.float32).view(np.uint32) for name, a in arrays.items()}
    return {
        name: ((b + 0x1000) & 0xFFFFE000).view(np.float32).astype(np.float64)
        for name, b in bits.items()
    }


def _query_rounded(q: Question, r: Reading) -> Changes:
    stored = q.problem.q.dtype
    if stored.itemsize != 2:
        return None
    return {
        "q": (r.q.astype(q.chip) * q.chip.type(r.tau)).astype(stored).astype(np.float64),
        "tau": 1.0,
    }


def _tail_unmasked(q: Question, r: Reading, block: int, says: str) -> Changes:
    N_k = r.k.shape[2]
    more = -r.k.shape[2] % block
    if more == 0 or (says == " if there is no mask" and q.problem.mask is not None):
        return None
    k, v = (
        np.concatenate([a, np.zeros((*a.shape[:2], more, a.shape[3]))], axis=2) for a in (r.k, r.v)
    )
    seen = np.ones((r.q.shape[2], more), bool)
    if says and q.problem.causal:
        seen = (
            np.arange(N_k, N_k + more)[None, :]
            <= np.arange(r.q.shape[2])[:, None] + q.problem.shift
        )
    allowed = np.concatenate(
        [r.allowed, np.broadcast_to(seen, (*r.allowed.shape[:3], more))], axis=3
    )
    Z = (
        r.Z
        if isinstance(r.Z, float)
        else np.concatenate([r.Z, np.ones((*r.Z.shape[:3], more))], axis=3)
    )
    return {"k": k, "v": v, "allowed": allowed, "Z": Z}


def _tiles(spec: Spec) -> list[tuple[int, int]]:
    """Return common block sizes (B_r, B_c)."""
    return list(dict.fromkeys((spec.block, *((b, b) for b in key_blocks(spec)))))


def _diagonal_in_last_tile(p: Problem, B_r: int, B_c: int) -> Array:
    _, _, N_q, N_k = p.score_shape
    # to the end of each row's tile
    rows = np.minimum(N_q, (np.arange(N_q) // B_r + 1) * B_r)[:, None]
    ends = np.minimum(N_k, rows + p.shift)  # of its loop over keys
    before = np.arange(N_k)[None, :] < (ends - 1) // B_c * B_c
    return np.asarray(p.allowed | (before & p.but(causal=False).allowed))


def _loop_ends_at_first_row(p: Problem, B_r: int, B_c: int) -> Array:
    _, _, N_q, N_k = p.score_shape
    ends = np.minimum(N_k, np.arange(N_q) // B_r * B_r + 1 + p.shift)[:, None]
    return np.asarray(p.allowed & (np.arange(N_k)[None, :] < -(-ends // B_c) * B_c))


def _in_first(r: Reading, keys: int) -> Array:
    """Return which keys are among the first `keys` ones."""
    return np.asarray(np.arange(r.k.shape[2]) < keys)


MISREADINGS = (
    # ---------------------------------------------------------------------------------------- which
    # keys a query attends to
    reads(
        "causal_at_other_corner",
        "Causal masking is aligned at {there}, but the spec says at {here}.",
        _causal(lambda p: p.causally(p.score_shape[3] - p.score_shape[2] - p.shift)),
        FA + "282",
        FA + "402",
        "NVIDIA/cutlass#2336",
    ),
    reads(
        "causal_ignored",
        "`causal` is ignored: queries attend to later keys.",
        _causal(lambda p: p.but(causal=False).allowed),
        "jax-ml/jax#19237",
    ),
    reads(
        "causal_always",
        "Causal masking is applied, although it was not asked for.",
        lambda q, r: None if q.problem.causal else {"allowed": q.problem.causally(q.problem.shift)},
        "triton-lang/triton#4541",
    ),
    reads(
        "causal_off_by_one",
        "Causal masking is off by one: {0}.",
        _causal(lambda p, says, off: p.causally(p.shift + off)),
        "huggingface/transformers#39408",
        over=lambda spec: [
            ("a query does not attend to the key on the diagonal (j < i, not j ≤ i)", -1),
            ("a query attends to the key after the diagonal (j ≤ i + 1, not j ≤ i)", 1),
        ],
    ),
    reads(
        "causal_never_empty",
        "With more queries than keys the first rows, which come before every key, attend to keys "
        "nevertheless: the causal "
        "diagonal is moved by max(0, N_k − N_q), not by N_k − N_q.",
        _causal(lambda p: p.causally(max(0, p.shift))),
        "NVIDIA/cutlass#2336",
        FA + "1778",
    ),
    reads(
        "causal_capped",
        "With more keys than queries the causal diagonal is not moved to the right: it is moved by "
        "min(0, N_k − N_q), not by "
        "N_k − N_q.",
        _causal(lambda p: p.causally(min(0, p.shift))),
    ),
    reads(
        "causal_flipped",
        "The causal diagonal is moved by N_q − N_k, not by N_k − N_q: the sign is wrong.",
        _causal(lambda p: p.causally(-p.shift)),
    ),
    reads("mask_ignored", "`mask` is ignored.", _masked(lambda p: p.but(mask=None).allowed)),
    reads(
        "mask_inverted",
        '`mask` is inverted: True is taken for "masked".',
        _masked(lambda p: p.but(mask=~p.mask).allowed),
    ),
    reads(
        "mask_of_the_first",
        "The mask of the first {0} is used for all {0}s.",
        _mask_of_the_first,
        over=lambda spec: [("sequence", 0), ("head", 1)],
    ),
    reads(
        "one_of_two_masks",
        "If both are given, `{0}` is applied and `{1}` is not.",
        _one_of_two_masks,
        over=lambda spec: [("mask", "causal"), ("causal", "mask")],
    ),
    reads(
        "window_ignored",
        "`window` is ignored: queries attend to keys outside of it.",
        _windowed(lambda p: (None, 0)),
    ),
    reads(
        "window_at_other_corner",
        "The window is aligned at {0}, but the spec says at the other corner.",
        _windowed(
            lambda p, says, bottom: (
                p.window,
                (p.score_shape[3] - p.score_shape[2]) if bottom else 0,
            )
        ),
        over=lambda spec: (
            [("the top left", False)]
            if spec.window == "bottom_right"
            else [("the bottom right", True)]
        ),
    ),
    reads(
        "window_off_by_one",
        "The window is off by one: {0}.",
        _windowed(_wider),
        "zml/zml#763",
        "ml-explore/mlx-lm#390",
        "sgl-project/sglang#34273",
        over=lambda spec: [
            ("a key too many on the left", 1, 0),
            ("a key too few on the left", -1, 0),
            ("a key too many on the right", 0, 1),
            ("a key too few on the right", 0, -1),
        ],
    ),
    reads(
        "window_sides_exchanged",
        "The window's left and right are exchanged.",
        _windowed(lambda p: ((p.window[1], p.window[0]), p.window_shift)),
    ),
    reads(
        "window_two_sided",
        "The window's left side is used for both sides.",
        _windowed(lambda p: ((p.window[0], p.window[0]), p.window_shift)),
        "ModelTC/LightLLM#1311",
    ),
    reads("bias_ignored", "`bias` is ignored.", _biased(lambda p, b: 0 * b)),
    reads(
        "bias_scaled",
        "The bias is added before the scores are scaled, so that it is scaled, too.",
        _biased(lambda p, b: p.tau * b),
    ),
    reads("bias_subtracted", "The bias is subtracted.", _biased(lambda p, b: -b)),
    reads(
        "bias_of_the_first",
        "The bias of the first {0} is used for all {0}s.",
        _biased(lambda p, b, says, axis: b.take([0], axis=axis)),
        over=lambda spec: [("sequence", 0), ("head", 1)],
    ),
    # -------------------------------------------------------------------------------------- what
    # the scores are multiplied by
    reads(
        "scale_missing",
        "The scale is missing: scores are QKᵀ.",
        lambda q, r: {"tau": 1.0},
        "huggingface/transformers#38290",
    ),
    reads(
        "scale_twice",
        "The scale is applied twice.",
        lambda q, r: {"tau": r.tau**2},
        "huggingface/transformers#38290",
    ),
    reads(
        "scale_from_d_v",
        "The default scale is 1/√d_v instead of 1/√d.",
        _scaled(lambda q, r: 1 / math.sqrt(r.v.shape[-1]), given=False),
        "tenstorrent/tt-metal#42891",
    ),
    reads(
        "scale_argument_ignored",
        "`scale` is ignored: the scale is always 1/√d.",
        _scaled(lambda q, r: 1 / math.sqrt(r.q.shape[-1]), given=True),
    ),
    reads(
        "scale_on_top",
        "`scale` is applied in addition to 1/√d, instead of replacing it.",
        _scaled(lambda q, r: r.tau / math.sqrt(r.q.shape[-1]), given=True),
    ),
    reads(
        "scale_misapplied",
        "Scores are {0} by the scale's {1}.",
        lambda q, r, says, of: {"tau": 1 / r.tau if says == "divided" else math.sqrt(r.tau)},
        over=lambda spec: [("divided", "value"), ("multiplied", "square root")],
    ),
    reads(
        "scale_in_other_base",
        "Powers of 2 and of e are mixed up: scores are {0} log₂ e {1}.",
        lambda q, r, one, other, factor: {"tau": r.tau * factor},
        over=lambda spec: [
            ("not multiplied by", "before exp2", math.log(2)),
            ("multiplied by", "before exp", 1 / math.log(2)),
        ],
    ),
    reads(
        "scaled_query_rounded",
        (
            "Q is rounded to the inputs' 16 bits after it is scaled. (If that is intended, "
            "Spec(stores='scores') allows it.)"
        ),
        _query_rounded,
        "antirez/h3.c#3",
        "ml-explore/mlx#3119",
    ),
    reads(
        "scale_grows",
        (
            "The scale is multiplied by log₂ e again for every block of {0} keys, so that it grows "
            "along the keys."
        ),
        lambda q, r, block: {
            "k": r.k * math.log2(math.e) ** (np.arange(r.k.shape[2]) // block)[:, None]
        },
        "flagos-ai/FlagGems#424",
        over=key_blocks,
    ),
    # ------------------------------------------------------------------------------ whose numbers
    # are read, and how precisely
    reads(
        "heads_modulo",
        (
            "Query head h reads KV head h mod H_kv instead of h div (H_q/H_kv): K and V are tiled "
            "instead of repeated."
        ),
        lambda q, r: {"owner": np.arange(r.q.shape[1]) % r.k.shape[1]},
        "ekzhang/jax-js#180",
        "onnx/onnx#7274",
    ),
    reads(
        "heads_first",
        "All query heads read the first KV head.",
        lambda q, r: {"owner": np.zeros(r.q.shape[1], int)},
    ),
    reads(
        "batch_first",
        "All sequences of the batch read K and V of the first.",
        lambda q, r: {
            "k": np.broadcast_to(r.k[:1], r.k.shape),
            "v": np.broadcast_to(r.v[:1], r.v.shape),
        },
    ),
    reads(
        "inputs_rounded",
        "float32 inputs are rounded to {0} before they are multiplied.",
        _rounded,
        over=lambda spec: ["TF32", "float16"] + ["bfloat16"] * ("bfloat16" in spec.dtypes),
    ),
    # ------------------------------------------------------------------- the last blocks, and those
    # that the diagonal crosses
    reads(
        "tail_dropped",
        "The last keys are left out if N_k is not a multiple of {0}.",
        lambda q, r, block: {"allowed": r.allowed & _in_first(r, r.k.shape[2] // block * block)},
        "jax-ml/jax#27224",
        over=key_blocks,
    ),
    reads(
        "tail_unmasked",
        (
            "If N_k is not a multiple of {0}, the zeros that pad the last block of keys count as "
            "keys in the softmax{1}."
        ),
        _tail_unmasked,
        "jax-ml/jax#27224",
        "NVIDIA/cutlass#2428",
        over=lambda spec: [
            (block, where)
            for block in key_blocks(spec)
            for where in ("", " if there is no mask", " unless masked")
        ],
    ),
    reads(
        "last_block_masked",
        "Only the last block of {0} keys is masked.",
        lambda q, r, block: {
            "allowed": r.allowed | _in_first(r, (r.k.shape[2] - 1) // block * block)
        },
        "ROCm/rocMLIR#2165",
        "triton-lang/triton#8853",
        over=key_blocks,
    ),
    reads(
        "diagonal_in_last_tile",
        "With tiles of {0} queries and {1} keys, the causal mask is applied only to the last tile "
        "of a row of tiles, but "
        "the diagonal crosses several.",
        _causal(_diagonal_in_last_tile),
        "ROCm/rocMLIR#2165",
        "triton-lang/triton#8853",
        over=_tiles,
    ),
    reads(
        "loop_ends_at_first_row",
        (
            "With tiles of {0} queries and {1} keys, the causal loop over keys ends where the "
            "tile's first row ends."
        ),
        _causal(_loop_ends_at_first_row),
        "ROCm/rocMLIR#2165",
        over=_tiles,
    ),
    # ----------------------------------------------------------------------------------------------
    # dropout
    reads(
        "dropout_undivided",
        "Weights that dropout keeps are not divided by 1 − p.",
        _dropping(lambda keep, p: keep * 1.0),
        "NVIDIA/apex#816",
    ),
    reads(
        "dropout_factor",
        "Weights that dropout keeps are {0} instead of divided by 1 − p.",
        _dropping(
            lambda keep, p, says: (
                keep * {"divided by p": 1 / p, "multiplied by p": p}.get(says, 1 - p)
            )
        ),
        "NVIDIA/apex#816",
        over=lambda spec: ["divided by p", "multiplied by p", "multiplied by 1 − p"],
    ),
    reads(
        "dropout_inverted",
        "Dropout's keep mask is inverted: weights that it keeps are dropped.",
        _dropping(lambda keep, p: ~keep / (1 - p)),
    ),
    reads(
        "dropout_ignored",
        "`dropout_p` is ignored: nothing is dropped.",
        _dropping(lambda keep, p: np.ones(keep.shape)),
    ),
    reads(
        "dropout_of_first_head",
        "Dropout uses the first head's keep mask for all heads.",
        _dropping(lambda keep, p: np.broadcast_to(keep[:1, :1], keep.shape) / (1 - p)),
    ),
)

"""Bugs by which both passes compute attention of other inputs than they were given."""

import math

import numpy as np

from flashsim.attention.inputs import Array, float_dtype
from flashsim.testing.bug_models.family import FA, Changes, input_bug, key_blocks
from flashsim.testing.bug_models.interpretation import Inputs, Interpretation
from flashsim.testing.spec import Spec

# --------------------------------------------------------------------------------------------------
# the inputs that a bug concerns


def _is_causal(inputs: Inputs) -> bool:
    return inputs.problem.causal


def _is_not_causal(inputs: Inputs) -> bool:
    return not inputs.problem.causal


def _has_mask(inputs: Inputs) -> bool:
    return inputs.problem.mask is not None


def _has_window(inputs: Inputs) -> bool:
    return inputs.problem.window is not None


def _has_bias(inputs: Inputs) -> bool:
    return inputs.problem.bias is not None


def _has_scale(inputs: Inputs) -> bool:
    return inputs.problem.scale is not None


def _has_default_scale(inputs: Inputs) -> bool:
    return inputs.problem.scale is None


def _has_dropout(inputs: Inputs) -> bool:
    return inputs.keep is not None


# --------------------------------------------------------------------------------------------------
# which keys a query attends to


def _causal_with_shift(inputs: Inputs, shift: int) -> Changes:
    return {"allowed": inputs.problem.causally(shift)}


def _causal_at_other_corner(inputs: Inputs, right: Interpretation) -> Changes:
    _, _, N_q, N_k = inputs.problem.score_shape
    return _causal_with_shift(inputs, N_k - N_q - inputs.problem.shift)


def _causal_ignored(inputs: Inputs, right: Interpretation) -> Changes:
    return {"allowed": inputs.problem.but(causal=False).allowed}


def _causal_off_by_one(inputs: Inputs, right: Interpretation, words: str, off: int) -> Changes:
    return _causal_with_shift(inputs, inputs.problem.shift + off)


def _mask_ignored(inputs: Inputs, right: Interpretation) -> Changes:
    return {"allowed": inputs.problem.but(mask=None).allowed}


def _mask_inverted(inputs: Inputs, right: Interpretation) -> Changes:
    mask = inputs.problem.mask
    assert mask is not None
    return {"allowed": inputs.problem.but(mask=~mask).allowed}


def _mask_of_the_first(inputs: Inputs, right: Interpretation, words: str, axis: int) -> Changes:
    mask = inputs.problem.mask
    if mask is None or mask.shape[axis] == 1:
        return None
    return {"allowed": inputs.problem.but(mask=mask.take([0], axis=axis)).allowed}


def _one_of_two_masks(inputs: Inputs, right: Interpretation, used: str, ignored: str) -> Changes:
    if inputs.problem.mask is None or not inputs.problem.causal:
        return None
    return _causal_ignored(inputs, right) if used == "mask" else _mask_ignored(inputs, right)


def _other_window(inputs: Inputs, window: tuple[int, int] | None, shift: int) -> Changes:
    problem = inputs.problem
    return {"allowed": problem.but(window=None).allowed & problem.within(window, shift)}


def _window_ignored(inputs: Inputs, right: Interpretation) -> Changes:
    return _other_window(inputs, None, 0)


def _other_window_corner(spec: Spec) -> list[tuple[str, bool]]:
    if spec.window == "bottom_right":
        return [("the top left", False)]
    return [("the bottom right", True)]


def _window_at_corner(
    inputs: Inputs, right: Interpretation, words: str, bottom_right: bool
) -> Changes:
    _, _, N_q, N_k = inputs.problem.score_shape
    return _other_window(inputs, inputs.problem.window, N_k - N_q if bottom_right else 0)


def _window_off(
    inputs: Inputs, right: Interpretation, words: str, more_left: int, more_right: int
) -> Changes:
    window = inputs.problem.window
    assert window is not None
    wider = _wider(window[0], more_left), _wider(window[1], more_right)
    return _other_window(inputs, wider, inputs.problem.window_shift)


def _wider(side: int, more: int) -> int:
    """Return a window's side with more keys; −1 is no limit."""
    return side if side < 0 else max(side + more, 0)


def _window_sides_exchanged(inputs: Inputs, right: Interpretation) -> Changes:
    window = inputs.problem.window
    assert window is not None
    return _other_window(inputs, (window[1], window[0]), inputs.problem.window_shift)


def _window_two_sided(inputs: Inputs, right: Interpretation) -> Changes:
    window = inputs.problem.window
    assert window is not None
    return _other_window(inputs, (window[0], window[0]), inputs.problem.window_shift)


def _bias_of_the_first(inputs: Inputs, right: Interpretation, words: str, axis: int) -> Changes:
    return {"bias": np.asarray(right.bias).take([0], axis=axis)}


# --------------------------------------------------------------------------------------------------
# scales and precision


def _scale_misapplied(inputs: Inputs, right: Interpretation, verb: str, noun: str) -> Changes:
    return {"tau": 1 / right.tau if verb == "divided" else math.sqrt(right.tau)}


def _scale_in_other_base(
    inputs: Inputs, right: Interpretation, words: str, where: str, factor: float
) -> Changes:
    return {"tau": right.tau * factor}


def _scale_grows(inputs: Inputs, right: Interpretation, block: int) -> Changes:
    blocks_before = np.arange(right.k.shape[2]) // block
    return {"k": right.k * math.log2(math.e) ** blocks_before[:, None]}


def _query_rounded(inputs: Inputs, right: Interpretation) -> Changes:
    if inputs.dtype.itemsize != 2:
        return None
    chip = inputs.chip
    q = right.q.astype(chip) * chip.type(right.tau)
    return {"q": q.astype(inputs.dtype).astype(np.float64), "tau": 1.0}


def _narrow_types(spec: Spec) -> list[str]:
    narrow = ["TF32", "float16"]
    if "bfloat16" in spec.dtypes:
        narrow.append("bfloat16")
    return narrow


def _inputs_rounded(inputs: Inputs, right: Interpretation, narrow: str) -> Changes:
    if inputs.dtype != np.float32:
        return None
    changes = {}
    for name, a in (("q", right.q), ("k", right.k), ("v", right.v)):
        changes[name] = _to_TF32(a) if narrow == "TF32" else a.astype(float_dtype(narrow))
    return {name: a.astype(np.float64) for name, a in changes.items()}


def _to_TF32(a: Array) -> Array:
    """Return float32 numbers rounded to 10 bits of the fraction."""
    bits = a.astype(np.float32).view(np.uint32)
    return ((bits + 0x1000) & 0xFFFFE000).view(np.float32)


# --------------------------------------------------------------------------------------------------
# the last blocks, and those that the diagonal crosses


def _first_keys(right: Interpretation, count: int) -> Array:
    """Return which keys are among the first `count`."""
    return np.asarray(np.arange(right.k.shape[2]) < count)


def _tail_dropped(inputs: Inputs, right: Interpretation, block: int) -> Changes:
    whole_blocks = right.k.shape[2] // block * block
    return {"allowed": right.allowed & _first_keys(right, whole_blocks)}


def _last_block_masked(inputs: Inputs, right: Interpretation, block: int) -> Changes:
    before_last = (right.k.shape[2] - 1) // block * block
    return {"allowed": right.allowed | _first_keys(right, before_last)}


def _blocks_and_conditions(spec: Spec) -> list[tuple[int, str]]:
    values = []
    for block in key_blocks(spec):
        for condition in ("", " if there is no mask", " unless masked"):
            values.append((block, condition))
    return values


def _tail_unmasked(inputs: Inputs, right: Interpretation, block: int, condition: str) -> Changes:
    N_q = right.q.shape[2]
    N_k = right.k.shape[2]
    padding = -N_k % block
    if padding == 0 or (condition == " if there is no mask" and _has_mask(inputs)):
        return None
    allowed = np.ones((N_q, padding), bool)
    if condition and inputs.problem.causal:
        keys = np.arange(N_k, N_k + padding)[None, :]
        allowed = keys <= np.arange(N_q)[:, None] + inputs.problem.shift
    allowed = np.broadcast_to(allowed, (*right.allowed.shape[:3], padding))
    Z = right.Z
    if not isinstance(Z, float):
        Z = np.concatenate([Z, np.ones((*Z.shape[:3], padding))], axis=3)
    return {
        "k": _with_zero_rows(right.k, padding),
        "v": _with_zero_rows(right.v, padding),
        "allowed": np.concatenate([right.allowed, allowed], axis=3),
        "Z": Z,
    }


def _with_zero_rows(a: Array, count: int) -> Array:
    zeros = np.zeros((*a.shape[:2], count, a.shape[3]))
    return np.concatenate([a, zeros], axis=2)


def _tiles(spec: Spec) -> list[tuple[int, int]]:
    """Return likely sizes of a tile, (B_r, B_c)."""
    squares = [(block, block) for block in key_blocks(spec)]
    return list(dict.fromkeys([spec.block, *squares]))


def _diagonal_in_last_tile(inputs: Inputs, right: Interpretation, B_r: int, B_c: int) -> Changes:
    p = inputs.problem
    _, _, N_q, N_k = p.score_shape
    row_ends = np.minimum(N_q, (np.arange(N_q) // B_r + 1) * B_r)[:, None]  # of each row's tile
    loop_ends = np.minimum(N_k, row_ends + p.shift)
    before_last_tile = np.arange(N_k)[None, :] < (loop_ends - 1) // B_c * B_c
    unmasked = before_last_tile & p.but(causal=False).allowed
    return {"allowed": np.asarray(p.allowed | unmasked)}


def _loop_ends_at_first_row(inputs: Inputs, right: Interpretation, B_r: int, B_c: int) -> Changes:
    p = inputs.problem
    _, _, N_q, N_k = p.score_shape
    first_rows = np.arange(N_q) // B_r * B_r
    ends = np.minimum(N_k, first_rows + 1 + p.shift)[:, None]
    tile_ends = -(-ends // B_c) * B_c
    return {"allowed": np.asarray(p.allowed & (np.arange(N_k)[None, :] < tile_ends))}


# --------------------------------------------------------------------------------------------------
# dropout


def _dropout_factor(inputs: Inputs, right: Interpretation, words: str) -> Changes:
    p = inputs.problem.dropout_p
    factors = {"divided by p": 1 / p, "multiplied by p": p, "multiplied by 1 − p": 1 - p}
    return {"Z": _keep_mask(inputs) * factors[words]}


def _keep_mask(inputs: Inputs) -> Array:
    assert inputs.keep is not None
    return inputs.keep


def _dropout_of_first_head(inputs: Inputs, right: Interpretation) -> Changes:
    keep = _keep_mask(inputs)
    first = np.broadcast_to(keep[:1, :1], keep.shape)
    return {"Z": first / (1 - inputs.problem.dropout_p)}


INPUT_BUGS = (
    # ----------------------------------------------------------------------------------------------
    # which keys a query attends to
    input_bug(
        "causal_at_other_corner",
        "Causal masking is aligned at {there}, but the spec says at {here}.",
        _causal_at_other_corner,
        FA + "282",
        FA + "402",
        "NVIDIA/cutlass#2336",
        when=_is_causal,
    ),
    input_bug(
        "causal_ignored",
        "`causal` is ignored: queries attend to later keys.",
        _causal_ignored,
        "jax-ml/jax#19237",
        when=_is_causal,
    ),
    input_bug(
        "causal_always",
        "Causal masking is applied, although it was not asked for.",
        lambda inputs, right: _causal_with_shift(inputs, inputs.problem.shift),
        "triton-lang/triton#4541",
        when=_is_not_causal,
    ),
    input_bug(
        "causal_off_by_one",
        "Causal masking is off by one: {0}.",
        _causal_off_by_one,
        "huggingface/transformers#39408",
        when=_is_causal,
        parameters=lambda spec: [
            ("a query does not attend to the key on the diagonal (j < i, not j ≤ i)", -1),
            ("a query attends to the key after the diagonal (j ≤ i + 1, not j ≤ i)", 1),
        ],
    ),
    input_bug(
        "causal_never_empty",
        "With more queries than keys the first rows, which come before every key, attend to keys "
        "nevertheless: the causal "
        "diagonal is moved by max(0, N_k − N_q), not by N_k − N_q.",
        lambda inputs, right: _causal_with_shift(inputs, max(0, inputs.problem.shift)),
        "NVIDIA/cutlass#2336",
        FA + "1778",
        when=_is_causal,
    ),
    input_bug(
        "causal_capped",
        "With more keys than queries the causal diagonal is not moved to the right: it is moved by "
        "min(0, N_k − N_q), not by "
        "N_k − N_q.",
        lambda inputs, right: _causal_with_shift(inputs, min(0, inputs.problem.shift)),
        when=_is_causal,
    ),
    input_bug(
        "causal_flipped",
        "The causal diagonal is moved by N_q − N_k, not by N_k − N_q: the sign is wrong.",
        lambda inputs, right: _causal_with_shift(inputs, -inputs.problem.shift),
        when=_is_causal,
    ),
    input_bug("mask_ignored", "`mask` is ignored.", _mask_ignored, when=_has_mask),
    input_bug(
        "mask_inverted",
        '`mask` is inverted: True is taken for "masked".',
        _mask_inverted,
        when=_has_mask,
    ),
    input_bug(
        "mask_of_the_first",
        "The mask of the first {0} is used for all {0}s.",
        _mask_of_the_first,
        parameters=lambda spec: [("sequence", 0), ("head", 1)],
    ),
    input_bug(
        "one_of_two_masks",
        "If both are given, `{0}` is applied and `{1}` is not.",
        _one_of_two_masks,
        parameters=lambda spec: [("mask", "causal"), ("causal", "mask")],
    ),
    input_bug(
        "window_ignored",
        "`window` is ignored: queries attend to keys outside of it.",
        _window_ignored,
        when=_has_window,
    ),
    input_bug(
        "window_at_other_corner",
        "The window is aligned at {0}, but the spec says at the other corner.",
        _window_at_corner,
        when=_has_window,
        parameters=_other_window_corner,
    ),
    input_bug(
        "window_off_by_one",
        "The window is off by one: {0}.",
        _window_off,
        "zml/zml#763",
        "ml-explore/mlx-lm#390",
        "sgl-project/sglang#34273",
        when=_has_window,
        parameters=lambda spec: [
            ("a key too many on the left", 1, 0),
            ("a key too few on the left", -1, 0),
            ("a key too many on the right", 0, 1),
            ("a key too few on the right", 0, -1),
        ],
    ),
    input_bug(
        "window_sides_exchanged",
        "The window's left and right are exchanged.",
        _window_sides_exchanged,
        when=_has_window,
    ),
    input_bug(
        "window_two_sided",
        "The window's left side is used for both sides.",
        _window_two_sided,
        "ModelTC/LightLLM#1311",
        when=_has_window,
    ),
    input_bug(
        "bias_ignored",
        "`bias` is ignored.",
        lambda inputs, right: {"bias": 0 * right.bias},
        when=_has_bias,
    ),
    input_bug(
        "bias_scaled",
        "The bias is added before the scores are scaled, so that it is scaled, too.",
        lambda inputs, right: {"bias": right.tau * right.bias},
        when=_has_bias,
    ),
    input_bug(
        "bias_subtracted",
        "The bias is subtracted.",
        lambda inputs, right: {"bias": -right.bias},
        when=_has_bias,
    ),
    input_bug(
        "bias_of_the_first",
        "The bias of the first {0} is used for all {0}s.",
        _bias_of_the_first,
        when=_has_bias,
        parameters=lambda spec: [("sequence", 0), ("head", 1)],
    ),
    # ----------------------------------------------------------------------------------------------
    # scales
    input_bug(
        "scale_missing",
        "The scale is missing: scores are QKᵀ.",
        lambda inputs, right: {"tau": 1.0},
        "huggingface/transformers#38290",
    ),
    input_bug(
        "scale_twice",
        "The scale is applied twice.",
        lambda inputs, right: {"tau": right.tau**2},
        "huggingface/transformers#38290",
    ),
    input_bug(
        "scale_from_d_v",
        "The default scale is 1/√d_v instead of 1/√d.",
        lambda inputs, right: {"tau": 1 / math.sqrt(right.v.shape[-1])},
        "tenstorrent/tt-metal#42891",
        when=_has_default_scale,
    ),
    input_bug(
        "scale_argument_ignored",
        "`scale` is ignored: the scale is always 1/√d.",
        lambda inputs, right: {"tau": 1 / math.sqrt(right.q.shape[-1])},
        when=_has_scale,
    ),
    input_bug(
        "scale_on_top",
        "`scale` is applied in addition to 1/√d, instead of replacing it.",
        lambda inputs, right: {"tau": right.tau / math.sqrt(right.q.shape[-1])},
        when=_has_scale,
    ),
    input_bug(
        "scale_misapplied",
        "Scores are {0} by the scale's {1}.",
        _scale_misapplied,
        parameters=lambda spec: [("divided", "value"), ("multiplied", "square root")],
    ),
    input_bug(
        "scale_in_other_base",
        "Powers of 2 and of e are mixed up: scores are {0} log₂ e {1}.",
        _scale_in_other_base,
        parameters=lambda spec: [
            ("not multiplied by", "before exp2", math.log(2)),
            ("multiplied by", "before exp", 1 / math.log(2)),
        ],
    ),
    input_bug(
        "scaled_query_rounded",
        (
            "Q is rounded to the inputs' 16 bits after it is scaled. (If that is intended, "
            "Spec(stores='scores') allows it.)"
        ),
        _query_rounded,
        "antirez/h3.c#3",
        "ml-explore/mlx#3119",
    ),
    input_bug(
        "scale_grows",
        (
            "The scale is multiplied by log₂ e again for every block of {0} keys, so that it grows "
            "along the keys."
        ),
        _scale_grows,
        "flagos-ai/FlagGems#424",
        parameters=key_blocks,
    ),
    # ----------------------------------------------------------------------------------------------
    # heads, sequences and precision
    input_bug(
        "heads_modulo",
        (
            "Query head h reads KV head h mod H_kv instead of h div (H_q/H_kv): K and V are tiled "
            "instead of repeated."
        ),
        lambda inputs, right: {"owner": np.arange(right.q.shape[1]) % right.k.shape[1]},
        "ekzhang/jax-js#180",
        "onnx/onnx#7274",
    ),
    input_bug(
        "heads_first",
        "All query heads read the first KV head.",
        lambda inputs, right: {"owner": np.zeros(right.q.shape[1], int)},
    ),
    input_bug(
        "batch_first",
        "All sequences of the batch read K and V of the first.",
        lambda inputs, right: {
            "k": np.broadcast_to(right.k[:1], right.k.shape),
            "v": np.broadcast_to(right.v[:1], right.v.shape),
        },
    ),
    input_bug(
        "inputs_rounded",
        "float32 inputs are rounded to {0} before they are multiplied.",
        _inputs_rounded,
        parameters=_narrow_types,
    ),
    # ----------------------------------------------------------------------------------------------
    # the last blocks, and those that the diagonal crosses
    input_bug(
        "tail_dropped",
        "The last keys are left out if N_k is not a multiple of {0}.",
        _tail_dropped,
        "jax-ml/jax#27224",
        parameters=key_blocks,
    ),
    input_bug(
        "tail_unmasked",
        (
            "If N_k is not a multiple of {0}, the zeros that pad the last block of keys count as "
            "keys in the softmax{1}."
        ),
        _tail_unmasked,
        "jax-ml/jax#27224",
        "NVIDIA/cutlass#2428",
        parameters=_blocks_and_conditions,
    ),
    input_bug(
        "last_block_masked",
        "Only the last block of {0} keys is masked.",
        _last_block_masked,
        "ROCm/rocMLIR#2165",
        "triton-lang/triton#8853",
        parameters=key_blocks,
    ),
    input_bug(
        "diagonal_in_last_tile",
        "With tiles of {0} queries and {1} keys, the causal mask is applied only to the last tile "
        "of a row of tiles, but "
        "the diagonal crosses several.",
        _diagonal_in_last_tile,
        "ROCm/rocMLIR#2165",
        "triton-lang/triton#8853",
        when=_is_causal,
        parameters=_tiles,
    ),
    input_bug(
        "loop_ends_at_first_row",
        (
            "With tiles of {0} queries and {1} keys, the causal loop over keys ends where the "
            "tile's first row ends."
        ),
        _loop_ends_at_first_row,
        "ROCm/rocMLIR#2165",
        when=_is_causal,
        parameters=_tiles,
    ),
    # ----------------------------------------------------------------------------------------------
    # dropout
    input_bug(
        "dropout_undivided",
        "Weights that dropout keeps are not divided by 1 − p.",
        lambda inputs, right: {"Z": _keep_mask(inputs) * 1.0},
        "NVIDIA/apex#816",
        when=_has_dropout,
    ),
    input_bug(
        "dropout_factor",
        "Weights that dropout keeps are {0} instead of divided by 1 − p.",
        _dropout_factor,
        "NVIDIA/apex#816",
        when=_has_dropout,
        parameters=lambda spec: ["divided by p", "multiplied by p", "multiplied by 1 − p"],
    ),
    input_bug(
        "dropout_inverted",
        "Dropout's keep mask is inverted: weights that it keeps are dropped.",
        lambda inputs, right: {"Z": ~_keep_mask(inputs) / (1 - inputs.problem.dropout_p)},
        when=_has_dropout,
    ),
    input_bug(
        "dropout_ignored",
        "`dropout_p` is ignored: nothing is dropped.",
        lambda inputs, right: {"Z": np.ones(_keep_mask(inputs).shape)},
        when=_has_dropout,
    ),
    input_bug(
        "dropout_of_first_head",
        "Dropout uses the first head's keep mask for all heads.",
        _dropout_of_first_head,
        when=_has_dropout,
    ),
)

"""Bugs that real attention kernels had, the second half."""

from flashsim.testing.mutants.mutant import Mutant

LATE: tuple[Mutant, ...] = (
    # ----------------------------------------------------------------------------------------------
    # causal and masks
    Mutant(
        "mask_ignored_if_causal",
        "If attention is causal, a mask that is given as well is ignored.",
        ("AI-Hypercomputer/maxtext#878",),
        "unfused",
        (
            (
                "if mask is not None:\n        ok &= mask",
                "if mask is not None and not causal:\n        ok &= mask",
            ),
        ),
    ),
    Mutant(
        "causal_needs_a_mask",
        "The causal mask is applied only if another mask is given.",
        ("facebookresearch/xformers#103", "facebookresearch/xformers#104"),
        "unfused",
        (("    if causal:\n        ok &=", "    if causal and mask is not None:\n        ok &="),),
    ),
    Mutant(
        "mask_tiled_over_heads",
        (
            "Each head of a batch should have the batch's mask; instead the masks of all batches "
            "take turns."
        ),
        ("line/lighthouse#77", "ArrowLuo/CLIP4Clip#22"),
        "tiled",
        (
            (
                "None if masks is None else masks[b, h])",
                "None if masks is None else masks[(b * H_q + h) % B, h])",
            ),
            (
                "masks[b, h] if masks is not None",
                "masks[(b * H_q + h) % B, h] if masks is not None",
            ),
        ),
    ),
    Mutant(
        "nan_in_masked_keys",
        "−∞ is added to masked scores, so a NaN in a masked key stays NaN.",
        ("deepbeepmeep/Wan2GP#1628",),
        "unfused",
        (
            (
                "    S = np.where(ok, S, -np.inf)\n    V = ",
                "    S = S + np.where(ok, 0, -np.inf).astype(S.dtype)\n    V = ",
            ),
        ),
    ),
    # ----------------------------------------------------------------------------------------------
    # softmax
    Mutant(
        "max_of_tile_only",
        (
            "Each key tile replaces the running maximum, so old sums overflow if a tile's scores "
            "are much lower."
        ),
        ("tile-ai/TileOPs#239", "tile-ai/tilelang#1148"),
        "tiled",
        (("m_new = np.maximum(m, S.max(axis=1))", "m_new = S.max(axis=1)"),),
    ),
    Mutant(
        "max_starts_at_minus_5e4",
        (
            "The running maximum starts from −50000, not from −∞, so rows whose scores are all "
            "lower vanish."
        ),
        (
            "flashinfer-ai/flashinfer#4267",
            "flashinfer-ai/flashinfer#4450",
            "flashinfer-ai/flashinfer#4451",
        ),
        "tiled",
        (("m = np.full(B_r, -np.inf, dtype)", "m = np.full(B_r, -5e4, dtype)"),),
    ),
    Mutant(
        "empty_row_mean",
        (
            "A row whose every key is masked attends to all keys alike, so that it is the mean of "
            "the values."
        ),
        ("NVIDIA/apex#1390",),
        "unfused",
        (
            (
                "    P = P / np.where(l == 0, 1, l)\n    if dropout_p > 0:\n        P = ",
                "    P = np.where(l == 0, 1 / max(1, P.shape[-1]), P / np.where(l == 0, 1, "
                "l)).astype(P.dtype)\n"
                "    if dropout_p > 0:\n        P = ",
            ),
        ),
    ),
    Mutant(
        "accumulator_not_cleared",
        (
            "The accumulator is not cleared, so rows without a key tile keep the sums of the rows "
            "before."
        ),
        ("vllm-project/vllm#26599",),
        "tiled",
        (
            ("            acc = np.zeros((B_r, d_v), dtype)\n", ""),
            (
                "    lse = np.full((B, H_q, N_q), -np.inf, dtype)\n",
                (
                    "    lse = np.full((B, H_q, N_q), -np.inf, dtype)\n    acc = np.zeros((B_r, "
                    "d_v), dtype)\n"
                ),
            ),
        ),
    ),
    # ----------------------------------------------------------------------------------------------
    # precision
    Mutant(
        "scores_in_16_bits",
        (
            "QKᵀ is kept in the inputs' 16 bits before it is scaled, so it is coarse, and "
            "overflows in float16."
        ),
        ("philipturner/metal-flash-attention#8", "ultralytics/ultralytics#24990"),
        "tiled",
        (
            (
                "N_q + top, rows, d, B_r, dtype) * dtype.type(tau)\n",
                "N_q + top, rows, d, B_r, dtype)\n",
            ),
            (
                "S = Q_i @ K_j.T\n",
                "S = (Q_i @ K_j.T).astype(q.dtype).astype(dtype) * dtype.type(tau)\n",
            ),
        ),
    ),
    Mutant(
        "scaled_query_rounded",
        "Once scaled, the queries are rounded to the inputs' 16 bits again.",
        ("antirez/h3.c#3", "antirez/h3.c#4", "ml-explore/mlx#3119"),
        "tiled",
        (
            (
                "Q_i = load(Q, (b * H_q + h) * N_q + top, rows, d, B_r, dtype) * dtype.type(tau)\n",
                "Q_i = load(Q, (b * H_q + h) * N_q + top, rows, d, B_r, dtype) * dtype.type(tau)\n"
                "            Q_i = Q_i.astype(q.dtype).astype(dtype)\n",
            ),
        ),
    ),
    # ----------------------------------------------------------------------------------------------
    # scale
    Mutant(
        "scale_ignored",
        "A scale that is given is ignored; the scale is always 1/√d.",
        ("tenstorrent/tt-metal#33304", "lucidrains/x-transformers#244"),
        "unfused",
        (
            (
                "tau = 1 / math.sqrt(Q.shape[-1]) if scale is None else scale",
                "tau = 1 / math.sqrt(Q.shape[-1])",
            ),
            (
                "1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
                "1 / math.sqrt(q.shape[-1]))",
            ),
        ),
    ),
    Mutant(
        "scale_from_all_heads",
        "By default the scale is 1/√(H·d), from the width of all heads together.",
        ("lucidrains/vit-pytorch#65", "karpathy/ng-video-lecture#6"),
        "unfused",
        (
            ("1 / math.sqrt(Q.shape[-1])", "1 / math.sqrt(Q.shape[1] * Q.shape[-1])"),
            ("1 / math.sqrt(q.shape[-1])", "1 / math.sqrt(q.shape[1] * q.shape[-1])"),
        ),
    ),
    # ----------------------------------------------------------------------------------------------
    # memory
    Mutant(
        "strides_of_K_and_V_swapped",
        (
            "K is read with V's strides and V with K's, which is right only if both have the same "
            "layout in memory."
        ),
        ("flagos-ai/FlagAttention#45", "flagos-ai/FlagAttention#46"),
        "tiled",
        (
            (
                (
                    "    K = np.ascontiguousarray(k).reshape(-1)\n    V = "
                    "np.ascontiguousarray(v).reshape(-1)\n    dropout_mask"
                ),
                (
                    "    K, V = read_as_if_like(k, v).reshape(-1), read_as_if_like(v, "
                    "k).reshape(-1)\n    dropout_mask"
                ),
            ),
            (
                "def load(memory: Array",
                "def read_as_if_like(a: Array, b: Array) -> Array:\n"
                "    axes = sorted(range(4), key=lambda axis: -b.strides[axis])\n"
                '    memory = a.ravel(order="K").reshape([a.shape[axis] for axis in axes])\n'
                "    return np.ascontiguousarray(memory.transpose(np.argsort(axes)))\n\n\n"
                "def load(memory: Array",
            ),
        ),
    ),
    Mutant(
        "values_offset_by_N_q",
        (
            "A head's values are read from an offset that is right only if there are as many keys "
            "as queries."
        ),
        ("thu-ml/SageAttention#26",),
        "tiled",
        (
            (
                "V_j = load(V, (b * H_kv + n) * N_k + left",
                "V_j = load(V, (b * H_kv + n) * N_q + left",
            ),
        ),
    ),
    Mutant(
        "head_dim_hardcoded",
        "Scores use only the first 64 columns of Q and K, here scaled down to 16.",
        ("triton-lang/triton#621",),
        "unfused",
        (
            (
                "(Q * Q.dtype.type(tau)) @ np.swapaxes(K, -1, -2)",
                "(Q * Q.dtype.type(tau))[..., :16] @ np.swapaxes(K[..., :16], -1, -2)",
            ),
        ),
    ),
    Mutant(
        "kv_head_over_kv_heads",
        "Query head h reads KV head h div H_kv instead of h div group.",
        ("PSAL-POSTECH/ONNXim#33", "PSAL-POSTECH/ONNXim#34"),
        "tiled",
        (
            ("n = h // group\n        for i in", "n = h // H_kv\n        for i in"),
            ("n = h // group\n        for j in", "n = h // H_kv\n        for j in"),
        ),
    ),
    Mutant(
        "query_heads_skipped",
        (
            "Blocks are assigned to heads with the group's size as stride, so heads are left out "
            "unless that size is H_kv."
        ),
        ("HazyResearch/HipKittens#22",),
        "tiled",
        (
            (
                "    for b, h in np.ndindex(B, H_q):\n        n = h // group\n        for i in",
                "    for b, block in np.ndindex(B, H_q):\n        h = block % group * group + "
                "block // group\n"
                "        if h >= H_q:\n            continue\n        n = h // group\n        for i "
                "in",
            ),
        ),
    ),
    Mutant(
        "q_scaled_in_place",
        "The scale is multiplied into the caller's q itself.",
        ("pytorch/pytorch#73249",),
        "tiled",
        (
            (
                "    V = np.ascontiguousarray(v).reshape(-1)\n    dropout_mask",
                "    V = np.ascontiguousarray(v).reshape(-1)\n"
                "    q *= q.dtype.type(tau)\n"
                "    Q = np.ascontiguousarray(q).reshape(-1)\n"
                "    dropout_mask",
            ),
            (
                "N_q + top, rows, d, B_r, dtype) * dtype.type(tau)\n",
                "N_q + top, rows, d, B_r, dtype)\n",
            ),
        ),
    ),
    # ----------------------------------------------------------------------------------------------
    # log-sum-exp
    Mutant(
        "lse_of_empty_row_finite",
        "The log-sum-exp of a row that attends to no key is −50000, not −∞.",
        ("flashinfer-ai/flashinfer#4452",),
        "tiled",
        (("lse_i = m + np.log(l)", "lse_i = np.where(l == 0, -5e4, m + np.log(l))"),),
    ),
    Mutant(
        "lse_of_empty_rows_misplaced",
        (
            "For rows without keys, −∞ is written to the wrong place: as if heads came before "
            "sequences in memory."
        ),
        (
            "Dao-AILab/flash-attention#2842",
            "Dao-AILab/flash-attention#2573",
            "Dao-AILab/flash-attention#2851",
        ),
        "tiled",
        (
            (
                "            lse[b, h, top : top + rows] = lse_i[:rows]\n",
                "            slot = h * B + b if (l[:rows] == 0).all() else b * H_q + h\n"
                "            lse.reshape(B * H_q, N_q)[slot, top : top + rows] = lse_i[:rows]\n",
            ),
        ),
    ),
    Mutant(
        "lse_heads_transposed",
        (
            "With one query, the heads of a group are computed as its rows, and the log-sum-exps "
            "are not put back in order."
        ),
        ("vllm-project/flash-attention#87",),
        "split",
        (
            (
                "    O, lse = merged(np.stack(outputs), np.stack(logs))\n",
                "    O, lse = merged(np.stack(outputs), np.stack(logs))\n    if N_q == 1:\n"
                "        lse = lse.reshape(B, H_kv, group).swapaxes(1, 2).reshape(B, H_q, 1)\n",
            ),
        ),
    ),
    Mutant(
        "lse_scaled_twice",
        (
            "In the log-sum-exp of a part, the maximum is scaled again, although its scores are "
            "scaled already."
        ),
        ("HKUSTDial/flash-sparse-attention#106",),
        "split",
        (
            (
                "one_part(Q, K_p, V_p, ok_p, Z[..., keys])",
                "one_part(Q, K_p, V_p, ok_p, Z[..., keys], tau)",
            ),
            ("ok: Array, Z: Array) -> tuple", "ok: Array, Z: Array, tau: float) -> tuple"),
            (
                "lse = m + np.log(l)",
                "lse = np.where(l == 0, -np.inf, m * dtype_of(m)(tau) + np.log(l))",
            ),
            (
                "def merged(",
                "def dtype_of(a: Array) -> type:\n    return a.dtype.type\n\n\ndef merged(",
            ),
        ),
    ),
    # ----------------------------------------------------------------------------------------------
    # backward
    Mutant(
        "D_from_dO_in_memory_order",
        "Only the sum D over dO ∘ O reads dO as if it were contiguous.",
        ("flagos-ai/FlagAttention#1",),
        "tiled",
        (("D = (dO.reshape(O.shape)", 'D = (do.ravel(order="K").reshape(O.shape)'),),
        part="backward",
    ),
    Mutant(
        "D_of_too_few_rows",
        (
            "D is computed by one block for each B_r rows, but a block computes only B_c rows; in "
            "the others D is 0."
        ),
        ("triton-lang/triton#2020",),
        "tiled",
        (
            (
                "    L = np.where(lse == -np.inf, np.inf, lse)",
                (
                    "    D[:, :, -(-N_q // B_r) * B_c :] = 0\n    L = np.where(lse == -np.inf, "
                    "np.inf, lse)"
                ),
            ),
        ),
        part="backward",
    ),
    Mutant(
        "D_of_each_part",
        (
            "Each part of the keys computes D from its own output instead of the merged one, so dQ "
            "and dK are wrong."
        ),
        ("tenstorrent/tt-metal#53205",),
        "tiled",
        (
            (
                "                dS = P * (dP - D_i[:, None])\n",
                "                l = P.sum(axis=1, keepdims=True)\n"
                "                dS = P * (dP - (P * dP).sum(axis=1, keepdims=True) / np.where(l "
                "== 0, 1, l))\n",
            ),
        ),
        part="backward",
    ),
    Mutant(
        "jacobian_diagonal_only",
        "Softmax is differentiated with only the diagonal of its Jacobian: dS is P ∘ (1 − P) ∘ dP.",
        ("deeplearning4j/libnd4j#440",),
        "unfused",
        (("dS = P * (dP - D)", "dS = P * (1 - P) * dP"),),
        part="backward",
    ),
    Mutant(
        "dP_as_wide_as_Q",
        "For dQ, only d columns of dO and V are read, so columns are missing if d_v is larger.",
        ("XunhaoLai/native-sparse-attention-triton#27",),
        "tiled",
        (
            (
                "dQ_i = dS @ K_j * dtype.type(tau)",
                (
                    "dQ_i = P * (dO_i[:, :d] @ V_j[:, :d].T * Z - D_i[:, None]) @ K_j * "
                    "dtype.type(tau)"
                ),
            ),
        ),
        part="backward",
    ),
    Mutant(
        "backward_causal_top_left",
        (
            "The causal diagonal starts at the top left in the backward pass, and at the bottom "
            "right in the forward pass."
        ),
        ("xlite-dev/ffpa-attn#300",),
        "tiled",
        (("shift = N_k - N_q  # as in", "shift = 0  # as in"),),
        part="backward",
    ),
    Mutant(
        "dV_spills_into_next_head",
        (
            "A head's last tile of dV is stored whole, and its padding overwrites the next head's "
            "first rows."
        ),
        ("flagos-ai/FlagGems#898", "lucidrains/native-sparse-attention-pytorch#33"),
        "tiled",
        (
            (
                "    for b, h in np.ndindex(B, H_q):\n        n = h // group\n        for j in",
                "    for b, h in reversed(list(np.ndindex(B, H_q))):  # in any order\n        n = "
                "h // group\n"
                "        for j in",
            ),
            (
                "            dV[b, n, left : left + cols] += dV_j[:cols]",
                "            row = (b * H_kv + n) * N_k + left\n"
                "            dV[b, n, left : left + cols] += dV_j[:cols]\n"
                "            dV.reshape(-1, d_v)[row + cols : row + B_c] = 0",
            ),
        ),
        part="backward",
    ),
    Mutant(
        "no_keys_backward_crash",
        "The backward pass fails without keys, N_k = 0, but the forward pass does not.",
        ("Dao-AILab/flash-attention#2776",),
        "unfused",
        (
            (
                "m = S.max(axis=-1, keepdims=True, initial=-np.inf)\n    P = ",
                "m = S.max(axis=-1, keepdims=True)\n    P = ",
            ),
        ),
        part="backward",
    ),
    Mutant(
        "empty_row_nan_gradient",
        "Only the forward pass handles rows whose keys are all masked; their gradients are NaN.",
        ("Xilinx/brevitas#1591",),
        "tiled",
        (("L = np.where(lse == -np.inf, np.inf, lse)", "L = lse"),),
        part="backward",
    ),
    Mutant(
        "dO_overwritten",
        "If dO has the type in which the backward pass computes, the caller's dO is overwritten.",
        ("NVIDIA/apex#1587", "NVIDIA/apex#1430"),
        "unfused",
        (
            ("dO = do.astype(Q.dtype)", "dO = do.astype(Q.dtype, copy=False)"),
            (
                "    dP = dO @ np.swapaxes(V, -1, -2) * Z\n",
                "    dO *= Q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)\n"
                "    dP = dO @ np.swapaxes(V, -1, -2) * Z\n",
            ),
            (
                "    tau = Q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)\n",
                "",
            ),
            ("dQ = tau * (dS @ K)", "dQ = dS @ K"),
            ("dK = tau * (np.swapaxes(dS, -1, -2) @ Q)", "dK = np.swapaxes(dS, -1, -2) @ Q"),
        ),
        part="backward",
    ),
    Mutant(
        "gradients_added_to_old_ones",
        "dK and dV are summed in a workspace that is kept between calls and never cleared.",
        ("NVIDIA/cudnn-frontend#333",),
        "tiled",
        (
            ("B_r = 8\n", "B_r = 8\nWORKSPACE: dict[Any, Array] = {}\n"),
            (
                "dK = np.zeros((B, H_kv, N_k, d), dtype)",
                (
                    'dK = WORKSPACE.setdefault(("dK", k.shape, dtype), np.zeros((B, H_kv, N_k, d), '
                    "dtype))"
                ),
            ),
            (
                "dV = np.zeros((B, H_kv, N_k, d_v), dtype)",
                (
                    'dV = WORKSPACE.setdefault(("dV", v.shape, dtype), np.zeros((B, H_kv, N_k, '
                    "d_v), dtype))"
                ),
            ),
        ),
        part="backward",
    ),
    # ----------------------------------------------------------------------------------------------
    # dropout
    Mutant(
        "row_sum_after_dropout",
        "The row sum and the log-sum-exp are taken after dropout, so the kept weights sum to 1.",
        ("aws-neuron/nki-samples#80", "aws-neuron/aws-neuron-sdk#1156"),
        "tiled",
        (
            ("                l = l * alpha + P.sum(axis=1)\n", ""),
            (
                "                acc = acc * alpha[:, None] + P @ V_j\n",
                (
                    "                l = l * alpha + P.sum(axis=1)\n                acc = acc * "
                    "alpha[:, None] + P @ V_j\n"
                ),
            ),
        ),
        part="dropout",
    ),
    Mutant(
        "dropout_before_softmax",
        (
            "Dropout is applied to the scores, before softmax, so a dropped key has the weight of "
            "a score of 0."
        ),
        ("PaddlePaddle/Parakeet#74", "PaddlePaddle/Parakeet#76"),
        "unfused",
        (
            (
                "    S = np.where(ok, S, -np.inf)\n    V = ",
                "    if dropout_p > 0:\n        S = S * keep(S.shape, dropout_p, seed) / (1 - "
                "dropout_p)\n"
                "    S = np.where(ok, S, -np.inf)\n    V = ",
            ),
            (
                (
                    "    if dropout_p > 0:\n        P = P * keep(P.shape, dropout_p, seed) / (1 - "
                    "dropout_p)\n"
                ),
                "",
            ),
        ),
        part="dropout",
    ),
    Mutant(
        "dropout_on_the_output",
        "Dropout is applied to the output instead of the weights.",
        ("nikhilbarhate99/min-decision-transformer#2",),
        "unfused",
        (
            (
                (
                    "    if dropout_p > 0:\n        P = P * keep(P.shape, dropout_p, seed) / (1 - "
                    "dropout_p)\n"
                ),
                "",
            ),
            (
                "    O = P @ V\n",
                (
                    "    O = P @ V\n    if dropout_p > 0:\n        O = O * keep(O.shape, "
                    "dropout_p, seed) / (1 - dropout_p)\n"
                ),
            ),
        ),
        part="dropout",
    ),
    Mutant(
        "dropout_factor_one_over_p",
        (
            "In both passes, kept weights are divided by p instead of 1 − p, which is the same if "
            "p = 1/2."
        ),
        ("lmjohns3/theanets#123",),
        "tiled",
        (
            ("top, left) / (1 - dropout_p)", "top, left) / dropout_p"),
            ("top, left) / dtype.type(1 - dropout_p)", "top, left) / dtype.type(dropout_p)"),
        ),
        part="dropout",
    ),
    Mutant(
        "keep_mask_duplicated",
        (
            "In the forward pass four neighbouring keys share one random number; in the backward "
            "pass each has its own."
        ),
        ("pytorch/pytorch#198333",),
        "tiled",
        (
            (
                "    masks = None if mask is None",
                "    if dropout_mask is not None:\n"
                "        dropout_mask = np.repeat(dropout_mask[..., ::4], 4, axis=-1)[..., :N_k]\n"
                "    masks = None if mask is None",
            ),
        ),
        part="dropout",
    ),
    Mutant(
        "seed_is_an_address",
        (
            "The generator is seeded with the seed's address instead of its value, so one seed "
            "gives several masks."
        ),
        ("facebookresearch/xformers#173",),
        "tiled",
        (
            (
                "keep((B, H_q, N_q, N_k), dropout_p, seed) if",
                (
                    "keep((B, H_q, N_q, N_k), dropout_p, int(seed) ^ "
                    'q.__array_interface__["data"][0]) if'
                ),
            ),
            (
                "None if dropout_p == 0 else keep((B, H_q, N_q, N_k), dropout_p, seed)",
                "None if dropout_p == 0 else "
                'keep((B, H_q, N_q, N_k), dropout_p, int(seed) ^ q.__array_interface__["data"][0])',
            ),
        ),
        part="dropout",
    ),
    Mutant(
        "seed_ignored",
        "The generator's seed is a constant, so that every call drops the same weights.",
        ("Dao-AILab/flash-attention#2088",),
        "tiled",
        (("keep_mask(seed, dropout_p", "keep_mask(0x1BF58, dropout_p"),),
        part="dropout",
    ),
    Mutant(
        "dropout_off_after_evaluation",
        "A call without dropout sets the kernel's own p to 0 for all later calls.",
        ("NVIDIA/Megatron-LM#318",),
        "unfused",
        (
            ("def widened(", "EVALUATED: set[bool] = set()\n\n\ndef widened("),
            (
                "    ok = allowed(q, k, causal, mask)\n    S = ",
                "    EVALUATED.add(dropout_p == 0)\n    dropout_p = 0 if True in EVALUATED else "
                "dropout_p\n"
                "    ok = allowed(q, k, causal, mask)\n    S = ",
            ),
            (
                "    ok = allowed(q, k, causal, mask)\n    K = ",
                "    dropout_p = 0 if True in EVALUATED else dropout_p\n"
                "    ok = allowed(q, k, causal, mask)\n    K = ",
            ),
        ),
        part="dropout",
    ),
)

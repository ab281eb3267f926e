"""Bugs that real attention kernels had, the first half."""

from dataclasses import replace

from flashsim.testing.mutants.mutant import SPEC, Mutant

EARLY: tuple[Mutant, ...] = (
    # ----------------------------------------------------------------------------------------------
    # causal
    Mutant(
        "causal_top_left",
        (
            "The causal diagonal starts at the top left instead of the bottom right, which is "
            "wrong if N_q ≠ N_k."
        ),
        ("Dao-AILab/flash-attention#282", "Dao-AILab/flash-attention#436"),
        "tiled",
        (
            ("shift = N_k - N_q  # causal", "shift = 0  # causal"),
            ("shift = N_k - N_q  # as in", "shift = 0  # as in"),
        ),
    ),
    Mutant(
        "causal_never_empty",
        (
            "With more queries than keys, the first rows come before every key, but attend to keys "
            "nevertheless."
        ),
        ("NVIDIA/cutlass#2336",),
        "unfused",
        (("np.arange(N_q)[:, None] + N_k - N_q", "np.arange(N_q)[:, None] + max(0, N_k - N_q)"),),
    ),
    Mutant(
        "causal_mask_on_last_tile_only",
        (
            "The causal mask is applied only to the last key tile of a row tile, but the diagonal "
            "crosses several."
        ),
        ("ROCm/rocMLIR#2165",),
        "tiled",
        (
            (
                "diagonal = causal and left + B_c - 1 > top + shift",
                "diagonal = causal and left + B_c >= min(N_k, top + B_r + shift)",
            ),
        ),
    ),
    Mutant(
        "causal_loop_ends_at_first_row",
        (
            "The loop over key tiles ends where the first row of the tile ends, so later rows miss "
            "keys if B_r > B_c."
        ),
        ("ROCm/rocMLIR#2165",),
        "tiled",
        (("end = min(N_k, top + rows + shift)", "end = min(N_k, top + 1 + shift)"),),
    ),
    # ----------------------------------------------------------------------------------------------
    # softmax
    Mutant(
        "empty_row_nan",
        "A row whose every key is masked computes −∞ − (−∞) and comes out as NaN.",
        ("pytorch/pytorch#103963", "pytorch/pytorch#103749"),
        "unfused",
        (("finite_m = np.where(m == -np.inf, 0, m)", "finite_m = m"),),
    ),
    Mutant(
        "max_clamped_by_masked_tile",
        (
            "After a wholly masked first tile the running maximum is 0 instead of −∞, and very "
            "negative scores underflow."
        ),
        ("Dao-AILab/flash-attention#2082", "Dao-AILab/flash-attention#2174"),
        "tiled",
        (("                m = m_new\n", "                m = finite_m\n"),),
    ),
    Mutant(
        "sentinel_1e5",
        (
            "Masked scores are set to −10⁵, not −∞, so masked keys win over scores that are lower "
            "still."
        ),
        ("TransformerLensOrg/TransformerLens#318",),
        "unfused",
        (("    S = np.where(ok, S, -np.inf)\n", "    S = np.where(ok, S, -1e5)\n"),),
        spec=replace(SPEC, empty_rows="undefined"),
    ),
    Mutant(
        "rescale_inverted",
        "Old sums are rescaled by exp(new maximum − old maximum), the inverse of the right factor.",
        ("deepseek-ai/FlashMLA#177",),
        "tiled",
        (
            (
                "alpha = np.exp(m - finite_m)",
                "alpha = np.where(m == -np.inf, 0, np.exp(finite_m - m))",
            ),
        ),
    ),
    Mutant(
        "no_max_subtracted",
        (
            "The maximum is not subtracted from the scores, so the exponential of large scores "
            "overflows or vanishes."
        ),
        ("NVIDIA/DeepLearningExamples#169",),
        "unfused",
        (
            ("finite_m = np.where(m == -np.inf, 0, m)", "finite_m = np.zeros_like(m)"),
            ("lse = (m + np.log(l))", "lse = (finite_m + np.log(l))"),
        ),
    ),
    Mutant(
        "row_sum_in_16_bits",
        "The sum of a row's weights is kept in the inputs' 16 bits, so it saturates in long rows.",
        ("sonos/tract#2586", "huggingface/candle#3727"),
        "tiled",
        (
            (
                "l = l * alpha + P.sum(axis=1)",
                "l = (l * alpha + P.sum(axis=1)).astype(q.dtype).astype(dtype)",
            ),
        ),
    ),
    # ----------------------------------------------------------------------------------------------
    # edges
    Mutant(
        "ragged_keys_unmasked",
        "If N_k is not a multiple of the tile, the zeros that pad the last tile count as keys.",
        ("jax-ml/jax#27224",),
        "tiled",
        (("ragged = left + B_c > N_k", "ragged = False"),),
    ),
    Mutant(
        "nan_in_masked_values",
        "A masked key has weight 0, but its value is NaN, and 0 · NaN reaches the output.",
        ("Dao-AILab/flash-attention#1745", "Dao-AILab/flash-attention#2374"),
        "tiled",
        (("V_j = np.where(np.any(ok, axis=0)[:, None], V_j, 0)", "V_j = V_j"),),
    ),
    Mutant(
        "no_keys_crash",
        "The call fails when there are no keys, N_k = 0.",
        ("Dao-AILab/flash-attention#2470",),
        "unfused",
        (
            (
                "m = S.max(axis=-1, keepdims=True, initial=-np.inf)\n    finite_m",
                "m = S.max(axis=-1, keepdims=True)\n    finite_m",
            ),
        ),
    ),
    # ----------------------------------------------------------------------------------------------
    # memory
    Mutant(
        "offset_overflow",
        "Offsets are kept in 32 bits, here scaled down to 16, and wrap around in larger arrays.",
        (
            "Dao-AILab/flash-attention#2260",
            "Dao-AILab/flash-attention#1500",
            "pytorch/pytorch#190857",
        ),
        "tiled",
        (("offset = row * width\n", "offset = (row * width) & 0xFFFF\n"),),
    ),
    Mutant(
        "strides_of_values_ignored",
        "V is read as if it were contiguous, which a transposed view is not.",
        ("flagos-ai/FlagGems#5896",),
        "tiled",
        (
            (
                "    V = np.ascontiguousarray(v).reshape(-1)\n    dropout_mask",
                '    V = v.ravel(order="K")\n    dropout_mask',
            ),
        ),
    ),
    Mutant(
        "kv_head_modulo",
        (
            "Query head h reads KV head h mod H_kv instead of h div group: K and V are tiled, not "
            "repeated."
        ),
        ("ekzhang/jax-js#180",),
        "tiled",
        (
            ("n = h // group\n        for i in", "n = h % H_kv\n        for i in"),
            ("n = h // group\n        for j in", "n = h % H_kv\n        for j in"),
        ),
    ),
    # -------------------------------------------------------------------------------------
    # log-sum-exp, scale and splits
    Mutant(
        "lse_of_empty_row_positive",
        "The log-sum-exp of a row that attends to no key is +∞, not −∞.",
        ("Dao-AILab/flash-attention#978",),
        "tiled",
        (("lse_i = m + np.log(l)", "lse_i = np.where(l == 0, np.inf, m + np.log(l))"),),
    ),
    Mutant(
        "lse_times_ln_2",
        (
            "The log-sum-exp, a natural logarithm already, is converted from base 2, so it is too "
            "small by ln 2."
        ),
        ("pytorch/pytorch#181645",),
        "split",
        (("lse = m + np.log(total)", "lse = (m + np.log(total)) * math.log(2)"),),
    ),
    Mutant(
        "scale_twice",
        "The scale is applied to Q, and once more to the scores.",
        ("huggingface/transformers#38290",),
        "unfused",
        (("(Q * Q.dtype.type(tau)) @", "(Q * Q.dtype.type(tau * tau)) @"),),
    ),
    Mutant(
        "scale_grows_each_tile",
        "The scale is multiplied by log₂ e in every iteration of the loop over key tiles.",
        ("flagos-ai/FlagGems#424",),
        "tiled",
        (
            (
                "S = Q_i @ K_j.T\n",
                "S = Q_i @ K_j.T\n                Q_i = Q_i * dtype.type(1.44269504)\n",
            ),
        ),
    ),
    Mutant(
        "parts_in_16_bits",
        (
            "Output and log-sum-exp of each part are rounded to the inputs' 16 bits before they "
            "are merged."
        ),
        ("zhuzilin/ring-flash-attention#42",),
        "split",
        (
            ("outputs.append(O_p)", "outputs.append(O_p.astype(q.dtype).astype(dtype))"),
            ("logs.append(lse_p)", "logs.append(lse_p.astype(q.dtype).astype(dtype))"),
        ),
    ),
    Mutant(
        "merge_overflows",
        (
            "Parts are merged with weights exp(log-sum-exp) without subtracting a maximum, so "
            "large scores overflow."
        ),
        ("jzhang38/EasyContext#14", "NVIDIA/TransformerEngine#716"),
        "split",
        (("m = logs.max(axis=0)", "m = np.zeros_like(logs[0])"),),
    ),
    # ----------------------------------------------------------------------------------------------
    # backward
    Mutant(
        "strides_of_dO_ignored",
        "The backward pass reads dO as if it were contiguous.",
        ("Dao-AILab/flash-attention#355",),
        "tiled",
        (("dO = np.ascontiguousarray(do).reshape(-1)", 'dO = do.ravel(order="K")'),),
        part="backward",
    ),
    Mutant(
        "backward_always_causal",
        "The backward pass ignores `causal`: its weights are always those of causal attention.",
        ("triton-lang/triton#4541",),
        "tiled",
        (("shift = N_k - N_q  # as in", "shift, causal = N_k - N_q, True  # not as in"),),
        part="backward",
    ),
    Mutant(
        "dQ_scaled_twice",
        "dQ is multiplied by the scale twice.",
        ("HKUSTDial/flash-sparse-attention#203",),
        "tiled",
        (("dQ_i = dS @ K_j * dtype.type(tau)", "dQ_i = dS @ K_j * dtype.type(tau * tau)"),),
        part="backward",
    ),
    Mutant(
        "D_omitted",
        "Softmax is differentiated without its sum over the row: dS is P ∘ dP.",
        ("HomericIntelligence/Odyssey#2134",),
        "unfused",
        (("dS = P * (dP - D)", "dS = P * dP"),),
        part="backward",
    ),
    Mutant(
        "group_not_summed",
        (
            "dK and dV of a KV head come from the last query head of its group, not from the sum "
            "over all of them."
        ),
        ("marin-community/levanter#449",),
        "tiled",
        (
            (
                "dK[b, n, left : left + cols] += dK_j[:cols]",
                "dK[b, n, left : left + cols] = dK_j[:cols]",
            ),
            (
                "dV[b, n, left : left + cols] += dV_j[:cols]",
                "dV[b, n, left : left + cols] = dV_j[:cols]",
            ),
        ),
        part="backward",
    ),
    Mutant(
        "statistics_uninitialised",
        (
            "The padding rows of the last query tile have garbage, here NaN, as log-sum-exp, which "
            "spoils dK and dV."
        ),
        ("tile-ai/tilelang#2461",),
        "tiled",
        (("L_i = np.full(B_r, np.inf, dtype)", "L_i = np.full(B_r, np.nan, dtype)"),),
        part="backward",
    ),
    Mutant(
        "short_K_not_cleared",
        (
            "In the backward pass, K's last tile has garbage, here NaN, after the last key, and 0 "
            "· NaN reaches dQ."
        ),
        ("Dao-AILab/flash-attention#334", "Dao-AILab/flash-attention#1395"),
        "tiled",
        (
            (
                "np.where(alive, K_tile, 0)",
                "np.where(alive, K_tile, np.where(np.arange(B_c)[:, None] < cols, 0, np.nan))",
            ),
        ),
        part="backward",
    ),
    # ----------------------------------------------------------------------------------------------
    # dropout
    Mutant(
        "dS_from_dropped_P",
        "dS is computed from the weights after dropout.",
        ("aws-neuron/nki-samples#81",),
        "tiled",
        (("dS = P * (dP - D_i[:, None])", "dS = P * Z * (dP - D_i[:, None])"),),
        part="dropout",
    ),
    Mutant(
        "dP_without_dropout",
        "Dropout is not applied to dP, the gradient of the weights.",
        ("aws-neuron/nki-samples#81",),
        "tiled",
        (("dP = dO_i @ V_j.T * Z", "dP = dO_i @ V_j.T"),),
        part="dropout",
    ),
    Mutant(
        "dropout_factor_p",
        "In the backward pass, kept weights are multiplied by p instead of 1/(1 − p).",
        ("NVIDIA/apex#816",),
        "unfused",
        (
            (
                "Z = keep(P.shape, dropout_p, seed) / P.dtype.type(1 - dropout_p)",
                "Z = keep(P.shape, dropout_p, seed) * P.dtype.type(dropout_p)",
            ),
        ),
        part="dropout",
    ),
    Mutant(
        "backward_draws_again",
        (
            "The backward pass drops other weights than the forward pass, since its generator has "
            "another state."
        ),
        ("pytorch/pytorch#190717",),
        "tiled",
        (
            (
                "None if dropout_p == 0 else keep((B, H_q, N_q, N_k), dropout_p, seed)",
                "None if dropout_p == 0 else keep((B, H_q, N_q, N_k), dropout_p, seed ^ 1)",
            ),
        ),
        part="dropout",
    ),
)

"""Bugs of kernels that serve: packed sequences, pages, latents, 8 bits, sinks, soft caps, windows,
merges.

Their author knows the checks, but wrote each bug before any check was run on it.
"""

from flashsim.testing.mutants.mutant import FP8, SERVED, Mutant

SERVING: tuple[Mutant, ...] = (
    # ----------------------------------------------------------------------------------------------
    # merging
    Mutant(
        "empty_parts_merge_to_nan",
        "Two parts without keys, whose log-sum-exps are −∞, merge to NaN: −∞ − (−∞).",
        ("flashinfer-ai/flashinfer#4051", "flashinfer-ai/flashinfer#4054"),
        "split",
        (("weights = np.exp(logs - np.where(m == -np.inf, 0, m))", "weights = np.exp(logs - m)"),),
    ),
    Mutant(
        "lse_of_shifted_keys",
        "The keys' mean is subtracted: O stays right, but the log-sum-exp does not.",
        ("ROCm/aiter#3334",),
        "unfused",
        (
            (
                "    S = scores(Q, K, scale)\n    S = np.where(ok, S, -np.inf)\n    V = ",
                "    K = K - K.mean(axis=2, keepdims=True) if K.shape[2] and np.isfinite(K).all() "
                "else K\n"
                "    S = scores(Q, K, scale)\n    S = np.where(ok, S, -np.inf)\n    V = ",
            ),
        ),
    ),
    Mutant(
        "statistics_before_the_scale",
        "The log-sum-exp's maximum is of scores before the scale.",
        ("NVIDIA/TensorRT-LLM#19112",),
        "unfused",
        (
            (
                "lse = (m + np.log(l))[..., 0]",
                (
                    "lse = (m / Q.dtype.type((1 / math.sqrt(q.shape[-1]) if scale is None else "
                    "scale) or 1) + np.log(l))[..., 0]"
                ),
            ),
        ),
    ),
    Mutant(
        "lse_not_stored",
        "If the keys are split, the merge stores O but not the log-sum-exp, which stays 0.",
        ("flashinfer-ai/flashinfer#50",),
        "served",
        (
            (
                "    return O, m + np.log(total)",
                "    return O, m + np.log(total) if len(logs) < 3 else 0 * m",
            ),
        ),
        spec=SERVED,
    ),
    # ----------------------------------------------------------------------------------------------
    # varlen
    Mutant(
        "lse_of_empty_sequence_elsewhere",
        (
            "For a sequence without keys, −∞ is written where a padded layout would have it: in "
            "another sequence's row."
        ),
        ("Dao-AILab/flash-attention#2842", "Dao-AILab/flash-attention#2573"),
        "served",
        (
            (
                "        O[q_rows, h], lse[h, q_rows] = head(q[q_rows, h], load, N_k, d_v, tau, "
                "**of_head(options, h))\n    return "
                'O.astype(q.dtype), lse\n\n\n@np.errstate(all="ignore")\ndef paged',
                "        result = head(q[q_rows, h], load, N_k, d_v, tau, **of_head(options, h))\n"
                "        O[q_rows, h], lse[h, q_rows] = result\n"
                "        if N_k == 0 and q_rows.stop > q_rows.start:\n"
                "            lse.reshape(-1)[min((s * H_q + h) * max_seqlen_q, lse.size - 1)] = "
                "-np.inf\n"
                '    return O.astype(q.dtype), lse\n\n\n@np.errstate(all="ignore")\ndef paged',
            ),
        ),
        spec=SERVED,
        adapter="varlen",
    ),
    Mutant(
        "single_queries_as_a_batch",
        (
            "If no sequence has two queries, the packed queries are taken for a batch, but some "
            "sequences have no query."
        ),
        ("Dao-AILab/flash-attention#1537", "Dao-AILab/flash-attention#1619"),
        "served",
        (
            (
                (
                    "    for s, h in np.ndindex(len(cu_seqlens_q) - 1, H_q):\n        n = h // "
                    "(H_q // H_kv)\n"
                ),
                "    if max_seqlen_q == 1:\n        q.reshape(len(cu_seqlens_q) - 1, -1, H_q, "
                "d)[:, 0]\n"
                "    for s, h in np.ndindex(len(cu_seqlens_q) - 1, H_q):\n        n = h // (H_q // "
                "H_kv)\n",
            ),
        ),
        spec=SERVED,
        adapter="varlen",
    ),
    Mutant(
        "empty_sequences_not_written",
        (
            "The output of a sequence without keys is not written, so it keeps what was in memory, "
            "NaN."
        ),
        ("Dao-AILab/flash-attention#2562", "Dao-AILab/flash-attention#2568"),
        "served",
        (
            (
                "        N_k = int(k_rows.stop - k_rows.start)\n",
                "        N_k = int(k_rows.stop - k_rows.start)\n"
                "        if N_k == 0:\n            O[q_rows, h] = np.nan\n            continue\n",
            ),
        ),
        spec=SERVED,
        adapter="varlen",
    ),
    Mutant(
        "next_sequence_s_values",
        "A sequence's last tile holds values of the next one with weight 0, and 0 · NaN is NaN.",
        ("flashinfer-ai/flashinfer#941",),
        "served",
        (("V_j = np.where(np.any(ok, axis=0)[:, None], V_j, 0)  # 0", "V_j = V_j  # 0"),),
        spec=SERVED,
        adapter="varlen",
    ),
    # ----------------------------------------------------------------------------------------------
    # pages
    Mutant(
        "nan_in_a_page_s_tail",
        "Values in the unused rows of a sequence's last page have weight 0, and 0 · NaN is NaN.",
        ("vllm-project/vllm#936", "flashinfer-ai/flashinfer#941"),
        "served",
        (("V_j = np.where(np.any(ok, axis=0)[:, None], V_j, 0)  # 0", "V_j = V_j  # 0"),),
        spec=SERVED,
        adapter="paged",
    ),
    Mutant(
        "unmapped_pages_read",
        "One tile too many is loaded, and the table's unused entry −1 is taken for page 0.",
        ("microsoft/onnxruntime#32391",),
        "served",
        (
            ("page = block_table[s, j]", "page = max(block_table[s, j], 0)"),
            (
                "-(-min(start + PART, N_k) // B_c)):",
                "-(-min(start + PART, N_k) // B_c) + (start + PART >= N_k)):",
            ),
            (
                "V_j = np.where(np.any(ok, axis=0)[:, None], V_j, 0)  # 0",
                "V_j = np.where(np.any(ok, axis=0)[:, None] | (j >= -(-N_k // B_c)), V_j, 0)  # 0",
            ),
        ),
        spec=SERVED,
        adapter="paged",
    ),
    Mutant(
        "pages_of_the_pool",
        "The table is read as if its rows were as wide as the pool has pages per sequence.",
        ("NVIDIA/cutlass#2221",),
        "served",
        (
            (
                "page = block_table[s, j]",
                "page = block_table.reshape(-1)[s * (len(k_cache) // B) + j]",
            ),
        ),
        spec=SERVED,
        adapter="paged",
    ),
    Mutant(
        "pool_as_contiguous",
        "Only a sequence's first page is looked up, as if the others followed it in memory.",
        ("tanishqkumar/ssd#23",),
        "served",
        (("page = block_table[s, j]", "page = min(block_table[s, 0] + j, len(k_cache) - 1)"),),
        spec=SERVED,
        adapter="paged",
    ),
    Mutant(
        "lse_of_packed_rows_transposed",
        (
            "Decoding packs a group's heads as rows. If keys are split, the log-sum-exp is stored "
            "in that order."
        ),
        ("vllm-project/flash-attention#87",),
        "served",
        (
            (
                "head(q[s, :, h], load, N_k, d_v, tau, **of_head(options, h))\n    return "
                'O.astype(q.dtype), lse\n\n\n@np.errstate(all="ignore")\ndef mla',
                "head(q[s, :, h], load, N_k, d_v, tau, **of_head(options, h))\n"
                "    if N_q == 1 and cache_seqlens.max() > PART:\n"
                "        lse = lse.reshape(B, H_kv, H_q // H_kv).swapaxes(1, 2).reshape(B, H_q, "
                "1)\n"
                '    return O.astype(q.dtype), lse\n\n\n@np.errstate(all="ignore")\ndef mla',
            ),
        ),
        spec=SERVED,
        adapter="paged",
    ),
    # ----------------------------------------------------------------------------------------------
    # latents
    Mutant(
        "scale_of_the_latent",
        "The scale is 1/√w, with the absorbed width w, and not 1/√d of the expanded keys.",
        ("ollama/ollama#13893",),
        "served",
        (
            (
                "    tau = scale\n",
                "    tau = q.shape[-1] ** -0.5\n",
            ),
        ),
        spec=SERVED,
        adapter="mla",
    ),
    # ----------------------------------------------------------------------------------------------
    # 8 bits
    Mutant(
        "lazy_maximum_saturates",
        (
            "The maximum may lag, so weights reach 2^(8 + 4) and saturate at 448, but their sum "
            "does not."
        ),
        ("Dao-AILab/flash-attention#2577", "Dao-AILab/flash-attention#2578"),
        "served",
        (("THRESHOLD = 0.75", "THRESHOLD = 4.0"),),
        spec=FP8,
    ),
    Mutant(
        "scales_ignored",
        "Keys and values of 8 bits are not multiplied by their scales.",
        ("flashinfer-ai/flashinfer#4979", "lightseekorg/tokenspeed#759"),
        "served",
        (
            ("S = S * (k_scale[j] if np.ndim(k_scale) else k_scale)", "S = S * 1"),
            ("V_j = V_j * (v_scale[j] if np.ndim(v_scale) else v_scale)", "V_j = V_j * 1"),
        ),
        spec=FP8,
    ),
    Mutant(
        "scales_not_indexed",
        "The scales of the first sequence's first head are used for all.",
        ("vllm-project/vllm#42580", "sgl-project/sgl-kernel-xpu#252"),
        "served",
        (
            ('"k_scale": options["k_descale"][b, n]', '"k_scale": options["k_descale"][0, 0]'),
            ('"v_scale": options["v_descale"][b, n]', '"v_scale": options["v_descale"][0, 0]'),
        ),
        spec=FP8,
    ),
    Mutant(
        "descale_of_values_from_keys",
        "K and V are one row in memory, and V is multiplied by K's scale.",
        ("sgl-project/sglang#34765",),
        "served",
        (('"v_scale": options["v_descale"][b, n]', '"v_scale": options["k_descale"][b, n]'),),
        spec=FP8,
    ),
    # ----------------------------------------------------------------------------------------------
    # sinks
    Mutant(
        "sink_twice_after_an_empty_split",
        (
            "A first split without live keys has the sink as its log-sum-exp, and the next split "
            "starts from the sink as well."
        ),
        ("ROCm/rocm-libraries#12227", "ROCm/rocm-libraries#12229"),
        "served",
        (
            (
                "        total = total + np.exp(sink - finite_m)\n",
                (
                    "        total = total + np.exp(sink - finite_m) * np.where(len(logs) > 2 and "
                    "logs[1] == -np.inf, 2, 1)\n"
                ),
            ),
        ),
        spec=SERVED,
    ),
    Mutant(
        "sink_at_another_scale",
        "The sink is multiplied by log₂ e, as the scores are, but the maximum is not.",
        ("ROCm/rocm-libraries#12227",),
        "served",
        (
            (
                "None if sink is None else chip.type(sink))",
                "None if sink is None else chip.type(sink) * chip.type(1.4427))",
            ),
        ),
        spec=SERVED,
    ),
    Mutant(
        "no_sink_in_backward",
        "The backward pass ignores the sink: its weights are those without it, and dsink is 0.",
        (
            "Dao-AILab/flash-attention#1797",
            "Dao-AILab/flash-attention#1895",
            "Dao-AILab/flash-attention#1973",
        ),
        "served",
        (
            (
                "    O, lse = forward(q, k, v, **options, sink=sink)",
                "    O, lse = forward(q, k, v, **options)",
            ),
            (
                "    return *gradients, -(p_sink * D[..., 0]).sum(axis=(0, 2))",
                "    return *gradients, 0 * (p_sink * D[..., 0]).sum(axis=(0, 2))",
            ),
        ),
        part="backward",
        spec=SERVED,
    ),
    # ----------------------------------------------------------------------------------------------
    # windows and soft caps
    Mutant(
        "window_of_the_last_row",
        "All rows have the last row's window, so drafted tokens before it lose their oldest keys.",
        ("flashinfer-ai/flashinfer#4137", "flashinfer-ai/flashinfer#4229"),
        "served",
        (
            (
                "ok & ((left < 0) | (keys >= position - left))",
                "ok & ((left < 0) | (keys >= position[-1:] - left))",
            ),
        ),
        spec=SERVED,
    ),
    Mutant(
        "window_of_one_more",
        "A window of W keys has W + 1 keys, since the query's own is not counted.",
        ("vllm-project/vllm#3385",),
        "served",
        (
            (
                "ok & ((left < 0) | (keys >= position - left))",
                "ok & ((left < 0) | (keys >= position - left - 1))",
            ),
        ),
        spec=SERVED,
    ),
    Mutant(
        "window_on_both_sides",
        "The window's left side is used for both.",
        ("ModelTC/LightLLM#1311",),
        "served",
        (
            (
                "                left, right = window\n",
                "                left, right = window[0], window[0]\n",
            ),
        ),
        spec=SERVED,
    ),
    Mutant(
        "cap_after_the_mask",
        "The soft cap is applied after the mask, so −∞ becomes −cap, and masked keys have weights.",
        ("Dao-AILab/flash-attention#1025", "unslothai/unsloth#10616", "onnx/onnx#7865"),
        "served",
        (
            (
                (
                    "            S = np.where(ok, S, -np.inf)\n            V_j = "
                    "np.where(np.any(ok, axis=0)[:, None], V_j, 0)  # 0"
                ),
                "            S = np.where(ok, S, -np.inf if softcap is None else -softcap)\n"
                "            S = np.where(keys < N_k, S, -np.inf)\n"
                "            V_j = np.where((keys < N_k)[:, None], V_j, 0)  # 0",
            ),
        ),
        spec=SERVED,
    ),
    Mutant(
        "cap_dropped_in_decode",
        "The path for one query does not cap the scores.",
        ("sgl-project/sgl-kernel-xpu#491",),
        "served",
        (
            (
                "            if softcap is not None:\n                S =",
                "            if softcap is not None and N_q > 1:\n                S =",
            ),
        ),
        spec=SERVED,
    ),
)

"""Bugs that were looked up and written after the kit was frozen (commit 0ea46088). They are not in
`ALL`.
"""

from dataclasses import replace

from flashsim.testing.mutants.mutant import SERVED, Mutant

OUTSIDE: tuple[Mutant, ...] = (
    Mutant(
        "dq_of_other_segments",
        (
            "If the width is not a power of two, dQ includes keys that a query does not attend to. "
            "All else is right."
        ),
        ("fla-org/flash-linear-attention#836",),
        "served",
        (
            (
                "    gradients = (tau * dS @ K).astype(q.dtype)",
                "    all_P = P if d & (d - 1) == 0 else np.exp(S - np.where(lse == -np.inf, "
                "np.inf, lse)[..., None])\n"
                "    wide = all_P * (dO @ V.swapaxes(-1, -2) - D) * slope\n"
                "    gradients = (tau * wide @ K).astype(q.dtype)",
            ),
        ),
        part="backward",
        spec=SERVED,
    ),
    Mutant(
        "sink_not_passed_on",
        (
            "Code for several devices does not pass the sink on: O is computed without it, and "
            "dsink is exactly 0."
        ),
        ("NVIDIA/TransformerEngine#2541",),
        "served",
        (
            ("None if sink is None else chip.type(sink))", "None)"),
            (
                "    return *gradients, -(p_sink * D[..., 0]).sum(axis=(0, 2))",
                "    return *gradients, 0 * (p_sink * D[..., 0]).sum(axis=(0, 2))",
            ),
        ),
        spec=SERVED,
    ),
    Mutant(
        "values_before_the_window",
        (
            "Values of pages before the window are read with weight 0, but such pages may be freed "
            "already and hold NaN."
        ),
        ("vllm-project/vllm#30887",),
        "served",
        (
            (
                "V_j = np.where(np.any(ok, axis=0)[:, None], V_j, 0)  # 0",
                "V_j = np.where((keys < N_k)[:, None], V_j, 0)  # 0",
            ),
        ),
        spec=SERVED,
        adapter="paged",
    ),
    Mutant(
        "splits_outside_the_window_merged",
        (
            "A split outside the window is merged although it is not computed, so that garbage is "
            "merged."
        ),
        ("vllm-project/vllm#47188",),
        "served",
        (
            (
                "        outputs.append(",
                "        if window is not None and not l.any():\n"
                "            acc, l, m = np.ones_like(acc), np.ones_like(l), np.zeros_like(m)\n"
                "        outputs.append(",
            ),
        ),
        spec=SERVED,
    ),
    Mutant(
        "splits_of_windows_follow_the_batch",
        (
            "Splits have a fixed size, so that results do not depend on the batch, but with a "
            "window they have not."
        ),
        ("sgl-project/sglang#26412",),
        "served",
        (
            (
                "    chip = chip_dtype(q.dtype)\n    O = np.zeros((B, H_q, N_q, d_v), chip)",
                "    global PART\n    PART = 32 if options.get('window') and B > 1 else 64\n"
                "    chip = chip_dtype(q.dtype)\n    O = np.zeros((B, H_q, N_q, d_v), chip)",
            ),
        ),
        spec=replace(SERVED, batch_invariant=True),
    ),
    # looked up later, to replace threads that no search finds; the kit was the same
    Mutant(
        "window_not_applied_to_the_first_tile",
        (
            "With fewer queries than keys and without a causal mask, the first tile of queries "
            "sees keys left of its window."
        ),
        ("flashinfer-ai/flashinfer#4972",),
        "served",
        (
            (
                "ok = (ok & ((left < 0) | (keys >= position - left)) &",
                "seen = (rows < B_r) & (not causal) & (N_q < N_k)\n"
                "                ok = (ok & ((left < 0) | seen | (keys >= position - left)) &",
            ),
        ),
        spec=SERVED,
        adapter="paged",
    ),
    Mutant(
        "window_by_whole_tiles",
        (
            "The kernel is built without the window's mask: it only skips the tiles before the "
            "first query's window."
        ),
        ("sgl-project/sglang#31501",),
        "served",
        (
            (
                "ok = (ok & ((left < 0) | (keys >= position - left)) &",
                "first = (position[:1] - left) // B_c * B_c\n"
                "                ok = (ok & ((left < 0) | (keys >= first)) &",
            ),
        ),
        spec=SERVED,
        adapter="paged",
    ),
    Mutant(
        "dsink_from_other_rows",
        (
            "For most widths of V, the sink's gradient reads the log-sum-exps as if each head had "
            "whole tiles of rows."
        ),
        ("NVIDIA/TransformerEngine#3249", "NVIDIA/TransformerEngine#3470"),
        "served",
        (
            (
                (
                    "    p_sink = np.exp(sink.astype(chip)[None, :, None] - np.where(lse == "
                    "-np.inf, 0, lse))\n"
                ),
                "    if v.shape[-1] not in (8, 16, 32):\n"
                "        dense = np.arange(B * H_q).reshape(B, H_q, 1) * (-(-N_q // B_r) * B_r) + "
                "np.arange(N_q)\n"
                "        lse = lse.reshape(-1)[dense % lse.size]\n"
                "    p_sink = np.exp(sink.astype(chip)[None, :, None] - np.where(lse == -np.inf, "
                "0, lse))\n",
            ),
        ),
        part="backward",
        spec=SERVED,
    ),
    Mutant(
        "slopes_lost_in_decode",
        (
            "There are as many distances as queries instead of keys, so a single query has "
            "distance 0 to every key."
        ),
        ("keras-team/keras-hub#2862", "keras-team/keras-hub#2861"),
        "served",
        (
            (
                "                S = S - chip.type(slope) * np.abs(position - keys).astype(chip)",
                (
                    "                S = S - chip.type(slope) * np.abs(position - (keys if N_q > 1 "
                    "else position)).astype(chip)"
                ),
            ),
        ),
        spec=SERVED,
    ),
)

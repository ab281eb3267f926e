"""Bugs that the kit was not made from: looked up, and written, after it had been frozen (commit 0ea46088). Not in `ALL`."""

from __future__ import annotations

from dataclasses import replace

from flashsim.testing.mutants.mutant import SERVED, Mutant

OUTSIDE: tuple[Mutant, ...] = (
    Mutant(
        "dq_of_other_segments",
        "Where the width is not a power of two, dQ has terms of keys that a query does not attend to. The rest is right.",
        ("fla-org/flash-linear-attention#836",),
        "served",
        (
            (
                "    three = (tau * dS @ K).astype(q.dtype)",
                "    all_P = P if d & (d - 1) == 0 else np.exp(S - np.where(lse == -np.inf, np.inf, lse)[..., None])\n"
                "    wide = all_P * (dO @ V.swapaxes(-1, -2) - D) * slope\n"
                "    three = (tau * wide @ K).astype(q.dtype)",
            ),
        ),
        part="backward",
        spec=SERVED,
    ),
    Mutant(
        "sink_not_passed_on",
        "A path between devices does not pass the sink on: O is that without it, and dsink is exactly 0.",
        ("NVIDIA/TransformerEngine#2541",),
        "served",
        (
            ("None if sink is None else chip.type(sink))", "None)"),
            (
                "    return *three, -(p_sink * D[..., 0]).sum(axis=(0, 2))",
                "    return *three, 0 * (p_sink * D[..., 0]).sum(axis=(0, 2))",
            ),
        ),
        spec=SERVED,
    ),
    Mutant(
        "values_before_the_window",
        "Values of pages before the window are read, with weight 0: such pages may have been given back, and hold NaN.",
        ("vllm-project/vllm#30887",),
        "served",
        (
            (
                "V_j = np.where(np.any(ok, axis=0)[:, None], V_j, 0)  # 0",
                "V_j = np.where((keys < N_k)[:, None], V_j, 0)  # 0",
            ),
        ),
        spec=SERVED,
        by="paged",
    ),
    Mutant(
        "splits_outside_the_window_merged",
        "A split that lies outside the window is not computed, and is merged nevertheless: it has what was there.",
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
        "The size of a split is fixed, so that a sequence does not depend on its batch; where there is a window it is not.",
        ("sgl-project/sglang#26412",),
        "served",
        (
            (
                "    chip = chip_dtype(q.dtype)\n    O, lse = np.zeros((B, H_q, N_q, d_v), chip)",
                "    global PART\n    PART = 32 if options.get('window') and B > 1 else 64\n"
                "    chip = chip_dtype(q.dtype)\n    O, lse = np.zeros((B, H_q, N_q, d_v), chip)",
            ),
        ),
        spec=replace(SERVED, batch_invariant=True),
    ),
)

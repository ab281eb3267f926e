"""Bugs that were written after the strategies were frozen. Their authors know the strategies, but
wrote each bug before any check ran.
"""

from dataclasses import replace

from flashsim.testing.mutants.mutant import SPEC, Mutant

SINCE: tuple[Mutant, ...] = (
    # the kit found it in a public kernel, so it has no thread
    Mutant(
        "causal_offset_flipped",
        "The causal diagonal is moved by N_q − N_k instead of N_k − N_q.",
        (),
        "tiled",
        (
            ("shift = N_k - N_q  # causal", "shift = N_q - N_k  # causal"),
            ("shift = N_k - N_q  # as in", "shift = N_q - N_k  # as in"),
        ),
    ),
    Mutant(
        "causal_offset_unsigned",
        (
            "The causal offset N_k − N_q is unsigned, so with more queries than keys nothing is "
            "masked."
        ),
        ("pytorch/pytorch#193632",),
        "unfused",
        (("np.arange(N_q)[:, None] + N_k - N_q", "np.arange(N_q)[:, None] + (N_k - N_q) % 2**32"),),
    ),
    Mutant(
        "base_2_parts_merged_as_natural",
        "The log-sum-exps of the parts are in base 2, and are merged as if they were natural.",
        ("sgl-project/sglang#40903", "sgl-project/sglang#35045"),
        "split",
        (("    lse = m + np.log(l)\n", "    lse = (m + np.log(l)) / m.dtype.type(math.log(2))\n"),),
    ),
    Mutant(
        "lse_in_base_2",
        (
            "The log-sum-exp is returned in base 2, in which it is computed, but callers expect a "
            "natural logarithm."
        ),
        ("flashinfer-ai/flashinfer#2113", "flashinfer-ai/flashinfer#4485"),
        "tiled",
        (("lse_i = m + np.log(l)", "lse_i = (m + np.log(l)) / dtype.type(math.log(2))"),),
    ),
    Mutant(
        "splits_follow_the_batch",
        (
            "The number of parts of the keys depends on the batch, so the batch decides in which "
            "order a sequence is summed."
        ),
        (
            "Dao-AILab/flash-attention#1897",
            "Dao-AILab/flash-attention#2450",
            "vllm-project/vllm#58131",
        ),
        "split",
        # each sequence is computed alone, as NumPy itself sums in another order where an axis has
        # length 1
        (
            ("seed: int = 0,\n) -> tuple", "seed: int = 0, batch: int = 0,\n) -> tuple"),
            (
                "    group = H_q // H_kv\n",
                "    group = H_q // H_kv\n"
                "    if not batch and dropout_p == 0:\n"
                "        masks = [None] * B if mask is None else np.broadcast_to(mask, (B, H_q, "
                "N_q, N_k))[:, None]\n"
                "        alone = [forward(*(a[b : b + 1].copy() for a in (q, k, v)), "
                "causal=causal, scale=scale, mask=masks[b],\n"
                "                         batch=B) for b in range(B)]\n"
                "        return np.concatenate([O for O, _ in alone]), np.concatenate([lse for _, "
                "lse in alone])\n",
            ),
            (
                (
                    "    for start in range(0, N_k, PART):\n        keys = np.arange(start, "
                    "min(start + PART, N_k))\n"
                ),
                "    splits = max(1, min(-(-N_k // PART), 8 // (max(batch, B) * H_kv)))  # of 8 "
                "multiprocessors\n"
                "    part = max(1, -(-N_k // splits))\n"
                "    for start in range(0, N_k, part):\n        keys = np.arange(start, min(start "
                "+ part, N_k))\n",
            ),
        ),
        spec=replace(SPEC, batch_invariant=True),
    ),
    Mutant(
        "tiles_follow_the_batch",
        (
            "The width of a tile depends on the batch, so the batch decides in which order a "
            "sequence is summed."
        ),
        ("vllm-project/vllm#51902", "flashinfer-ai/flashinfer#2424"),
        "tiled",
        (
            (
                "    shift = N_k - N_q  # causal",
                (
                    "    global B_c\n    B_c = 4 if B * H_q < 4 else 8\n    shift = N_k - N_q  # "
                    "causal"
                ),
            ),
        ),
        spec=replace(SPEC, batch_invariant=True),
    ),
)

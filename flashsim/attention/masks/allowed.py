"""How many pairs of query and key a mask allows."""

from __future__ import annotations

import numpy as np

from flashsim.attention.masks.rules import All, Causal, Head, Mask
from flashsim.attention.shapes import Shape

LONGEST = 2**26  # rows, or pairs of a mask that is not a band, that are looked at one by one


def allowed_pairs(rule: Mask, shape: Shape, head: Head = ()) -> tuple[str, int, int, int]:
    """Return what is allowed, "all", "causal" or "given"; how many pairs; how many queries and how
    many keys have any.

    They are those of one head, where heads have masks of their own.

    Raises ValueError for a mask that would have to be looked at pair by pair where these are too
    many.
    """
    N_q = shape.N_q
    N_k = shape.N_k
    if isinstance(rule, All):
        return "all", N_q * N_k, N_q, N_k
    if rule == Causal():
        rows = min(N_q, N_k)
        return "causal", rows * N_k - rows * (rows - 1) // 2, rows, N_k
    band = rule.band(shape, head)
    is_exact = band is not None and band.is_exact
    if N_q + N_k > LONGEST or (not is_exact and N_q * N_k > LONGEST):
        raise ValueError(
            f"mask is {rule!r} on N_q = {N_q:,}, N_k = {N_k:,}: too many to look at each; expected "
            "no mask, "
            "causal, or shorter lengths"
        )
    if band is None or not is_exact:
        allowed = rule.whole(shape, head)
        return "given", int(allowed.sum()), int(allowed.any(1).sum()), int(allowed.any(0).sum())
    diagonal = np.arange(N_q) + N_k - N_q
    first = (
        np.zeros_like(diagonal)
        if band.left is None
        else np.clip(diagonal - band.left, 0, band.keys)
    )
    end = (
        np.full_like(diagonal, band.keys)
        if band.right is None
        else np.clip(diagonal + band.right + 1, 0, band.keys)
    )
    end = np.maximum(first, end)
    if band.queries is not None:
        end[band.queries :] = first[band.queries :]
    # beyond the rows before
    new = end - np.maximum(first, np.maximum.accumulate(np.append(0, end[:-1])))
    return (
        "given",
        int((end - first).sum()),
        int(np.count_nonzero(end > first)),
        int(np.maximum(new, 0).sum()),
    )

"""What the backward kernel on Hopper moves."""

from typing import Any

import numpy as np

from flashsim.gpu import hopper_backward


def counted_backward(shape: tuple[int, ...], live: Any) -> dict[str, tuple[int, int]]:
    """Return what the kernel moves of a problem's tiles (T_r, T_c) that are live, (reads,
    writes) by array.
    """
    B, H, H_kv, N_q, N_k, d = shape
    B_r, B_c = hopper_backward.choose_blocks(d)
    rows = np.minimum(B_r, N_q - np.arange(0, N_q, B_r))
    keys = np.minimum(B_c, N_k - np.arange(0, N_k, B_c))
    often = B * H * int((rows @ live).sum())
    events = B * H * int(rows @ live.any(axis=1))
    keys_seen = B * H_kv * int(live.any(axis=0) @ keys) * d
    all_rows = B * H * N_q
    all_keys = B * H_kv * N_k * d
    return {
        "Q": (often * d, 0),
        "K": (keys_seen, 0),
        "V": (keys_seen, 0),
        "O": (all_rows * d, 0),
        "dO": ((often + all_rows) * d, 0),
        "L": (often + all_rows, all_rows),
        "D": (often, all_rows),
        "dQ": ((often + events) * d, (all_rows + often + events) * d),
        "dK": (0, all_keys),
        "dV": (0, all_keys),
    }

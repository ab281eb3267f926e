"""What the paper measured, in its Figure 2 (left). These numbers are not theory: ours are
compared with them.
"""

from typing import Any

FIGURE_2: dict[str, Any] = {
    "source": (
        "FlashAttention, arXiv:2205.14135, Figure 2 (left): GPT-2 medium, forward + backward, "
        "measured on an A100"
    ),
    "standard": {"GFLOPs": 66.6, "GB": 40.3, "ms": 41.7},
    "flash": {"GFLOPs": 75.2, "GB": 4.4, "ms": 7.3},
}
FACTOR = FIGURE_2["standard"]["GB"] / FIGURE_2["flash"]["GB"]
A100_M = 192 * 1024 // 2
"""Elements of float16 that an A100's multiprocessor has room for."""

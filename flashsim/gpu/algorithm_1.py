"""Algorithm 1 on a GPU: launches kernels/algorithm_1.cu."""

from __future__ import annotations

from typing import Any

from flashsim.gpu.algorithm_2 import shared_bytes
from flashsim.gpu.compiling import import_cupy
from flashsim.gpu.kernel import Kernel, Options, Variant
from flashsim.gpu.launching import ELEMENTS, HEAD_DIMS, check_blocks, launch, problem, variants

FILE = "algorithm_1.cu"
ARRAYS = ("Q", "K", "V", "O", "l", "m")
MEASURED = (16, 32, 64, 128, 256)  # B_c of the paper's Figure 2 (middle), at d = 64


def choose_blocks(d: int, dtype: str, direction: str) -> tuple[int, int]:
    """Return the default (B_r, B_c)."""
    return 64, 64


def forward(q: Any, k: Any, v: Any, o: Any, lse: Any, options: Options) -> None:
    """Fill o and, unless None, lse."""
    cupy = import_cupy()
    B, H, N_q, d = q.shape
    B_r, B_c = options.blocks or choose_blocks(d, q.dtype.name, "forward")
    shared = shared_bytes(d, B_r, B_c)
    check_blocks("algorithm_1", (B_r, B_c), shared)
    l = cupy.empty((B, H, N_q), "float32")
    m = cupy.empty((B, H, N_q), "float32")
    function = f"algorithm_1<{ELEMENTS[q.dtype.name]}, {d}, {B_r}, {B_c}>"
    launch(
        FILE,
        function,
        B * H,
        shared,
        (q, k, v, o, l, m, problem(q, k, v, options)),
        ARRAYS,
        options,
    )
    if lse is not None:
        cupy.add(m, cupy.log(l), out=lse)  # −∞ for rows without keys


KERNEL = Kernel(
    name="algorithm_1",
    about="Algorithm 1 as printed, one block of threads per head",
    short="Algorithm 1",
    look=("sky", "o", "-"),
    rung=1,
    fastest_in=(),
    model="flash_basic",
    longest=2048,
    dtypes=tuple(ELEMENTS),
    head_dims=HEAD_DIMS,
    variants=(
        *variants(FILE, "algorithm_1", ("",), dims=[(d, 64, 64) for d in HEAD_DIMS]),
        *(
            Variant(
                FILE,
                (("COUNT", count),),
                tuple(f"algorithm_1<float, 64, 64, {B_c}>" for B_c in MEASURED),
                ("sm_90a",),
            )
            for count in (0, 1)
        ),
    ),
    forward=forward,
    takes=("blocks", "count"),
    choose_blocks=choose_blocks,
)

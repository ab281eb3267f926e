"""What a rung of the ladder is: a `Kernel`. Each rung's file ends in its record, KERNEL; `ladder` collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashsim.gpu.counters import Counters


@dataclass(frozen=True)
class Options:
    """What is asked besides the arrays, checked.

    scale      softmax scale τ
    causal     key j is attended to if j ≤ i + N_k − N_q
    dropout_p, seed  as in `flashsim.forward`
    mask       None, or booleans (B, H_q, N_q, N_k), True = attend, with any strides: 0 along axes that broadcast
    window     None, or (left, right) of a `flashsim.SlidingWindow`; then `causal` is False
    block_mask None, or booleans (T_r, T_c) in NumPy, True = computed, or a function of (T_r, T_c) that returns them
    blocks     (B_r, B_c), or None: the kernel's own
    deterministic  the same bits in every run, where the kernel can choose
    counters   where a counting build adds what it moves, or None: not counted
    """

    scale: float
    causal: bool = False
    dropout_p: float = 0.0
    seed: int = 0
    mask: Any = None
    window: tuple[int, int] | None = None
    block_mask: Any = None
    blocks: tuple[int, int] | None = None
    deterministic: bool = False
    counters: Counters | None = None


@dataclass(frozen=True)
class Variant:
    """One compilation that the tests make for every architecture in `architectures`: a file, its defines, its functions."""

    file: str
    defines: tuple[tuple[str, str | int], ...]
    functions: tuple[str, ...]
    architectures: tuple[str, ...] = ("sm_80", "sm_90a")


MOST = 9  # functions in one of Hopper's variants: they take some 20 seconds


def hopper_variants(file: str, functions: Callable[[str, bool], Iterable[str]]) -> tuple[Variant, ...]:
    """Return float16's, and a third of bfloat16's and of what counts, for Hopper: `functions` of a dtype and whether it counts.

    A third of them, as listed, has every width and every kind of mask: what only bfloat16 has, or only counting. And the first
    of each function. More than MOST are shared out among variants, each of which has all functions: what one alone uses would
    be of no use in a build without it.
    """
    found = []
    for dtype, count, first in (("float16", 0, None), ("bfloat16", 0, 2), ("float16", 1, 1)):
        listed = [*dict.fromkeys(functions(dtype, bool(count)))]
        firsts = {name.partition("<")[0]: name for name in reversed(listed)}
        some = [name for at, name in enumerate(listed) if first in (None, at % 3) or name in firsts.values()]
        parts = -(-len(some) // MOST)
        for part in (some[at::parts] for at in range(parts)):
            there = {name.partition("<")[0] for name in part}
            lacking = (name for function, name in firsts.items() if function not in there)
            found.append(Variant(file, (("COUNT", count),), (*part, *lacking), ("sm_90a",)))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A rung.

    name, about  as in `flashsim.gpu.forward(kernel=name)`, and a line on it
    short, look  its name in pictures, and the colour, marker and dashes of its curve there
    rung         its place on the ladder, from 0: the higher, the faster
    fastest_in   the directions in which `flashsim.gpu.plan` may choose it
    model        the algorithm of the simulator that it is: counts and bounds on rounding are that one's
    tensor_cores whether its products are tensor cores' of its own, which round P̃ and dS to the inputs' type
    longest      the N up to which a benchmark has it take part, if nobody asks for it by name; None: any
    dtypes       "float16", "bfloat16", "float32", or "float8_e4m3fn", of those that it takes
    output       the dtype of what it returns, or None: the inputs'
    head_dims    widths d of Q, K and V that it takes
    takes        what else it takes, by the names of `flashsim.gpu.forward`'s parameters; and "window", a mask that is one
    forward_only what of these the backward pass does not take
    not_backward what else of these the backward pass does not take, by d
    not_together pairs of these of which it takes one at a time; and such pairs that the backward pass does not take
    variants     what the tests compile
    aligned      whether rows must start at multiples of 16 bytes
    keys_contiguous  of what N_k must be a multiple for V's keys to have stride 1, in place of its columns; 0: they may not
    choose_blocks (d, dtype, direction) -> (B_r, B_c) that it takes by itself, or None where it has no such sizes
    why_not      (capability, d) -> why a GPU of this compute capability, "90", cannot run it, or ""
    unsuited     (q's shape, k's) -> why arrays of these shapes are not for it, or ""
    forward      (q, k, v, o, lse, options): fills o (B, H_q, N_q, d) and, unless None, lse (B, H_q, N_q), float32
    backward     (q, k, v, o, lse, do, dq, dk, dv, options): fills dq, dk, dv, shaped as q, k, v; or None
    prepare      (device, q, k, v, whether lse is wanted, options) -> a `launching.Prepared` that does as `forward` for arrays
                 of these shapes, strides and dtypes, or None; it looks at no more of an array. Or None
    prepare_backward  (device, q, k, v, do, options) -> likewise one that does as `backward`, or None; or None

    Arrays are CuPy's, checked, on the current device; inputs have unit last stride, V perhaps as `keys_contiguous` says, and
    otherwise any strides; what is to be filled, and o and lse in the backward pass, are contiguous. Bfloat16 is ml_dtypes'
    type: `q.dtype.name` is "bfloat16". Launches go to the current stream.
    """

    name: str
    about: str
    short: str
    look: tuple[str, str, str]
    rung: int
    fastest_in: tuple[str, ...]
    model: str
    dtypes: tuple[str, ...]
    head_dims: tuple[int, ...]
    variants: tuple[Variant, ...]
    forward: Callable[..., None]
    backward: Callable[..., None] | None = None
    prepare: Callable[..., Any] | None = None
    prepare_backward: Callable[..., Any] | None = None
    tensor_cores: bool = False
    output: str | None = None
    longest: int | None = None
    takes: tuple[str, ...] = ("causal",)
    forward_only: tuple[str, ...] = ()
    not_together: tuple[tuple[str, str], ...] = ()
    not_together_backward: tuple[tuple[str, str], ...] = ()
    not_backward: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    aligned: bool = False
    keys_contiguous: int = 0
    choose_blocks: Callable[[int, str, str], tuple[int, int]] | None = None
    why_not: Callable[[str, int], str] | None = None
    unsuited: Callable[[tuple[int, ...], tuple[int, ...]], str] | None = None

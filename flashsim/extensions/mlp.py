"""A block-sparse MLP, Y = relu(X W1) W2, whose hidden layer stays on chip, or goes through HBM.

run = flashsim.mlp.run(X, W1, W2)                        # run.Y, run.hbm, run.sram
# cost, by shapes alone; .exact(…) by formula
flashsim.mlp.count(N=2048, d=1024, f=4096)
flashsim.mlp.run(X, W1, W2, flashsim.patterns.butterfly, fused=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashsim.attention.arguments import check_choice, check_flag, short_repr
from flashsim.attention.options import check_how
from flashsim.extensions.parts.mlp import check_live
from flashsim.extensions.programs import programs
from flashsim.memory.sram import Observer
from flashsim.simulate.matrices import count_program, run_program
from flashsim.simulate.results import Result
from flashsim.support.sizes import Size
from flashsim.theory.closed_form import Exact
from flashsim.theory.matrices import exact_program

TILES = {"rows": "sparse_mlp_unfused", "square": "sparse_mlp_square"}
HOW = ("M", "blocks", "enforce", "dtype")
"""What `count` and `exact` take besides lengths."""


def run(
    X: Any,
    W1: Any,
    W2: Any,
    mask1: Any = None,
    mask2: Any = None,
    *,
    fused: bool = True,
    tiles: str = "rows",
    M: Size | None = None,
    blocks: tuple[int, int, int, int] | None = None,
    enforce: bool | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Return Y = relu(X W1) W2, (N, o), of X (N, d), W1 (d, f) and W2 (f, o) as `run.Y`, with what
    it cost.

    mask1, mask2  which blocks of W1 and W2 are live, the others count as zeros, whatever they hold:
                  booleans (T_d, T_f) and (T_f, T_o), for which `blocks` must be given; a function
                  of these numbers; None: all
    fused         whether the hidden layer H = relu(X W1) stays on chip. Else it goes through HBM,
                  and
    tiles         each product comes in "rows" of full width, d and o, or in "square" tiles
    blocks        (B_r, B_d, B_f, B_o), rows of X, and those that divide d, f and o; None: as many
                  rows as fit M
    M, enforce, observers  as in `flashsim.forward`

    Raises ValueError for arguments that make no sense, masks of the wrong shape included;
    SramOverflow.
    """
    program, options = _plan_arguments(fused, tiles, mask1, mask2, blocks)
    return run_program(
        program,
        {"X": X, "W1": W1, "W2": W2},
        M=M,
        blocks=blocks,
        enforce=enforce,
        options=options,
        observers=observers,
    )


def count(
    *,
    N: int,
    d: int,
    f: int,
    o: int | None = None,
    mask1: Any = None,
    mask2: Any = None,
    fused: bool = True,
    tiles: str = "rows",
    **how: Any,
) -> Result:
    """Count what `run` would move, on shapes alone; `o` is d by default.

    The rest is `flashsim.simulate.matrices.count_program`'s: M, blocks, enforce, dtype, observers.
    """
    check_how(count, how, (*HOW, "observers"))
    program, options = _plan_arguments(fused, tiles, mask1, mask2, how.get("blocks"))
    return count_program(
        program, {"N": N, "d": d, "f": f, "o": d if o is None else o}, options=options, **how
    )


def exact(
    *,
    N: int,
    d: int,
    f: int,
    o: int | None = None,
    mask1: Any = None,
    mask2: Any = None,
    fused: bool = True,
    tiles: str = "rows",
    **how: Any,
) -> Exact:
    """Return the same by formula, with which `count` agrees by `==`."""
    check_how(exact, how, HOW)
    program, options = _plan_arguments(fused, tiles, mask1, mask2, how.get("blocks"))
    return exact_program(
        program.name, {"N": N, "d": d, "f": f, "o": d if o is None else o}, options=options, **how
    )


def _plan_arguments(
    fused: Any, tiles: Any, mask1: Any, mask2: Any, blocks: Any
) -> tuple[Any, dict[str, Any]]:
    check_choice("tiles", tiles, TILES)
    if check_flag("fused", fused) and tiles != "rows":
        raise ValueError(
            f"tiles is {tiles!r}, fused is True; expected fused=False, as only rows of full width "
            "can be fused"
        )
    options = {"mask1": mask1, "mask2": mask2}
    for name, mask in options.items():
        if mask is None or callable(mask):
            continue
        options[name] = check_live(name, mask)
        if blocks is None:
            raise ValueError(
                f"blocks is None, {name} is {short_repr(mask)}; expected (B_r, B_d, B_f, B_o), "
                "of which blocks it is"
            )
    return programs()["sparse_mlp_fused" if fused else TILES[tiles]], options

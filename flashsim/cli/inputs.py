"""What one run is of, for `step` and `debug`: a head of the user's, or random operands; block
sizes, M and parts.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flashsim.algorithms import Algorithm
from flashsim.algorithms.blocks import Fixed
from flashsim.algorithms.own import forward_of
from flashsim.cli.shared import add, add_declared, declared_in, masks_in
from flashsim.cli.values import elements

N = 12
D = 4


def add_inputs(parser: Any) -> None:
    """Add the options that say what a run is of."""
    add(parser, "--N", help=f"sequence length of random Q, K, V. Default: {N}")
    add(parser, "--N-k", help="number of keys, if not that of the queries")
    add(parser, "--d", required=False, help=f"head dimension of random Q, K, V. Default: {D}")
    add(parser, "--qkv", help="run on these Q, K, V, as in `flashsim run`")
    add(parser, "--head", help="the head of --qkv, an index into the leading axes")
    add(
        parser,
        "--blocks",
        help="block sizes. Default: with --M, what --sizing chooses; without, a quarter of the keys",  # noqa: E501
    )
    add(
        parser,
        "--M",
        help=(
            "SRAM: elements (96), or bytes of the dtype (2KB). Default: as much as line 1 or the "
            "blocks need"
        ),
    )
    add(parser, "--sizing", "--causal", "--offset", "--sink", "--dropout")
    add_declared(parser)
    add(parser, "--seed", help="seed of random operands and of dropout. Default: 0")


def operands(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return Q (N_q, d), K (N_k, d), V (N_k, d_v): a head of --qkv, or random. Raises
    ValueError.
    """
    from flashsim.attention import qkv
    from flashsim.tracing import sample

    if options.qkv:
        if options.N is not None or options.d is not None or options.N_k is not None:
            raise ValueError("--N, --N-k and --d are for random inputs; --qkv has sizes of its own")
        given = qkv.load_qkv(options.qkv).head(options.head)
        if given.heads > 1:
            raise ValueError(
                f"{given.source} has heads {given.Q.shape[:-2]}; expected one: give --head"
            )

        return tuple(array.reshape(array.shape[-2:]) for array in (given.Q, given.K, given.V))  # type: ignore[return-value]
    if options.head is not None:
        raise ValueError("--head goes with --qkv")
    return sample.operands(options.N or N, options.d or D, options.N_k, options.seed)


def gradient(options: argparse.Namespace, Q: Any, V: Any) -> Any:
    """Return a random dO (N_q, d_v)."""
    from flashsim.tracing import sample

    return sample.gradient(Q.shape[0], V.shape[1], options.seed).astype(Q.dtype)


def arguments(
    options: argparse.Namespace, Q: Any, K: Any, V: Any, algorithms: Sequence[Algorithm]
) -> dict[str, Any]:
    """Return what `flashsim.forward` takes besides the operands, for all of these passes, which
    have one M.

    Without --M, M is what line 1 says for the largest block, or what the blocks need in a run, if
    that is more. If that run fails, M is not enforced, so that the failure can be watched. Raises
    ValueError for sizes that make no sense.
    """
    from flashsim.analysis.verify.comparison import sized_for_both

    fixed = Fixed(*options.blocks) if options.blocks else None
    asked: dict[str, Any] = {
        **masks_in(options),
        "dropout_p": options.dropout_p,
        "seed": options.seed,
    }
    asked |= {**declared_in(options), "sizing": fixed or options.sizing}
    if options.M is not None:
        asked["M"] = elements(options.M, Q.dtype.itemsize)
    else:
        rows = max(options.blocks) if options.blocks else max(-(-K.shape[0] // 4), 1)
        # of which a block of `rows` rows is line 1's
        on_paper = 2 * (Q.shape[1] + V.shape[1]) * rows
        loose = asked | {
            "M": on_paper,
            "sizing": replace(fixed, enforced=False) if fixed else "paper",
        }
        if asked["sizing"] == "paper":
            return loose
        try:
            needed = max(_peak(algorithm, options, (Q, K, V), loose) for algorithm in algorithms)
        except Exception:
            return loose
        asked["M"] = max(on_paper, needed)
    for algorithm in algorithms:
        if algorithm.direction == "backward":
            asked = sized_for_both(algorithm, Q, K, V, asked)
    return asked


def _peak(
    algorithm: Algorithm,
    options: argparse.Namespace,
    given: tuple[Any, Any, Any],
    asked: dict[str, Any],
) -> int:
    from flashsim.simulate.api import backward, forward

    run = forward(forward_of(algorithm), *given, **taken_by(algorithm, options, asked))
    if algorithm.direction == "forward":
        return run.sram.peak
    return max(
        run.sram.peak, backward(algorithm, run, gradient(options, given[0], given[2])).sram.peak
    )


def taken_by(
    algorithm: Algorithm, options: argparse.Namespace, asked: dict[str, Any]
) -> dict[str, Any]:
    """Return what was asked without the options that another algorithm declares, where two run
    side by side.
    """
    if not getattr(options, "vs", None):
        return asked
    whose = {option.name for option in forward_of(algorithm).options}
    return {
        name: value
        for name, value in asked.items()
        if name in whose or name not in declared_in(options)
    }

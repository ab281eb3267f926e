"""The inputs of one run, for `step` and `debug`: a head of a user's file, or random operands; block
sizes, M and options.
"""

import argparse
from bdb import BdbQuit
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flashsim.algorithms import Algorithm
from flashsim.algorithms.blocks import Fixed
from flashsim.algorithms.own import forward_of
from flashsim.cli.parser import Parser
from flashsim.cli.shared import (
    add_declared,
    algorithm_options,
    mask_arguments,
    mask_of_file,
    one_sink,
)
from flashsim.cli.values import elements
from flashsim.support.sizes import ceil_div

N = 12
D = 4


def add_inputs(parser: Parser) -> None:
    """Add the options of a run's inputs."""
    parser.add("--N", help=f"sequence length of random Q, K, V. Default: {N}")
    parser.add("--N-k", help="number of keys, if not that of the queries")
    parser.add("--d", required=False, help=f"head dimension of random Q, K, V. Default: {D}")
    parser.add("--qkv", help="run on these Q, K, V, as in `flashsim run`")
    parser.add("--head", help="the head of --qkv, an index into the leading axes")
    parser.add(
        "--blocks",
        help="block sizes. Default: with --M, what --sizing chooses; without, a quarter of the keys",  # noqa: E501
    )
    parser.add(
        "--M",
        help=(
            "SRAM: elements (96), or bytes of the dtype (2KB). Default: as much as line 1 or the "
            "blocks need"
        ),
    )
    parser.add("--no-enforce", "--sizing", "--causal", "--offset", "--mask")
    parser.add("--sink", "--dropout")
    add_declared(parser)
    parser.add("--seed", help="seed of random operands and of dropout. Default: 0")


def operands(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return Q (N_q, d), K (N_k, d), V (N_k, d_v): a head of --qkv, or random. Raises
    ValueError.
    """
    from flashsim.attention import qkv
    from flashsim.tracing import sample

    if options.qkv:
        if options.N is not None or options.d is not None or options.N_k is not None:
            raise ValueError("--N, --N-k and --d are for random inputs; --qkv has sizes of its own")
        loaded = qkv.load_qkv(options.qkv).head(options.head)
        if loaded.heads > 1:
            raise ValueError(
                f"{loaded.source} has heads {loaded.Q.shape[:-2]}; expected one: give --head"
            )
        Q = loaded.Q.reshape(loaded.Q.shape[-2:])
        K = loaded.K.reshape(loaded.K.shape[-2:])
        V = loaded.V.reshape(loaded.V.shape[-2:])
        return Q, K, V
    if options.head is not None:
        raise ValueError("--head goes with --qkv")
    return sample.operands(options.N or N, options.d or D, options.N_k, options.seed)


def gradient(options: argparse.Namespace, Q: Any, V: Any) -> Any:
    """Return a random dO (N_q, d_v)."""
    from flashsim.tracing import sample

    N_q = Q.shape[0]
    d_v = V.shape[1]
    return sample.gradient(N_q, d_v, options.seed).astype(Q.dtype)


def arguments(
    options: argparse.Namespace, Q: Any, K: Any, V: Any, algorithms: Sequence[Algorithm]
) -> dict[str, Any]:
    """Return the arguments of `flashsim.forward` besides the operands, for all of these passes,
    which have one M.

    Without --M, M is what line 1 of the paper needs for the largest block, or what the blocks need
    in a run, if that is more. If that run fails, M is not enforced, so that the failure can be
    watched. Raises ValueError for sizes that make no sense.
    """
    from flashsim.analysis.verify.comparison import sized_for_both

    named = [options.named, options.algorithm, options.vs]
    mask = None if options.mask is None else mask_of_file(options.mask)
    call: dict[str, Any] = {
        **mask_arguments(options, sink=one_sink(options), mask=mask),
        "dropout_p": options.dropout_p,
        "seed": options.seed,
        "enforce": options.enforce,
        **algorithm_options(options, named),
        "sizing": Fixed(*options.blocks) if options.blocks else options.sizing,
    }
    if options.M is not None:
        call["M"] = elements(options.M, Q.dtype.itemsize)
    else:
        call = _with_M(options, (Q, K, V), algorithms, call)
        if not _is_enforced(call):
            return call
    for algorithm in algorithms:
        if algorithm.direction == "backward":
            call = sized_for_both(algorithm, Q, K, V, call)
    return call


def _with_M(
    options: argparse.Namespace,
    operands: tuple[Any, Any, Any],
    algorithms: Sequence[Algorithm],
    call: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments with the M that the blocks need; where that is not known, with line
    1's M, which is not enforced.
    """
    Q, K, V = operands
    rows = max(ceil_div(K.shape[0], 4), 1)
    if options.blocks:
        rows = max(options.blocks)
    # of which a block of `rows` rows is line 1's
    on_paper = 2 * (Q.shape[1] + V.shape[1]) * rows
    sizing = call["sizing"]
    loose = {
        **call,
        "M": on_paper,
        "sizing": replace(sizing, enforced=False) if isinstance(sizing, Fixed) else "paper",
    }
    if sizing == "paper":
        return loose
    try:
        peaks = [_peak(algorithm, options, operands, loose) for algorithm in algorithms]
    except BdbQuit:  # the user quits the debugger
        raise
    except Exception:
        return loose
    return {**call, "M": max(on_paper, *peaks)}


def _is_enforced(call: Mapping[str, Any]) -> bool:
    sizing = call["sizing"]
    return sizing.enforced if isinstance(sizing, Fixed) else sizing != "paper"


def _peak(
    algorithm: Algorithm,
    options: argparse.Namespace,
    operands: tuple[Any, Any, Any],
    call: Mapping[str, Any],
) -> int:
    """Return the peak of a run, and of the forward pass before it."""
    from flashsim.simulate.api import backward, forward

    Q, _, V = operands
    run = forward(forward_of(algorithm), *operands, **arguments_for(algorithm, options, call))
    if algorithm.direction == "forward":
        return run.sram.peak
    dO = gradient(options, Q, V)
    return max(run.sram.peak, backward(algorithm, run, dO).sram.peak)


def arguments_for(
    algorithm: Algorithm, options: argparse.Namespace, call: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of one of two algorithms that run side by side: without the options
    that only the other declares.
    """
    if options.vs is None:
        return dict(call)
    theirs = algorithm_options(options, [options.named, options.algorithm, options.vs])
    own = {option.name for option in forward_of(algorithm).options}
    return {name: value for name, value in call.items() if name in own or name not in theirs}

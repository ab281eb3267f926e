"""What one run is of, for `step` and `debug`: a head of the user's, or random operands; block sizes, M and parts."""

from __future__ import annotations

import argparse
from typing import Any

from flashsim.cli.shared import add, add_declared, causal_in, declared_in
from flashsim.cli.values import elements, whole

N, D = 12, 4


def add_inputs(parser: Any) -> None:
    """Add the options that say what a run is of."""
    parser.add_argument(
        "--n", "--N", type=whole(), metavar="N", help=f"sequence length of random Q, K, V. Default: {N}"
    )
    parser.add_argument(
        "--n-k", "--N_k", type=whole(), metavar="N", help="number of keys, where it differs from the queries'"
    )
    add(parser, "--d", required=False, help=f"head dimension of random Q, K, V. Default: {D}")
    add(parser, "--qkv", help="run on these Q, K, V, as in `flashsim run`")
    add(parser, "--head", help="the head of --qkv, an index into the leading axes")
    add(parser, "--blocks", help="block sizes. Default: those of line 1 for M")
    default = "for which line 1 takes blocks as large as --blocks, or a quarter of the keys"
    add(parser, "--M", help=f"SRAM size: elements, or bytes (2KB); with --blocks, enforced. Default: one {default}")
    add(parser, "--causal", "--offset", "--dropout")
    add_declared(parser)
    add(parser, "--seed", help="of random operands, and of dropout. Default: 0")


def operands(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return Q (N_q, d), K (N_k, d), V (N_k, d_v): a head of --qkv, or random. Raises ValueError."""
    from flashsim import qkv
    from flashsim.tracing import sample

    if options.qkv:
        if options.n is not None or options.d is not None or options.n_k is not None:
            raise ValueError("--n, --n-k and --d are for random inputs; --qkv has sizes of its own")
        given = qkv.load_qkv(options.qkv).head(options.head)
        if given.heads > 1:
            raise ValueError(f"{given.source} has heads {given.Q.shape[:-2]}; expected one: give --head")
        return tuple(array.reshape(array.shape[-2:]) for array in (given.Q, given.K, given.V))  # type: ignore[return-value]
    if options.head is not None:
        raise ValueError("--head goes with --qkv")
    return sample.operands(options.n or N, options.d or D, options.n_k, options.seed)


def gradient(options: argparse.Namespace, Q: Any, V: Any) -> Any:
    """Return a random dO (N_q, d_v)."""
    from flashsim.tracing import sample

    return sample.gradient(Q.shape[0], V.shape[1], options.seed).astype(Q.dtype)


def arguments(options: argparse.Namespace, Q: Any, K: Any, V: Any) -> dict[str, Any]:
    """Return what `flashsim.forward` takes besides the operands. Raises ValueError for sizes that make no sense."""
    import flashsim

    width = Q.shape[1] + V.shape[1]
    asked: dict[str, Any] = {**causal_in(options), "dropout_p": options.dropout, "seed": options.seed}
    if options.blocks:
        B_r, B_c = options.blocks
        asked["M"] = 2 * width * max(B_r, B_c)
        asked["sizing"] = flashsim.Fixed(B_r, B_c, enforced=options.M is not None)
    else:
        asked["M"] = 2 * width * max(-(-K.shape[0] // 4), 1)
    asked["M"] = elements(options.M, Q.dtype.itemsize, asked["M"])
    return asked | declared_in(options)

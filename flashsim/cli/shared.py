"""Options that several commands have, each said once, and what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flashsim import patterns
from flashsim.algorithms import Algorithm
from flashsim.algorithms.own import chosen
from flashsim.algorithms.record import Direction
from flashsim.cli.loading import KNOWN, algorithm
from flashsim.cli.values import head, output, probability, seed, size, whole
from flashsim.inputs import FLOATS

BLOCK_MASKS: dict[str, Any] = {
    "butterfly": patterns.butterfly,
    "local": patterns.local,
    "strided": lambda T_r, T_c: patterns.strided(T_r, T_c, max(round(T_c**0.5), 1)),
    "live": "live",
}
NAMES = f"of {', '.join(KNOWN)}; or FILE.py:NAME, yours"

OPTIONS: dict[str, dict[str, Any]] = {
    "--algorithm": {"type": algorithm, "metavar": "NAME", "help": NAMES},
    "--backward": {"action": "store_true"},
    "--blocks": {"nargs": 2, "type": whole(), "metavar": ("B_r", "B_c"), "help": "block sizes; M enforced"},
    "--block-mask": {
        "choices": list(BLOCK_MASKS),
        "help": "for block_sparse: which tiles are computed; live: those that the mask does not forbid whole. Default: all",
    },
    "--causal": {"action": "store_true", "help": "query i attends to keys j ≤ i + N_k − N_q (bottom right)"},
    "--d": {"type": whole(), "required": True, "help": "head dimension"},
    "--d_v": {"type": whole(), "metavar": "D", "help": "width of V, where it differs from d"},
    "--dropout": {"type": probability, "default": 0.0, "metavar": "P", "help": "drop weights with this probability"},
    "--dtype": {"choices": FLOATS, "default": "float32", "help": "for bytes. Default: float32"},
    "--gqa": {
        "choices": ["separate", "grouped"],
        "default": "separate",
        "help": "query heads that share a KV head run separate, each streaming it, or grouped, as one problem. "
        "Default: separate",
    },
    "--head": {"type": head, "metavar": "I[,J…]", "help": "an index into the leading axes"},
    "--json": {"metavar": "FILE", "help": "write the numbers as JSON (- for stdout, and nothing else there)"},
    "--M": {
        "type": size,
        "metavar": "SIZE",
        "help": "SRAM size: elements (25600), or bytes of the dtype (100KB, 1 KB = 1024). Default: 100KB",
    },
    "--merge": {
        "choices": ["sequence", "tree"], "default": "sequence", "help": "for split_kv. Default: sequence"
    },
    "--N": {"type": whole(), "help": "sequence length"},
    "--N_k": {"type": whole(), "metavar": "N", "help": "number of keys"},
    "--N_q": {"type": whole(), "metavar": "N", "help": "number of queries, where it differs from the keys'"},
    "--qkv": {"nargs": "+", "type": Path, "metavar": "FILE"},
    "--quiet": {"action": "store_true", "help": "no progress on stderr"},
    "--seed": {"type": seed, "default": 0},
    "--sizing": {
        "choices": ["paper", "fit"],
        "default": "paper",
        "help": "paper: line 1's blocks, M only reported against; fit: the largest blocks that fit, M enforced",
    },
    "--vs": {"type": algorithm, "metavar": "NAME"},
    "--splits": {
        "type": whole(), "metavar": "T", "help": "for split_kv: cut the keys in so many. Default: by block"
    },
    "--output": {"type": output, "metavar": "STEM", "help": "save STEM.png, .svg, .json"},
}  # fmt: skip
SHORT = {"--output": ["-o"]}
LENGTHS = ("--N", "--N_q", "--N_k", "--d", "--d_v", "--dtype")


def add(parser: Any, *names: str, **changed: Any) -> None:
    """Add options of `OPTIONS` to a parser, in this order; `changed`, for one of them, is what is different here."""
    for name in names:
        parser.add_argument(*SHORT.get(name, ()), name, **{**OPTIONS[name], **changed})


def add_algorithm(parser: Any, default: str = "") -> None:
    """Add the algorithm, as NAME or --algorithm NAME."""
    said = f"{NAMES}." + (f" Default: {default}" if default else "")
    parser.add_argument("named", nargs="?", type=algorithm, metavar="NAME", help=f"the algorithm: {said}")
    add(parser, "--algorithm", help="the same")


def algorithm_in(options: argparse.Namespace, default: str = "") -> Algorithm:
    """Return the pass of the algorithm that was asked for, backward with --backward. Raises ValueError if there is none."""
    direction: Direction = "backward" if options.backward else "forward"
    named = getattr(options, "named", None)
    if named and options.algorithm:
        raise ValueError("an algorithm is given twice: leave out NAME or --algorithm")
    what = named or options.algorithm or default
    if not what:
        raise ValueError(f"an algorithm is missing: expected NAME, {NAMES}")
    return chosen(what, direction)

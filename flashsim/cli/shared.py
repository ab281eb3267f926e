"""Options that several commands have, each said once, and what they mean."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.algorithms import options as declared
from flashsim.algorithms.own import forward_of, resolve
from flashsim.attention.inputs import DEFAULT_DTYPE, FLOATS, float_dtype
from flashsim.attention.masks.rules import Causal
from flashsim.attention.masks.sink import Sink
from flashsim.cli import values
from flashsim.cli.loading import algorithm
from flashsim.cli.values import (
    dtype,
    elements,
    head,
    logits,
    offset,
    output,
    probability,
    seed,
    size,
    whole,
)

NAMES = f"{', '.join(FORWARD)}; or yours, FILE.py:NAME"
BOTH = (
    f"{NAMES}; with --backward also {', '.join(name for name in BACKWARD if name not in FORWARD)}"
)

DEFAULT_ALGORITHM = "flash"
DEFAULT_SIZING = "fit"
"""What commands take by default; the playground, too."""
SIZINGS = (
    "fit: the largest blocks of line 1's shape that fit M; paper: line 1's own, which may need more"
)
FLAG: dict[str, Any] = {"action": "store_true"}
FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
OPTIONS: dict[str, dict[str, Any]] = {
    "--algorithm": {"type": algorithm, "metavar": "NAME", "help": NAMES},
    "--backward": {
        "action": "store_const",
        "dest": "direction",
        "const": "backward",
        "default": "forward",
    },
    "--blocks": {
        "nargs": 2,
        "type": whole(),
        "metavar": ("B_r", "B_c"),
        "help": "these block sizes; M is enforced",
    },
    "--causal": {**FLAG, "help": "causal: query i attends to keys j ≤ i + N_k − N_q"},
    "--d": {"type": whole(), "required": True, "help": "head dimension"},
    "--d-v": {"type": whole(), "metavar": "D", "help": "width of V, if not d"},
    "--dropout": {
        "type": probability,
        "dest": "dropout_p",
        "default": 0.0,
        "metavar": "P",
        "help": "drop weights with this probability. Default: 0",
    },
    "--dtype": {
        "type": dtype,
        "choices": FLOATS,
        "default": DEFAULT_DTYPE,
        "help": f"type of Q, K, V. Default: {DEFAULT_DTYPE}",
    },
    "--gqa": {
        "choices": ["separate", "grouped"],
        "default": "separate",
        "help": (
            "how query heads that share a KV head run: each on its own, or as one problem. "
            "Default: separate"
        ),
    },
    "--heads": {"type": whole(), "metavar": "H", "help": "batch × query heads; the counts add up"},
    "--kv-heads": {
        "type": whole(),
        "metavar": "H",
        "help": "batch × KV heads, where query heads share them",
    },
    "--head": {"type": head, "metavar": "I[,J…]", "help": "an index into the leading axes"},
    "--json": {
        "metavar": "FILE",
        "help": "write the numbers as JSON; -: to stdout, and print nothing else there",
    },
    "--jobs": {"type": whole(), "metavar": "N"},
    "--M": {
        "type": size,
        "metavar": "SIZE",
        "help": (
            "SRAM size: elements (25600), or bytes of the dtype (100KB, 1 KB = 1024 bytes). "
            "Default: 100KB"
        ),
    },
    "--mask": {**FILE, "help": "a .npy file: booleans (..., N_q, N_k), True = attend"},
    "--open": {**FLAG, "help": "open the page in the browser"},
    "--N": {"type": whole(), "dest": "N", "help": "sequence length"},
    "--N-k": {"type": whole(), "metavar": "N", "help": "number of keys"},
    "--N-q": {
        "type": whole(),
        "metavar": "N",
        "help": "number of queries, if not that of the keys",
    },
    "--qkv": {**FILE, "nargs": "+"},
    "--quiet": {**FLAG, "help": "no progress on stderr"},
    "--seed": {"type": seed, "default": 0},
    "--sink": {
        "type": logits,
        "metavar": "S[,S…]",
        "help": (
            "a learnable sink: a key with this logit and value 0, which no mask hides; one number, "
            "or one for each head"
        ),
    },
    "--sizing": {
        "choices": ["fit", "paper"],
        "default": DEFAULT_SIZING,
        "help": f"{SIZINGS}. Default: %(default)s",
    },
    "--vs": {"type": algorithm, "metavar": "NAME"},
    "--offset": {
        "type": offset,
        "metavar": "N",
        "help": (
            "with --causal: query i attends to keys j ≤ i + N; 0: aligned at the top left. "
            "Default: N_k − N_q"
        ),
    },
    "--output": {"type": output, "metavar": "STEM", "help": "save STEM.png, .svg, .json"},
}
SHORT = {"--output": ["-o"]}
# still read, not in --help
OLD = {"--N": ["--n"], "--N-q": ["--N_q"], "--N-k": ["--N_k", "--n-k"], "--d-v": ["--d_v"]}
LENGTHS = ("--N", "--N-q", "--N-k", "--d", "--d-v", "--dtype")


def add(parser: Any, *names: str, **changed: Any) -> None:
    """Add options to a parser, in this order, as in `OPTIONS`; `changed`, for one of them, is
    what is different here, or all.
    """
    for name in names:
        settings = {**OPTIONS.get(name, {}), **changed}
        parser.add_argument(*SHORT.get(name, ()), name, **settings)
        if name in OLD:
            dest = settings.get("dest", name.removeprefix("--").replace("-", "_"))
            read = {key: settings[key] for key in ("type", "nargs") if key in settings}
            parser.add_argument(
                *OLD[name], dest=dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **read
            )


def add_declared(parser: Any, *, many: bool = False) -> None:
    """Add the options that only some algorithms have, from their records; `many`: with several
    values, and ranges.
    """
    for name, whose in declared().items():
        option = whose[0][1]
        said = f"for {', '.join(algorithm for algorithm, _ in whose)}: {option.help}"
        read = values.declared(option.check)
        longest = max(
            (len(example) for example in option.examples if isinstance(example, tuple)), default=1
        )
        reads: dict[str, Any] = {"type": read, "metavar": ",".join("N" * longest)}
        if option.choices:
            reads = {"choices": list(option.choices)}
        if many and option.choices:
            said += f". One or more of {', '.join(option.choices)}"
            reads |= {"metavar": "NAME", "nargs": "+"}
        elif many:
            reads |= {"type": values.several(read), "nargs": "+"}
        parser.add_argument(f"--{name.replace('_', '-')}", **reads, help=said)
    add_own_options(parser, many=many)


def add_own_options(parser: Any, *, many: bool = False) -> None:
    """Add --option, for what a function of the user's takes behind `blocks`; `many`: one name
    may have several values.
    """
    said = "for an algorithm of yours: its parameter NAME, which has a default"
    if many:
        said += "; one NAME may have several values, window=64 window=128"
    reads = {
        "type": values.option,
        "metavar": "NAME=VALUE",
        "nargs": "+",
        "action": "extend",
        "default": [],
    }
    parser.add_argument("--option", **reads, help=said)


def own_pairs_in(options: argparse.Namespace) -> list[tuple[str, Any]]:
    """Return the names and values of --option. Raises ValueError for a name that none of the
    algorithms has.
    """
    pairs: list[tuple[str, Any]] = getattr(options, "option", [])
    if not pairs:
        return pairs
    known: set[str] = set()
    for place in ("named", "algorithm", "vs"):
        there = getattr(options, place, None)
        for each in there if isinstance(there, list) else [there]:
            if isinstance(each, Algorithm):
                known |= {option.name for option in forward_of(each).options}
    for name, _ in pairs:
        if name not in known:
            others = (
                "expected a parameter with a default, behind blocks, of a function of yours, "
                "FILE.py:NAME"
            )
            if known:
                others = f"there are {', '.join(sorted(known))}"
            raise ValueError(
                f"argument --option: there is no option {name!r}{values.meant(name, known)}; "
                f"{others}"
            )
    return pairs


def own_options_in(options: argparse.Namespace) -> dict[str, Any]:
    """Return what --option says, by name. Raises ValueError for a name that no algorithm has,
    and for one that is given twice.
    """
    given: dict[str, Any] = {}
    for name, value in own_pairs_in(options):
        if name in given:
            raise ValueError(
                f"argument --option: {name} is given twice, {given[name]!r} and {value!r}"
            )
        given[name] = value
    return given


def declared_in(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of those that were given, and of --option. Raises ValueError for one
    that is given twice.
    """
    given = {
        name: value for name in declared() if (value := getattr(options, name, None)) is not None
    }
    known = {
        name: declared()[name][0][1].choices.get(value, value) for name, value in given.items()
    }
    own = own_options_in(options)
    for name in own.keys() & known.keys():
        raise ValueError(f"argument --option: {name} is given by --{name.replace('_', '-')} too")
    return known | own


def by_name(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of options, for a function that calls its arguments the same."""
    return {name: getattr(options, name) for name in names}


def masks_in(options: argparse.Namespace, mask: Any = None) -> dict[str, Any]:
    """Return `causal`, and `mask`, with what --sink and --offset add to it. Raises ValueError
    for --offset alone.
    """
    if (sink := getattr(options, "sink", None)) is not None:
        if len(sink) > 1 and options.name != "run":
            raise ValueError(
                f"--sink has {len(sink)} numbers; expected one: `flashsim {options.name}` is of "
                "one head"
            )
        sunk = Sink(sink if len(sink) > 1 else sink[0])
        mask = sunk if mask is None else sunk & mask
    given = {} if mask is None else {"mask": mask}
    if options.offset is None:
        return {"causal": options.causal, **given}
    if not options.causal:
        raise ValueError("--offset goes with --causal")
    moved = Causal(offset=options.offset)
    return {"mask": moved if mask is None else moved & mask}


def problem_in(options: argparse.Namespace, *names: str, mask: Any = None) -> dict[str, Any]:
    """Return lengths, widths, dtype, direction, what is named, M in elements, masks, and options
    that algorithms declare.
    """
    given = by_name(options, "N", "N_q", "N_k", "d", "d_v", "dtype", "direction", *names)
    given |= {"M": elements(options.M, float_dtype(options.dtype).itemsize)}
    return given | masks_in(options, mask) | declared_in(options)


def add_algorithm(
    parser: Any, default: str = "", *, read: Callable[[str], Any] = algorithm, also: str = ""
) -> None:
    """Add the algorithm, as NAME or --algorithm NAME; `read` reads it, and `also` says what that
    takes besides.
    """
    said = f"{BOTH}{also}." + (f" Default: {default}" if default else "")
    parser.add_argument(
        "named", nargs="?", type=read, metavar="NAME", help=f"the algorithm: {said}"
    )
    add(parser, "--algorithm", type=read, help="the same as NAME")


def algorithm_in(options: argparse.Namespace, default: str = "") -> Algorithm:
    """Return the pass of the algorithm that was asked for, backward with --backward. Raises
    ValueError if there is none.
    """
    named = getattr(options, "named", None)
    if named and options.algorithm:
        raise ValueError("an algorithm is given twice: leave out NAME or --algorithm")
    what = named or options.algorithm or default
    if not what:
        raise ValueError(f"an algorithm is missing: expected NAME, one of {NAMES}")
    return resolve(what, options.direction)

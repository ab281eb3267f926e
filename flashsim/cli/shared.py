"""Options that several commands have, each defined once, and what their values mean."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flashsim.algorithms import BACKWARD, FORWARD, Algorithm
from flashsim.algorithms import options as declared
from flashsim.algorithms.own import forward_of, resolve
from flashsim.attention.inputs import DEFAULT_DTYPE, FLOATS, float_dtype
from flashsim.attention.masks.rules import Causal, Dense
from flashsim.attention.masks.sink import Sink
from flashsim.cli import values
from flashsim.cli.loading import algorithm
from flashsim.cli.parser import Parser, suggestion
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
# settings of `Parser.add`
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
    "--d-v": {
        "former": ["--d_v"],
        "type": whole(),
        "metavar": "D",
        "help": "width of V, if not d",
    },
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
    "--N": {"former": ["--n"], "type": whole(), "dest": "N", "help": "sequence length"},
    "--N-k": {
        "former": ["--N_k", "--n-k"],
        "type": whole(),
        "metavar": "N",
        "help": "number of keys",
    },
    "--N-q": {
        "former": ["--N_q"],
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
    "--no-enforce": {
        "action": "store_const",
        "dest": "enforce",
        "const": False,
        "help": (
            "go on where more than M is on chip, and say by how much. Default: that is an error, "
            "except with --sizing paper"
        ),
    },
    "--sizing": {
        "choices": ["fit", "paper"],
        "default": DEFAULT_SIZING,
        "help": f"{SIZINGS}. Default: {DEFAULT_SIZING}",
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
    "--output": {
        "flags": ["-o", "--output"],
        "type": output,
        "metavar": "STEM",
        "help": "save STEM.png, .svg, .json",
    },
}
LENGTHS = ("--N", "--N-q", "--N-k", "--d", "--d-v", "--dtype")


def add_declared(parser: Parser, *, many: bool = False) -> None:
    """Add the options that only some algorithms have, from their records; `many`: with several
    values, and ranges.
    """
    for name, owners in declared().items():
        option = owners[0][1]
        what = f"for {', '.join(dict(owners))}: {option.help}"
        settings: dict[str, Any] = {"nargs": "+"} if many else {}
        if option.choices:
            settings["choices"] = list(option.choices)
            if many:
                what += f". One or more of {', '.join(option.choices)}"
                settings["metavar"] = "NAME"
        else:
            read = partial(values.declared, option.check)
            settings["type"] = values.several(read) if many else read
            longest = 1
            for example in option.examples:
                if isinstance(example, tuple):
                    longest = max(longest, len(example))
            settings["metavar"] = ",".join("N" * longest)
        parser.add(flag_of(name), **settings, help=what)
    add_own_options(parser, many=many)


def add_own_options(parser: Parser, *, many: bool = False) -> None:
    """Add --option, for what a function of the user's takes behind `blocks`; `many`: one name
    may have several values.
    """
    what = "for an algorithm of yours: its parameter NAME, which has a default"
    if many:
        what += "; one NAME may have several values, window=64 window=128"
    settings: dict[str, Any] = {
        "type": values.option,
        "metavar": "NAME=VALUE",
        "nargs": "+",
        "action": "extend",
        "default": [],
    }
    parser.add("--option", **settings, help=what)


def flag_of(name: str) -> str:
    """Return the option of an argument's name."""
    return f"--{name.replace('_', '-')}"


def own_options(
    pairs: Iterable[tuple[str, Any]], algorithms: Iterable[Any]
) -> dict[str, list[Any]]:
    """Return the values of --option by name, of which a name may have several.

    `algorithms` are those of the command line; what is no name of flashsim's is a record. Raises
    ValueError for a name that none of these records has.
    """
    records = [each for each in algorithms if isinstance(each, Algorithm)]
    known = {option.name for record in records for option in forward_of(record).options}
    options: dict[str, list[Any]] = {}
    for name, value in pairs:
        if name not in known:
            expected = (
                "expected a parameter with a default, behind blocks, of a function of yours, "
                "FILE.py:NAME"
            )
            if known:
                expected = f"there are {', '.join(sorted(known))}"
            raise ValueError(
                f"argument --option: there is no option {name!r}{suggestion(name, known)}; "
                f"{expected}"
            )
        options.setdefault(name, []).append(value)
    return options


def own_option_values(
    pairs: Sequence[tuple[str, Any]], algorithms: Iterable[Any]
) -> dict[str, Any]:
    """Return the same where a name has one value. Raises ValueError for a name with several."""
    options = own_options(pairs, algorithms)
    for name, several in options.items():
        if len(several) > 1:
            raise ValueError(
                f"argument --option: {name} is given twice, {several[0]!r} and {several[1]!r}"
            )
    return {name: several[0] for name, several in options.items()}


def check_given_once(own: Iterable[str], options: Iterable[str]) -> None:
    """Raise ValueError for a name that --option has, and another option too."""
    for name in {*own} & {*options}:
        raise ValueError(f"argument --option: {name} is given by {flag_of(name)} too")


def algorithm_options(options: argparse.Namespace, algorithms: Iterable[Any]) -> dict[str, Any]:
    """Return the options of `add_declared` that have a value, and those of --option, by name.

    Raises ValueError for one that has two values, and for one of --option that no algorithm has.
    """
    by_dest = vars(options)
    declared_values: dict[str, Any] = {}
    for name, owners in declared().items():
        value = by_dest[name]
        if value is not None:
            declared_values[name] = owners[0][1].choices.get(value, value)
    if options.option:
        own = own_option_values(options.option, algorithms)
        check_given_once(own, declared_values)
        declared_values |= own
    return declared_values


def by_name(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of options, for a function that calls its arguments the same."""
    by_dest = vars(options)
    return {name: by_dest[name] for name in names}


def one_sink(options: argparse.Namespace) -> Sink | None:
    """Return --sink of a command on one head. Raises ValueError for several numbers."""
    logits = options.sink
    if logits is None:
        return None
    if len(logits) > 1:
        raise ValueError(
            f"--sink has {len(logits)} numbers; expected one: `flashsim {options.name}` is of one "
            "head"
        )
    return Sink(logits[0])


def mask_of_file(path: Path) -> Dense:
    """Return the mask in the file of --mask. Raises ValueError."""
    from flashsim.attention.qkv import load_mask

    return Dense(load_mask(path))


def mask_arguments(
    options: argparse.Namespace, *, sink: Sink | None = None, mask: Any = None
) -> dict[str, Any]:
    """Return `causal`, and `mask`, joined with a sink and with --offset. Raises ValueError for
    --offset alone.
    """
    if options.offset is not None and not options.causal:
        raise ValueError("--offset goes with --causal")
    if sink is not None:
        mask = sink if mask is None else sink & mask
    if options.offset is not None:
        causal = Causal(offset=options.offset)
        return {"mask": causal if mask is None else causal & mask}
    if mask is None:
        return {"causal": options.causal}
    return {"causal": options.causal, "mask": mask}


def problem_arguments(
    options: argparse.Namespace, *names: str, sink: Sink | None = None, mask: Any = None
) -> dict[str, Any]:
    """Return lengths, widths, dtype, direction, the options `names`, M in elements, and masks."""
    arguments = by_name(options, "N", "N_q", "N_k", "d", "d_v", "dtype", "direction", *names)
    arguments["M"] = elements(options.M, float_dtype(options.dtype).itemsize)
    return arguments | mask_arguments(options, sink=sink, mask=mask)


def add_algorithm(
    parser: Parser, default: str = "", *, read: Callable[[str], Any] = algorithm, also: str = ""
) -> None:
    """Add the algorithm, as NAME or --algorithm NAME; `also` is what `read` reads besides."""
    what = f"the algorithm: {BOTH}{also}."
    if default:
        what += f" Default: {default}"
    parser.add("named", nargs="?", type=read, metavar="NAME", help=what)
    parser.add("--algorithm", type=read, help="the same as NAME")


def algorithm_named(options: argparse.Namespace, default: str = "") -> str | Algorithm:
    """Return the algorithm of `add_algorithm`, by its name, or a record of the user's. Raises
    ValueError if there is none.
    """
    if options.named and options.algorithm:
        raise ValueError("an algorithm is given twice: leave out NAME or --algorithm")
    what: str | Algorithm = options.named or options.algorithm or default
    if not what:
        raise ValueError(f"an algorithm is missing: expected NAME, one of {NAMES}")
    return what


def algorithm_in(options: argparse.Namespace, default: str = "") -> Algorithm:
    """Return the same as a record; with --backward, its backward pass. Raises ValueError."""
    return resolve(algorithm_named(options, default), options.direction)

"""What the commands share: how options are read and refused, where results go, and progress."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from flashsim import patterns
from flashsim.files import check_target, write_whole
from flashsim.inputs import DEFAULT_SRAM_BYTES, FLOATS
from flashsim.sizes import parse_size

if TYPE_CHECKING:
    from rich.progress import Progress

BLOCK_MASKS: dict[str, Any] = {
    "butterfly": patterns.butterfly,
    "local": patterns.local,
    "strided": lambda T_r, T_c: patterns.strided(T_r, T_c, max(round(T_c**0.5), 1)),
    "live": "live",
}


class Parser(argparse.ArgumentParser):
    """argparse's parser, which raises ValueError where that would print how it is used, and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError."""
        raise ValueError(message)

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stdout).write(message)  # argparse's hides that it cannot


# ------------------------------------------------------------------------------------------------- values of options


def whole(least: int = 1, most: int = 2**63 - 1) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:  # of too many digits, too
            number = most + 1 if text.strip().isdecimal() else least - 1
        if number < least:
            raise _refused(text, f"a whole number of at least {least}")
        if number > most:
            raise _refused(text, f"a whole number of at most 2**{(most + 1).bit_length() - 1} - 1")
        return number

    return read


def seed(text: str) -> int:
    """Read a seed: 64 bits."""
    try:
        return whole(0, 2**64 - 1)(text)
    except argparse.ArgumentTypeError:
        raise _refused(text, "a whole number from 0 to 2**64 - 1") from None


def probability(text: str) -> float:
    """Read a dropout probability."""
    return _number(text, lambda p: 0 <= p < 1, "a number p with 0 ≤ p < 1")


def finite(text: str) -> float:
    """Read a finite number."""
    return _number(text, math.isfinite, "a finite number")


def positive(text: str) -> float:
    """Read a finite number above 0."""
    return _number(text, lambda x: 0 < x < math.inf, "a finite number above 0")


def size(text: str) -> str:
    """Read a size, such as 25600 or 100KB, which stays text until the dtype is known."""
    try:
        parse_size(text, 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def head(text: str) -> str:
    """Read an index into the leading axes, such as 3 or 0,3, which stays text."""
    try:
        for part in text.split(","):
            int(part)
    except ValueError:
        raise _refused(text, "an index such as 3, or 0,3 for axes of batch and head") from None
    return text


def output(text: str) -> Path:
    """Read the name of a file to be written."""
    path = Path(text)
    if path.name in ("", ".."):
        raise argparse.ArgumentTypeError(f"{text!r} names no file")
    return path


def _number(text: str, fits: Callable[[float], bool], expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not fits(number):
        raise _refused(text, expected)
    return number


def _refused(text: str, expected: str) -> argparse.ArgumentTypeError:
    short = text if len(text) <= 40 else f"{text[:40]}…"
    return argparse.ArgumentTypeError(f"got {short!r}; expected {expected}")


def elements(M: str | None, itemsize: int, default: int | None = None) -> int:
    """Return --M in elements of a dtype of that item size; without it `default`, by default 100 KB."""
    if M is None:
        return DEFAULT_SRAM_BYTES // itemsize if default is None else default
    try:
        return parse_size(M, itemsize)
    except ValueError as error:
        raise ValueError(f"argument --M: {error}") from None


# ------------------------------------------------------------------------------------------- options that many have


def add_qkv(parser: Any, qkv: str, which: str) -> None:
    """Add --qkv and --head."""
    parser.add_argument("--qkv", nargs="+", type=Path, metavar="FILE", help=qkv)
    parser.add_argument("--head", type=head, metavar="I[,J…]", help=which)


def add_lengths(parser: Any) -> None:
    """Add N, or N_q and N_k, and d, d_v, the dtype."""
    parser.add_argument("--N", type=whole(), help="sequence length")
    parser.add_argument("--N_q", type=whole(), metavar="N", help="number of queries, where it differs from the keys'")
    parser.add_argument("--N_k", type=whole(), metavar="N", help="number of keys")
    parser.add_argument("--d", type=whole(), required=True, help="head dimension")
    parser.add_argument("--d_v", type=whole(), metavar="D", help="width of V, where it differs from d")
    parser.add_argument("--dtype", choices=FLOATS, default="float32", help="for bytes. Default: float32")


def add_M(parser: Any, default: str) -> None:
    """Add --M."""
    parser.add_argument(
        "--M",
        type=size,
        metavar="SIZE",
        help=f"SRAM size: elements (25600), or bytes of the dtype (100KB, 1 KB = 1024). {default}",
    )


def add_blocks(parser: Any, what: str) -> None:
    """Add --blocks."""
    parser.add_argument("--blocks", nargs=2, type=whole(), metavar=("B_r", "B_c"), help=what)


def add_sizing(parser: Any, default: str) -> None:
    """Add M, how blocks follow from it, and the blocks themselves."""
    add_M(parser, default)
    parser.add_argument(
        "--sizing",
        choices=["paper", "fit"],
        default="paper",
        help="paper: line 1's blocks, M only reported against; fit: the largest blocks that fit, M enforced",
    )
    add_blocks(parser, "block sizes; M enforced")


def add_causal(parser: Any, more: str = " (bottom right)") -> None:
    """Add --causal."""
    parser.add_argument("--causal", action="store_true", help=f"query i attends to keys j ≤ i + N_k − N_q{more}")


def add_dropout(parser: Any) -> None:
    """Add --dropout."""
    parser.add_argument(
        "--dropout", type=probability, default=0.0, metavar="P", help="drop weights with this probability"
    )


def add_block_mask(parser: Any) -> None:
    """Add --block-mask."""
    parser.add_argument(
        "--block-mask",
        choices=list(BLOCK_MASKS),
        help="for block_sparse: which tiles are computed; live: those that the mask does not forbid whole. Default: all",
    )


def add_splits(parser: Any) -> None:
    """Add --splits and --merge."""
    parser.add_argument(
        "--splits", type=whole(), metavar="T", help="for split_kv: cut the keys in so many. Default: by block"
    )
    parser.add_argument(
        "--merge", choices=["sequence", "tree"], default="sequence", help="for split_kv. Default: sequence"
    )


def add_gqa(parser: Any) -> None:
    """Add --gqa."""
    parser.add_argument(
        "--gqa",
        choices=["separate", "grouped"],
        default="separate",
        help="query heads that share a KV head run separate, each streaming it, or grouped, as one problem. Default: separate",
    )


def add_seed(parser: Any, of: str) -> None:
    """Add --seed."""
    parser.add_argument("--seed", type=seed, default=0, help=f"of {of}. Default: 0")


def add_json(parser: Any, what: str = "numbers") -> None:
    """Add --json."""
    parser.add_argument(
        "--json", metavar="FILE", help=f"write the {what} as JSON (- for stdout, and nothing else there)"
    )


def add_stem(parser: Any, default: str) -> None:
    """Add --output, the stem of a figure's files."""
    parser.add_argument(
        "-o", "--output", type=output, metavar="STEM", help=f"save STEM.png, .svg, .json. Default: {default}"
    )


def add_quiet(parser: Any) -> None:
    """Add --quiet."""
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


# ----------------------------------------------------------------------------------------------- where results go


def check_outputs(options: argparse.Namespace, *outputs: Path) -> None:
    """Ask before the work whether its results can be written: to --json, and to `outputs`, the files of --output.

    Raises ValueError that names the option; also for a file that is the input, and for one that both would write.
    """
    inputs = [*(getattr(options, "qkv", None) or ()), *filter(None, [getattr(options, "mask", None)])]
    targets = [("-o/--output", path) for path in outputs]
    if getattr(options, "json", None) not in (None, "-"):
        if any(_same(options.json, path) for path in outputs):
            raise ValueError(f"argument --json: {options.json} is what -o writes too")
        targets.append(("--json", Path(options.json)))
    for option, path in targets:
        try:
            check_target(path)
        except OSError as error:
            raise ValueError(f"argument {option}: {error.strerror or error}") from None
        if any(_same(path, file) for file in inputs):
            raise ValueError(f"argument {option}: {path} is the input")


def stem_files(stem: Path) -> list[Path]:
    """Return the files of a figure, whose folder is made where there is none. Raises ValueError if it cannot be."""
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"argument -o/--output: there can be no folder {stem.parent}: {error.strerror}") from None
    return [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg", ".json")]


def _same(one: str | Path, other: str | Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def write_json(target: str | None, data: Mapping[str, Any]) -> None:
    """Write data as JSON to a file, or to stdout for "-"; for None, nothing."""
    if target is None:
        return
    utf_8 = target != "-" or (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(_plain(data), indent=2, ensure_ascii=not utf_8, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        write_whole(target, text)


def _plain(value: Any) -> Any:
    """Return JSON's kinds of things: None for what is not finite."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def progress(options: argparse.Namespace) -> Iterator[Progress]:
    """Show progress on stderr where a person is watching it; nothing with --quiet or in a pipe."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from flashsim.tables import console

    shown = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    off = options.quiet or not shown.is_terminal
    with Progress(*columns, console=shown, transient=True, disable=off) as bar:
        yield bar

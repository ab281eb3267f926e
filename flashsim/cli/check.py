"""`flashsim check`: the property-test kit on the command line. Its options are a spec's fields."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashsim.cli.shared import add_json, add_quiet, add_seed, check_outputs, positive, progress, whole, write_json
from flashsim.inputs import FLOATS

if TYPE_CHECKING:
    from flashsim.testing import Spec

SUMMARY = "Check an attention kernel, yours, on cases that Hypothesis draws, and show the simplest that fails."
EXAMPLES = (
    "flashsim check my_kernels:attention --examples 500 --causal bottom_right --masks --lse natural\n"
    "flashsim check my_kernels.py:attention --spec my_kernels.py:SPEC --backward my_kernels.py:attention_backward\n"
    "flashsim check torch.nn.functional:scaled_dot_product_attention --wrap torch --convention sdpa\n"
    "flashsim check flashsim.testing.mutants:causal_top_left"
)
WHERE = "MODULE:FUNCTION"


def add_options(parser: Any) -> None:
    """Add the command's options to its parser."""
    parser.add_argument(
        "function", nargs="?", metavar=WHERE, help="the kernel: a module's, or a file's (my_kernels.py:attention)"
    )
    parser.add_argument("--list", action="store_true", help="list the checks, and check nothing")
    parser.add_argument("--examples", type=whole(), default=300, metavar="N", help="cases to draw. Default: 300")
    add_seed(parser, "the cases")
    parser.add_argument("--backward", metavar=WHERE, help="its backward function (q, k, v, do, …) -> dq, dk, dv")
    parser.add_argument(
        "--dropout", metavar=WHERE, help="the keep mask of its dropout, (shape, dropout_p, seed) -> booleans"
    )
    parser.add_argument("--check", nargs="+", metavar="NAME", help="these checks only. Default: all that apply")
    parser.add_argument(
        "--expect", nargs="+", default=[], metavar="NAME", help="checks that are known to fail; they must"
    )
    parser.add_argument("--wrap", choices=["torch", "cupy", "jax"], help="the function takes this package's arrays")
    parser.add_argument(
        "--convention", choices=["sdpa", "flash_attn"], help="with --wrap: how the function names and aligns things"
    )
    parser.add_argument("--device", help="with --wrap: where its arrays live, such as cuda")
    add_json(parser, "report")
    add_quiet(parser)
    spec = parser.add_argument_group(
        "what the kernel declares", "Default: the function's own attribute `spec`, if it has one"
    )
    spec.add_argument(
        "--spec", metavar="MODULE:NAME", help="a flashsim.testing.Spec; what follows here then changes it"
    )
    spec.add_argument("--dtypes", nargs="+", choices=FLOATS, metavar="DTYPE", help=f"of {', '.join(FLOATS)}")
    spec.add_argument("--layout", choices=["BHND", "BNHD"])
    spec.add_argument(
        "--block", nargs=2, type=whole(), metavar=("B_r", "B_c"), help="its tile; lengths are drawn around it"
    )
    spec.add_argument("--causal", choices=["bottom_right", "top_left"], help="it takes causal=, so aligned")
    spec.add_argument("--empty-rows", choices=["zero", "nan", "mean", "undefined"], help="O where all keys are masked")
    spec.add_argument("--lse", choices=["natural", "base2"], help="it returns (O, lse)")
    for name, what in (
        ("gqa", "it takes fewer KV heads than query heads"),
        ("masks", "it takes mask="),
        ("scale", "it takes scale="),
        ("d_v", "V may have another width"),
        ("zero_keys", "it takes N_k = 0"),
        ("cross", "it takes N_q ≠ N_k (the default)"),
        ("deterministic", "the same call gives the same bits (the default)"),
    ):
        spec.add_argument(f"--{name.replace('_', '-')}", action=argparse.BooleanOptionalAction, help=what)
    spec.add_argument("--head-dims", nargs="+", type=whole(), metavar="D", help="the widths it takes. Default: any")
    spec.add_argument("--strides", choices=["any", "last_contiguous", "contiguous"], help="which arrays it takes")
    spec.add_argument("--accumulate", choices=FLOATS, metavar="DTYPE", help="the type of its sums")
    spec.add_argument(
        "--stores", choices=["output", "output_per_block", "scores"], help="what it rounds to the inputs' dtype"
    )
    spec.add_argument(
        "--max-shapes", type=whole(), metavar="N", help="at most N distinct shapes, for kernels that compile"
    )
    spec.add_argument("--C", type=positive, help="multiplies every error budget. Default: 2")


SPEC_OPTIONS = (
    *("dtypes", "layout", "block", "causal", "empty_rows", "lse", "gqa", "masks", "scale", "d_v", "zero_keys", "cross"),
    *("deterministic", "head_dims", "strides", "accumulate", "stores", "max_shapes", "C"),
)


def run(options: argparse.Namespace) -> int:
    """Run the command; return 0 if all is well and 1 if a check fails. Raises ValueError for what makes no sense."""
    try:
        from flashsim import testing
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    if options.list:
        width = max(map(len, testing.CHECKS))
        print("\n".join(f"{name:{width}}  {check.about}" for name, check in testing.CHECKS.items()))
        return 0
    if options.function is None:
        raise ValueError(f"what is to be checked is missing: give {WHERE}, or --list")
    check_outputs(options)
    fn = function(WHERE, options.function)
    backward = function("--backward", options.backward) if options.backward else None
    dropout = function("--dropout", options.dropout) if options.dropout else None
    said = {name: getattr(options, name) for name in SPEC_OPTIONS if getattr(options, name) is not None}
    if options.wrap:
        fn = _wrapped(fn, options)
        own = None
    elif options.convention or options.device:
        raise ValueError("--convention and --device go with --wrap")
    else:
        own = getattr(fn, "spec", None)
        backward, dropout = backward or getattr(fn, "backward", None), dropout or getattr(fn, "keep", None)
    if options.spec:
        own = load(options.spec)
        if not isinstance(own, testing.Spec):
            kind = type(own).__name__
            raise ValueError(f"argument --spec: {options.spec} is of type {kind}; expected a flashsim.testing.Spec")
    spec = _spec(own, said, fn if options.wrap else None)
    with progress(options) as bar:
        task = bar.add_task("check", total=None)
        report = testing.check_attention(
            fn,
            spec,
            max_examples=options.examples,
            backward=backward,
            dropout=dropout,
            checks=options.check,
            expected_failures=dict.fromkeys(options.expect, "as said"),
            on_fail="return",
            seed=options.seed,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    write_json(options.json, {"command": options.command_line, **report.as_json()})
    if options.json != "-":
        print(report)
    return 0 if report.ok else 1


def _spec(given: Any, said: dict[str, Any], wrapped: Any) -> Spec:
    from dataclasses import replace

    from flashsim.testing import Spec

    said = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    if given is None:
        made: Spec = wrapped.spec(**said) if wrapped is not None else Spec(**said)
        return made
    if not isinstance(given, Spec):
        kind = type(given).__name__
        raise ValueError(f"the function's own attribute `spec` is of type {kind}; expected a flashsim.testing.Spec")
    return replace(given, **said)


def _wrapped(fn: Any, options: argparse.Namespace) -> Any:
    from flashsim.testing import wrap
    from flashsim.testing.wrapping import INSTALL

    try:
        return wrap(fn, options.wrap, convention=options.convention, device=options.device)
    except ModuleNotFoundError as error:
        how = INSTALL[options.wrap] if error.name == options.wrap else error
        raise ValueError(f"argument --wrap: {options.wrap} needs the package {error.name}: {how}") from error
    except Exception as error:  # each package has its own for a device that it does not know
        device = f" --device {options.device}" if options.device else ""
        raise ValueError(f"--wrap {options.wrap}{device}: {error}") from error


def function(option: str, where: str) -> Any:
    """Return the function that `where` says. Raises ValueError, which says what kind of thing it is, but not its value."""
    found = load(where)
    if not callable(found):
        raise ValueError(f"argument {option}: {where} is of type {type(found).__name__}; expected a function")
    return found


def load(where: str) -> Any:
    """Return what "module:name" or "file.py:name" says; modules of the working directory are found too."""
    module_name, colon, name = where.rpartition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"{where!r} is not of the form MODULE:FUNCTION, such as my_kernels:attention")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    found = _file(module_name) if module_name.endswith(".py") else _module(module_name)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ValueError(f"{module_name} has no {name!r}") from None
        except Exception as error:
            raise ValueError(f"cannot get {name!r} of {module_name}: {type(error).__name__}: {error}") from error
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ValueError(f"cannot import {name}: {type(error).__name__}: {error}") from error


def _file(path: str) -> Any:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    name, where = Path(path).stem, str(Path(path).resolve())
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == where:
        return known
    spec = importlib.util.spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise ValueError(f"cannot run {path}: {type(error).__name__}: {error}") from error
    return module

"""`flashsim check`: the property-test kit on the command line. Its options are a spec's fields."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from flashsim.attention.inputs import FLOATS
from flashsim.cli.loading import load
from flashsim.cli.outputs import finish, progress
from flashsim.cli.parser import Parser
from flashsim.cli.shared import FLAG, by_name, flag_of
from flashsim.cli.values import dtype, positive, whole
from flashsim.support import forks
from flashsim.support.entry import one_line, printable
from flashsim.support.files import command_line, write_whole

if TYPE_CHECKING:
    from flashsim.testing import Spec
    from flashsim.testing.crashes import Attempt

EXAMPLES = (
    "flashsim check my_kernels:attention --examples 500 --causal bottom_right --masks --lse "
    "natural\n"
    "flashsim check --init my_kernels.py:attention\n"
    "flashsim check my_kernels.py:attention --spec attention_spec.py:SPEC --backward "
    "my_kernels.py:attention_backward\n"
    "flashsim check flashsim.testing.mutants:causal_top_left --fail-fast\n"
    "flashsim check torch.nn.functional:scaled_dot_product_attention --wrap torch --convention "
    "sdpa --backward auto \\\n"
    "    --expect masked_kv_poison backward_poison\n"
    "  PyTorch does not promise that NaN in masked keys stays out of O and of the gradients, so "
    "--expect names "
    "the two checks. Backends differ too: fully masked rows give 0 on the CPU, and may give "
    "something else with cuDNN "
    "(--empty-rows undefined). Its causal is aligned at the top left, which --convention sdpa "
    "declares."
)
WHERE = "MODULE:FUNCTION"
NOT_ALL = 3  # exit status
# as in flashsim.testing, which needs Hypothesis
FP8 = ("float8_e4m3fn", "float8_e5m2")
CONVENTIONS = (
    "sdpa",
    "flex_attention",
    "flash_attn",
    "flash_attn_varlen",
    "flash_attn_with_kvcache",
    "vllm",
    "flashinfer",
    "flashinfer_hnd",
    "onnx",
)
YES_OR_NO = argparse.BooleanOptionalAction
SPEC_OPTIONS: dict[str, dict[str, Any]] = {  # a Spec's fields
    "dtypes": {
        "nargs": "+",
        "type": dtype,
        "choices": (*FLOATS, *FP8),
        "metavar": "DTYPE",
        "help": f"one or more of {', '.join((*FLOATS, *FP8))}",
    },
    "layout": {
        "choices": ["BHND", "BNHD"],
        "help": "the order of axes: batch, heads, rows, width. Default: BHND",
    },
    "block": {
        "former": ["--block"],
        "nargs": 2,
        "type": whole(),
        "metavar": ("B_r", "B_c"),
        "help": "its tile; lengths are drawn around it",
    },
    "multiples": {
        "nargs": 2,
        "type": whole(),
        "metavar": ("N", "M"),
        "help": "N_q is a multiple of N, N_k of M. Default: any",
    },
    "causal": {"choices": ["bottom_right", "top_left"], "help": "it takes causal=; its alignment"},
    "window": {
        "choices": ["bottom_right", "top_left"],
        "help": "it takes window=(left, right); its alignment",
    },
    "bias": {"action": YES_OR_NO, "help": "it takes bias="},
    "softcap": {"action": YES_OR_NO, "help": "it takes softcap="},
    "alibi": {"action": YES_OR_NO, "help": "it takes alibi_slopes="},
    "sink": {"action": YES_OR_NO, "help": "it takes sink="},
    "scales": {
        "choices": ["head", "block"],
        "help": "it takes q_descale=, k_descale=, v_descale= of 8-bit inputs",
    },
    "empty_rows": {
        "choices": ["zero", "nan", "mean", "undefined"],
        "help": "O where all keys are masked",
    },
    "lse": {"choices": ["natural", "base2"], "help": "it returns (O, lse)"},
    "gqa": {"action": YES_OR_NO, "help": "it takes fewer KV heads than query heads"},
    "masks": {"action": YES_OR_NO, "help": "it takes mask="},
    "scale": {"action": YES_OR_NO, "help": "it takes scale="},
    "d_v": {"action": YES_OR_NO, "help": "V may have another width"},
    "zero_keys": {
        "nargs": "?",
        "const": True,
        "choices": ["forward"],
        "help": "it takes N_k = 0; forward: not its backward function",
    },
    "cross": {"action": YES_OR_NO, "help": "it takes N_q ≠ N_k (the default)"},
    "deterministic": {
        "action": YES_OR_NO,
        "help": "the same call gives the same bits (the default)",
    },
    "batch_invariant": {
        "action": YES_OR_NO,
        "help": "a sequence gives the same bits alone and in a batch",
    },
    "head_dims": {
        "nargs": "+",
        "type": whole(),
        "metavar": "D",
        "help": "the widths it takes. Default: any",
    },
    "strides": {
        "choices": ["any", "last_contiguous", "contiguous"],
        "help": "which arrays it takes",
    },
    "accumulate": {"choices": FLOATS, "metavar": "DTYPE", "help": "the type of its sums"},
    "stores": {
        "choices": ["output", "output_per_block", "scores"],
        "help": "what it rounds to the inputs' dtype",
    },
    "max_shapes": {
        "type": whole(),
        "metavar": "N",
        "help": "at most N distinct shapes, for kernels that compile",
    },
    "unchecked": {
        "nargs": "+",
        "metavar": "NAME",
        "help": "parameters that stay at their defaults on purpose; else exit status 3",
    },
    "C": {"type": positive, "help": "multiplies every error budget. Default: 2"},
}


def add_options(parser: Parser) -> None:
    own = "your kernel: a function of a module, or of a file (my_kernels.py:attention)"
    parser.add("function", nargs="?", metavar=WHERE, help=own)
    parser.add("--list", **FLAG, help="list the checks, and check nothing")
    examples = "cases to draw. Default: 300"
    parser.add("--examples", type=whole(), default=300, metavar="N", help=examples)
    parser.add("--seed", help="seed of the cases. Default: 0")
    gradient = (
        "its backward function (q, k, v, do, …) -> dq, dk, dv; or auto: by --wrap torch's "
        "autograd, or jax.vjp"
    )
    parser.add("--backward", own=True, metavar=f"{WHERE}|auto", help=gradient)
    dropout = "the keep mask of its dropout, (shape, dropout_p, seed) -> booleans"
    parser.add("--dropout", own=True, metavar=WHERE, help=dropout)
    checks = "run only these checks. Default: all that apply"
    parser.add("--check", dest="checks", nargs="+", metavar="NAME", help=checks)
    failing = (
        "checks that are known to fail: the run passes with them, and fails if one of them passes"
    )
    parser.add("--expect", nargs="+", default=[], metavar="NAME", help=failing)
    parser.add("--fail-fast", **FLAG, help="stop at the first case that fails")
    first = (
        "write NAME_spec.py and test_NAME.py for pytest, from what a few calls show, beside the "
        "kernel's file"
    )
    parser.add("--init", **FLAG, help=first)
    parser.add("--overwrite", **FLAG, help="with --init: replace existing files")
    packages = ["numpy", "torch", "cupy", "jax"]
    parser.add("--wrap", choices=packages, help="the function takes this package's arrays")
    convention = (
        "with --wrap, whose conventions it follows for names, alignment, packing and pages: "
        f"{', '.join(CONVENTIONS)}"
    )
    parser.add("--convention", choices=CONVENTIONS, metavar="NAME", help=convention)
    page = "with --convention: how many rows a page has"
    parser.add("--page", type=whole(), metavar="ROWS", help=page)
    parser.add("--device", help="with --wrap: where its arrays live, such as cuda")
    parser.add("--json", "--quiet")
    _add_spec_options(parser)


def _add_spec_options(parser: Parser) -> None:
    """Add the fields of a spec, in a group of their own."""
    default = "Default: the function's own attribute `spec`, if it has one"
    group = parser.add_argument_group("what the kernel declares", default)
    spec = "a flashsim.testing.Spec; the options below change it"
    parser.add("--spec", group=group, metavar="MODULE:NAME", help=spec)
    for name, settings in SPEC_OPTIONS.items():
        flag = "--blocks" if name == "block" else flag_of(name)
        parser.add(flag, group=group, own=True, dest=name, **settings)
    no_zero_keys: dict[str, Any] = {
        "dest": "zero_keys",
        "action": "store_const",
        "const": False,
        "default": None,
    }
    parser.add("--no-zero-keys", group=group, help=argparse.SUPPRESS, **no_zero_keys)


def run(options: argparse.Namespace) -> int:
    try:
        from flashsim import testing
        from flashsim.testing.crashes import Attempt
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    if options.list:
        return _list()
    _check_combinations(options)
    fn, backward, dropout = _kernel(options)
    if options.init:
        return _init(fn, backward, options)
    spec = _spec(fn, options)
    name = getattr(fn, "__name__", type(fn).__name__)
    with progress(options) as update:
        report = testing.check_attention(
            fn,
            spec,
            max_examples=options.examples,
            **by_name(options, "checks", "fail_fast", "seed"),
            backward=backward,
            dropout=dropout,
            expected_failures=dict.fromkeys(options.expect, ""),
            on_fail="return",
            progress=update,
            on_try=lambda check, case: forks.last_words(Attempt(name, check, case)),
        )
    forks.last_words(None)
    record = {"command": options.command_line, **report.as_json()}
    finish(options, record, lambda: _show(report, options))
    if not report.ok:
        return 1
    return 0 if report.complete else NOT_ALL


def _check_combinations(options: argparse.Namespace) -> None:
    """Raise ValueError for options that do not go together."""
    if options.function is None:
        raise ValueError(f"what is to be checked is missing: give {WHERE}, or --list")
    if not options.wrap and (options.convention or options.device or options.page):
        raise ValueError("--convention, --device and --page go with --wrap")
    if options.overwrite and not options.init:
        raise ValueError("--overwrite goes with --init")


def _list() -> int:
    """Print the checks."""
    from flashsim import testing
    from flashsim.testing.unchecked import without_words

    width = max(map(len, testing.CHECKS))
    for name, check in testing.CHECKS.items():
        print(f"{name:{width}}  {check.about}")
    print("\n" + without_words())
    return 0


def _show(report: Any, options: argparse.Namespace) -> None:
    from flashsim.testing.first_tests import paths

    print(printable(report))
    where, _, name = options.function.rpartition(":")
    if (
        where.endswith(".py")
        and not options.spec
        and not any(path.exists() for path in paths(name, Path(where).parent))
    ):
        words = ["flashsim", "check", options.function]
        for option, value in by_name(options, "wrap", "convention", "device", "page").items():
            if value is not None:
                words += [f"--{option}", str(value)]
        print(f"\nTo write a spec and tests: {command_line([*words, '--init'])}")


def report_crash(options: argparse.Namespace, ending: forks.Ending) -> int:
    """Print in which check, and on which case, the kernel ended its child process; return 1. Other
    child processes look for a smaller case.
    """
    shrinking = forks.run(partial(_shrink, options, ending.words))
    attempt = shrinking.words or ending.words
    print(
        one_line(
            f"flashsim check: error: {attempt.name} ended the process ({ending.how}), {attempt}"
        ),
        file=sys.stderr,
    )
    return 1


def _shrink(options: argparse.Namespace, attempt: Attempt) -> int:
    from flashsim.testing.checkup import kernel_of
    from flashsim.testing.crashes import smallest

    with suppress(KeyboardInterrupt):
        fn, backward, dropout = _kernel(options)
        kernel = kernel_of(fn, _spec(fn, options), backward, dropout)
        forks.last_words(smallest(kernel, attempt))
    return 0


def _kernel(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    fn = function(WHERE, options.function)
    auto = options.backward == "auto"
    backward = function("--backward", options.backward) if options.backward and not auto else None
    dropout = function("--dropout", options.dropout) if options.dropout else None
    if options.wrap:
        fn = _wrapped(fn, options)
        backward = backward and _wrapped(backward, options)
    else:
        backward = backward or getattr(fn, "backward", None)
        dropout = dropout or getattr(fn, "keep", None)
    backward = _automatic(fn) if auto else backward
    return fn, backward, dropout


def _spec(fn: Any, options: argparse.Namespace) -> Spec:
    """Return the spec of the kernel: --spec, or its own attribute, or its wrapper's; changed by
    the options.
    """
    from flashsim.testing import Spec

    fields: dict[str, Any] = {}
    for name, value in by_name(options, *SPEC_OPTIONS).items():
        if value is not None:
            fields[name] = tuple(value) if isinstance(value, list) else value
    if options.spec:
        spec = load(options.spec)
        whose = f"argument --spec: {options.spec}"
    elif options.wrap:
        wrapper_spec: Spec = fn.spec(**fields)
        return wrapper_spec
    else:
        own = getattr(fn, "spec", None)
        spec = Spec() if own is None else own
        whose = "the function's own attribute `spec`"
    if not isinstance(spec, Spec):
        raise ValueError(
            f"{whose} is of type {type(spec).__name__}; expected a flashsim.testing.Spec"
        )
    return replace(spec, **fields)


def _automatic(fn: Any) -> Any:
    try:
        return fn.backward
    except AttributeError as error:
        why = str(error) if hasattr(fn, "convention") else "expected --wrap torch, or --wrap jax"
        raise ValueError(
            f"argument --backward: auto needs a function that can be differentiated: {why}"
        ) from None


def _init(fn: Any, backward_fn: Any, options: argparse.Namespace) -> int:
    """Write a spec and tests for a kernel, and print what is in them."""
    from flashsim.testing.first_tests import first_files
    from flashsim.testing.spec_inference import infer

    where, _, name = options.function.rpartition(":")
    file = Path(where) if where.endswith(".py") else None
    folder = file.parent if file else Path()
    backward, _, backward_name = (options.backward or "").rpartition(":")
    _check_files_to_write(options, name, folder, {"--init": where, "--backward": backward})
    inference = infer(fn, _spec(fn, options), backward_fn)
    has_own = not backward_name and not options.wrap and hasattr(fn, "backward")
    if backward_name == "auto" or has_own:
        gradient = f"{name}.backward"
    elif backward_name and options.wrap:
        gradient = fn.code(backward_name)
    else:
        gradient = backward_name
    backward_module = Path(backward).stem if backward.endswith(".py") else backward
    backward_import = f"from {backward_module} import {backward_name}" if backward_module else ""
    files = first_files(
        file.stem if file else where,
        name,
        inference,
        folder,
        options.command_line,
        wrapped=fn.code("unwrapped") if options.wrap else "",
        backward=gradient,
        backward_import=backward_import,
        expected=options.expect,
    )
    for path, text in files.items():
        write_whole(path, text)
    spec, tests = files
    print(f"Wrote {spec}, what a few calls show; check each line:\n")
    print(fill(repr(inference.spec), 80, subsequent_indent="     "))
    for field in inference.doubtful:
        print("\n" + fill(f"Doubtful: {field}: {inference.notes[field]}", 80))
    fails = "; one test fails until what is doubtful is confirmed" if inference.doubtful else ""
    print(f"\nWrote {tests}; run it{fails}:\n\n{command_line(['pytest', str(tests)])}")
    return 0


def _check_files_to_write(
    options: argparse.Namespace, name: str, folder: Path, sources: Mapping[str, str]
) -> None:
    """Raise ValueError where a spec and tests cannot be written; `sources` are the files or
    modules of the options' functions.
    """
    from flashsim.testing.first_tests import paths

    if not name.isidentifier():
        raise ValueError(
            f"argument --init: {name} is not a name of a file; expected a function of a module, or "
            "of a file"
        )
    present = [str(path) for path in paths(name, folder) if path.exists()]
    if present and not options.overwrite:
        verb = "is" if len(present) == 1 else "are"
        raise ValueError(
            f"argument --init: {' and '.join(present)} {verb} there already; --overwrite writes "
            "anew"
        )
    for option, source in sources.items():
        if source.endswith(".py") and not Path(source).stem.isidentifier():
            raise ValueError(
                f"argument {option}: {Path(source).name} cannot be imported; expected a file such "
                "as my_kernels.py"
            )


def _wrapped(fn: Any, options: argparse.Namespace) -> Any:
    from flashsim.support.install import OTHERS
    from flashsim.testing import wrap

    try:
        return wrap(
            fn,
            options.wrap,
            convention=options.convention,
            device=options.device,
            page=options.page,
        )
    except ModuleNotFoundError as error:
        how = OTHERS[options.wrap] if error.name == options.wrap else error
        raise ValueError(
            f"argument --wrap: {options.wrap} needs the package {error.name}: {how}"
        ) from error
    except Exception as error:  # each package has its own for a device that it does not know
        device = f" --device {options.device}" if options.device else ""
        raise ValueError(f"--wrap {options.wrap}{device}: {error}") from error


def function(option: str, where: str) -> Any:
    """Return the function at MODULE:FUNCTION. Raises ValueError for another object, with its type
    and not its value.
    """
    value = load(where)
    if not callable(value):
        raise ValueError(
            f"argument {option}: {where} is of type {type(value).__name__}; expected a function"
        )
    return value

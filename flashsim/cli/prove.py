"""`flashsim prove`: the least that any schedule must move, and how near the best one comes."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashsim.attention.arguments import DIRECTIONS
from flashsim.attention.inputs import float_dtype
from flashsim.cli.optimum import SEARCHED, run_optimum
from flashsim.cli.outputs import check_outputs, finish, trace_file
from flashsim.cli.parser import Parser
from flashsim.cli.shared import FILE, FLAG, LENGTHS, by_name, mask_of_file, problem_arguments
from flashsim.support.tables import print_paragraphs, print_table, print_words, problem, sram

HAND_PROVED = "Proved by hand; a program checked the arithmetic."
IN_ROCQ = "Proved by hand and in Rocq (scripts/proofs); a program checked the arithmetic."
OF_ROWS = (
    "Schedules of the row game move whole rows, and forget S, P, dP and dS of a pair at once, as "
    "FlashAttention does."
)
EXAMPLES = (
    "flashsim prove --N 4096 --d 64 --M 25600\n"
    "flashsim prove --N 4096 --d 64 --M 25600 --causal --json proof.json\n"
    "flashsim prove --N 4096 --d 64 --M 25600 --backward\n"
    "flashsim prove --exact --N 4 --d 4 --M 24\n"
    "flashsim prove --exact --N 4 --d 4 --M 24 -o optimum.html --json optimum.json\n"
    "flashsim prove --check proof.json"
)


def add_options(parser: Parser) -> None:
    for name in LENGTHS:
        parser.add(name, **({"required": False} if name == "--d" else {}))
    parser.add("--M", "--causal", "--offset")
    parser.add("--backward", help="prove the bound of the backward pass: dQ, dK, dV")
    # the name of this argument in Python
    parser.add("--direction", choices=DIRECTIONS, default="forward", help=argparse.SUPPRESS)
    parser.add("--mask", help="a .npy file: booleans (N_q, N_k), True = attend")
    parser.add("--exact", **FLAG, help="search for the optimum (lengths up to 8) and replay it")
    page = "with --exact: write a page that plays the optimum, FILE.html, or its trace"
    parser.add("--output", metavar="FILE", help=page)
    check = "check a certificate that --json wrote; takes no other options"
    parser.add("--check", **FILE, help=check)
    certificate = "write a certificate as JSON; -: to stdout, and print nothing else there"
    parser.add("--json", help=certificate)


def run(options: argparse.Namespace) -> int:
    from flashsim.analysis.proving import prove

    _check_combinations(options)
    if options.check is not None:
        return _check(options.check)
    if options.output is not None:
        check_outputs(options, trace_file(options.output))
    mask = None if options.mask is None else mask_of_file(options.mask)
    problem = problem_arguments(options, mask=mask)
    if options.exact:
        del problem["direction"]
        return run_optimum(options, problem)
    proof = prove(**problem)
    record = {"command": options.command_line, **proof.certificate()}
    finish(options, record, lambda: _show(proof, options.dtype))
    return 0


def _check_combinations(options: argparse.Namespace) -> None:
    """Raise ValueError for options that do not go together."""
    if options.check is not None:
        lengths = ("N", "N_q", "N_k", "d", "d_v")
        others = by_name(
            options, *lengths, "M", "mask", "offset", "json", "output", "causal", "exact"
        )
        if options.direction == "backward" or any(others.values()):
            raise ValueError("--check takes no other options: the certificate holds the problem")
        return
    if options.d is None:
        raise ValueError("--d is missing: expected --N N --d D, or --check FILE")
    if options.output is not None and not options.exact:
        raise ValueError("-o/--output needs --exact: it writes a page that plays the optimum")
    if options.exact and options.direction == "backward":
        raise ValueError(
            "--exact searches for the forward pass only; --backward without --exact gives a lower "
            "bound"
        )


def _how_sure(record: Mapping[str, Any]) -> str:
    """Return in words how a certificate's bound is proved.

    In Rocq are the forward theorem, and compulsory accesses where every query has a key.
    """
    if record["direction"] == "backward":
        return HAND_PROVED
    compulsory = (
        record["queries"] * record["d"]
        + record["keys"] * (record["d"] + record["d_v"])
        + record["N_q"] * record["d_v"]
    )
    if record["bound"] <= compulsory:
        in_rocq = record["queries"] == record["N_q"]
    else:
        in_rocq = record["a"] == 0
    return IN_ROCQ if in_rocq else HAND_PROVED


def _show(proof: Any, dtype: str) -> None:
    bound = proof.bound
    allowed = {"all": "", "causal": ", causal", "given": f", {bound.pairs:,} allowed pairs"}
    sizes = problem(bound.N_q, bound.N_k, bound.d, bound.d_v)
    print(f"One head, {proof.direction}, {sizes}{allowed[proof.allowed]}")
    print(sram(bound.M, float_dtype(dtype).itemsize, dtype) + "\n")
    best = proof.best
    rows = [
        (
            "compulsory: inputs read, outputs written",
            bound.compulsory,
            f"{bound.compulsory / bound.accesses:.3f}",
        ),
        ("lower bound: no schedule moves less", bound.accesses, "1"),
    ]
    if (proof.rows or 0) > bound.accesses:
        rows.append(
            ("lower bound of the row game", proof.rows, f"{proof.rows / bound.accesses:.3f}")
        )
    if best is not None:
        rows.append(
            (
                f"best schedule here: {best.algorithm}, {best.B_r:,} × {best.B_c:,}",
                best.accesses,
                f"{proof.ratio:.3f}",
            )
        )
    print_table(("", "elements moved", "÷ bound"), rows)
    print_paragraphs(
        (
            f"No schedule of this class moves less than {bound.accesses:,} elements, {proof.how}. "
            f"{_how_sure(proof.certificate())}"
        ),
        f"The class: {proof.schedules}",
        *([OF_ROWS] if (proof.rows or 0) > bound.accesses else []),
        *([] if best else ["None of the schedules known here fits this M."]),
    )


def _check(path: Path) -> int:
    """Check a certificate, and print the result; return 1 if it proves nothing."""
    from flashsim.analysis.games import checker as of_optimum
    from flashsim.analysis.optima import CLASS
    from flashsim.analysis.proving import recount
    from flashsim.theory.bounds import certificate

    text = _text_of(path)
    try:
        record = json.loads(text, object_pairs_hook=certificate.once)
        if not isinstance(record, dict):
            raise ValueError("it is not a JSON object")
        exact = record.get("kind") == "optimum"
        statement = (of_optimum if exact else certificate).check(record)
        if exact and record["class"] != CLASS:
            raise ValueError("its class of schedules is not that of the row game")
        schedule = "" if exact else recount(record)
    except (ValueError, RecursionError) as error:
        print_words(f"{path} proves nothing: {_why_not(error)}")
        return 1
    print_words(f"{statement}. {SEARCHED if exact else _how_sure(record)}")
    if schedule:
        print_paragraphs(f"The best schedule here, {schedule}")
    return 0


def _text_of(path: Path) -> str:
    """Return the text of a certificate's file. Raises ValueError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"argument --check: {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(
            f"argument --check: {path} is not text; expected the JSON that --json wrote"
        ) from None


def _why_not(error: Exception) -> str:
    """Return in words why a certificate is none."""
    if "set_int_max_str_digits" in str(error):
        return f"it has a number of more than {sys.get_int_max_str_digits()} digits"
    if isinstance(error, json.JSONDecodeError | RecursionError):
        return "it is not JSON"
    return str(error)

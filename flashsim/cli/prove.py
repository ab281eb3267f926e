"""`flashsim prove`: the least that any schedule must move, and how near the best one comes."""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from flashsim.attention.arguments import DIRECTIONS
from flashsim.attention.inputs import float_dtype
from flashsim.cli.optimum import SEARCHED, run_optimum
from flashsim.cli.outputs import check_outputs, finish, trace_file
from flashsim.cli.shared import FILE, FLAG, LENGTHS, add, problem_in
from flashsim.support.tables import print_paragraphs, print_table, print_words, problem, sram

SUMMARY = (
    "Prove how many elements every schedule must move at least, and show how near the best "
    "schedule here comes."
)
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


def add_options(parser: Any) -> None:
    for name in LENGTHS:
        add(parser, name, **({"required": False} if name == "--d" else {}))
    add(parser, "--M", "--causal", "--offset")
    add(parser, "--backward", help="prove the bound of the backward pass: dQ, dK, dV")
    # as Python says it
    add(parser, "--direction", choices=DIRECTIONS, default="forward", help=argparse.SUPPRESS)
    add(parser, "--mask", help="a .npy file: booleans (N_q, N_k), True = attend")
    add(parser, "--exact", **FLAG, help="search for the optimum (lengths up to 8) and replay it")
    add(
        parser,
        "--output",
        metavar="FILE",
        help="with --exact: write a page that plays the optimum, FILE.html, or its trace",
    )
    add(
        parser,
        "--check",
        **FILE,
        help="check a certificate that --json wrote; takes no other options",
    )
    add(
        parser,
        "--json",
        help="write a certificate as JSON; -: to stdout, and print nothing else there",
    )


def run(options: argparse.Namespace) -> int:
    from flashsim.analysis.proving import prove
    from flashsim.attention import qkv

    if options.check is not None:
        return _check(options)
    if options.d is None:
        raise ValueError("--d is missing: expected --N N --d D, or --check FILE")
    if options.output is not None and not options.exact:
        raise ValueError("-o/--output needs --exact: it writes a page that plays the optimum")
    check_outputs(options, *filter(None, [options.output and trace_file(options.output)]))
    problem = problem_in(
        options, mask=None if options.mask is None else qkv.load_mask(options.mask)
    )
    if options.exact and problem.pop("direction") == "backward":
        raise ValueError(
            "--exact searches for the forward pass only; --backward without --exact gives a lower "
            "bound"
        )
    if options.exact:
        return run_optimum(options, problem)
    proof = prove(**problem)
    finish(
        options,
        {"command": options.command_line, **proof.certificate()},
        lambda: _show(proof, options.dtype),
    )
    return 0


def _how_sure(held: Mapping[str, Any]) -> str:
    """Say how it is proved. In Rocq are the forward theorem, and compulsory accesses where every
    query has a key.
    """
    if held["direction"] == "backward":
        return HAND_PROVED
    compulsory = (
        held["queries"] * held["d"]
        + held["keys"] * (held["d"] + held["d_v"])
        + held["N_q"] * held["d_v"]
    )
    read_once = held["bound"] <= compulsory
    return (
        IN_ROCQ
        if (held["queries"] == held["N_q"] if read_once else held["a"] == 0)
        else HAND_PROVED
    )


def _show(proof: Any, dtype: str) -> None:
    at = proof.bound
    allowed = {"all": "", "causal": ", causal", "given": f", {at.pairs:,} allowed pairs"}[
        proof.allowed
    ]
    print(f"One head, {proof.direction}, {problem(at.N_q, at.N_k, at.d, at.d_v)}{allowed}")
    print(sram(at.M, float_dtype(dtype).itemsize, dtype) + "\n")
    best = proof.best
    rows = [
        (
            "compulsory: inputs read, outputs written",
            at.compulsory,
            f"{at.compulsory / at.accesses:.3f}",
        ),
        ("lower bound: no schedule moves less", at.accesses, "1"),
    ]
    if (proof.rows or 0) > at.accesses:
        rows.append(("lower bound of the row game", proof.rows, f"{proof.rows / at.accesses:.3f}"))
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
            f"No schedule of this class moves less than {at.accesses:,} elements, {proof.how}. "
            f"{_how_sure(proof.certificate())}"
        ),
        f"The class: {proof.schedules}",
        *([OF_ROWS] if (proof.rows or 0) > at.accesses else []),
        *([] if best else ["None of the schedules known here fits this M."]),
    )


def _check(options: argparse.Namespace) -> int:
    from flashsim.analysis.games import checker as of_optimum
    from flashsim.analysis.optima import CLASS
    from flashsim.analysis.proving import recount
    from flashsim.theory.bounds import certificate

    others = (
        "N",
        "N_q",
        "N_k",
        "d",
        "d_v",
        "M",
        "mask",
        "offset",
        "json",
        "output",
        "causal",
        "exact",
    )
    if options.direction == "backward" or any(getattr(options, name) for name in others):
        raise ValueError("--check takes no other options: the certificate holds the problem")
    try:
        text = options.check.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"argument --check: {options.check}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(
            f"argument --check: {options.check} is not text; expected the JSON that --json wrote"
        ) from None
    try:
        held = json.loads(text, object_pairs_hook=certificate.once)
        if not isinstance(held, dict):
            raise ValueError("it is not a JSON object")
        exact = held.get("kind") == "optimum"
        said = (of_optimum if exact else certificate).check(held)
        if exact and held["class"] != CLASS:
            raise ValueError("its class of schedules is not that of the row game")
        schedule = "" if exact else recount(held)
    except (ValueError, RecursionError) as error:
        why = (
            "it is not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else error
        )
        if "set_int_max_str_digits" in str(error):
            why = f"it has a number of more than {sys.get_int_max_str_digits()} digits"
        print_words(f"{options.check} proves nothing: {why}")
        return 1
    print_words(f"{said}. {SEARCHED if exact else _how_sure(held)}")
    if schedule:
        print_paragraphs(f"The best schedule here, {schedule}")
    return 0

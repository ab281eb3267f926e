"""Record what flashsim computes, counts and says: before a rebuilding, and after it.

    # compare today's records with those in this folder
    python -m tests.golden.record
    python -m tests.golden.record --write         # write today's records into this folder
    python -m tests.golden.record --only serving  # one section

A section is a file of JSON: a key for each case, such as "flash backward | causal, 37 x 53", and
its record in one string. A record of a run has the blocks, the peak, each array's reads and writes,
and the first 16 digits of the SHA-256 of each result. A case that is refused is recorded by its
error. So `git diff tests/golden` shows what a change has changed.

Results' digests depend on how NumPy and its BLAS round, so they are compared only on a machine of
the same kind: `machine.json` says which one wrote them. All else is compared everywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

import flashsim
from flashsim import approximate, devices, kernels, mlp
from flashsim.algorithms import BACKWARD, FORWARD
from flashsim.cli import COMMANDS
from flashsim.learn.gallery.lessons import pages
from flashsim.plots import FIGURES
from tests.helpers import ragged

FOLDER = Path(__file__).parent
DIGEST = re.compile(r"#[0-9a-f]{16}")
Records = dict[str, str]
Section = Callable[[], Iterator[tuple[str, str]]]

# ------------------------------------------------------------------------------------------------
# how a thing is written


def digest(values: Any) -> str:
    """Return the first 16 digits of the SHA-256 of an array, its type and its shape."""
    array = np.ascontiguousarray(values)
    head = f"{array.dtype.str}{array.shape}".encode()
    return "#" + hashlib.sha256(head + array.tobytes()).hexdigest()[:16]


def of_text(text: str) -> str:
    """Return the same of a text."""
    return "#" + hashlib.sha256(text.encode()).hexdigest()[:16]


def of_traffic(traffic: Any) -> str:
    """Return what each array moved: "K 64r, O 32r 32w (8 at first)"."""
    parts = []
    for name, array in sorted(traffic.by_array.items()):
        first = f" ({array.init_writes} at first)" if array.init_writes else ""
        parts.append(f"{name} {array.reads}r {array.writes}w{first}")
    return ", ".join(parts)


def of_costs(costs: Any) -> str:
    """Return blocks, peak and accesses of a run, a count or a closed form."""
    return (
        f"{costs.blocks} | peak {costs.sram.peak} of {costs.sram.capacity} | "
        f"{of_traffic(costs.hbm)}"
    )


def of_results(results: Mapping[str, Any]) -> str:
    """Return each result's digest."""
    return ", ".join(
        f"{name} {digest(array)}" for name, array in results.items() if array is not None
    )


def attempt(record: Callable[[], str]) -> str:
    """Return a record; or, of a case that is refused, its error."""
    try:
        return record()
    except (ValueError, TypeError, RuntimeError, LookupError) as error:
        return f"{type(error).__name__}: {error}"


# --------------------------------------------------------------------------------------------------
# attention


@dataclass(frozen=True)
class Case:
    """A problem of attention: its lengths, and the arguments that `flashsim.forward` and
    `flashsim.count` share.
    """

    name: str
    N_q: int = 37
    N_k: int = 53
    d: int = 8
    d_v: int = 8
    heads: int = 1
    kv_heads: int = 1
    dtype: str = "float64"
    how: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def arrays(self) -> list[Any]:
        """Return Q, K, V and dO."""
        rng = np.random.default_rng(self.seed)
        shapes = (
            (self.heads, self.N_q, self.d),
            (self.kv_heads, self.N_k, self.d),
            (self.kv_heads, self.N_k, self.d_v),
            (self.heads, self.N_q, self.d_v),
        )
        return [rng.normal(size=shape).astype(self.dtype) for shape in shapes]

    def lengths(self) -> dict[str, Any]:
        """Return what `flashsim.count` takes in their place."""
        return {
            "N_q": self.N_q,
            "N_k": self.N_k,
            "d": self.d,
            "d_v": self.d_v,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "dtype": self.dtype,
        }


QUICK_FIGURES = (
    "appendix_b5",
    "approximate",
    "arrays",
    "cache_size",
    "devices_time",
    "fusing",
    "hops",
    "lower_backward",
    "memory",
    "pareto",
    "saved",
    "serving",
    "sparsity",
    "theorem2",
    "theorem5",
    "traffic",
    "words_sent",
)

FIT = {"M": 600, "sizing": "fit"}
FIXED = {"M": 3000, "blocks": (8, 5)}

CASES = (
    Case("fit, 37 x 53", how=FIT),
    Case("paper, 37 x 53", how={"M": 600, "sizing": "paper"}),
    Case("blocks 8 x 5", how=FIXED),
    Case("blocks 64 x 64, larger than N", how={"M": 9000, "blocks": (64, 64)}),
    Case("one query", N_q=1, how=FIT),
    Case("one key", N_k=1, how=FIT),
    Case("one by one, d = 1", N_q=1, N_k=1, d=1, d_v=1, how=FIT),
    Case("more queries than keys", N_q=53, N_k=20, how=FIT),
    Case("d_v = 3", d_v=3, how=FIT),
    Case("d_v = 13", d_v=13, how=FIT),
    Case("small M", d=4, d_v=4, how={"M": 60, "sizing": "fit"}),
    Case("M too small", how={"M": 7, "sizing": "fit"}),
    Case("blocks too large, enforced", how={"M": 100, "blocks": (16, 16)}),
    Case("blocks too large, counted", how={"M": 100, "blocks": (16, 16), "enforce": False}),
    Case("float32", dtype="float32", how=FIT),
    Case("float16", dtype="float16", how=FIT),
    Case("scale 0.3", how={**FIT, "scale": 0.3}),
    Case("causal", how={**FIT, "causal": True}),
    Case("causal, blocks 8 x 5", how={**FIXED, "causal": True}),
    Case("causal, more queries than keys", N_q=53, N_k=20, how={**FIT, "causal": True}),
    Case("window (5, 2)", how={**FIXED, "mask": flashsim.SlidingWindow(5, 2)}),
    Case("padding", how={**FIXED, "mask": flashsim.KeyPadding(31) & flashsim.QueryPadding(20)}),
    Case("softcap and ALiBi", how={**FIXED, "mask": flashsim.SoftCap(5.0) & flashsim.ALiBi(0.25)}),
    Case("sink", how={**FIXED, "mask": flashsim.Sink(0.5)}),
    Case("bias", how={**FIXED, "mask": flashsim.Bias(np.linspace(-1, 1, 37 * 53).reshape(37, 53))}),
    Case("dropout", how={**FIXED, "dropout_p": 0.25, "seed": 3}),
    Case("4 heads on 2", heads=4, kv_heads=2, how=FIXED),
    Case("4 heads on 2, grouped", heads=4, kv_heads=2, how={**FIXED, "gqa": "grouped"}),
    Case(
        "4 heads on 1, grouped, causal, one query",
        N_q=1,
        heads=4,
        how={**FIXED, "gqa": "grouped", "causal": True},
    ),
    Case(
        "6 heads, causal, dropout",
        heads=6,
        kv_heads=3,
        how={**FIXED, "causal": True, "dropout_p": 0.1, "seed": 1},
    ),
)

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "sliding_window": {"window": 6},
    "split_kv": {"splits": 3},
}
"""Options without which a program does not show what it is for."""


def attention() -> Iterator[tuple[str, str]]:
    """Yield runs, counts and closed forms of all forward and backward passes, on all cases."""
    for case in CASES:
        for name in FORWARD:
            yield from _of_attention(name, case)


def _of_attention(name: str, case: Case) -> Iterator[tuple[str, str]]:
    """Yield the forward pass of that name, and the backward passes that belong to it."""
    Q, K, V, dO = case.arrays()
    how = {**case.how, **OPTIONS.get(name, {})}
    runs: list[Any] = []

    def forward() -> tuple[str, str]:
        run = flashsim.forward(name, Q, K, V, **how)
        runs.append(run)
        return of_costs(run), of_results({"O": run.O, "lse": run.lse})

    yield f"{name} | {case.name}", _three_ways(name, case, how, "forward", forward)
    for backward, record in BACKWARD.items():
        if record.forward_pass != name or not runs:
            continue

        def gradients(backward: str = backward) -> tuple[str, str]:
            made = flashsim.backward(backward, runs[0], dO)
            arrays = {key: getattr(made, key) for key in ("dQ", "dK", "dV", "dB", "dsink")}
            return of_costs(made), of_results(arrays)

        yield (
            f"{backward} backward | {case.name}",
            _three_ways(backward, case, how, "backward", gradients),
        )


def _three_ways(
    name: str,
    case: Case,
    how: Mapping[str, Any],
    direction: str,
    run: Callable[[], tuple[str, str]],
) -> str:
    """Return a run's record, and of its count and its closed form what differs from the run's."""
    arguments = {**case.lengths(), **how, "direction": direction}
    arguments.pop("seed", None)
    arguments.pop("scale", None)
    costs: list[str] = []

    def of_run() -> str:
        traffic, results = run()
        costs.append(traffic)
        return f"{traffic} | {results}"

    def unless_equal(text: str) -> str:
        return "the same" if [text] == costs else text

    def of_count() -> str:
        tally = flashsim.count(name, **arguments)
        operations = f"{tally.flops.matmul} + {tally.flops.other} operations"
        return f"{unless_equal(of_costs(tally))}, {operations}"

    def of_form() -> str:
        exact = flashsim.theory.exact(name, **arguments)
        return f"{unless_equal(of_costs(exact))}, {exact.matmul} of products"

    return f"{attempt(of_run)} | count: {attempt(of_count)} | closed form: {attempt(of_form)}"


# --------------------------------------------------------------------------------------------------
# other programs


def programs() -> Iterator[tuple[str, str]]:
    """Yield runs and counts of the programs that are not attention, by the functions that users
    call.
    """
    for key, call in _calls_of_programs():
        yield key, attempt(call)


def _results(function: Callable[..., Any], *operands: Any, **how: Any) -> str:
    run = function(*operands, **how)
    return f"{of_costs(run)} | {of_results(run.arrays)}"


def _costs(function: Callable[..., Any], *names: Any, **how: Any) -> str:
    return of_costs(function(*names, **how))


def _gradient(X: Any, Z: Any, V: Any, dY: Any, **how: Any) -> str:
    run = kernels.product(X, Z, V, **how)
    return _results(kernels.gradient, run, dY, **how)


def _calls_of_programs() -> Iterator[tuple[str, Callable[[], str]]]:
    rng = np.random.default_rng(0)
    X, Z, W = rng.normal(size=(3, 41, 6))
    V = rng.normal(size=(41, 2))
    dY = rng.normal(size=(41, 2))
    for how in ({"M": 300}, {"M": 900, "blocks": (7, 5)}):
        for order in ("x_outer", "z_outer", "materialised"):
            arguments: dict[str, Any] = {"order": order, **how}
            key = f"kernels {order} sum | {how}"
            yield key, partial(_results, kernels.product, X, Z, V, **arguments)
            yield f"{key} | count", partial(_costs, kernels.count, N=41, d=6, e=2, **arguments)
        yield f"kernels gradient | {how}", partial(_gradient, X, Z, V, dY, **how)
    live1 = rng.random((2, 3)) < 0.7
    live2 = rng.random((3, 2)) < 0.7
    W1 = rng.normal(size=(6, 9))
    W2 = rng.normal(size=(9, 6))
    for fused in (True, False):
        in_blocks: dict[str, Any] = {"fused": fused, "M": 900, "blocks": (4, 3, 3, 3)}
        yield f"mlp dense, fused {fused}", partial(_results, mlp.run, X, W1, W2, **in_blocks)
        sparse = partial(_results, mlp.run, X, W1, W2, live1, live2, **in_blocks)
        yield f"mlp sparse, fused {fused}", sparse
    E, F = rng.normal(size=(2, 5, 41))
    yield "linformer", partial(_results, approximate.linformer, X, Z, W, E, F, M=900)
    features = approximate.features(4, 6)
    for phi in ("on_chip", "in_hbm"):
        performer = partial(_results, approximate.performer, X, Z, W, features, phi=phi, M=900)
        yield f"performer {phi}", performer
    hashes = approximate.lsh_hashes(X, Z, 2)
    yield "smyrf", partial(_results, approximate.smyrf, X, Z, W, *hashes, C=8, M=2000)
    methods: dict[str, dict[str, Any]] = {
        "linformer": {"k": 8},
        "performer": {"k": 8},
        "reformer": {"rounds": 2, "C": 8},
        "smyrf": {"rounds": 2, "C": 8},
    }
    for method, own in methods.items():
        yield (
            f"{method} | count",
            partial(_costs, approximate.count, method, N=64, d=8, M=3000, **own),
        )


def serving() -> Iterator[tuple[str, str]]:
    """Yield runs of ragged batches, drawn as the tests of serving draw them."""
    drawers = {
        "paged": ragged.paged,
        "paged in splits": lambda rng: ragged.paged(rng, splits=True),
        "cascade": ragged.cascade,
        "varlen": ragged.varlen,
        "varlen backward": ragged.varlen_backward,
        "decode": ragged.decode,
        "latents": lambda rng: ragged.latents(rng, absorbed=True),
        "latents expanded": lambda rng: ragged.latents(rng, absorbed=False),
        "latents in pages": ragged.latents_in_pages,
        "quantised": ragged.quantised,
        "fp8": ragged.fp8,
    }
    for name, draw in drawers.items():
        for seed in range(6):
            run = draw(np.random.default_rng(seed)).run
            names = ("O", "lse") if hasattr(run, "O") else ("dQ", "dK", "dV")
            arrays = {
                f"{key}[{s}]": array for key in names for s, array in enumerate(getattr(run, key))
            }
            yield f"{name} | seed {seed}", f"{of_costs(run)} | {of_results(arrays)}"


def over_devices() -> Iterator[tuple[str, str]]:
    """Yield runs over several devices: what each moves and sends."""
    rng = np.random.default_rng(0)
    Q, dO = rng.normal(size=(2, 4, 24, 6))
    K, V = rng.normal(size=(2, 2, 24, 6))
    for name in ("ring", "ulysses", "mesh", "tree"):
        for P in (1, 2, 4):
            for causal in (False, True):
                key = f"{name} | P = {P}, causal {causal}"
                made: list[Any] = []

                def run(
                    name: str = name,
                    P: int = P,
                    causal: bool = causal,
                    made: list[Any] = made,
                ) -> str:
                    how: dict[str, Any] = {"M": 900, "blocks": (4, 3)}
                    made.append(devices.forward(name, Q, K, V, P=P, causal=causal, **how))
                    return f"{_of_devices(made[0])} | {of_results({'O': made[0].O})}"

                def gradients(name: str = name, made: list[Any] = made) -> str:
                    back = devices.backward(name, made[0], dO)
                    return (
                        f"{_of_devices(back)} | "
                        f"{of_results({n: getattr(back, n) for n in ('dQ', 'dK', 'dV')})}"
                    )

                yield key, attempt(run)
                if made:
                    yield f"{key} | backward", attempt(gradients)


def _of_devices(run: Any) -> str:
    return " / ".join(f"{of_traffic(one.hbm)}; words {one.words}" for one in run.devices)


# --------------------------------------------------------------------------------------------------
# what people see


def helps() -> Iterator[tuple[str, str]]:
    """Yield the digests of the texts of all `--help`."""
    for command in ("", *sorted(COMMANDS)):
        words = [sys.executable, "-m", "flashsim", *command.split(), "--help"]
        environment = {"COLUMNS": "80", "PATH": "", "PYTHONPATH": str(FOLDER.parents[1])}
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
        yield (
            f"flashsim {command} --help",
            f"{len(done.stdout.splitlines())} lines {of_text(done.stdout)}",
        )


def lessons() -> Iterator[tuple[str, str]]:
    """Yield each lesson's steps: how many, and the digest of their lines, loops and events."""
    for name, page in pages().items():
        recorded = page.record()
        traces = recorded if isinstance(recorded, tuple) else (recorded,)
        for number, trace in enumerate(traces):
            lines = []
            for step in trace.steps:
                events = [(event.kind, event.name, event.elements) for event in trace.of(step)]
                lines.append(f"{step.label} {step.loops} {events}")
            yield f"{name} {number}", f"{len(lines)} steps {of_text(chr(10).join(lines))}"


def figures() -> Iterator[tuple[str, str]]:
    """Yield the digest of each figure's data with its defaults, where it is counted in a moment."""
    for name in QUICK_FIGURES:
        data = FIGURES[name].data()
        yield name, of_text(json.dumps(data, sort_keys=True, default=str))


SECTIONS: dict[str, Section] = {
    "attention": attention,
    "programs": programs,
    "serving": serving,
    "devices": over_devices,
    "helps": helps,
    "lessons": lessons,
    "figures": figures,
}

# --------------------------------------------------------------------------------------------------
# writing, comparing


def machine() -> dict[str, str]:
    """Return what results' digests depend on."""
    config: Any = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    architectures = [str(pool.get("architecture")) for pool in threadpool_info()]
    return {
        "processor": platform.machine(),
        "python": platform.python_version().rpartition(".")[0],
        "numpy": np.__version__,
        "blas": f"{blas['name']} {blas['version']}",
        "kernels": ", ".join(sorted(architectures)),
        "simd": ", ".join(config["SIMD Extensions"].get("found", [])),
    }


def stored(section: str) -> Records:
    """Return a section's records in this folder."""
    records: Records = json.loads((FOLDER / f"{section}.json").read_text(encoding="utf-8"))
    return records


def write(section: str, records: Records) -> None:
    """Write a section's records into this folder, a line a case."""
    text = json.dumps(records, ensure_ascii=False, indent=0)
    (FOLDER / f"{section}.json").write_text(text + "\n", encoding="utf-8")


def differences(before: Records, after: Records, digests: bool) -> list[str]:
    """Return what differs, a line each; results' digests only where they can be compared."""
    lines = []
    for key in [*before, *(key for key in after if key not in before)]:
        pair = [records.get(key, "no such case") for records in (before, after)]
        if not digests:
            pair = [DIGEST.sub("#", text) for text in pair]
        if pair[0] != pair[1]:
            lines.append(f"{key}\n  before: {pair[0]}\n  after:  {pair[1]}")
    return lines


def same_machine() -> bool:
    """Say whether the records were written on a machine of this kind."""
    wrote: dict[str, str] = json.loads((FOLDER / "machine.json").read_text(encoding="utf-8"))
    return wrote == machine()


def main() -> int:
    """Write or compare the records; return 1 if any differs."""
    parser = argparse.ArgumentParser(
        description="Compare what flashsim computes, counts and says with its golden records."
    )
    parser.add_argument("--write", action="store_true", help="write the records instead")
    parser.add_argument("--only", choices=SECTIONS, help="one section")
    options = parser.parse_args()
    if options.write:
        (FOLDER / "machine.json").write_text(
            json.dumps(machine(), indent=1) + "\n", encoding="utf-8"
        )
    changed = 0
    for name in [options.only] if options.only else SECTIONS:
        records = dict(SECTIONS[name]())
        if options.write:
            write(name, records)
            print(f"{name}: {len(records)} records written")
            continue
        lines = differences(stored(name), records, same_machine())
        changed += len(lines)
        print("\n".join([*lines, f"{name}: {len(lines)} of {len(records)} records differ"]))
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())

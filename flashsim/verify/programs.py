"""Programs that are no attention, as their records say: on random shapes, against NumPy and closed forms; and with their bugs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from flashsim import cross_entropy, linear
from flashsim.algorithms.beyond import programs
from flashsim.algorithms.program import Program
from flashsim.memory import MemoryModelError
from flashsim.planting import planted
from flashsim.records import Sizes
from flashsim.reference import of_bound
from flashsim.reference.programs import naive_programs
from flashsim.run.programs import run_program
from flashsim.theory import exact_program
from flashsim.verify.claim import Claim

Operands = dict[str, Any]


def drawn(program: Program, sizes: Sizes, blocks: tuple[int, ...], seed: int = 0) -> tuple[Operands, Operands]:
    """Return operands and options to try a program with: its example's, and else normal numbers."""
    rng = np.random.default_rng(seed)
    clipped = {n: min(b, sizes[s]) for (n, s), b in zip(program.blocks.items(), blocks, strict=True)}
    given, options = program.example(rng, sizes, Sizes(**clipped))
    operands = {name: rng.normal(size=kind.shape(sizes)) for name, kind in program.operands.items()}
    return {**operands, **given}, dict(options)


def attempt(program: Program, sizes: Sizes, blocks: tuple[int, ...], seed: int) -> tuple[float, bool]:
    """Run a program; return its largest error, as a share of the bound, and whether its counts are the closed form's.

    What NumPy cannot hold, NaN, and what the memory refuses are errors without bound.
    """
    operands, options = drawn(program, sizes, blocks, seed)
    try:
        run = run_program(program, operands, M=10**6, blocks=blocks, options=options)
    except (ValueError, IndexError, MemoryModelError):
        return np.inf, False
    given = {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in operands.items()}
    right = naive_programs()[program.name]({**given, **options}, run.blocks)
    errors = [of_bound(run.results[name].reshape(want.shape), want, bound) for name, (want, bound) in right.items()]
    exact = exact_program(program.name, sizes, M=10**6, blocks=blocks, dtype="float64", options=options)
    return max(errors), (run.hbm, run.sram) == (exact.hbm, exact.sram)


def exact_and_counted(source: str, claim: str, names: Iterable[str], runs: int, tried: str, **below: int) -> Claim:
    """Return the claim that programs, tried in turn on random shapes, are the naive ones and cost what theory says.

    tried  says, behind the number of runs, what they were
    below  what lengths are less than, by symbol; the others less than 40
    """
    rng, worst, equal, known = np.random.default_rng(15), 0.0, True, [programs()[name] for name in names]
    for number in range(runs):
        program = known[number % len(known)]
        sizes = Sizes(**{symbol: int(rng.integers(1, below.get(symbol, 40))) for symbol in program.symbols})
        error, same = attempt(program, sizes, tuple(int(rng.integers(1, 30)) for _ in program.blocks), number)
        worst, equal = max(worst, error), equal and same
    measured = f"largest error {worst:.2f} of the bound; counts {'equal' if equal else 'DIFFER FROM'} the closed forms"
    data = {"runs": runs, "worst_error_over_bound": worst, "counts_equal": equal}
    return Claim(source, claim, f"{runs} {tried}", measured, worst <= 1 and equal, data)


def cut_cross_entropy(full: bool) -> Claim:
    """Cross-entropy and its gradients, in tiles, are the naive ones, and no logit is in HBM."""
    extra = sum(cross_entropy.count(N=8192, v=256_000, d=2304, M=10**6, of=of).hbm.extra for of in cross_entropy.PASSES)
    return exact_and_counted(
        "Cut cross-entropy (Wijmans et al. 2024)",
        "FlashAttention's softmax without values is a language model's loss; its gradients too, in tiles, are the naive ones, "
        "and no logit is in HBM",
        cross_entropy.PASSES.values(),
        300 if full else 60,
        "losses and gradients to X and E, N, v, d < 40, rows left out; extra memory at N = 8,192, v = 256,000",
    ).also(f"extra memory {extra}", extra == 0, extra=extra)


def linear_attention(full: bool) -> Claim:
    """Linear attention, in chunks, is the naive one; its state on chip, it moves each array once."""
    lengths, compulsory, shares = [2**p for p in range(8, 21 if full else 17, 2)], True, []
    for N, C in itertools.product(lengths, (64, 128, 256)):
        kept, through = (linear.exact(N=N, d=64, M=10**6, chunk=C, state=state).hbm.accesses for state in linear.STATES)
        compulsory &= kept == 4 * N * 64
        shares.append(through / kept)
    return exact_and_counted(
        "Linear attention (Yang et al. 2024)",
        "without a softmax the past is d·e numbers: with that state on chip each array moves once, at any N; through HBM, chunks "
        "C ≥ d apart, at most twice as much moves",
        linear.STATES.values(),
        200 if full else 40,
        f"runs in chunks, N, d, e < 40; N {lengths[0]} … {lengths[-1]:,} at d = e = 64, C = 64, 128, 256",
    ).also(
        f"each array {'once' if compulsory else 'MORE THAN ONCE'}; through HBM {min(shares):.2f} to {max(shares):.2f} times that",
        compulsory and max(shares) <= 2,
        lengths=lengths,
        compulsory=compulsory,
        through_hbm=shares,
    )


def unnoticed(program: Program, seeds: range = range(4)) -> Iterator[str]:
    """Yield the bugs of a program's record that, planted, change neither its counts nor a number by more than rounding may.

    Without a bug neither may change: else its name is yielded as "none".
    """
    divided = {*program.blocks.values()}
    sizes = Sizes(**{symbol: 11 if symbol in divided else 6 for symbol in program.symbols})
    blocks = (4, 3, 2, 3)[: len(program.blocks)]  # ragged, and each its own

    def seen(tried: Program) -> bool:
        return any(error > 1 or not same for error, same in (attempt(tried, sizes, blocks, seed) for seed in seeds))

    if seen(program):
        yield "none"
    yield from (bug.what for bug in program.bugs if not seen(planted(program, (bug.before, bug.after), what=bug.what)))


def planted_bugs(full: bool) -> Claim:
    """The checks of programs that are no attention can fail: each bug of their records is noticed."""
    every = programs().values()
    missed = [f"{program.name}: {what}" for program in every for what in unnoticed(program)]
    bugs = sum(len(program.bugs) for program in every)
    return Claim(
        "That the checks can fail",
        "what checks the programs beyond attention notices the bugs that are planted in them, and nothing without one",
        f"{bugs} bugs in {len(every)} programs, a bug at a time, by numbers and counts",
        f"{len(missed)} unnoticed" + (f", first {missed[0]}" if missed else ""),
        not missed and all(program.bugs for program in every),
        {"bugs": bugs, "programs": len(every), "unnoticed": missed},
    )

"""Programs that are not attention, as their records say: on random shapes, against NumPy and
closed forms; with their bugs.
"""

from collections.abc import Iterator

from flashsim.algorithms.program import MatrixProgram
from flashsim.analysis.verify.shared import Claim, attempt
from flashsim.attention.shapes import Sizes
from flashsim.extensions.programs import programs
from flashsim.tracing.planting import planted


def unnoticed(program: MatrixProgram, seeds: range = range(4)) -> Iterator[str]:
    """Yield the bugs of a program's record that change neither counts nor numbers; "none" if
    something is seen without one.
    """
    divided = {*program.blocks.values()}
    sizes = Sizes(**{symbol: 11 if symbol in divided else 6 for symbol in program.symbols})
    blocks = (4, 3, 2, 3)[: len(program.blocks)]  # ragged, and each its own

    def seen(tried: MatrixProgram) -> bool:
        return any(
            error > 1 or not same
            for error, same in (attempt(tried, sizes, blocks, seed) for seed in seeds)
        )

    if seen(program):
        yield "none"
    yield from (
        bug.what
        for bug in program.bugs
        if not seen(planted(program, (bug.before, bug.after), what=bug.what))
    )


def planted_bugs(full: bool) -> Claim:
    """That the checks can fail. The checks of programs beyond attention notice every bug that is
    planted in them, and report nothing without one.
    """
    every = programs().values()
    missed = [f"{program.name}: {what}" for program in every for what in unnoticed(program)]
    bugs = sum(len(program.bugs) for program in every)
    return Claim(
        f"{bugs} bugs in {len(every)} programs, a bug at a time, by numbers and counts",
        f"{len(missed)} unnoticed" + (f", first {missed[0]}" if missed else ""),
        not missed and all(program.bugs for program in every),
        {"bugs": bugs, "programs": len(every), "unnoticed": missed},
    )

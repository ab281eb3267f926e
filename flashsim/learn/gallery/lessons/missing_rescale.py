"""The correct run beside one that forgets a factor."""

import numpy as np

from flashsim.learn.gallery.trace_queries import (
    first_step,
    old_and_new,
    output,
    rescaled_rows,
    short,
)
from flashsim.tracing import Trace, TraceEvent

TITLE = "A missing rescale"
ORDER = 90
RUN = {"algorithm": "flash_basic", "N": 8, "d": 2, "blocks": (4, 2), "M": 60, "bug": "no_rescale"}


def teach(right: Trace, wrong: Trace) -> str:
    error = np.abs(output(right) - output(wrong)).max(axis=1)
    worst = int(error.argmax())
    rows = len(error)
    bad = {int(row) for row in np.flatnonzero(error > 1e-3 * np.abs(output(right)).max())}
    assert bad == rescaled_rows(right)
    rise = first_step(right, "rescale")
    pairs = zip(right.steps, wrong.steps, strict=True)
    differs = next(
        s for s, other in pairs if not _same(right.events[s.last], wrong.events[other.last])
    )
    sound = ", ".join(map(str, sorted(set(range(rows)) - bad)))
    assert right.about.arrays == wrong.about.arrays
    assert np.array_equal(output(right, "l"), output(wrong, "l"))
    old_O, new_O = old_and_new(differs, "O")
    other_O = old_and_new(wrong.steps[differs.number], "O")[1]
    assert differs.rows is not None
    row = int(np.abs(new_O - other_O).max(axis=1).argmax())
    return f"""
        The first run is Algorithm 1; the second is the same with e^{{m_i − m_i^new}} left out of
        line 12, underlined in the Python. The wrong run moves the same elements, fills the same
        SRAM, and gives no error and no NaN. Only its values are wrong. The page shows them at m, ℓ,
        O, where the second run's are red if they differ.

        » The two runs are equal until a maximum rises. From there on, those rows of O keep too much
        of the earlier keys. At the end {len(bad)} of {rows} rows are wrong, row {worst} by
        {short(error[worst])}. The rows whose maximum never rose are right ({sound}). So a test in
        which every row has its maximum in the first block does not find this bug. ℓ, which line 11
        still rescales, is right everywhere.

        [rescale] Maxima rise for the first time, in {rise.rescaled} rows; line 11 rescales ℓ in
        both runs, which still agree.
        [first difference @ {differs.number}] Line 12: row {differs.rows[0] + row} of O begins with
        {short(new_O[row, 0])} in the first run, and with {short(other_O[row, 0])} in the second,
        where what it was before, {short(old_O[row, 0])}, weighs too much.
        [last step] The same counts; {len(bad)} of {rows} rows of O are wrong.

        [asks @ {differs.number}] The second run forgets the factor in line 12, and has it in line
        11. Which result goes wrong?
        [choices] O | ℓ | both
        [right] O
        [because] Line 11 still rescales ℓ. Only O keeps too much of what came first.
        """


def _same(event: TraceEvent, other: TraceEvent) -> bool:
    mine = event.value
    theirs = other.value
    if mine is None or theirs is None:
        return mine is theirs
    return np.array_equal(mine, theirs)

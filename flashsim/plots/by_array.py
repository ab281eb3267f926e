"""Every algorithm's accesses, array by array, in both directions; and the main job's figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from matplotlib.figure import Figure

from flashsim.algorithms import FORWARD
from flashsim.algorithms.own import backward_of, resolve
from flashsim.attention.arguments import check_heads
from flashsim.attention.inputs import REFERENCE_D, REFERENCE_N
from flashsim.attention.masks.patterns import butterfly
from flashsim.drawing.bars import (
    Counted,
    draw_bar,
    finish,
    legend,
    numbers,
    plot_run,
    point_of,
    total_of,
    unit,
)
from flashsim.drawing.style import column_figure, compared_both_ways, left_edge, looks, styled
from flashsim.plots.blocks import blocks_data, plot_blocks
from flashsim.plots.chart import AxesList, Data, chart, count_arguments, describe
from flashsim.simulate.api import count
from flashsim.support.sizes import Size

_LONG = 10  # a bar is cut that is this many times longer than the shortest


def arrays_data(
    *,
    N: int = REFERENCE_N,
    d: int = REFERENCE_D,
    M: Size | None = None,
    dtype: str = "float32",
    blocks: tuple[int, int] | None = None,
    causal: bool = False,
    heads: int = 1,
    kv_heads: int | None = None,
    sizing: str = "fit",
    algorithms: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return reads and writes (elements, all `heads`) of each array, by direction and algorithm; by
    default GPT-2's head.

    Of the algorithms that pictures compare, with blocks that fit and a backward pass by their name,
    of "block_sparse" with the butterfly pattern, and of `algorithms`, with their backward pass if
    there is one. No mask, no dropout. heads / `kv_heads` query heads share a KV head, and run as
    one problem; None: each has its own. `sram_peak` is by direction.
    """
    shape = count_arguments(N=N, d=d, M=M, dtype=dtype, blocks=blocks, sizing=sizing)
    heads, shared = check_heads(heads, kv_heads)
    mask_and_heads: dict[str, Any] = {"causal": causal} if causal else {}
    if heads > 1:
        mask_and_heads |= {"heads": heads, "kv_heads": shared, "gqa": "grouped"}
    peaks: dict[str, int] = {}
    directions: dict[str, dict[str, Any]] = {"forward": {}, "backward": {}}
    for name_or_record in (*compared_both_ways(), "block_sparse", *algorithms):
        forward = resolve(name_or_record, "forward")
        passes = [forward]
        with suppress(ValueError):
            passes.append(backward_of(forward))
        for algorithm in passes:
            mask = butterfly if "block_mask" in forward.parts else None
            direction = algorithm.direction
            options: dict[str, Any] = {"direction": direction, "block_mask": mask}
            tally = count(algorithm, **shape, **mask_and_heads, **options)
            directions[direction][forward.name] = numbers(tally)
            if forward.name == "flash":
                peaks[direction] = tally.sram.peak
    return {
        **shape,
        **mask_and_heads,
        "sram_peak": peaks,
        "block_mask": "butterfly",
        "directions": directions,
    }


@chart(
    "arrays",
    arrays_data,
    "accesses by array, every algorithm, forward and backward",
    lambda data: 0.7 + 0.88 * len(data["directions"]["forward"]),
    panels=2,
    columns=2.1,
    slide=9.2,
)
def plot_arrays(data: Data, axes: AxesList) -> None:
    """Draw stacked bars, forward beside backward, a far longer one cut. Below each bar stand its
    eight or six largest arrays.
    """
    for panel, (direction, bars) in zip(axes, data["directions"].items(), strict=True):
        totals = [total_of(by_array) for by_array in bars.values()]
        most = max(total for total in totals if total <= _LONG * min(totals))
        for row, (name, look) in enumerate(looks(bars).items()):
            label = look.label
            if name in FORWARD and "block_mask" in FORWARD[name].parts:
                label += ", butterfly"
            draw_bar(panel, row, label, bars[name], most)
        finish(panel, len(bars), most)
        shape = describe({**data, "sram_peak": data["sram_peak"][direction]}, "N", "d", "M")
        panel.set_xlabel(f"HBM accesses ({unit(most)}), {direction}\n{shape}")
        flash = total_of(bars["flash"])
        standard = total_of(bars["standard"])
        panel.set_title(
            f"{direction.capitalize()}: FlashAttention moves {standard / flash:.3g}× less", pad=18
        )
    legend(axes[0])


@styled
def run_figure(run_by_name: Mapping[str, Counted], *, heads: int = 1, **shape: Any) -> Figure:
    """Return the main job's figure, of one head: what each run moved, above accesses against block
    size at that shape.

    `run_by_name`: runs of `heads` heads by the algorithm's name, with its `title` if the run has
    one. `shape` is passed on to `plot_blocks`: N, N_q, d, d_v, dtype, M.
    """
    bars = 0.8 + 0.7 * len(run_by_name)
    figure = column_figure(bars + 3.7)
    by_array, by_block = figure.subplots(2, 1, height_ratios=(bars, 3.7))
    plot_run(
        {getattr(run, "title", name): run for name, run in run_by_name.items()},
        ax=by_array,
        heads=heads,
    )
    labels = looks(run_by_name)
    plot_blocks(blocks_data(**shape), ax=by_block)  # lays the figure out
    title = point_of({labels[name].label: run for name, run in run_by_name.items()})
    by_array.set_title(title, pad=18, x=left_edge(by_array))
    return figure

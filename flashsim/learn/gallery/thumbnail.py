"""A lesson's small picture: its tiles as they are at one step."""

from flashsim.tracing import Step, Trace

SIDE = 76  # of the picture, in pixels
FILLS = {"current": "var(--mark)", "done": "var(--done)", "ahead": "var(--panel)", "skipped": "var(--ground)"}


def thumbnail(trace: Trace, at: Step) -> str:
    """Return the score matrix by tiles at a step as SVG: done, current, ahead, or, smaller, never visited."""
    blocks = trace.about.blocks
    last = {step.tile: step.number for step in trace.steps}
    wide, tall = SIDE / blocks.T_c, SIDE / max(blocks.T_r, blocks.T_c / 4)
    tiles = [
        _tile(j * wide, i * tall, wide, tall, _fate(last.get((i, j)), (i, j) == at.tile, at.number))
        for i in range(blocks.T_r)
        for j in range(blocks.T_c)
    ]
    height = blocks.T_r * tall
    size = f'width="{SIDE + 2}" height="{height + 2:g}" viewBox="-1 -1 {SIDE + 2} {height + 2:g}"'
    return f'<svg {size} aria-hidden="true">{"".join(tiles)}</svg>'


def _fate(last: int | None, current: bool, now: int) -> str:
    if last is None:
        return "skipped"
    return "current" if current else "done" if last < now else "ahead"


def _tile(x: float, y: float, width: float, height: float, fate: str) -> str:
    edge = min(width, height) / 3 if fate == "skipped" else 1
    return (
        f'<rect x="{x + edge / 2:.4g}" y="{y + edge / 2:.4g}" width="{width - edge:.4g}" height="{height - edge:.4g}" '
        f'fill="{FILLS[fate]}" stroke="var(--{"current" if fate == "current" else "faint"})"/>'
    )

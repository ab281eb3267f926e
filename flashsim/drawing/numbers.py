"""What axes say of numbers: in which power of ten, and at which values. M is the size of SRAM
everywhere, so never a million.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axis import Axis
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import Formatter, Locator

# of a font's size: the widths of DejaVu Sans, which is wider than most
DIGIT = 0.64
COMMA = 0.33
APART = 0.6  # of a font's size: at least so much lies between two numbers
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_for(most: float) -> int:
    """Return the power of ten, a multiple of three, in which numbers up to `most` are said; 0
    below 10,000.
    """
    return 3 * (math.floor(math.log10(most)) // 3) if most >= 10_000 else 0


def in_units(power: int, what: str = "elements") -> str:
    """Return how such a unit is said: "10⁶ elements"."""
    return f"10{str(power).translate(SUPERSCRIPTS)} {what}".strip() if power else what


def format_in_power(value: float, power: int) -> str:
    """Return a number in that power of ten, without what a float's rounding adds: "2,100",
    "0.05".
    """
    number = float(f"{value / 10**power:.12g}")
    return f"{number:,.0f}" if number.is_integer() else f"{number:,.10g}"


class InPower(Formatter):
    """Says an axis' numbers in a power of ten; all with as many decimals, unless the axis is
    logarithmic.
    """

    def __init__(self, power: int) -> None:
        self.power = power

    def __call__(self, value: float, pos: Any = None) -> str:
        """Return what one tick says."""
        return format_in_power(value, self.power)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return what all ticks say."""
        texts = [self(value) for value in values]
        if isinstance(self.axis, Axis) and self.axis.get_scale() == "log":
            return texts
        decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
        return [f"{float(text.replace(',', '')):,.{decimals}f}" for text in texts]


def say_in(axis: Axis, power: int) -> None:
    """Let an axis say its numbers in that power of ten; `in_units` says for its label in which."""
    axis.set_major_formatter(InPower(power))


def as_power(value: float, _: Any = None) -> str:
    """Return 1000000 as 10⁶, typeset: for axes whose ticks are powers of ten."""
    return f"$10^{{{round(math.log10(value))}}}$"


class AtValues(Locator):
    """Ticks at the values that were counted; at every second, third, … where the numbers of all
    would run into each other.

    It asks anew each time that the axis is drawn: a larger figure has more ticks.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self.values = sorted(values)

    def __call__(self) -> Sequence[float]:
        """Return those in view."""
        assert isinstance(self.axis, Axis)
        low, high = sorted(self.axis.get_view_interval())
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """Return those between two values."""
        within = [value for value in self.values if vmin <= value <= vmax]
        for step in range(1, len(within)):
            if self._have_room(within[::step]):
                return within[::step]
        return within[:1]

    def _have_room(self, values: Sequence[float]) -> bool:
        """Say whether their numbers, each centred at its value, lie apart along a horizontal
        axis.
        """
        axis = self.axis
        assert isinstance(axis, Axis)
        size = axis.get_tick_params().get("labelsize", matplotlib.rcParams["xtick.labelsize"])
        points = FontProperties(size=size).get_size_in_points() * axes_scale(axis)
        places = [axis.axes.transData.transform((value, value))[0] for value in values]
        widths = [points * _width(f"{value:,.10g}") for value in values]
        for number in range(1, len(values)):
            between = places[number] - places[number - 1]
            if between < (widths[number] + widths[number - 1]) / 2 + APART * points:
                return False
        return True


def axes_scale(axis: Axis) -> float:
    """Return how many pixels a point is."""
    figure = axis.axes.get_figure(root=True)
    assert figure is not None
    return figure.dpi / 72


def _width(number: str) -> float:
    return sum(COMMA if sign in ",." else DIGIT for sign in number)

"""What algorithms there are, as a table: `flashsim.algorithms()`."""

from __future__ import annotations

from dataclasses import dataclass

from flashsim.algorithms.record import Algorithm
from flashsim.support.exporting import html_table

HEADINGS = ("name", "what it is", "back", "options")


@dataclass(frozen=True, repr=False)
class Row:
    """One algorithm: its name, its forward pass, its backward passes by name, and what
    it takes.

    options        of its own, by name
    mask, dropout  whether it has them
    """

    name: str
    forward: Algorithm
    backward: dict[str, Algorithm]

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its own options."""
        return tuple(option.name for option in self.forward.options)

    @property
    def mask(self) -> bool:
        """Whether it has masks."""
        return "MASK" in self.forward.parts

    @property
    def dropout(self) -> bool:
        """Whether it has dropout."""
        return "dropout" in self.forward.parts

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts of `HEADINGS`: "back" says whether there is a backward pass."""
        return (
            self.name,
            self.forward.title,
            "yes" if self.backward else "–",
            ",".join(self.options),
        )

    def __repr__(self) -> str:
        backward = f", backward {', '.join(self.backward)}" if self.backward else ""
        return f"<{self.name}: {self.forward.title}{backward}>"


class Table(tuple[Row, ...]):
    """All algorithms: a table where it is shown, and a tuple of `Row`."""

    @property
    def notes(self) -> list[str]:
        """What there is to say besides."""
        others = [
            (name, each.name)
            for each in self
            for name in each.backward
            if name != each.name
        ]
        plain = [each.name for each in self if not (each.mask or each.dropout)]
        return [
            *(
                f"{name}: another backward pass of {forward}"
                for name, forward in others
            ),
            f"without mask and dropout: {', '.join(plain)}",
        ]

    def __repr__(self) -> str:
        rows = [HEADINGS, *(each.cells for each in self)]
        widths = [
            max(len(row[column]) for row in rows) for column in range(len(HEADINGS))
        ]
        rows.insert(1, tuple("─" * width for width in widths))
        lines = [
            "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        return html_table(
            "algorithms", HEADINGS, [each.cells for each in self], self.notes
        )

"""What an exercise is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashsim.exercises.work import Work

CHECK = '''"""{heading}.

{explained}

Check it:         flashsim exercise check {file}
Ask for a hint:   add --hint; each time you get the next
"""
{code}
'''


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    number, name, title  where it comes, what it is called, and what it is about
    text   the student's file: a docstring that explains, then code with holes, each written `...`
    hints  for everyone, from the first nudge to nearly the answer
    grade  judges a student's work: returns in a sentence what was verified, or raises `Wrong`
    """

    number: int
    name: str
    title: str
    text: str
    hints: tuple[str, ...]
    grade: Callable[[Work], str]

    @property
    def file(self) -> str:
        """The name of the student's file."""
        return f"{self.number:02}_{self.name}.py"

    @property
    def notebook(self) -> str:
        """The name of the student's notebook."""
        return f"{self.number:02}_{self.name}.ipynb"

    @property
    def heading(self) -> str:
        """The first line of the student's file, by which it is known again."""
        return f"Exercise {self.number}: {self.title}"

    def fresh(self) -> str:
        """Return the student's file as it begins."""
        explained, code = self.parts()
        return CHECK.format(heading=self.heading, explained=explained, file=self.file, code=code)

    def parts(self) -> tuple[str, str]:
        """Return what the file explains, and its code with holes."""
        explained, _, code = self.text.strip("\n").partition('\n"""\n')
        return explained, code

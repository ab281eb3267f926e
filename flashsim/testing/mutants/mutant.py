"""A mutant: a correct attention with a bug, a change to its text, compiled in its place."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from flashsim.problem.inputs import Array
from flashsim.testing.mutants import split, tiled, unfused
from flashsim.testing.spec import Spec
from flashsim.tracing.planting import Change, changed, execute

SPEC = Spec(
    dtypes=("float32", "float16", *(("bfloat16",) if find_spec("ml_dtypes") else ())),
    block=(8, 4),
    causal="bottom_right",
    lse="natural",
    gqa=True,
    masks=True,
    scale=True,
    d_v=True,
    zero_keys=True,
)


class Implementation:
    """An attention that a module defines: its passes, of which calling it runs the forward one; its keep mask; its promise."""

    def __init__(self, name: str, module: ModuleType, spec: Spec = SPEC) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = str(__package__)
        self.forward, self.backward, self.keep, self.spec = module.forward, module.backward, module.keep, spec

    def __call__(self, *args: Any, **options: Any) -> tuple[Array, Array]:
        """Return O and the log-sum-exp of each row."""
        found: tuple[Array, Array] = self.forward(*args, **options)
        return found


BASES = {name: Implementation(name, base) for name, base in (("tiled", tiled), ("unfused", unfused), ("split", split))}


@dataclass(frozen=True)
class Mutant:
    """A bug that a real kernel had, as changes to the text of one of the correct attentions.

    name      an identifier
    bug       what is wrong, in a sentence
    threads   where it was reported or repaired, each as owner/repository#number; none where the kit met it itself
    base      the attention that is changed: "tiled", "unfused" or "split"
    changes   pairs (before, after); each `before` occurs exactly once in the base's source
    part      where the bug is: "forward", "backward", or "dropout", in either pass
    spec      what the buggy kernel promises: by default all that the base does
    """

    name: str
    bug: str
    threads: tuple[str, ...]
    base: str
    changes: tuple[Change, ...]
    part: str = "forward"
    spec: Spec = SPEC

    def build(self) -> Implementation:
        """Return the buggy attention, anew: some remember earlier calls.

        Raises ValueError for a change whose `before` does not occur exactly once.
        """
        filename, text = source(self.base)
        module = ModuleType(f"{__package__}.{self.name}")
        execute(changed(text, self.changes, f"{filename}, for {self.name}"), filename, module.__dict__)
        return Implementation(self.name, module, self.spec)


def source(base: str) -> tuple[str, str]:
    """Return the file name and the text of a correct attention."""
    path = Path(__file__).with_name(f"{base}.py")
    return str(path), path.read_text(encoding="utf-8")

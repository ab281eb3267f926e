"""`Mutant`: a correct attention with a known bug. The bug is planted by changing the attention's
text, which is then compiled: so a mutant differs from its base in these lines alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from flashsim.attention.inputs import Array
from flashsim.testing import adapters
from flashsim.testing.mutants import served, split, tiled, unfused
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
    """A module's attention: its two passes, its keep mask and its spec. A call runs the forward
    pass.

    With `adapter`, a key of `ADAPTERS`, the forward pass is the module's function of that name,
    adapted, and there is no backward pass.
    """

    def __init__(self, name: str, module: ModuleType, spec: Spec = SPEC, adapter: str = "") -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = str(__package__)
        self.spec = spec
        self.keep: Any = getattr(module, "keep", None)
        if adapter:
            self.forward = ADAPTERS[adapter](getattr(module, adapter))
            self.backward: Any = None
        else:
            self.forward = module.forward
            self.backward = None if spec.scales else module.backward

    def __call__(self, *args: Any, **options: Any) -> tuple[Array, Array]:
        """Return O and the log-sum-exp of each row."""
        result: tuple[Array, Array] = self.forward(*args, **options)
        return result


SERVED = replace(
    SPEC, block=(8, 16), masks=False, window="bottom_right", softcap=True, alibi=True, sink=True
)
FP8 = Spec(
    dtypes=("float8_e4m3fn", "float8_e5m2"), block=(8, 16), lse="natural", gqa=True, scales="head"
)
ADAPTERS: dict[str, Callable[[Any], Any]] = {
    "varlen": adapters.varlen,
    "paged": adapters.paged,
    "mla": adapters.mla,
}
SERVING = {  # correct attentions of kernels that serve
    "served": Implementation("served", served, SERVED),
    "varlen": Implementation("varlen", served, SERVED, "varlen"),
    "paged": Implementation("paged", served, SERVED, "paged"),
    "mla": Implementation("mla", served, SERVED, "mla"),
    "eight_bits_by_head": Implementation("head", served, FP8),
    "eight_bits_by_block": Implementation("block", served, replace(FP8, scales="block")),
}
BASES = {
    "tiled": Implementation("tiled", tiled),
    "unfused": Implementation("unfused", unfused),
    "split": Implementation("split", split),
}


@dataclass(frozen=True)
class Mutant:
    """A bug that a real kernel had, as changes to the text of one of the correct attentions.

    name      an identifier
    bug       what is wrong, in a sentence
    threads   where it was reported or repaired, each as owner/repository#number; empty if the kit
              itself discovered it
    base      the attention that is changed: "tiled", "unfused", "split", or "served", which is not
              in `BASES`
    changes   pairs (before, after); each `before` occurs exactly once in the base's source
    part      where the bug is: "forward", "backward", or "dropout" in either pass
    spec      what the buggy kernel promises: by default, all that the base does
    adapter   the function of "served" that is called, a key of `ADAPTERS`; "": `forward`
    """

    name: str
    bug: str
    threads: tuple[str, ...]
    base: str
    changes: tuple[Change, ...]
    part: str = "forward"
    spec: Spec = SPEC
    adapter: str = ""

    def build(self) -> Implementation:
        """Return a new copy of the buggy attention. Each call makes one, because some remember
        earlier calls.

        Raises ValueError for a change whose `before` does not occur exactly once.
        """
        filename, text = source(self.base)
        module = ModuleType(f"{__package__}.{self.name}")
        buggy_text = changed(text, self.changes, f"{filename}, for {self.name}")
        execute(buggy_text, filename, module.__dict__)
        return Implementation(self.name, module, self.spec, self.adapter)


def source(base: str) -> tuple[str, str]:
    """Return the file name and the text of a correct attention."""
    path = Path(__file__).with_name(f"{base}.py")
    return str(path), path.read_text(encoding="utf-8")

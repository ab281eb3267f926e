"""`Row`: one point of a sweep, its arguments and what it costs; and what each column holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_origin, get_type_hints

from flashsim.version import __version__

Value = None | bool | int | float | str
Status = Literal["ok", "does not fit", "refused"]

ARGUMENTS: Mapping[str, str] = {
    "label": "the label of the row of `points`",
    "algorithm": "",
    "direction": "forward or backward",
    "N": "length of queries and keys, where it is one",
    "N_q": "queries",
    "N_k": "keys",
    "d": "head dimension, the width of Q and K",
    "d_v": "width of V and O",
    "M": "SRAM's size, elements",
    "heads": "query heads, batch included; counts are of all",
    "kv_heads": "KV heads",
    "gqa": "how query heads that share a KV head run",
    "dtype": "of Q, K, V",
    "causal": "whether query i attends to keys j ≤ i + N_k − N_q alone",
    "mask": "",
    "dropout_p": "dropout probability",
    "blocks": "B_r × B_c, where they were given",
    "enforce": "whether to exceed M is an error, where that was said",
    "sizing": "who chose the blocks; empty where they were given",
}
"""The columns of arguments, with what each holds. An algorithm's own options come after them."""
OPTIONAL_ARGUMENTS = ("label", "mask", "blocks", "enforce")
"""Arguments that have a column only in a sweep that sets them."""
DEFAULTS_TO: Mapping[str, str] = {"N_q": "N", "N_k": "N", "d_v": "d", "kv_heads": "heads"}
"""Arguments whose default is another argument; a table of points, such as a sweep's, has both."""


@dataclass(slots=True)
class Row:
    """One point of a sweep: its arguments, and what it costs. None: there is nothing to say.

    `row["M"]` is the value of any column.

    arguments    by name, those of `flashsim.count` and the algorithm's own options, as plain values
    by_array     accesses of each array, by column, such as "Q_reads_elements"
    certificate  of the lower bound, which `flashsim.prove` checks; of one KV head
    """

    arguments: dict[str, Value]
    status: Annotated[Status, "ok, does not fit, or refused"] = "ok"
    reason: Annotated[str | None, "why there are no counts"] = None
    B_r: Annotated[int | None, "rows of a block of queries"] = None
    B_c: Annotated[int | None, "rows of a block of keys"] = None
    T_r: Annotated[int | None, "blocks of queries"] = None
    T_c: Annotated[int | None, "blocks of keys"] = None
    accesses_elements: Annotated[int | None, "HBM accesses: reads + writes"] = None
    reads_elements: Annotated[int | None, "read from HBM"] = None
    writes_elements: Annotated[int | None, "written to HBM, initial writes included"] = None
    init_writes_elements: Annotated[int | None, "written to HBM by initialisation alone"] = None
    traffic_bytes: Annotated[
        int | None,
        "HBM accesses in bytes, each array at its own item size",
    ] = None
    extra_elements: Annotated[int | None, "kept in HBM besides inputs and outputs"] = None
    compulsory_elements: Annotated[
        int | None,
        "inputs read once, outputs written once: no exact algorithm moves less",
    ] = None
    over_compulsory: Annotated[float | None, "accesses ÷ compulsory"] = None
    lower_bound_elements: Annotated[
        int | None,
        "no schedule moves less (flashsim.prove); of all heads, one KV head after another",
    ] = None
    over_bound: Annotated[float | None, "accesses ÷ lower bound"] = None
    no_bound: Annotated[str | None, "why there is none"] = None
    theta_elements: Annotated[
        int | float | None,
        "the theorem's expression, without its constant: N²d²/M, for standard attention Nd + N²",
    ] = None
    peak_elements: Annotated[int | None, "the most in SRAM at once"] = None
    peak_over_M: Annotated[float | None, "the same ÷ M"] = None
    over_M_elements: Annotated[
        int | None,
        "by how much the peak exceeds an M that is not enforced; 0 where it does not",
    ] = None
    matmul_flops: Annotated[int | None, "FLOPs of the matrix products"] = None
    intensity_flops_per_byte: Annotated[
        float | None,
        "matmul FLOPs ÷ bytes moved; empty where none are",
    ] = None
    source: Annotated[str | None, "closed form, or count"] = None
    checked: Annotated[bool, "whether a count was made as well, and was equal"] = False
    flashsim: Annotated[str, "version"] = __version__
    by_array: dict[str, int] = field(default_factory=dict)
    certificate: dict[str, Any] | None = None

    def __getitem__(self, column: str) -> Value:
        if column in RESULTS:
            value: Value = getattr(self, column)
            return value
        if column in self.arguments:
            return self.arguments[column]
        return self.by_array.get(column)

    def to_dict(self) -> dict[str, Value]:
        """Return the columns side by side: arguments, results, accesses by array."""
        results = {column: getattr(self, column) for column in RESULTS}
        return {**self.arguments, **results, **self.by_array}


RESULTS: Mapping[str, str] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Row, include_extras=True).items()
    if get_origin(hint) is Annotated
}
"""The columns of results, with what each holds. Accesses by array come after them."""
BOUND_RESULTS = ("lower_bound_elements", "over_bound", "no_bound")
"""Results that only a sweep with bounds has."""
ARRAY_RESULTS: Mapping[str, str] = {
    "_reads_elements": "of this array, read from HBM",
    "_writes_elements": "of this array, written to HBM",
}
"""The ends of the names of accesses by array."""


def meaning(column: str) -> str:
    """Return what a column holds, in words; "" where its name says it."""
    if column in ARGUMENTS:
        return ARGUMENTS[column]
    if column in RESULTS:
        return RESULTS[column]
    for suffix, text in ARRAY_RESULTS.items():
        if column.endswith(suffix):
            return text
    return ""


def is_result(column: str) -> bool:
    """Return whether a column is a result. A table of points that has one is a sweep's, and does
    not ask for it.
    """
    return column in RESULTS or column.endswith(tuple(ARRAY_RESULTS))

"""The columns of a sweep's rows, and what each holds."""

from collections.abc import Mapping

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
FOLLOWS: Mapping[str, str] = {"N_q": "N", "N_k": "N", "d_v": "d", "kv_heads": "heads"}
"""Arguments that are another one by default; a table of points, such as a sweep's, has both."""
FOUND: Mapping[str, str] = {
    "status": "ok, does not fit, or refused",
    "reason": "why there are no counts",
    "B_r": "rows of a block of queries",
    "B_c": "rows of a block of keys",
    "T_r": "blocks of queries",
    "T_c": "blocks of keys",
    "accesses_elements": "HBM accesses: reads + writes",
    "reads_elements": "read from HBM",
    "writes_elements": "written to HBM, initial writes included",
    "init_writes_elements": "written to HBM by initialisation alone",
    "traffic_bytes": "HBM accesses in bytes, each array at its own item size",
    "extra_elements": "kept in HBM besides inputs and outputs",
    "compulsory_elements": "inputs read once, outputs written once: no exact algorithm moves less",
    "over_compulsory": "accesses ÷ compulsory",
    "lower_bound_elements": "no schedule moves less (flashsim.prove); of all heads, one KV head after another",  # noqa: E501
    "over_bound": "accesses ÷ lower bound",
    "no_bound": "why there is none",
    "theta_elements": "the theorem's expression, without its constant: N²d²/M, for standard attention Nd + N²",  # noqa: E501
    "peak_elements": "the most in SRAM at once",
    "peak_over_M": "the same ÷ M",
    "over_M_elements": "by how much the peak exceeds an M that is not enforced; 0 where it does not",  # noqa: E501
    "matmul_flops": "FLOPs of the matrix products",
    "intensity_flops_per_byte": "matmul FLOPs ÷ bytes moved; empty where none are",
    "source": "closed form, or count",
    "checked": "whether a count was made as well, and was equal",
    "flashsim": "version",
}
OF_BOUND = ("lower_bound_elements", "over_bound", "no_bound")
"""Those that only a sweep that was asked for bounds has."""
CERTIFICATE = "certificate"
"""Of a row's bound: kept beside the columns."""
OF_ARRAYS: Mapping[str, str] = {
    "reads_elements": "of this array, read from HBM",
    "writes_elements": "of this array, written to HBM",
}


def meaning(column: str) -> str:
    """Return what a column holds, in words."""
    if column in ARGUMENTS or column in FOUND:
        return ARGUMENTS.get(column) or FOUND.get(column) or ""
    return next((said for unit, said in OF_ARRAYS.items() if column.endswith(f"_{unit}")), "")


def is_found(column: str) -> bool:
    """Return whether a column is of what was found: a table that has one, such as a sweep's,
    does not ask for it.
    """
    return column in FOUND or any(column.endswith(f"_{unit}") for unit in OF_ARRAYS)

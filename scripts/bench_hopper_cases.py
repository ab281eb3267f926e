"""Time on Hopper what `flashsim bench` does not, beside cuDNN and FlashAttention where PyTorch has
them.

Decoding, sliding windows, block-sparse attention; the backward pass, deterministic or not, and with
dropout; 8 bits; d = 256; keys in pages, and packed batches.

# on a machine with a GPU: figures/gpu_hopper_cases.json
python scripts/bench_hopper_cases.py
python scripts/bench_hopper_cases.py --only backward -o figures/gpu_hopper_backward.json

All take turns in one run; what is kept are medians of 9 rounds of 30 ms. A forward call is replayed
as a graph, as programs that decode do it: what is timed is the GPU. Rates are of bytes that must
move: K and V in decoding, Q, K, V, O with a window. Of the backward pass they are TFLOP/s, of five
products; of 8 bits and d = 256, of two. Of sections there are µs.
"""

import argparse
import datetime
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hopper_races import array_masks, backward, clocks, eight_bits, forward, serving

from flashsim.gpu.machine import machine
from flashsim.support.entry import run_script
from flashsim.support.files import check_target, write_whole


def main() -> int:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("figures/gpu_hopper_cases.json"))
    parser.add_argument(
        "--only",
        choices=CASES,
        nargs="+",
        default=["decode", "window", "block-sparse"],
        help="cases",
    )
    parser.add_argument("--commit", help="of the sources, for the record")
    options = parser.parse_args()
    check_target(options.output)
    record: dict[str, Any] = {
        "command": shlex.join(["python", "scripts/bench_hopper_cases.py", *sys.argv[1:]]),
        "commit": options.commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "results": [],
    }
    for case in (case for name in options.only for case in CASES[name]()):
        print(json.dumps(case), flush=True)
        record["results"].append(case)
        write_whole(options.output, json.dumps(record, indent=1) + "\n")
    return 0


CASES: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "decode": forward.decoding,
    "few-queries": forward.few_queries,
    "window": forward.windows,
    "block-sparse": forward.block_sparse,
    "backward": backward.backward,
    "masked-backward": backward.masked_backward,
    "array-mask": array_masks.array_masks,
    "fp8": eight_bits.eight_bits,
    "fp8-shift": eight_bits.shifts,
    "heads256": forward.heads_of_256,
    "heads256-backward": backward.backward_of_256,
    "sections": forward.sections,
    "paged": serving.paged,
    "varlen": serving.varlen,
    "clocks": clocks.clocks,
    "host": clocks.host,
}


if __name__ == "__main__":
    run_script(main)

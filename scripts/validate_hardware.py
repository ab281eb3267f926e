"""Lay the model beside the machine: bytes that the counters of a GPU read, beside what flashsim
predicts, pass by pass.

# on a machine with a GPU and ncu: figures/validate_hardware.json
python scripts/validate_hardware.py
# draws figures/validate_hardware.png and .svg from that record
python scripts/validate_hardware.py --draw
"""

import argparse
import datetime
import json
import shlex
import sys
from pathlib import Path

from gpu_pictures import plot_validation

from flashsim.plots.saving import figure_of, save
from flashsim.support.entry import run_script
from flashsim.support.files import check_target, read_record, write_whole
from flashsim.support.tables import print_table


def main() -> int:
    """Measure, or draw, and print the table; return 1 if a pass is off by more than its
    tolerance.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--draw", action="store_true", help="draw the record that is there; needs no GPU"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("figures/validate_hardware"),
        help="stem of the files",
    )
    options = parser.parse_args()
    command = shlex.join(["python", "scripts/validate_hardware.py", *sys.argv[1:]])
    record_file = options.output.with_suffix(".json")
    if options.draw:
        kept = read_record(record_file, "command", "data")
        data = kept["data"]
        made = kept["command"]
        save(figure_of(plot_validation(data)), options.output, data, made)
    else:
        from flashsim.gpu.validation import validate

        check_target(record_file)
        measured = validate(lambda what: print(what, file=sys.stderr, flush=True))
        data = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **measured,
        }
        write_whole(record_file, json.dumps({"command": command, "data": data}, indent=1) + "\n")
    table = []
    for row in data["rows"]:
        sizes = (
            row[f"{kind}_{way}"] / 1e9
            for way in ("reads", "writes")
            for kind in ("predicted", "measured")
        )
        verdict = {True: "yes", False: "NO", None: "–"}[row["agrees"]]
        cells = (
            row["level"],
            *(f"{size:.4f}" for size in sizes),
            f"{row['error']:.2%}",
            f"{row['ms']:.3f}",
            verdict,
        )
        table.append((f"{row['group']}: {row['name']}", *cells))
    print(f"{data['machine']['gpu']}, {data['date']}; GB")
    headings = (
        "pass",
        "level",
        "read, predicted",
        "counted",
        "written, predicted",
        "counted",
        "off",
        "ms",
        "agrees",
    )
    print_table(headings, table)
    return 0 if all(row["agrees"] is not False for row in data["rows"]) else 1


if __name__ == "__main__":
    run_script(main)

"""Ask AccelForge, a mapper, for its whole front of SRAM size against accesses, of attention as the
einsums of tests/referee/.

    python3.12 -m venv /tmp/accelforge && /tmp/accelforge/bin/pip install accelforge==1.0.467
    # minutes, on two cores
    /tmp/accelforge/bin/python scripts/research/accelforge_points.py forward 256 16
    /tmp/accelforge/bin/python scripts/research/accelforge_points.py forward 1024 64
    /tmp/accelforge/bin/python scripts/research/accelforge_points.py backward 256 16

It prints a line of tests/referee/points.json, of [M, accesses], M rounded to whole elements. It has
an environment of its own, as AccelForge needs Python ≥ 3.12, NumPy ≥ 2.2 and Graphviz's dot, and
imports nothing of flashsim. The model of the hardware is AccelForge's own `snowcat`: a main memory
of which an access costs 1, and a buffer whose use is to be small. "fused" may keep intermediates in
the buffer, "unfused" writes them out.
"""

import json
import sys
from pathlib import Path

import accelforge as af

EINSUMS = Path(__file__).resolve().parents[2] / "tests" / "referee"


def main() -> None:
    """Print the points of one problem."""
    direction = sys.argv[1]
    N = int(sys.argv[2])
    d = int(sys.argv[3])
    spec = af.Spec.from_yaml(
        EINSUMS / f"{direction}.yaml", af.examples.arches.snowcat, jinja_parse_data={"N": N, "D": d}
    )
    spec.mapper.metrics = af.Metrics.ENERGY | af.Metrics.RESOURCE_USAGE
    memory = spec.arch.find("MainMemory")
    size = spec.arch.find("GlobalBuffer").size
    fronts = {}
    for kind, keep in (("fused", "~Intermediates"), ("unfused", "All")):
        memory.tensors.keep = keep
        memory.tensors.may_keep = "All"
        result = spec.map_workload_to_arch(print_progress=False)
        used = result.resource_usage()["GlobalBuffer"]
        fronts[kind] = sorted(
            [round(float(part) * size), round(float(cost))]
            for part, cost in zip(used, result.energy(), strict=True)
        )
    print(json.dumps({"N": N, "d": d, "direction": direction, **fronts}))


if __name__ == "__main__":
    main()

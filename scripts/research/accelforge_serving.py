"""Ask AccelForge for the fewest accesses, unfused, of what serves: grouped heads, and latents,
absorbed or not.

    # a minute, on two cores
    /tmp/accelforge/bin/python scripts/research/accelforge_serving.py gqa G=2 R=4 N=64 D=16

It prints a line of tests/referee/serving.json: the sizes of tests/referee/gqa.yaml, mla.yaml or
mla_expanded.yaml, and reads and writes of each tensor. The einsums of the latter are those of
AccelForge's own multi_head_latent_attention, without projections of what is new. The environment,
and the model of the hardware, are `accelforge_points.py`'s; the buffer may be of any size.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import accelforge as af

EINSUMS = Path(__file__).resolve().parents[2] / "tests" / "referee"


def main() -> None:
    """Print the accesses of one problem."""
    name = sys.argv[1]
    sizes = {key: int(size) for key, size in (text.split("=") for text in sys.argv[2:])}
    spec = af.Spec.from_yaml(
        EINSUMS / f"{name}.yaml", af.examples.arches.snowcat, jinja_parse_data=sizes
    )
    spec.mapper.metrics = af.Metrics.ENERGY
    tensors = spec.arch.find("MainMemory").tensors
    tensors.keep = "All"
    tensors.may_keep = "All"
    result = spec.map_workload_to_arch(print_progress=False)
    traffic: Counter[str] = Counter()
    for (_, memory, tensor, action), elements in result.actions(
        per_einsum=True, per_tensor=True, per_component=True
    ).items():
        if memory == "MainMemory":
            traffic[f"{tensor} {action}"] += round(float(elements))
    print(
        json.dumps(
            {
                "workload": name,
                "sizes": sizes,
                "accesses": round(float(result.energy())),
                "moved": +traffic,
            }
        )
    )


if __name__ == "__main__":
    main()

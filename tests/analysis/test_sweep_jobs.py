"""Sweeps over processes, and over a Dask cluster by joblib's backend: the same rows as in one
process.
"""

import pytest

import flashsim
from tests.helpers.cases import Arguments

pytestmark = pytest.mark.packages
ARGUMENTS: Arguments = {
    "algorithms": ["flash", "standard"],
    "N": range(8, 508),
    "d": [4, 8],
    "M": 200,
    "causal": [False, True],
}


def test_over_a_local_dask_cluster() -> None:
    distributed = pytest.importorskip(
        "distributed", reason='dask.distributed is not installed: pip install -e ".[dask]"'
    )
    from joblib import parallel_config

    calls: list[tuple[int, int]] = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
        parallel_config(backend="dask"),
    ):
        sweep = flashsim.sweep(
            **ARGUMENTS, jobs=None, on_points=lambda done, of: calls.append((done, of))
        )
    assert list(sweep) == list(flashsim.sweep(**ARGUMENTS))
    assert calls[-1] == (4000, 4000)
    assert len(calls) == 8


@pytest.mark.slow
def test_over_processes_of_joblib() -> None:
    alone = flashsim.sweep(**ARGUMENTS)
    assert list(flashsim.sweep(**ARGUMENTS, jobs=2)) == list(alone)

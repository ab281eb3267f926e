"""`flashsim verify --jobs`: claims over processes, the same as in one, in order; Ctrl-C ends it
at once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from flashsim.analysis import verify
from flashsim.analysis.verify import appendices, chapter, theorem_5, theorems_1_2
from flashsim.cli import main, report

CHECKS = [
    theorems_1_2.theorem_2_exponents,
    appendices.equation_4,  # sums of floats: they, too, are the same
    theorem_5.theorem_5_standard,
    appendices.no_dropout_mask_kept,
    chapter.tree_masks,
]


@pytest.fixture(scope="module")
def alone() -> list[verify.Claim]:
    return verify.run(CHECKS)


def test_claims_over_processes_are_the_same_and_in_order(alone: list[verify.Claim]) -> None:
    calls: list[list[int]] = []
    assert verify.run(CHECKS, jobs=2, on_claim=calls.append) == alone
    assert [len(left) for left in calls] == [4, 3, 2, 1, 0]
    assert all(left == sorted(left) for left in calls)
    assert [claim.source for claim in alone[:4]] == [
        "Theorem 2",
        "Equation 4",
        "Theorem 5",
        "Appendix B.4",
    ]


@pytest.mark.slow
def test_a_backend_that_yields_nothing_before_the_end_serves_too(alone: list[verify.Claim]) -> None:
    from joblib import parallel_config

    with parallel_config(backend="multiprocessing", n_jobs=2):
        assert verify.run(CHECKS[:2], jobs=None) == alone[:2]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_check_that_breaks_off_is_a_claim_that_fails(
    jobs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """An algorithm that raises, once someone has changed it, leaves the rest of the ledger as it
    is.
    """
    fine, broken = verify.run([appendices.no_dropout_mask_kept, _broken], jobs=jobs)
    assert (fine.holds, broken.holds) == (True, False)
    assert (broken.source, broken.claim) == ("broken", "Nothing can be added to a word.")
    assert broken.measured == f"TypeError: unsupported operand (line {LINE} of test_verify_jobs.py)"
    report.print_ledger([fine, broken])
    assert "2 claims, 1 FAIL" in capsys.readouterr().out


def _broken(full: bool) -> verify.Claim:
    """Nothing can be added to a word."""
    raise TypeError("unsupported operand")


LINE = _broken.__code__.co_firstlineno + 2


@pytest.mark.slow
def test_verify_writes_the_same_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verify, "checks", lambda: CHECKS[2:4])
    outputs = []
    for jobs in ("1", "2"):
        assert main(["verify", "--jobs", jobs, "--json", "ledger.json"]) == 0
        outputs.append(
            (
                capsys.readouterr(),
                json.loads(Path("ledger.json").read_text(encoding="utf-8"))["claims"],
            )
        )
    assert outputs[0] == outputs[1]
    assert main(["verify", "--jobs", "0"]) == 2
    assert "--jobs: got '0'; expected a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.skipif(
    not Path("/proc").is_dir(), reason="needs /proc, to see which processes are left"
)
@pytest.mark.parametrize(
    "how", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.slow), "SIGKILL"]
)
def test_processes_end_with_the_command(how: str) -> None:
    """A terminal sends Ctrl-C to all processes of a command, `timeout` SIGTERM, be they but
    starting: the first says so.
    """
    command = [sys.executable, "-m", "flashsim", "verify", "--full", "--jobs", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            while len(_children(running.pid)) < 3:  # Python's resource tracker, and two that work
                time.sleep(0.02)
                assert running.poll() is None
            workers = _children(running.pid)
            begun = time.monotonic()
            (os.kill if how == "SIGKILL" else os.killpg)(running.pid, signal.Signals[how])
            out, err = running.communicate(timeout=120)  # until all have closed its streams
            took = time.monotonic() - begun
            while (
                any(Path(f"/proc/{worker}").exists() for worker in workers)
                and time.monotonic() < begun + 120
            ):
                time.sleep(0.05)
            assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    if how != "SIGKILL":
        expected = {"SIGINT": (130, "", "interrupted\n"), "SIGTERM": (143, "", "terminated\n")}
        assert (running.returncode, out, err) == expected[how]
        assert took < 10  # of seconds on a busy machine; half a second on a quiet one


def _children(pid: int) -> list[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in file.read_text().split()] if file.exists() else []


def test_claims_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    ids = [check.__name__ for check in verify.checks() if check.__name__.startswith("theorem_2")]
    assert len(ids) > 1
    for name in ("theorem2", "theorem_2", "Theorem 2"):
        assert [check.__name__ for check in verify.named([name])] == ids
    assert main(["verify", "stream_k", "equation_4", "--jobs", "1", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out.count("holds  ") == 2
    assert "2 claims, all hold" in out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Theorm_2", "there is no claim 'Theorm_2'; there are theorem_2_counts, "),
        ("xyz", "there is no claim 'xyz'; there are theorem_1_right, "),
        ("_", "there is no claim '_'; there are "),
    ],
)
def test_a_claim_that_is_not_there_names_others(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "equation_4", name]) == 2
    assert text in capsys.readouterr().err

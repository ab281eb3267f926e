"""The forward bound's proof in Rocq: it compiles, assumes nothing, says what docs/prove.md says,
and checks certificates.

apt-get install --no-install-recommends coq libcoq-mathcomp-ssreflect
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import flashsim
from tests.helpers.pages import PAGES, ROOT, blocks

PARTS = ("arithmetic", "loomis_whitney", "model", "phases", "forward", "certificate")


def compiles(folder: Path, part: str, *how: str) -> tuple[bool, str]:
    """Whether a part compiles beside the ones before it, and what is printed.

    `how` "-vos": its statements alone; "-vok": its proofs, from others' statements.
    """
    done = subprocess.run(
        ["coqc", *how, "-Q", ".", "Proofs", f"{part}.v"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all parts."""
    if shutil.which("coqc") is None:
        pytest.skip("no Rocq on this system: apt-get install coq libcoq-mathcomp-ssreflect")
    folder = tmp_path_factory.mktemp("proofs")
    (folder / "installed.v").write_text(
        "From mathcomp Require Import all_ssreflect. Check CanFinMixin."
    )
    if not compiles(folder, "installed")[0]:
        pytest.skip(
            "no MathComp 1 beside Rocq: apt-get install libcoq-mathcomp-ssreflect, of Debian 12"
        )
    for part in PARTS:
        shutil.copy(ROOT / "scripts" / "proofs" / f"{part}.v", folder)
    return folder


@pytest.fixture(scope="module")
def stated(sources: Path) -> Path:
    """Return a folder with the statements of what `forward` builds on; whether their proofs hold
    is another test's.
    """
    folder = Path(shutil.copytree(sources, sources / "stated"))
    for part in PARTS[: PARTS.index("forward")]:
        right, text = compiles(folder, part, "-vos")
        assert right, text
    return folder


@pytest.fixture(scope="module")
def compiled(sources: Path) -> tuple[Path, dict[str, str]]:
    """Return a folder with all parts compiled, and what each printed."""
    folder = Path(shutil.copytree(sources, sources / "compiled"))
    printed = {}
    for part in PARTS:
        right, printed[part] = compiles(folder, part)
        assert right, printed[part]
    return folder, printed


@pytest.mark.slow
@pytest.mark.packages
def test_the_proof_compiles_and_assumes_nothing(compiled: tuple[Path, dict[str, str]]) -> None:
    assert compiled[1] == {
        part: "Closed under the global context\n" * (5 if part == "certificate" else 0)
        for part in PARTS
    }


PROBLEMS: list[dict[str, Any]] = [
    {"N": 4096, "d": 64, "M": 25_600},
    {"N": 4096, "d": 64, "M": 25_600, "mask": flashsim.Causal()},
    {"N": 65_536, "d": 128, "M": 98_304},
    {"N_q": 300, "N_k": 5000, "d": 8, "d_v": 24, "M": 700},
]
CERTIFIED = """
Goal forall (allowed : {{set 'I_(N.to_nat {N_q}) * 'I_(N.to_nat {N_k})}})
    (steps : run (N.to_nat {N_q}) (N.to_nat {N_k}) (N.to_nat {d}) (N.to_nat {d_v})),
  #|allowed| = N.to_nat {pairs} -> attention (N.to_nat {M}) allowed steps -> ({bound} <= N.of_nat (accesses steps))%num.
Proof. move=> allowed steps. {first}by apply: (@certified _ _ {pairs} {d} {d_v} {M} {Y} {n} {last}); vm_compute. {end}.
"""


@pytest.mark.slow
def test_rocq_checks_certificates_and_refuses_more(
    compiled: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """In one file, as each starts with a second of imports. What is to be refused is told by
    `Fail`.
    """
    text = "From Coq Require Import NArith. From mathcomp Require Import all_ssreflect.\n"
    text += "From Proofs Require Import model certificate.\n"
    for problem in PROBLEMS:
        numbers = flashsim.prove(**problem).certificate()
        assert (numbers["a"], numbers["H"]) == (0, 0)  # the theorem's, not the combined bound's
        text += CERTIFIED.format(**numbers, first="", end="Qed")
        for more in (("bound",), ("n",), ("bound", "last")):
            raised = {name: number + 1 for name, number in numbers.items() if name in more}
            text += CERTIFIED.format(**{**numbers, **raised}, first="Fail ", end="Abort")
    folder = Path(shutil.copytree(compiled[0], tmp_path / "proofs"))
    (folder / "these.v").write_text(text)
    right, message = compiles(folder, "these")
    assert right, message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "fails", "old", "new"),
    [
        # more than is true
        ("forward", "forward", "4 * d * (#|allowed| * d_v) <=", "5 * d * (#|allowed| * d_v) <="),
        (
            "forward",
            "forward",
            "128 * (d * d) <= 27 * M ->\n  4",
            "127 * (d * d) <= 27 * M ->\n  4",
        ),
        ("forward", "forward", "< 16 * d * g.+1", "< 17 * d * g.+1"),
        ("forward", "forward", "at_most (M + x) h ->", "at_most (M + x).-1 h ->"),
        ("phases", "phases", "27 * (#|points l|", "28 * (#|points l|"),
        # rules that allow too much
        ("model", "phases", "Load w => w \\in hbm\n", "Load w => true\n"),
        ("model", "phases", "[&& Pair i k setT \\in chip, V k c", "[&& V k c"),
        ("model", "phases", "#|after| <= M &", "#|after| <= M.+1 &"),
        ("model", "phases", "[&& Q i c \\in chip, K k c", "[&& K k c"),
    ],
)
def test_a_wrong_constant_or_rule_does_not_pass(
    part: str, fails: str, old: str, new: str, stated: Path, tmp_path: Path
) -> None:
    """Where its words still make sense, a proof that needs it fails: its own, or a rule's in the
    part after.
    """
    folder = Path(shutil.copytree(stated, tmp_path / "proofs"))
    text = (folder / f"{part}.v").read_text()
    assert text.count(old) == 1
    (folder / f"{part}.v").write_text(text.replace(old, new))
    assert part == fails or compiles(folder, part, "-vos")[0]
    assert not compiles(folder, fails, "-vok")[0]


def test_the_page_shows_the_statements_that_are_proved() -> None:
    (page,) = (page for page in PAGES if page.name == "prove.md")
    output = [block for block in blocks(page, "text") if "Theorem" in block]
    proved = (ROOT / "scripts" / "proofs" / "forward.v").read_text(encoding="utf-8")
    assert len(output) == 1
    statements = output[0].strip().split("\n\n")
    assert [statement in proved for statement in statements] == [True] * 4


def test_nothing_is_left_unproved() -> None:
    folder = ROOT / "scripts" / "proofs"
    assert {path.name for path in folder.iterdir()} == {f"{part}.v" for part in PARTS}
    for part in PARTS:
        text = (folder / f"{part}.v").read_text(encoding="utf-8")
        assert not re.search(
            r"\b(Admitted|admit|Abort|Axioms?|Parameters?|Conjecture|Hypothes[ie]s)\b", text
        )

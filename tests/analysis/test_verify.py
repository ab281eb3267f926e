"""Each claim of the ledger can fail: what it checks is broken, and it must say so, and not break
itself.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flashsim import serving as room
from flashsim import theory
from flashsim.algorithms import FORWARD
from flashsim.analysis import verify
from flashsim.analysis.verify import (
    appendices,
    chapter,
    optimality,
    section_4,
    serving,
    shared,
    theorem_5,
    theorems_1_2,
)
from flashsim.analysis.verify.shared import Check
from flashsim.extensions import approximate
from flashsim.memory.traffic import Traffic
from flashsim.theory.bounds import certificate, lower_bound
from flashsim.tracing.planting import planted


@pytest.mark.slow
@pytest.mark.claims
@pytest.mark.parametrize("check", verify.checks(), ids=lambda check: check.__name__)
def test_a_claim_holds(check: Check) -> None:
    [claim] = verify.run([check])
    assert claim.holds, claim.measured
    assert claim.source
    assert claim.claim
    assert claim.tried
    assert claim.measured


def test_the_sources_that_are_checked() -> None:
    sources = set()
    for check in verify.checks():
        source, _, _ = (check.__doc__ or "").partition(". ")
        sources.add(source)
    assert sources >= {  # new claims need no line here
        *(
            "Theorem 1",
            "Theorem 2",
            "Proposition 3",
            "Proposition 4",
            "Algorithms 2–5",
            "Theorem 5",
            "Equation 4",
        ),
        *(
            "Appendix B.4",
            "Appendix B.5",
            "Appendix D.1",
            "Appendix D.2",
            "Figure 3",
            "Saha and Ye (arXiv 2402.07443)",
        ),
        *(
            "FlashAttention: Theory and Practice",
            "What is optimal",
            "Lower bound (flashsim.theory.bounds.forward)",
        ),
    }


@pytest.mark.parametrize(
    ("bug", "text"),
    [
        (
            ("rowsum(P_tilde_ij)", "2 * rowsum(P_tilde_ij)"),
            "after outer step j = 0, for the first ",
        ),
        (("l_i * exp(m_i - m_i_new) * O_i", "l_i * O_i"), "after outer step j = 1, for the first "),
    ],
)
def test_the_induction_breaks_where_the_algorithm_does(
    bug: tuple[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first step, when none is right, as at a later one."""
    monkeypatch.setitem(FORWARD, "flash_basic", planted(FORWARD["flash_basic"], bug))
    claim = theorems_1_2.theorem_1_induction(False)
    assert not claim.holds
    assert claim.measured.startswith(text)


def tenfold(made: Callable[..., Any]) -> Callable[..., Any]:
    def more(*args: Any, **options: Any) -> Any:
        result = made(*args, **options)
        return replace(
            result,
            hbm=Traffic(
                {name: accesses.times(10) for name, accesses in result.hbm.by_array.items()}
            ),
        )

    return more


def steeper(size: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    def wrapped(accesses: Callable[..., int]) -> Callable[..., int]:
        def more(name: str, N: int, d: int, M: int, direction: str = "forward") -> int:
            length = {"N": N, "d": d, "M": M}[size]
            return int(accesses(name, N, d, M, direction) * length**0.03)

        return more

    return wrapped


def off(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Runs with a mask or dropout are off by 10⁻⁶: in `tree_masks` one of the two that are
    compared.
    """

    def wrong(*args: Any, **options: Any) -> SimpleNamespace:
        run = forward(*args, **options)
        is_off = "mask" in options or "dropout_p" in options
        return SimpleNamespace(O=run.O * (1 + 1e-6 * is_off))

    return wrong


def growing(count: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: SimpleNamespace(
        sram=SimpleNamespace(peak=count(*args, **options).sram.peak + options["N"])
    )


def longer(count: Callable[..., Any]) -> Callable[..., Any]:
    """A prefix counted twenty times as long as it is."""
    return lambda *args, prefix=0, **rest: count(*args, prefix=20 * prefix, **rest)


STREAMED = SimpleNamespace(  # the best at every size
    best=SimpleNamespace(algorithm="streamed"),
    by_loops={"flash": SimpleNamespace(accesses=2), "q_outer": SimpleNamespace(accesses=1)},
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "owner", "name", "broken"),
    [
        (
            theorems_1_2.theorem_1_flops,
            theory,
            "matmul_flops",
            lambda of: lambda *sizes: of(*sizes) + 1,
        ),
        (theorems_1_2.theorem_1_memory, theorems_1_2, "count", tenfold),
        (
            theorems_1_2.theorem_2_flash_bounds,
            theorems_1_2,
            "accesses",
            lambda of: lambda *sizes: 10 * of(*sizes),
        ),
        (theorems_1_2.theorem_2_exponents, shared, "accesses", steeper("N")),
        (theorems_1_2.theorem_2_exponents, shared, "accesses", steeper("d")),
        (theorems_1_2.theorem_2_exponents, shared, "accesses", steeper("M")),
        (theorem_5.theorem_5_exponents, shared, "accesses", steeper("N")),
        (
            theorem_5.theorem_5_standard,
            theorem_5,
            "accesses",
            lambda of: lambda *sizes: 10 * of(*sizes),
        ),
        (
            theorems_1_2.theorem_2_standard,
            theorems_1_2,
            "accesses",
            lambda of: lambda *sizes: of(*sizes) // 10,
        ),
        (appendices.equation_4, appendices, "forward", off),
        (appendices.no_dropout_mask_kept, appendices, "count", tenfold),
        (appendices.D_in_d_vectors, appendices, "count", growing),
        (appendices.rabe_staats, appendices, "count", tenfold),
        (chapter.flash_decoding, chapter, "count", tenfold),
        (
            chapter.grouped_heads,
            chapter,
            "count",
            lambda of: lambda *args, gqa, **rest: of(*args, **rest),
        ),
        (chapter.tree_masks, chapter, "forward", off),
        (chapter.what_is_optimal, chapter, "tune", lambda _: lambda **sizes: STREAMED),
        (serving.counts, room, "exact", tenfold),
        (
            serving.block_table,
            room,
            "count",
            lambda of: lambda *args, page, **rest: of(*args, page=1, **rest),
        ),
        (
            serving.page_waste,
            room,
            "count",
            lambda of: lambda *args, page, **rest: of(*args, page=2 * page, **rest),
        ),
        (
            serving.cascade_saving,
            room,
            "count",
            lambda of: lambda *args, prefix=0, **rest: of(*args, **rest),
        ),
        (serving.cascade_break_even, room, "count", longer),
        (serving.hydragen, room, "count", longer),
        (serving.padding, room, "count", tenfold),
        (
            serving.stream_k,
            serving,
            "schedule_of",
            lambda of: lambda batch, _, *rest: of(batch, "fixed", *rest),
        ),
        (
            serving.mla_intensity,
            room,
            "count",
            lambda of: lambda *args, d_v, **rest: of(*args, **rest),
        ),
        (
            serving.quantised_bits,
            room,
            "count",
            lambda of: lambda *a, group, **rest: of(*a, group=group // 2, **rest),
        ),
        (
            serving.mla_cache,
            room,
            "count",
            lambda of: lambda *args, kv_heads=None, **rest: of(*args, **rest),
        ),
        (
            serving.multi_token,
            serving,
            "count",
            lambda of: lambda *args, gqa, **rest: of(*args, **rest),
        ),
    ],
)
def test_a_claim_fails_where_what_it_measures_is_wrong(
    claim: Check, owner: Any, name: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    assert not claim(False).holds


@pytest.mark.parametrize("full", [False, True])
def test_the_longest_sequence_that_is_tried_is_said(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one beyond a power of two is tried, too
    longest = max(N for N, *_ in optimality._small_caches(full)) - 1
    monkeypatch.setattr(optimality, "_small_caches", lambda _: [(64, 16, 25)])
    assert f"N to {longest:,};" in optimality.saha_ye_small_cache(full).tried


def test_three_bits_are_5_3_times_fewer_than_16() -> None:
    assert "; 5.3× fewer than 16" in serving.quantised_bits(False).measured


def refuses(*_: Any) -> str:
    raise ValueError("no schedule moves that few")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "checker"),
    [
        (optimality.nothing_below_the_optima, (optimality, "check_optimum")),
        (optimality.nothing_below_the_lower_bound, (certificate, "check")),
    ],
)
def test_certificates_that_prove_nothing_fail_the_claim(
    claim: Check, checker: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = lower_bound(N=9, d=2, M=9)
    # instead of one for each shape
    monkeypatch.setattr(optimality, "lower_bound", lambda **sizes: one)
    monkeypatch.setattr(*checker, refuses)
    monkeypatch.setattr(optimality, "FORWARD", {"flash": FORWARD["flash"]})
    result = claim(False)
    assert not result.holds
    assert result.data["certificates"] == 0


@pytest.mark.parametrize("accesses", [0, 2])
def test_approximations_that_move_less_everywhere_or_nowhere_fail_the_claim(
    accesses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SimpleNamespace(hbm=SimpleNamespace(accesses=accesses))
    monkeypatch.setattr(approximate, "exact", lambda *_, **__: other)
    monkeypatch.setattr(theory, "exact", lambda *_, **__: SimpleNamespace(accesses=1))
    assert not section_4.approximations_cross(False).holds


def test_the_papers_compression_decides_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    result = section_4.memory_footprint(False)
    tally = approximate.count("linformer", N=128, d=64, k=16, M=25_600)
    sizes = [array.size for array in tally.hbm.by_array.values()]
    assert result.data["linformer"][0] == sum(sizes)
    monkeypatch.setattr(approximate, "compressed", lambda N: 256)
    assert not section_4.approximations_cross(False).holds

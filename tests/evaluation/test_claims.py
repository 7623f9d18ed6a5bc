"""Comparisons and verdicts by hand."""

from __future__ import annotations

import pytest

from torchsplit_core.evaluation.claims.judge import judged
from torchsplit_core.evaluation.claims.rules import Figure, claim, compared, part, verdict_of
from torchsplit_core.values.evaluation.outcome import (
    CaseFigures,
    CaseKey,
    Comparison,
    EvaluatedCase,
    ModelFigures,
    Result,
)


@pytest.mark.parametrize(("tested", "reference", "result"), [
    (Figure(1.2), Figure(1.0), "better"),
    (Figure(1.0), Figure(1.2), "worse"),
    (Figure(1.005), Figure(1.0), "equal"),
    (Figure(0.0), Figure(0.0), "equal"),
    (Figure(1.2, noise=0.15), Figure(1.0, noise=0.1), "equal"),
    # With the estimates at their lower ends it is the other way round.
    (Figure(1.2, at_low=0.8), Figure(1.0, at_low=0.9), "open"),
    (Figure(1.2, at_low=0.9), Figure(1.0, at_low=0.8), "better"),
    (Figure(1.2, at_low=0.9), Figure(1.0), "better"),
    # A plan that is not proven may do better by its gap, and so may the other.
    (Figure(0.95, gap=0.1), Figure(1.0), "open"),
    (Figure(0.5, gap=0.1), Figure(1.0), "worse"),
    (Figure(1.05), Figure(1.0, gap=0.1), "open"),
    (Figure(1.5), Figure(1.0, gap=0.1), "better"),
    (Figure(0.5, gap=1.0), Figure(1.0), "open"),
])  # fmt: skip
def test_a_comparison(tested: Figure, reference: Figure, result: Result) -> None:
    found = compared("case", tested, reference)
    assert found.result == result and bool(found.note) == (result == "open")


def test_less_can_be_better() -> None:
    assert compared("case", Figure(1.0), Figure(2.0), less=True).result == "better"


def told(better: int, equal: int, worse: int, open_: int = 0) -> list[Comparison]:
    results: list[Result] = ["better"] * better + ["equal"] * equal + ["worse"] * worse + ["open"] * open_
    return [Comparison("case", 2.0, 1.0, result) for result in results]


def test_verdicts_follow_the_counts() -> None:
    assert verdict_of([]) == "cannot be said"
    assert verdict_of(told(6, 3, 1)) == "supported"
    assert verdict_of(told(6, 2, 2)) == "not supported"
    assert verdict_of(told(5, 5, 0)) == "not supported"
    assert verdict_of(told(5, 0, 0, 5)) == "cannot be said"
    assert verdict_of(told(8, 1, 0, 1)) == "supported"
    assert verdict_of(told(0, 9, 1), no_worse=True) == "supported"
    assert verdict_of(told(0, 8, 2), no_worse=True) == "not supported"
    assert verdict_of(told(0, 8, 0, 2), no_worse=True) == "cannot be said"


def test_a_claim_is_as_good_as_its_weakest_part_that_counts() -> None:
    good, bad = part("good", "x", told(3, 0, 0)), part("bad", "x", told(0, 0, 3))
    beside = part("bad", "x", told(0, 0, 3), counts_for_claim=False)
    unknown = part("unknown", "x", told(0, 0, 0, 3))
    assert claim(1, "…", "", (good, beside)).verdict == "supported"
    assert claim(1, "…", "", (good, unknown)).verdict == "cannot be said"
    assert claim(1, "…", "", (unknown, bad, good)).verdict == "not supported"
    assert good.words == "3 comparisons: 3 better; the middle ratio is 2."
    assert part("none", "x", []).words == "There is nothing to compare."


def case(common_load: float, p95_ms: float = 10.0, **key: str) -> EvaluatedCase:
    crossing = 5e6 if key.get("colocation", "off") == "off" else 0.0
    base = {"mix": "m", "regime": "any", "sharing": "exclusive", "colocation": "off", "weights": "equal"}
    starved = int(key.get("weights") == "throughput")
    figures = CaseFigures(
        total_rps=100.0, served_rps=50.0, common_load=common_load, jain=0.5 if starved else 0.9, starved=starved,
        below_demand=0, utilisation=0.5, utilisation_full=0.8 if key.get("sharing") == "fractional" else 0.7,
        bytes_across_cuts_per_s=None, cross_gpu_bytes_per_s=crossing, gpus_used=1, stranded_share=0.0,
        memory_share=0.5, deployable=True,
    )  # fmt: skip
    model = ModelFigures("a", "measured", 50.0, 100.0, 50.0, 20.0, 5.0, p95_ms, 0.1)
    made = CaseKey(**(base | {"planner": "planner"} | key))  # type: ignore[arg-type]
    return EvaluatedCase(made, "0" * 64, "optimal", 0.0, "measured", figures, (model,))


def test_the_four_claims_of_cases_by_hand() -> None:
    cases = [
        case(1.5),
        case(1.5, p95_ms=12.0, sharing="fractional"),
        case(1.4, colocation="hard"),
        case(0.0, weights="throughput"),
        case(1.2, planner="greedy"),
    ]
    shared, fair, tied, made = judged(cases)
    assert [one.verdict for one in (shared, fair, tied, made)] == [
        "supported", "supported", "not supported", "supported",
    ]  # fmt: skip
    assert [(one.label, one.tested, one.reference) for one in shared.parts[0].comparisons] == [
        ("m-any-fractional-off-equal-planner / exclusive", 0.8, 0.7)
    ]
    assert [one.verdict for one in shared.parts] == ["supported", "not supported", "not supported"]
    # Traffic falls, and the responses are the same.
    assert [one.comparisons[0].result for one in tied.parts] == ["better", "equal", "worse"]
    assert fair.parts[2].comparisons[0].label == "m-any-exclusive-off-equal-planner / greedy"
    (starving,) = (one for one in judged([case(0.0, weights="throughput")]) if one.number == 2)
    assert starving.verdict == "cannot be said"

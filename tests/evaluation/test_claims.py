"""Comparisons and verdicts by hand."""

from dataclasses import replace

import pytest

from torchsplit_core.evaluation.claims.comparison import (
    NEVER_WORSE_RULE,
    NO_WORSE_RULE,
    ComparedFigure,
    compare_figures,
    make_claim,
    make_part,
    verdict_of,
)
from torchsplit_core.evaluation.claims.verdicts import judge_claims
from torchsplit_core.values.evaluation.outcome import (
    CaseFigures,
    CaseKey,
    Comparison,
    EvaluatedCase,
    ModelFigures,
)
from torchsplit_core.values.profile import Basis


@pytest.mark.parametrize(("tested", "reference", "result"), [
    (ComparedFigure(1.2), ComparedFigure(1.0), "better"),
    (ComparedFigure(1.0), ComparedFigure(1.2), "worse"),
    (ComparedFigure(1.005), ComparedFigure(1.0), "equal"),
    (ComparedFigure(0.0), ComparedFigure(0.0), "equal"),
    (ComparedFigure(1.2, noise=0.15), ComparedFigure(1.0, noise=0.1), "equal"),
    # With the estimates at their lower ends it is the other way round.
    (ComparedFigure(1.2, at_low=0.8), ComparedFigure(1.0, at_low=0.9), "open"),
    (ComparedFigure(1.2, at_low=0.9), ComparedFigure(1.0, at_low=0.8), "better"),
    (ComparedFigure(1.2, at_low=0.9), ComparedFigure(1.0), "better"),
    # A plan that is not proven may do better by its gap, and so may the other.
    (ComparedFigure(0.95, gap=0.1), ComparedFigure(1.0), "open"),
    (ComparedFigure(0.5, gap=0.1), ComparedFigure(1.0), "worse"),
    (ComparedFigure(1.05), ComparedFigure(1.0, gap=0.1), "open"),
    (ComparedFigure(1.5), ComparedFigure(1.0, gap=0.1), "better"),
    (ComparedFigure(0.5, gap=1.0), ComparedFigure(1.0), "open"),
    # At its bound the other plan would be equal.
    (ComparedFigure(1.25), ComparedFigure(1.0, gap=0.2), "open"),
])  # fmt: skip
def test_a_comparison(tested, reference, result):
    found = compare_figures("case", tested, reference)
    assert found.result == result and bool(found.note) == (result == "open")


def test_less_can_be_better():
    assert compare_figures("case", ComparedFigure(1.0), ComparedFigure(2.0), less=True).result == "better"


@pytest.mark.parametrize(("tested", "reference", "result"), [
    (ComparedFigure(4.0), ComparedFigure(5.0), "better"),
    (ComparedFigure(5.0, gap=0.2), ComparedFigure(5.0), "open"),
    (ComparedFigure(5.0, gap=0.2), ComparedFigure(4.0), "worse"),
    (ComparedFigure(4.0, gap=0.5), ComparedFigure(5.0), "better"),
    (ComparedFigure(4.0), ComparedFigure(5.0, gap=0.2), "open"),
    (ComparedFigure(3.0), ComparedFigure(5.0, gap=0.2), "better"),
])  # fmt: skip
def test_what_a_search_for_the_least_leaves_open_lies_below_it(tested, reference, result):
    assert compare_figures("case", tested, reference, less=True).result == result


def told(better: int, equal: int, worse: int, open_: int = 0) -> list[Comparison]:
    results = ["better"] * better + ["equal"] * equal + ["worse"] * worse + ["open"] * open_
    return [Comparison("case", 2.0, 1.0, result) for result in results]


def test_verdicts_follow_the_counts():
    assert verdict_of([]) == "cannot be said"
    assert verdict_of(told(6, 3, 1)) == "supported"
    assert verdict_of(told(6, 2, 2)) == "not supported"
    assert verdict_of(told(5, 5, 0)) == "not supported"
    assert verdict_of(told(5, 0, 0, 5)) == "cannot be said"
    assert verdict_of(told(8, 1, 0, 1)) == "supported"
    assert verdict_of(told(0, 9, 1), NO_WORSE_RULE) == "supported"
    assert verdict_of(told(0, 8, 2), NO_WORSE_RULE) == "not supported"
    assert verdict_of(told(0, 8, 0, 2), NO_WORSE_RULE) == "cannot be said"
    assert verdict_of(told(3, 0, 0, 1), NEVER_WORSE_RULE) == "supported"
    assert verdict_of(told(2, 0, 0, 2), NEVER_WORSE_RULE) == "cannot be said"
    assert verdict_of(told(1, 2, 0, 1), NEVER_WORSE_RULE) == "not supported"


def test_a_claim_is_as_good_as_its_weakest_part_that_counts():
    good, bad = make_part("good", "x", told(3, 0, 0)), make_part("bad", "x", told(0, 0, 3))
    beside = make_part("bad", "x", told(0, 0, 3), counts_for_claim=False)
    unknown = make_part("unknown", "x", told(0, 0, 0, 3))
    assert make_claim(1, "…", "", (good, beside)).verdict == "supported"
    assert make_claim(1, "…", "", (good, unknown)).verdict == "cannot be said"
    assert make_claim(1, "…", "", (unknown, bad, good)).verdict == "not supported"
    assert make_claim(1, "…", "", (unknown, good), either_says_it=True).verdict == "supported"
    assert make_claim(1, "…", "", (unknown, bad, good), either_says_it=True).verdict == "not supported"
    assert make_claim(1, "…", "", (unknown, unknown), either_says_it=True).verdict == "cannot be said"
    assert good.words == "3 comparisons: 3 better; the middle ratio is 2."
    assert make_part("none", "x", []).words == "There is nothing to compare."


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


def test_the_four_claims_of_cases_by_hand():
    cases = [
        case(1.5), case(1.5, p95_ms=12.0, sharing="fractional"), case(1.4, colocation="hard"),
        case(0.0, weights="throughput"), case(1.2, planner="greedy"),
    ]  # fmt: skip
    shared, fair, tied, made = judge_claims(cases)
    assert [one.verdict for one in (shared, fair, tied, made)] == [
        "supported", "supported", "not supported", "supported",
    ]  # fmt: skip
    assert [(one.label, one.tested, one.reference) for one in shared.parts[0].comparisons] == [
        ("m-any-fractional-off-equal-planner / exclusive", 0.8, 0.7)
    ]
    assert [part.verdict for part in shared.parts] == ["supported", "not supported", "not supported"]
    # Traffic falls, and the responses are the same.
    assert [part.comparisons[0].result for part in tied.parts] == ["better", "equal", "worse"]
    assert fair.parts[2].comparisons[0].label == "m-any-exclusive-off-equal-planner / greedy"
    (starving,) = (one for one in judge_claims([case(0.0, weights="throughput")]) if one.number == 2)
    assert starving.verdict == "cannot be said"


def fewest(sharing: str, gpus: int, gap: float = 0.0, basis: Basis = "measured") -> EvaluatedCase:
    made = case(1.0, sharing=sharing, weights="fewest_gpus", mix=basis)
    assert made.figures is not None
    figures = replace(made.figures, gpus_used=gpus, utilisation=0.25)
    return replace(made, figures=figures, gap=gap, basis=basis, layouts=("7g.80gb",) * 4)


def open_utilisation() -> list[EvaluatedCase]:
    """Utilisation that neither search has proven anything of."""
    return [replace(case(1.5, sharing=sharing), gap=1.0) for sharing in ("exclusive", "fractional")]


def test_what_searches_leave_open_is_said_from_the_proven_numbers_of_gpus():
    unsaid = open_utilisation()
    assert judge_claims(unsaid)[0].verdict == "cannot be said" and len(judge_claims(unsaid)[0].parts) == 3
    (found, *_) = judge_claims([*unsaid, fewest("exclusive", 2), fewest("fractional", 1)])
    assert found.verdict == "supported"
    utilisation, gpus, at_work, estimated, *_ = found.parts
    assert (utilisation.verdict, len(utilisation.comparisons)) == ("cannot be said", 1)
    (one,) = gpus.comparisons
    assert (one.tested, one.reference, one.result, gpus.counts) == (1.0, 2.0, "better", True)
    assert one.label == "measured-any-fractional-off-fewest_gpus-planner / exclusive"
    # A quarter of four GPUs is at work: half of two, all of one.
    assert [(part.tested, part.reference) for part in at_work.comparisons] == [(1.0, 0.5)]
    assert not at_work.counts and not estimated.comparisons
    # As many GPUs say that it is not so, as proofs that are not there say nothing.
    assert (
        judge_claims([*unsaid, fewest("exclusive", 2), fewest("fractional", 2)])[0].verdict == "not supported"
    )
    for one_side, other in ((0.5, 0.0), (0.0, 0.5)):
        cases = [*unsaid, fewest("exclusive", 2, other), fewest("fractional", 2 - bool(other), one_side)]
        assert judge_claims(cases)[0].verdict == "cannot be said"


def test_proofs_of_estimates_are_told_beside_the_claim():
    cases = [
        *open_utilisation(),
        *(
            fewest(sharing, gpus, basis="estimated")
            for sharing, gpus in (("exclusive", 2), ("fractional", 1))
        ),
    ]
    (found, *_) = judge_claims(cases)
    _, measured, _, estimated, *_ = found.parts
    assert found.verdict == measured.verdict == "cannot be said" and not measured.comparisons
    assert estimated.verdict == "supported" and not estimated.counts

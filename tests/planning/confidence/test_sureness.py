"""How sure a plan is: verdicts by hand, and on random plans against a reckoning of its own."""

import random
from dataclasses import replace

import pytest

from tests.support.planning.requests import A30, on_a30, random_request, whole_model
from tests.support.seeds import in_blocks
from torchsplit_core.planning import plan
from torchsplit_core.planning.confidence.assessment import PlanConfidence, assess_confidence
from torchsplit_core.planning.confidence.formatting import (
    format_bases,
    format_figure,
    format_low_shortfalls,
    format_measurement,
    format_models,
    format_surest_to_fail,
    format_tenant,
    format_throughput,
)
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    InputFault,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Tenant,
    Variant,
)


def point(
    profile: str, rps: float, low: float | None, high: float | None, basis: str = "estimated", batch: int = 1
) -> Point:
    return Point(A30, profile, batch, rps, 10.0, basis=basis, low_rps=low, high_rps=high)  # type: ignore[arg-type]


def whole(name: str, *points: Point, **demands: float) -> PlanModel:
    return whole_model(name, points, **demands)  # type: ignore[arg-type]


def asked(*models: PlanModel, layout: tuple[str, ...] = ("2g.12gb", "2g.12gb")) -> PlanRequest:
    return on_a30(*models, layouts=(layout,))


def of(request: PlanRequest) -> PlanConfidence:
    return assess_confidence(request, plan(request))


BERT = whole("bert", point("2g.12gb", 120.0, 95.0, 140.0), demand_rps=110.0)
OCR = whole("ocr", point("2g.12gb", 50.0, 49.0, 52.0, "measured"), demand_rps=40.0)


def test_a_verdict_by_hand():
    found = of(asked(BERT, OCR))
    bert, ocr = found.models
    assert (bert.meets, bert.meets_low, bert.is_open) == (True, False, True)
    assert (ocr.meets, ocr.meets_low, ocr.is_open) == (True, True, False)
    assert found.meets and not found.meets_low and found.failing_low == (bert,)
    assert found.surest_to_fail == bert
    assert (found.low_end, format_low_shortfalls(found)) == ("no", "bert 86 %")
    assert format_surest_to_fail(found) == "bert: 95 of 110 requests/s at the low end (86 %)"
    assert format_bases(found.point_counts) == "1 of 2 are estimated"
    measure = found.next_measurement
    assert measure is not None and (measure.model, measure.settles_rps) == ("bert", 15.0)
    assert format_measurement(measure) == (
        "bert, stage whole, on A30-24GB 2g.12gb, batch 1, 1 process: estimated, 95 to 140 requests/s; "
        "settles 15 requests/s of what is missing at the low end"
    )


def test_a_minimum_above_the_demand_is_what_is_wanted():
    found = of(asked(replace(BERT, demand_rps=10.0, min_throughput_rps=100.0), OCR))
    assert found.models[0].wanted_rps == 100.0 and not found.meets_low
    assert of(asked(replace(BERT, demand_rps=10.0, min_throughput_rps=0.0), OCR)).meets_low


@pytest.mark.parametrize(("demand", "open_"), [(95.0, False), (95.1, True), (140.0, True), (140.1, False)])
def test_open_is_what_the_interval_leaves_open(demand, open_):
    found = of(asked(replace(BERT, demand_rps=demand), OCR))
    assert found.models[0].is_open == open_ and (found.next_measurement is not None) == open_


def test_what_is_measured_closely_is_not_measured_again_and_what_is_wide_is():
    for low, high, worth in ((99.0, 101.0, False), (90.0, 110.0, True)):
        model = whole("bert", point("2g.12gb", 100.0, low, high, "measured"), demand_rps=100.0)
        found = of(asked(model, OCR))
        assert found.models[0].is_open and (found.next_measurement is not None) == worth
    bare = of(asked(whole("bert", point("2g.12gb", 100.0, None, None), demand_rps=90.0), OCR))
    # What nobody has bounded can not be held against: that is unknown, never a yes.
    assert bare.meets_low and bare.low_end == "unknown"
    assert format_low_shortfalls(bare) == "1 of the 2 figures used has no error range"
    alone = of(asked(whole("bert", point("2g.12gb", 100.0, None, None), demand_rps=90.0)))
    assert (alone.low_end, format_low_shortfalls(alone)) == (
        "unknown",
        "none of the figures used has an error range",
    )


def test_equal_ones_go_by_name_and_who_has_nothing_fails_surest():
    first, second = (whole(name, point("2g.12gb", 120.0, 95.0, 140.0), demand_rps=110.0) for name in "ba")
    assert of(asked(first, second)).surest_to_fail.name == "a"
    found = of(asked(first, second, OCR))
    assert found.surest_to_fail.low_rps == 0 and "0 %" in format_surest_to_fail(found)
    many = of(asked(*(replace(BERT, name=f"m{number}") for number in range(6))))
    assert format_low_shortfalls(many).endswith(" and 3 more")


def test_two_stages_that_hold_a_model_alike_leave_the_wider_to_measure():
    def cut(first, second):
        stages = tuple(
            Stage(name, (point("2g.12gb", 100.0, *ends),)) for name, ends in (("one", first), ("two", second))
        )
        return PlanModel("bert", (Variant("cut", stages, (0.0,)),), demand_rps=95.0)

    def chosen(model):
        measure = of(asked(model)).next_measurement
        assert measure is not None
        return measure.stage, measure.settles_rps

    assert chosen(cut((80.0, 110.0), (90.0, 110.0))) == ("one", 10.0)
    # Nothing shrinks what is missing while the other stage stays as unsure: the width that is brought in decides.
    assert chosen(cut((80.0, 110.0), (80.0, 140.0))) == ("two", 0.0)
    assert chosen(cut((80.0, 130.0), (80.0, 110.0))) == ("one", 0.0)
    assert chosen(cut((80.0, 120.0), (80.0, 120.0))) == ("one", 0.0)


def test_a_plan_at_the_low_end_is_judged_by_the_same_intervals():
    low = replace(asked(BERT, OCR), solver=SolverOptions(plan_at="low"))
    assert replace(of(low), plan_at="nominal") == of(asked(BERT, OCR)) != of(low)
    outcome = plan(low)
    assert format_models(outcome)["bert"] == "95 requests/s (90 % interval 95 to 140, estimated)"


def test_words_of_what_a_model_gets():
    outcome = plan(asked(BERT, whole("ocr", point("2g.12gb", 50.0, None, None, "measured"))))
    assert format_models(outcome) == {
        "bert": "120 requests/s (90 % interval 95 to 140, estimated)",
        "ocr": "50 requests/s (interval n/a, measured)",
    }
    tenant = next(t for gpu in outcome.gpus for item in gpu.slices for t in item.tenants if t.model == "bert")
    half = replace(tenant, share=0.5, throughput_rps=60.0)
    assert format_tenant(half) == "60 requests/s (90 % interval 47.5 to 70, estimated)"
    assert format_throughput(1.0, None, None, None) == "1 requests/s (interval n/a, basis n/a)"
    assert (
        format_throughput(10.0, None, 12.0, "emulated") == "10 requests/s (90 % interval 10 to 12, emulated)"
    )
    assert [format_figure(value) for value in (0.0, 1234567.0, 0.00012346, 9.99996)] == [
        "0", "1235000", "0.0001235", "10",
    ]  # fmt: skip


def test_another_request_and_no_plan_are_refused():
    request = asked(BERT, OCR)
    outcome = plan(request)
    with pytest.raises(InputFault, match="answers another request"):
        assess_confidence(replace(request, link_gb_per_s=1.0), outcome)
    with pytest.raises(InputFault, match="its search ended"):
        assess_confidence(request, replace(outcome, status="timeout", gpus=()))
    renamed = replace(outcome, gpus=(replace(outcome.gpus[0], id="other"),))
    with pytest.raises(InputFault, match="that the request does not have"):
        assess_confidence(request, renamed)


def unsure(request: PlanRequest, seed: int) -> PlanRequest:
    """The request with intervals and bases of its own."""
    rng = random.Random(seed)

    def blurred(known):
        low = rng.choice([None, known.throughput_rps * rng.uniform(0.4, 1.0)])
        high = rng.choice([None, known.throughput_rps * rng.uniform(1.0, 2.0)])
        return replace(
            known, low_rps=low, high_rps=high, basis=rng.choice(["measured", "emulated", "estimated"])
        )

    models = tuple(
        replace(model, variants=tuple(
            replace(v, stages=tuple(replace(s, points=tuple(map(blurred, s.points))) for s in v.stages))
            for v in model.variants
        ))
        for model in request.models
    )  # fmt: skip
    return replace(request, models=models)


def judged(request: PlanRequest, outcome: PlanOutcome, seed: int) -> tuple[PlanRequest, PlanOutcome]:
    """Both with demands around the intervals that the models of the plan have; it need not be the best of them."""
    rng = random.Random(f"demands{seed}")

    def demand(low, high):
        return max(rng.choice([0.9 * low, rng.uniform(low, high), rng.uniform(low, high), 1.1 * high]), 1e-3)

    ends = {model.name: (model.low_rps or 0.0, model.high_rps or 0.0) for model in outcome.models}
    models = tuple(replace(model, demand_rps=demand(*ends[model.name])) for model in request.models)
    request = replace(request, models=models)
    return request, replace(outcome, request_sha256=request_hash(request))


def missing(request: PlanRequest, outcome: PlanOutcome) -> float:
    """Σ max(0, wanted − low), of a plan whose request has changed under it."""
    return sum(
        max(0.0, model.wanted_rps - model.low_rps)
        for model in assess_confidence(request, replace(outcome, request_sha256=request_hash(request))).models
    )


def narrowed(request: PlanRequest, place: tuple[object, ...]) -> PlanRequest:
    """The request with one point at its throughput alone."""

    def known(model, variant, stage, old):
        here = (
            model.name, variant.name, stage.name, old.gpu_type, old.profile, old.batch_size, old.processes,
        )  # fmt: skip
        return replace(old, low_rps=None, high_rps=None) if here == place else old

    return replace(request, models=tuple(
        replace(m, variants=tuple(
            replace(v, stages=tuple(
                replace(s, points=tuple(known(m, v, s, p) for p in s.points)) for s in v.stages
            )) for v in m.variants
        )) for m in request.models
    ))  # fmt: skip


@pytest.mark.slow
@in_blocks("seed", [*range(20, 60), *range(20)], kept=1)
def test_no_other_point_in_use_settles_more(seed):
    request = unsure(random_request(seed, "leximin", "fractional" if seed % 2 else "exclusive"), seed)
    outcome = plan(request)
    if outcome.status not in ("optimal", "feasible"):
        return
    request, outcome = judged(request, outcome, seed)
    found = assess_confidence(request, outcome)
    for model, planned in zip(found.models, outcome.models, strict=True):
        ends = (planned.throughput_rps, planned.low_rps, planned.high_rps)
        assert (model.throughput_rps, model.low_rps, model.high_rps) == pytest.approx(ends)
    before, wanted = missing(request, outcome), {model.name for model in found.models if model.is_open}
    settled = {
        place: before - missing(narrowed(request, place), outcome)
        for place, tenant in places(outcome, wanted).items()
        if worth_measuring(tenant)
    }
    best = found.next_measurement
    assert (best is None) == (not settled)
    if best is not None:
        place = (
            best.model, best.variant, best.stage, best.gpu_type, best.profile, best.batch_size,
            best.processes,
        )  # fmt: skip
        assert best.settles_rps == pytest.approx(settled[place], abs=1e-6 * before)
        assert best.settles_rps == pytest.approx(max(settled.values()), abs=1e-6 * before)


def places(outcome: PlanOutcome, models: set[str]) -> dict[tuple[object, ...], Tenant]:
    """A tenant of every point in use of these models."""
    return {
        (t.model, t.variant, t.stage, gpu.type, item.profile, t.batch_size, t.processes): t
        for gpu in outcome.gpus for item in gpu.slices for t in item.tenants if t.model in models
    }  # fmt: skip


def worth_measuring(tenant: Tenant) -> bool:
    rps = tenant.throughput_rps / tenant.share
    low = rps if tenant.low_rps is None else tenant.low_rps
    high = rps if tenant.high_rps is None else tenant.high_rps
    # Beside the edge of what is wide, where rounding decides.
    return high - low > 1e-9 * rps and (tenant.basis != "measured" or high - low > 0.1 * rps)


def test_random_plans_leave_enough_open():
    found = 0
    for seed in range(12):
        request = unsure(random_request(seed, "leximin"), seed)
        outcome = plan(request)
        if outcome.status in ("optimal", "feasible"):
            found += assess_confidence(*judged(request, outcome, seed)).next_measurement is not None
    assert found >= 6

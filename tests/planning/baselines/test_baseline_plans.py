"""Baselines: hand-checked plans, demands kept or named, verified and never above a proven optimum."""

import time
from dataclasses import replace

import pytest

from tests.support.planning.edits import with_each_model
from tests.support.planning.requests import A30, on_a30, published, random_request, simple, whole_model
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.planning.baselines.baseline_plans import Baseline, build_baselines
from torchsplit_core.planning.baselines.gain import gain
from torchsplit_core.planning.problem.latency_split import split_limit
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    InputFault,
    Objective,
    PlanModel,
    PlannedGpu,
    PlanOutcome,
    PlanRequest,
    Point,
    Stage,
    Variant,
)


def by_name(request: PlanRequest, known: PlanOutcome | None = None) -> dict[str, Baseline]:
    return {item.name: item for item in build_baselines(request, known)}


def got(item: Baseline) -> PlanOutcome:
    assert item.outcome is not None, item.reason
    return item.outcome


def layout(gpu: PlannedGpu) -> list[tuple[str, list[str]]]:
    return [(item.profile, [tenant.model for tenant in item.tenants]) for item in gpu.slices]


def rates(outcome: PlanOutcome) -> dict[str, float]:
    return {model.name: model.throughput_rps for model in outcome.models}


def test_whole_gpus_one_each_then_the_worst_served():
    short = by_name(published(3))["whole_gpu"]
    assert short.outcome is None
    assert short.reason == "4 models need a whole GPU each, and the fleet has 3 GPUs that may be one."
    outcome = got(by_name(published(6))["whole_gpu"])
    # Text to speech is the worst served, at 4.82, and at 9.64 it still is.
    assert rates(outcome) == pytest.approx(
        {"audio recognition": 125, "encoder": 7555, "text check": 92, "text to speech": 3 * 4.82}
    )
    assert all([item.profile for item in gpu.slices] == ["4g.24gb"] for gpu in outcome.gpus)


def test_uniform_takes_the_best_layout_of_equal_slices():
    item = by_name(published(2))["uniform"]
    # 1g leaves two models out, 4g serves two of four: 2g is the only one that serves all.
    assert rates(got(item)) == {
        "audio recognition": 71, "encoder": 6083, "text check": 45, "text to speech": 3.9,
    }  # fmt: skip
    assert "A30-24GB 2 × 2g.12gb" in item.about


def test_first_fit_gives_each_its_demand_in_order_and_leaves_the_rest_free():
    outcome = got(by_name(published(2))["first_fit"])
    # A demand of 1 takes the smallest slice that carries it; half of the second GPU stays free.
    assert [layout(gpu) for gpu in outcome.gpus] == [
        [("2g.12gb", ["audio recognition"]), ("1g.6gb", ["encoder"]), ("1g.6gb", ["text check"])],
        [("2g.12gb", ["text to speech"])],
    ]
    rate = {"1g.6gb": 10.0, "2g.12gb": 25.0}
    first, second = (simple(name, rate, demand_rps=demand) for name, demand in (("a", 55.0), ("b", 40.0)))
    # The largest while one does not carry the rest, then the smallest that does; who comes later gets what is left.
    served = got(by_name(on_a30(first, second))["first_fit"])
    assert rates(served) == {"a": 50.0, "b": 0.0}
    two = got(by_name(on_a30(second, first, count=2))["first_fit"])
    assert [layout(gpu) for gpu in two.gpus] == [
        [("2g.12gb", ["b"]), ("2g.12gb", ["b"])],
        [("2g.12gb", ["a"]), ("2g.12gb", ["a"])],
    ]


def test_first_fit_starts_no_model_without_room_for_all_of_its_stages():
    stage = [Point(A30, "2g.12gb", 1, 10.0, 10.0, memory_gib=0.0)]
    stages = tuple(Stage(name, tuple(stage)) for name in ("one", "two", "three"))
    cut = PlanModel("cut", (Variant("cut", stages, cut_bytes=(0.0, 0.0)),), demand_rps=5.0)
    request = on_a30(cut, simple("whole", {"2g.12gb": 4.0}))
    assert rates(got(by_name(request)["first_fit"])) == {"cut": 0.0, "whole": 4.0}


def test_greedy_takes_the_slice_with_most_for_its_size():
    outcome = got(by_name(published(2))["greedy"])
    # Segments for a demand of 1: 2g, 1g, 1g, 2g; the free half goes to text to speech.
    assert [layout(gpu) for gpu in outcome.gpus] == [
        [("2g.12gb", ["audio recognition"]), ("2g.12gb", ["text to speech"])],
        [("2g.12gb", ["text to speech"]), ("1g.6gb", ["encoder"]), ("1g.6gb", ["text check"])],
    ]
    assert outcome.objective.value == pytest.approx(7.8)


def test_greedy_segments_follow_the_demand_and_scale_down_together():
    # 4g is worth 40 a quarter, 1g 30: two 4g segments for 320, and a 2g for the 70 that are left.
    rate = {"1g.6gb": 30.0, "2g.12gb": 70.0, "4g.24gb": 160.0}
    request = on_a30(simple("a", rate, demand_rps=390.0, cap_at_demand=True), count=3)
    outcome = got(by_name(request)["greedy"])
    assert [[name for name, _ in layout(gpu)] for gpu in outcome.gpus] == [
        ["4g.24gb"], ["4g.24gb"], ["2g.12gb"],
    ]  # fmt: skip
    pair = tuple(
        simple(name, {"1g.6gb": 10.0}, demand_rps=demand) for name, demand in (("a", 60.0), ("b", 20.0))
    )
    served = got(by_name(on_a30(*pair))["greedy"])
    assert rates(served) == {"a": 30.0, "b": 10.0}


def test_greedy_scales_no_further_down_than_it_must():
    # b asks for two whole GPUs beside a's one; at 0.98 of the demands one does, and a keeps its 4g.
    models = (
        simple("a", {"1g.6gb": 10.0, "2g.12gb": 30.0, "4g.24gb": 100.0}, demand_rps=59.0),
        simple("b", {"4g.24gb": 50.0}, demand_rps=51.0),
    )
    served = got(by_name(on_a30(*models, count=2))["greedy"])
    assert rates(served) == {"a": 100.0, "b": 50.0}


def test_greedy_goes_to_another_kind_of_slice_where_its_own_is_taken():
    # The best slice for its size is the 1g, offered four times; the fifth segment takes a 2g.
    offers = (("1g.6gb",) * 4,), (("2g.12gb", "2g.12gb"),)
    model = simple("m", {"1g.6gb": 10.0, "2g.12gb": 12.0}, demand_rps=60.0, cap_at_demand=True)
    request = PlanRequest(tuple(FleetEntry(A30, layouts=offer) for offer in offers), (model,))
    served = got(by_name(request)["greedy"])
    assert rates(served) == {"m": 64.0}


def test_weighted_sum_serves_what_counts_most():
    models = (
        simple("capped", {"1g.6gb": 10.0}, demand_rps=11.0, cap_at_demand=True),
        simple("free", {"1g.6gb": 3.0}),
    )
    request = on_a30(*models, objective=Objective("weighted_sum"))
    outcome = got(by_name(request)["uniform"])
    # A second slice would bring the capped model 1 request/s, and the other 3.
    assert (rates(outcome), outcome.objective.value) == ({"capped": 10.0, "free": 9.0}, 19.0)
    # Greedy asks for the demand of 11 first.
    assert got(by_name(request)["greedy"]).objective.value == 17.0


def test_a_pair_goes_to_the_cheaper_gpu():
    models = tuple(simple(name, {"1g.6gb": 10.0}, min_throughput_rps=10.0) for name in ("a", "b"))
    fleet = (FleetEntry(A30, cost=3.0), FleetEntry(A30, cost=1.0))
    request = PlanRequest(fleet, models, (Colocation(("a", "b")),), Objective("min_gpus"))
    for name in ("uniform", "greedy"):
        assert got(by_name(request)[name]).objective.value == 1.0, name


def test_a_half_proven_plan_lends_its_first_level():
    request = published(2)
    best = plan(request)
    half = replace(
        best, status="feasible", objective=replace(best.objective, proven_levels=1, bound=30.0, gap=4 / 30)
    )
    verify(request, half)
    assert got(by_name(request, half)["uniform"]).objective.bound == best.objective.value
    none = replace(
        best, status="feasible", objective=replace(best.objective, proven_levels=0, bound=9.75, gap=0.2)
    )
    objective = got(by_name(request, none)["uniform"]).objective
    assert (objective.bound, objective.gap) == (9.75, pytest.approx(0.6))


def test_caps_leave_slices_idle_and_minima_come_first():
    models = (
        simple("small", {"1g.6gb": 10.0}, demand_rps=10.0, cap_at_demand=True),
        simple("must", {"1g.6gb": 1.0}, demand_rps=1.0, min_throughput_rps=3.0, cap_at_demand=True),
    )
    baselines = by_name(on_a30(*models))
    for name in ("uniform", "greedy"):
        assert rates(got(baselines[name])) == {"small": 10.0, "must": 3.0}, name
    wanting = replace(models[1], min_throughput_rps=5.0)
    baselines = by_name(on_a30(models[0], wanting))
    assert baselines["uniform"].outcome is None
    assert "must gets 4 of the 5 requests/s it must have" in baselines["uniform"].reason
    assert "must gets" in baselines["greedy"].reason


def test_fewest_gpus_serves_minima_only():
    rate = {"1g.6gb": 10.0, "2g.12gb": 25.0, "4g.24gb": 40.0}
    models = (
        simple("a", rate, min_throughput_rps=45.0),
        simple("b", rate, min_throughput_rps=5.0),
        simple("idle", rate),
    )
    request = on_a30(*models, count=6, cost=2.0, objective=Objective("min_gpus"))
    best = plan(request)
    baselines = by_name(request, best)
    used = {name: sum(gpu.used for gpu in got(item).gpus) for name, item in baselines.items()}
    # Two 4g for a and one for b; 2g, 2g and 2g; 4g, 1g and 1g; 2g, 2g and one 1g.
    assert used == {"whole_gpu": 3, "uniform": 2, "first_fit": 2, "greedy": 2}
    assert rates(got(baselines["greedy"]))["idle"] == 0.0
    assert gain(best, baselines["whole_gpu"], request.objective).description == "a cost of 4 instead of 6"
    cheap = replace(request, gpus=(FleetEntry(A30, count=6),))
    gained = gain(plan(cheap), by_name(cheap)["whole_gpu"], cheap.objective)
    assert (gained.ratio, gained.description) == (1.5, "1 GPU fewer (2 instead of 3)")


def test_hard_pairs_stand_together_or_the_baseline_says_why():
    models = tuple(simple(name, {"1g.6gb": 10.0, "2g.12gb": 18.0}) for name in ("a", "b", "c"))
    pair = Colocation(("a", "b"))
    baselines = by_name(PlanRequest((FleetEntry(A30, count=2),), models, (pair,)))
    assert baselines["whole_gpu"].reason == "No model can run on a whole GPU within its limits."
    whole = tuple(replace(simple(name, {"4g.24gb": 10.0})) for name in ("a", "b"))
    alone = by_name(PlanRequest((FleetEntry(A30, count=2),), whole, (pair,)))
    assert alone["whole_gpu"].reason == "a and b must stand on the same GPUs, and a whole GPU is one slice."
    for name in ("uniform", "greedy"):
        for gpu in got(baselines[name]).gpus:
            here = {tenant for _, tenants in layout(gpu) for tenant in tenants}
            assert ("a" in here) == ("b" in here), name
        assert min(rates(got(baselines[name])).values()) > 0, name


def cut(limit: float) -> PlanModel:
    first = tuple(Point(A30, "1g.6gb", batch, 10.0 * batch, 10.0 * batch) for batch in (1, 2, 3))
    second = tuple(Point(A30, "1g.6gb", batch, 10.0 + batch, 10.0 * batch) for batch in (1, 2, 3))
    variant = Variant("cut", (Stage("first", first), Stage("second", second)), (0.0,))
    return PlanModel("m", (variant,), max_latency_ms=limit)


def test_a_latency_limit_is_divided_over_the_stages():
    # 20 + 20 ms: least of 20 and 12; 10 + 30: of 10 and 13; 30 + 10: of 30 and 11.
    outcome = got(by_name(on_a30(cut(40.0)))["uniform"])
    assert {tenant.batch_size for gpu in outcome.gpus for item in gpu.slices for tenant in item.tenants} == {
        2
    }
    assert outcome.models[0].latency_ms == 40.0
    nothing = got(by_name(on_a30(cut(19.0)))["greedy"])
    assert (nothing.models[0].variant, nothing.objective.value) == (None, 0.0)
    assert split_limit(30.0, [[(10.0, 1.0), (20.0, 2.0)], [(10.0, 5.0), (25.0, 9.0)]]) == (20.0, 10.0)
    assert split_limit(45.0, [[(10.0, 1.0), (20.0, 2.0)], [(10.0, 5.0), (25.0, 9.0)]]) == (20.0, 25.0)
    assert split_limit(19.0, [[(10.0, 1.0)], [(10.0, 5.0)]]) is None


def test_points_beyond_the_memory_of_their_slice_are_left_alone():
    model = simple("m", {"1g.6gb": 100.0, "4g.24gb": 10.0}, memory_gib=8.0)
    found = by_name(on_a30(model, objective=Objective("leximin", 0.0)))
    assert {name: got(item).objective.value for name, item in found.items()} == dict.fromkeys(found, 10.0)


def test_offered_layouts_and_mixed_fleets():
    offered = (("1g.6gb", "1g.6gb", "2g.12gb"),)
    models = (simple("a", {"1g.6gb": 5.0, "2g.12gb": 8.0}),)
    baselines = by_name(PlanRequest((FleetEntry(A30, layouts=offered),), models))
    assert baselines["whole_gpu"].reason == "No GPU of the fleet may be one whole slice."
    assert "equal slices" in baselines["uniform"].reason
    assert [layout(gpu) for gpu in got(baselines["greedy"]).gpus] == [
        [("2g.12gb", ["a"]), ("1g.6gb", ["a"]), ("1g.6gb", ["a"])]
    ]
    points = (
        Point(A30, "4g.24gb", 1, 10.0, 5.0),
        Point("A100-80GB", "7g.80gb", 1, 40.0, 5.0),
        Point("A100-80GB", "3g.40gb", 1, 30.0, 5.0),
    )
    model = whole_model("m", points)
    mixed = by_name(PlanRequest((FleetEntry(A30), FleetEntry("A100-80GB")), (model,)))
    assert rates(got(mixed["whole_gpu"])) == {"m": 50.0}
    assert rates(got(mixed["uniform"])) == {"m": 70.0}
    assert "A30-24GB 1 × 4g.24gb, A100-80GB 2 × 3g.40gb" in mixed["uniform"].about


@pytest.mark.slow
@repeated("kind", ["min_gpus", "leximin", "max_min", "weighted_sum"], kept=1)
@pytest.mark.parametrize("sharing", ["exclusive", "fractional"])
def test_random_requests(kind, sharing):
    plans = 0
    for seed in range(14 if sharing == "exclusive" else 4):
        request = random_request(seed, kind, sharing)
        best = plan(request)
        solved = best.objective.value is not None
        baselines = build_baselines(request, best if solved else None)
        assert [item.name for item in baselines] == ["whole_gpu", "uniform", "first_fit", "greedy"]
        for item in baselines:
            assert (item.outcome is None) == bool(item.reason)
            if item.outcome is None:
                assert gain(best, item, request.objective).ratio is None
                continue
            plans += 1
            assert best.status != "infeasible", (seed, item.name)
            # The check refuses a value beyond the bound that the proven plan lent.
            verify(request, item.outcome)
            if best.status == "optimal":
                assert item.outcome.objective.bound == pytest.approx(best.objective.value, rel=1e-9)
                ratio = gain(best, item, request.objective).ratio
                assert ratio is None or ratio >= 1 - 1e-6, (seed, item.name)
    assert plans > 2


def test_the_same_request_gives_the_same_baselines():
    request = random_request(3, "leximin")
    first, second = build_baselines(request), build_baselines(request)
    for one, other in zip(first, second, strict=True):
        assert replace(one, outcome=None) == replace(other, outcome=None)
        assert (one.outcome and one.outcome.gpus) == (other.outcome and other.outcome.gpus)


def test_gain_in_words():
    request = published(2)
    best = plan(request)
    baselines = by_name(request, best)
    gained = gain(best, baselines["uniform"], request.objective)
    assert (gained.ratio, gained.description) == (
        pytest.approx(2.0),
        "2 × the worst-served model's normalised throughput",
    )
    assert gain(best, baselines["greedy"], request.objective).description == "as good for every model"
    assert gain(best, baselines["whole_gpu"], request.objective).description.startswith("n/a: 4 models need")
    one = published(1)
    unserved = by_name(one)["uniform"]
    gained = gain(replace(best, request_sha256=got(unserved).request_sha256), unserved, one.objective)
    assert gained.ratio is None
    assert "would not be served at all" in gained.description
    total = replace(request, objective=Objective("weighted_sum"))
    # Every slice to the encoder: 8 of 5333 requests/s, and 2 of 7555 on whole GPUs.
    assert (
        gain(plan(total), by_name(total)["uniform"], total.objective).description
        == "the same weighted throughput"
    )
    four = replace(total, gpus=(FleetEntry(A30, count=4),))
    gained = gain(plan(four), by_name(four)["whole_gpu"], total.objective)
    assert gained.ratio == pytest.approx(16 * 5333 / (125 + 7555 + 92 + 4.82))
    assert gained.description == "11 × the weighted throughput"
    close = replace(plan(four), objective=replace(plan(four).objective, value=16 * 5333 * 1.001))
    assert (
        gain(close, by_name(four)["uniform"], total.objective).description
        == "+0.1 % of the weighted throughput"
    )
    assert gain(plan(total), best, total.objective).description == "n/a: they answer different requests."


@pytest.mark.parametrize("kind", ["leximin", "max_min", "weighted_sum", "min_gpus"])
def test_a_plan_gains_nothing_over_itself(kind):
    request = replace(published(), objective=Objective(kind))
    if kind == "min_gpus":
        request = with_each_model(request, min_throughput_rps=1.0)
    best = plan(request)
    assert gain(best, best, request.objective).ratio == 1.0


def test_leximin_gain_names_the_first_level_that_differs():
    models = (simple("a", {"1g.6gb": 1.0}, cap_at_demand=True), simple("b", {"1g.6gb": 2.0, "2g.12gb": 8.0}))
    request = on_a30(*models)
    best = plan(request)
    gained = gain(best, by_name(request)["uniform"], request.objective)
    # a has 1 either way; b has a 2g and a 1g, or three 1g.
    assert gained.ratio == 1.0
    assert (
        gained.description
        == "the same for the worst-served model; 1.67 × the second worst-served model's normalised throughput"
    )


def test_a_passed_deadline_and_a_foreign_plan_are_told():
    request = published(2)
    late = build_baselines(request, deadline=time.perf_counter() - 1)
    assert [item.reason for item in late] == ["No time was left to work it out."] * 4
    with pytest.raises(InputFault, match="answers another request"):
        build_baselines(request, plan(published(3)))
    heard = []
    build_baselines(request, progress=lambda share, _: heard.append(share))
    assert heard == sorted(heard) and heard[-1] == 1.0

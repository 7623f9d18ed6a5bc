"""What the front carries of a plan, by figures worked out by hand; who tells it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.serving.llm_plans import llm_plan
from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core import workflow
from torchsplit_core.files import read_text, write_text
from torchsplit_core.latency_slo.frontend import (
    FrontendLoad,
    describe_shortfall,
    frontend_load,
    uses_cpu_slices,
    with_frontend,
    with_load_generator,
)
from torchsplit_core.latency_slo.simulation_input import simulation_request
from torchsplit_core.latency_slo.verdict import PlanVerdict, plan_verdict
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault, PlannedSlice, PlanOutcome, PlanRequest
from torchsplit_core.values.plan.front import FrontCosts, PlannedFront

COSTS = FrontCosts(0.2, 0.4, 2.0, 0.3, 0.19, 0.22, 2, "a processor, 2 cores", 0.05)
PAIR = [Placed("a", batch_size=4, ms=2.0), Placed("b", start=1, batch_size=1, ms=4.0)]
SOURCES = {"a": "sample:bert", "b": "sample:clip"}


def asked(
    demands: dict[str, float],
    bytes_: float | None = 100_000.0,
    costs: FrontCosts | None = COSTS,
    placed: list[Placed] = PAIR,
) -> tuple[PlanOutcome, PlanRequest]:
    """Two models on a slice of one core each: a in batches of 4 of 2 ms, b one by one in 4 ms."""
    outcome, request = cpu_plan(placed, SOURCES)
    request = replace(
        request,
        front=costs,
        models=tuple(
            replace(model, demand_rps=demands[model.name], bytes_per_request=bytes_)
            for model in request.models
        ),
    )
    return replace(outcome, request_sha256=request_hash(request)), request


def load_of(outcome: PlanOutcome, request: PlanRequest) -> FrontendLoad:
    found = frontend_load(request, outcome)
    assert found is not None
    return found


def test_a_front_with_a_core_of_its_own_carries_what_one_core_does():
    """a: 0.2 + 2 · 0.1 + 0.4 / 4 = 0.5 ms, b: 0.2 + 0.2 + 0.4 = 0.8 ms; 1,200 and 500 a second are a whole core."""
    outcome, request = asked({"a": 1200.0, "b": 500.0}, costs=replace(COSTS, cores=3, hand_over_ms=0.0))
    found = load_of(outcome, request)
    assert [model.ms for model in found.models] == pytest.approx([0.5, 0.8])
    assert found.planned.core_share == pytest.approx(1.0) and not found.planned.shared
    assert found.planned.load_factor == pytest.approx(1.0) and found.carries
    twice = load_of(*asked({"a": 2400.0, "b": 1000.0}, costs=replace(COSTS, cores=3, hand_over_ms=0.0)))
    assert twice.planned.load_factor == pytest.approx(0.5) and not twice.carries
    # b's slice gives 250: less than its half of the demand.
    assert [model.passed_rps for model in twice.models] == pytest.approx([1200.0, 250.0])


def test_without_a_core_of_its_own_it_takes_the_slices_time():
    """A request of a costs 0.5 ms of front and 0.5 of its slice's core, one of b 0.8 and 4: of two cores in all."""
    found = load_of(*asked({"a": 1000.0, "b": 100.0}))
    assert found.planned.shared
    assert found.planned.core_share == pytest.approx(0.58)
    assert found.planned.load_factor == pytest.approx(2 / (0.58 + 0.5 + 0.4))
    # The front alone has no more than one core, however many there are.
    many = load_of(*asked({"a": 2000.0, "b": 10.0}, costs=replace(COSTS, ms_per_request=1.0)))
    assert many.planned.load_factor == pytest.approx(1 / (2000 * 1.3 + 10 * 1.6) * 1e3)


def test_a_worker_waits_for_hand_over_and_front_between_batches():
    """a's batch is held 0.3 + max(2, 4 · 0.5) = 2.3 ms; with a front of 2 ms a request 0.3 + max(2, 4 · 2.3)."""
    found = load_of(*asked({"a": 1.0, "b": 1.0}))
    assert [model.slices_rps for model in found.models] == pytest.approx([4e3 / 2.3, 1e3 / 4.3])
    slow = load_of(*asked({"a": 1.0, "b": 1.0}, costs=replace(COSTS, ms_per_request=2.0)))
    assert [model.slices_rps for model in slow.models] == pytest.approx([4e3 / 9.5, 1e3 / 4.3])


def test_a_cut_model_passes_the_front_between_its_stages():
    nodes = {"c": {"one": ("x",), "two": ("y",)}}
    placed = [Placed("c", stage="one", batch_size=4), Placed("c", start=1, stage="two", batch_size=2)]
    outcome, request = cpu_plan(placed, {"c": "sample:bert"}, nodes=nodes)
    (model,) = request.models
    cut = replace(model.variants[0], cut_bytes=(40_000.0,), cut_bytes_per_request=(10_000.0,))
    request = replace(
        request, front=COSTS, models=(replace(model, variants=(cut,), bytes_per_request=100_000.0),)
    )
    (found,) = load_of(outcome, request).models
    # 0.1 MB of its own; 0.01 + 0.04 / 4 MB across the cut, in and out; a quarter and a half of a batch.
    assert found.ms == pytest.approx(0.2 + 2.0 * (0.1 + 2 * 0.02) + 0.4 * (1 / 4 + 1 / 2))


def test_two_hosts_have_a_front_each():
    outcome, request = asked({"a": 1200.0, "b": 500.0}, costs=replace(COSTS, cores=3))
    (gpu,) = outcome.gpus
    first, second = (replace(gpu, id=f"h{n}", slices=(item,)) for n, item in enumerate(gpu.slices))
    apart = replace(outcome, gpus=(first, second))
    assert load_of(apart, request).planned.load_factor == pytest.approx(2.0)
    # How requests divide among them nobody knows: the simulation has no front.
    assert all(model.front_ms == 0 for model in simulation_request(apart, request).models)


def test_nothing_is_said_where_nobody_knows_and_of_gpus():
    outcome, request = asked({"a": 1e6, "b": 1e6}, costs=None)
    assert frontend_load(request, outcome) is None and with_frontend(request, outcome) is outcome
    gpu = cpu_plan([Placed("a", "7g.80gb")], {"a": "sample:bert"}, type_="A100-80GB")
    assert frontend_load(replace(gpu[1], front=COSTS), gpu[0]) is None


def test_the_outcome_tells_what_passes_and_is_read_back():
    outcome, request = asked({"a": 2400.0, "b": 1000.0}, costs=replace(COSTS, cores=3, hand_over_ms=0.0))
    made = with_frontend(request, outcome)
    assert made.front == PlannedFront(pytest.approx(0.5), pytest.approx(2.0), False)
    assert [model.front_rps for model in made.models] == pytest.approx([1200.0, 250.0])
    assert [model.throughput_rps for model in made.models] == [2000.0, 250.0]
    assert read_text(write_text(made))[1] == made and read_text(write_text(request))[1] == request
    for text in (write_text(outcome), write_text(replace(request, front=None))):
        assert "front" not in text


def test_a_plan_of_cores_tells_it():
    _, request = asked({"a": 1e5, "b": 100.0})
    handed: list[PlanOutcome] = []
    outcome = workflow.plan(request, on_plan=handed.append)
    assert handed
    for plan in (*handed, outcome):
        assert plan.front is not None and plan.front.load_factor < 0.1
        assert plan.models[0].front_rps is not None


def judged(demands: dict[str, float], **more: object) -> PlanVerdict:
    outcome, request = asked(demands, **more)  # type: ignore[arg-type]
    return plan_verdict(request, outcome)


def test_demand_above_the_front_is_not_met():
    costs = replace(COSTS, cores=3, ms_per_request=1.0)
    found = judged({"a": 1000.0, "b": 100.0}, costs=costs)
    assert found.level == "red"
    assert found.sentence == (
        "The slices give all 2 models the demand, but not all of it passes. The front passes about 753 requests/s of "
        "these 2 models (measured on a processor, 2 cores), and 1,100 are demanded. Ask for fewer requests/s, put "
        "several rows into a request, or deploy a server for each slice (torchsplit deploy) and let clients ask them "
        "without a router."
    )
    fact = next(one for one in found.facts if one.question == "Passes the front")
    assert fact.text.startswith("no (0.685 × the demands at most, 146 % of a core at them, measured on")


def test_what_only_a_worker_waits_for_is_said_so():
    found = judged({"a": 1.0, "b": 240.0}, costs=replace(COSTS, cores=3))
    assert found.level == "red" and "Between two batches a worker waits for the front" in found.sentence
    assert "b 233 of 240 (measured on a processor, 2 cores). Use larger batches" in found.sentence


def test_demand_that_passes_is_met_and_unknown_bytes_are_said():
    found = judged({"a": 100.0, "b": 100.0})
    fact = next(one for one in found.facts if one.question == "Passes the front")
    assert found.level in ("green", "amber") and "front" not in found.sentence
    assert fact.answer == "yes" and "without" not in fact.why
    bare = judged({"a": 100.0, "b": 100.0}, bytes_=None)
    assert any("without the bytes of a, b, which the request does not tell" in one.why for one in bare.facts)
    unknown = judged({"a": 100.0, "b": 100.0}, costs=None)
    assert all(one.question != "Passes the front" for one in unknown.facts)


def test_the_simulation_has_the_front_as_a_station():
    outcome, request = asked({"a": 1000.0, "b": 100.0}, costs=replace(COSTS, cores=3))
    made = simulation_request(outcome, request)
    assert [model.front_ms for model in made.models] == pytest.approx([0.5, 0.8])
    assert [dict(one.batch_ms) for one in made.servers] == [
        {1: pytest.approx(2.3), 4: pytest.approx(2.3)}, {1: pytest.approx(4.3)},
    ]  # fmt: skip
    plain = simulation_request(outcome, replace(request, front=None))
    assert [model.front_ms for model in plain.models] == [0.0, 0.0]
    assert [dict(one.batch_ms) for one in plain.servers] == [{1: 2.0, 4: 2.0}, {1: 4.0}]


def test_our_own_generator_takes_the_fronts_time_where_it_has_no_core():
    outcome, request = asked({"a": 10.0, "b": 10.0})
    shared = with_load_generator(request, outcome, 2.0)
    assert shared.front is not None and shared.front.ms_per_request == pytest.approx(0.25)
    assert [model.demand_rps for model in shared.models] == [20.0, 20.0]
    assert with_load_generator(
        replace(request, front=replace(COSTS, cores=4)), outcome, 1.0
    ).front == replace(COSTS, cores=4)


def test_slices_without_tenants_leave_their_cores_to_the_front():
    outcome, request = asked({"a": 10.0, "b": 10.0}, placed=PAIR)
    (gpu,) = outcome.gpus
    idle = replace(outcome, gpus=(replace(gpu, slices=(gpu.slices[0], PlannedSlice("1c", 1))),))
    assert not load_of(idle, request).planned.shared


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"ms_per_request": 0.0}, "front.ms_per_request"),
        ({"ms_per_mb": -1.0}, "front.ms_per_mb"),
        ({"cores": 0}, "front.cores"),
    ],
)
def test_costs_that_make_no_sense_are_refused(change, where):
    _, request = asked({"a": 1.0, "b": 1.0}, costs=replace(COSTS, **change))  # type: ignore[arg-type]
    with pytest.raises(InputFault, match=where):
        workflow.plan(request)


def test_words_are_none_where_all_passes():
    assert describe_shortfall(load_of(*asked({"a": 1.0, "b": 1.0}))) == ""


def test_engines_of_llms_are_not_behind_the_front_of_batches():
    plan, request = llm_plan("decoder")
    assert not uses_cpu_slices(plan) and frontend_load(replace(request, front=COSTS), plan) is None

"""Batch times of a simulated plan drawn as its measured points vary."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core import workflow
from torchsplit_core.jobs.measure import expected_results
from torchsplit_core.latency_slo.service_variance import simulate_with_variance
from torchsplit_core.latency_slo.simulation_input import simulation_request
from torchsplit_core.profiling.measuring.run_statistics import summarise
from torchsplit_core.serving.load_test.measurement import build_simulation
from torchsplit_core.simulation import simulate
from torchsplit_core.values import Pace, PlanOutcome, PlanRequest, Server, Service, TraceArrivals

P95_OVER_MEAN = math.exp(0.2 * 1.6448536269514722 - 0.2**2 / 2)
"""Of log-normal times with a σ of 0.2."""


def plan_of(
    ratios: Mapping[int, float], *, processes: int = 1, ms: float = 10.0, share: float = 1.0, **change: object
) -> tuple[PlanOutcome, PlanRequest]:
    """bert on one core in batches of up to 4, its points of 1 and 4 with p95 so many times the mean."""
    outcome, request = cpu_plan(
        [Placed("bert", batch_size=4, ms=ms, processes=processes, share=share)], {"bert": "sample:bert"},
        demand_rps=40.0,
    )  # fmt: skip
    (model,) = request.models
    (variant,) = model.variants
    (stage,) = variant.stages

    def varying(point):
        rate = point.throughput_rps
        told = replace(
            point, latency_ms=ms * ratios[point.batch_size], low_rps=0.9 * rate, high_rps=1.1 * rate
        )
        return replace(told, **change)  # type: ignore[arg-type]

    stage = replace(stage, points=tuple(varying(point) for point in stage.points))
    variant = replace(variant, stages=(stage,))
    return outcome, replace(request, models=(replace(model, variants=(variant,)),))


def server_of(plan: tuple[PlanOutcome, PlanRequest], hand_over_ms: float = 0.0) -> Server:
    (server,) = build_simulation(*plan, {"bert": [0.0, 1.0]}, {"host0/1c@0": hand_over_ms}).servers
    return server


def test_times_have_the_mean_and_the_p95_of_the_point():
    """Requests a second apart, each alone in its batch: what comes out is the distribution of one batch."""
    plan = plan_of({1: P95_OVER_MEAN, 4: P95_OVER_MEAN})
    times = [float(number) for number in range(4000)]
    found = simulate_with_variance(build_simulation(*plan, {"bert": times}, {})).models[0].response_ms
    assert found.mean == pytest.approx(10.0, rel=0.01)
    assert found.p95 == pytest.approx(10.0 * P95_OVER_MEAN, rel=0.01)
    # The median of log-normal times: the mean over exp(0.2² / 2).
    assert found.p50 == pytest.approx(10.0 / math.exp(0.02), rel=0.01)


def test_runs_of_log_normal_times_come_back():
    """From runs to a point and back: the mean that the queues get is the runs' own."""
    runs = np.random.default_rng(0).lognormal(math.log(8.0), 0.3, 3000)
    summary = summarise([list(runs)])
    ratio = summary.latency.p95.value / summary.mean_ms
    server = server_of(plan_of({1: ratio, 4: ratio}, ms=summary.mean_ms))
    assert server.batch_ms[1] == pytest.approx(runs.mean(), rel=0.02)
    assert server.service.cv == pytest.approx(runs.std() / runs.mean(), rel=0.1)


def test_without_spread_every_batch_takes_its_time():
    plan = plan_of({1: 1.0, 4: 1.0})
    assert server_of(plan) == simulation_request(*plan).servers[0]
    asked = build_simulation(*plan, {"bert": [0.0, 1.0, 1.001]}, {})
    assert simulate_with_variance(asked).models[0].response_ms == simulate(asked).models[0].response_ms
    # A p95 below the mean is the noise of few runs.
    assert server_of(plan_of({1: 0.8, 4: 0.9})).service == Service()


@pytest.mark.parametrize("change", [{"basis": "estimated"}, {"basis": "emulated"}, {"low_rps": None}])
def test_only_what_was_measured_says_how_it_varies(change):
    """Nor do rows without the mean's interval: their latency may be a mean, or have a queue in it."""
    plan = plan_of({1: 1.5, 4: 1.5}, **change)
    assert server_of(plan) == simulation_request(*plan).servers[0]


def test_one_spread_is_shared_by_the_sizes():
    """σ of 0 and of 0.2: the root of the mean square, for both; a size beyond the tenant's plays no part."""
    sigma = math.sqrt(0.5) * 0.2
    server = server_of(plan_of({1: 1.0, 4: P95_OVER_MEAN}))
    assert server.service == Service("lognormal", pytest.approx(math.sqrt(math.expm1(sigma**2))))
    assert server.batch_ms == pytest.approx(dict.fromkeys((1, 4), 10.0))


def test_processes_shares_and_the_hand_over():
    """Means are of one process; a share takes 1/s as long; the hand-over varies as the worker's batches do."""
    both = {1: P95_OVER_MEAN, 4: P95_OVER_MEAN}
    for plan, mean in ((plan_of(both, processes=2), 10.0), (plan_of(both, share=0.5), 20.0)):
        server = server_of(plan, hand_over_ms=0.5)
        assert server.batch_ms[4] == pytest.approx(mean + 0.5)
        assert server.service.cv == pytest.approx(math.sqrt(math.expm1(0.04)))


def test_a_spread_beyond_what_is_simulated_is_the_widest():
    widest = math.sqrt(math.expm1(1.6448536269514722**2))
    assert server_of(plan_of({1: 1e200, 4: 1e200})).service == Service("lognormal", pytest.approx(widest))


def test_a_figure_is_the_mean_over_draws():
    """A trace is one run by contract; drawn times make another p95 each time, and the mean of many hardly moves."""
    plan = plan_of({1: 2.0, 4: 2.0})
    times = [0.0105 * number for number in range(400)]
    asked = build_simulation(*plan, {"bert": times}, {})
    single = [simulate(replace(asked, seed=seed)).models[0] for seed in range(8)]
    many = [simulate_with_variance(replace(asked, seed=seed)).models[0] for seed in range(8)]
    assert {one.completed for one in single} == {400} and {one.completed for one in many} == {50 * 400}
    spread = [np.std([one.response_ms.p95 for one in found]) for found in (single, many)]
    assert spread[1] < 0.5 * spread[0]
    assert isinstance(asked.models[0].arrivals, TraceArrivals)


def test_the_simulation_of_a_plan_stays_as_promised_and_the_pages_line_is_drawn():
    plan = plan_of({1: P95_OVER_MEAN, 4: P95_OVER_MEAN})
    (server,) = simulation_request(*plan).servers
    assert server.service == Service() and server.batch_ms == {1: 10.0, 4: 10.0}
    without = plan_of({1: 1.0, 4: 1.0})
    drawn, steady = (expected_results(*one, 1.0)["expected"]["bert"]["p95_ms"] for one in (plan, without))
    assert drawn > steady


PACE = Pace(0.1, 0.5, 0.05)


def test_a_host_that_changes_its_speed_is_drawn_beside_what_its_batches_vary_by():
    """The slow periods were among the runs whose p95 the point tells: σ² of the two together is that of the point."""
    both = {1: P95_OVER_MEAN, 4: P95_OVER_MEAN}
    plan = plan_of(both, pace=PACE)
    (server,) = workflow.simulation_request(*plan).servers
    assert server == server_of(plan) and server.pace == PACE
    assert math.log1p(server.service.cv**2) + math.log1p(PACE.cv**2) == pytest.approx(0.2**2)
    # Of a plan's own simulation only such a host's times are drawn.
    assert workflow.simulation_request(*plan_of(both)) == simulation_request(*plan_of(both))
    # Periods that vary by more than the runs did leave nothing to draw batch by batch.
    wild = plan_of(both, pace=replace(PACE, cv=0.5))
    assert server_of(wild).service == Service()


def test_parts_of_a_cut_model_keep_the_pace_of_their_cores():
    plan = plan_of({1: 1.0, 4: 1.0}, pace=PACE, basis="estimated", low_rps=None)
    assert server_of(plan).pace == PACE and server_of(plan).service == Service()

"""A model's requests where its servers come and go: what is lost, what moves to another variant, whole and sampled."""

import pytest

from torchsplit_core.day_plans.replay.model_day import make_queues, model_day
from torchsplit_core.day_plans.replay.model_run import run_model_day
from torchsplit_core.day_plans.replay.server_periods import ServedDay, ServerPeriod
from torchsplit_core.day_plans.replay.time_sample import group_pieces, sample_level
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace
from torchsplit_core.values import PoissonArrivals, Server, SimulatedModel

WHOLE = SimulatedModel("m", ("whole",), PoissonArrivals(1.0))
CUT = SimulatedModel("m", ("a", "b"), PoissonArrivals(1.0), transfer_ms=(5.0,))


def period(stage: str, ms: float, begin: float, end: float, variant: str = "whole") -> ServerPeriod:
    return ServerPeriod(variant, Server(f"{stage}{begin}", "m", stage, 1, {1: ms}), begin, end)


def run(periods, models, rate, share=None):
    """The requests at a constant rate, all of them or about a share of the work."""
    day = ServedDay("windows", tuple(periods), models, (), ((0.0, 1),))
    part = model_day(day, "m", DemandTrace(0, 600, {"m": (rate,) * 144}))
    groups = [(group, 1.0) for group in group_pieces(part.pieces, 1)]
    level = sample_level(groups, (share or 2.0) * rate * DAY_S)
    requests = run_model_day(
        group_pieces(part.pieces, 1), level, lambda axis, rng: make_queues(part, axis, rng), (0, 0, 0), 600
    )
    total = requests.served + requests.lost + requests.waiting
    assert total == pytest.approx(requests.arrived, rel=1e-12)
    assert requests.arrived == pytest.approx(rate * DAY_S, rel=0.02)
    return requests


@pytest.mark.parametrize("share", [None, 0.1])
def test_what_waits_at_the_last_server_is_lost_with_it_and_so_is_what_comes_until_one_is_there(share):
    """Two arrive a second and one is served: at 12:00 half a day of requests waits, and nothing runs for two hours."""
    noon = DAY_S / 2
    periods = [period("whole", 1000.0, 0, noon), period("whole", 250.0, noon + 7200, DAY_S)]
    requests = run(periods, {("m", "whole"): WHOLE}, 2.0, share)
    assert requests.lost == pytest.approx(noon + 2 * 7200, rel=0.02)
    assert requests.waiting < 50
    assert requests.served == pytest.approx(noon + 2 * (noon - 7200), rel=0.02)
    # Those lost are known by when they came: the second half of the morning, and until 14:00.
    assert requests.missing_weights.sum() == pytest.approx(requests.lost + requests.waiting, rel=0.05)
    assert requests.missing_s.min() == pytest.approx(noon / 2, abs=600)
    assert requests.missing_s[requests.missing_s < DAY_S - 100].max() == pytest.approx(noon + 7200, abs=30)


@pytest.mark.parametrize("share", [None, 0.1])
def test_with_another_server_the_queue_goes_on_and_nothing_is_lost(share):
    noon = DAY_S / 2
    periods = [period("whole", 1000.0, 0, noon), period("whole", 250.0, noon, DAY_S)]
    requests = run(periods, {("m", "whole"): WHOLE}, 2.0, share)
    assert requests.lost == 0 and requests.waiting < 50
    assert requests.response_ms.max() == pytest.approx(1e3 * noon / 2, rel=0.05)


@pytest.mark.parametrize("share", [None, 0.1])
def test_what_waits_for_a_variant_that_ends_moves_to_the_one_that_runs(share):
    """By noon a quarter of a day's requests wait for the cut variant's second stage; the whole one serves them all."""
    noon = DAY_S / 2
    periods = [
        period("a", 100.0, 0, noon, "cut"),
        period("b", 1000.0, 0, noon, "cut"),
        period("whole", 250.0, noon, DAY_S),
    ]
    requests = run(periods, {("m", "whole"): WHOLE, ("m", "cut"): CUT}, 1.5, share)
    assert requests.lost == 0 and requests.waiting < 50
    assert requests.response_ms.max() == pytest.approx(1e3 * noon / 3, rel=0.07)


def test_side_by_side_variants_share_what_comes_by_what_they_carry():
    periods = [period("whole", 250.0, 0, DAY_S), *(period(stage, 500.0, 0, DAY_S, "cut") for stage in "ab")]
    requests = run(periods, {("m", "whole"): WHOLE, ("m", "cut"): CUT}, 0.2)
    whole = (requests.response_ms < 1000).mean()
    assert requests.lost == 0 and whole == pytest.approx(4 / 6, abs=0.03)

"""What the front costs: of blocks, kept once a host and version, and measured."""

import json
import time
from dataclasses import replace

import pytest

from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core import workflow
from torchsplit_core.serving.load_test import frontend_costs
from torchsplit_core.serving.load_test.frontend_costs import (
    BATCH,
    COSTS_FILE,
    CostSample,
    fit_costs,
    front_costs,
    saved_costs,
)
from torchsplit_core.values import InputFault
from torchsplit_core.values.plan.front import FrontCosts

COSTS = FrontCosts(0.2, 0.4, 2.0, 0.3, 0.19, 0.22, 2, "here", 0.05)


def block(requests: int, batches: int, megabytes: float, noise: float = 1.0) -> CostSample:
    """0.2 ms a request, 0.4 a batch, 2 a megabyte; 0.05 ms of the generator's a request."""
    ms = noise * (0.2 * requests + 0.4 * batches + 2.0 * megabytes)
    return CostSample(requests, batches, megabytes, ms, 0.3, 0.05 * requests)


def test_costs_are_told_apart_by_what_blocks_have_of_them():
    few = [block(400, 400, 0.05), block(410, 410, 0.05)]
    many = [block(1500, 100, 0.2), block(1600, 103, 0.2)]
    large = [block(300, 21, 157.0), block(310, 25, 162.0)]
    costs = fit_costs(few, many, large)
    assert (costs.ms_per_request, costs.ms_per_batch, costs.ms_per_mb) == pytest.approx((0.2, 0.4, 2.0))
    assert (costs.hand_over_ms, costs.generator_ms, costs.basis) == (0.3, pytest.approx(0.05), "measured")
    assert costs.cores and "cores" in costs.host
    assert costs.ms(500_000.0, 1 / 16) == pytest.approx(0.2 + 1.0 + 0.025)


def test_the_ends_are_those_of_the_blocks():
    many = [block(1500, 100, 0.2, 0.9), block(1500, 100, 0.2), block(1500, 100, 0.2, 1.1)]
    costs = fit_costs([block(400, 400, 0.05)] * 3, many, [block(300, 20, 157.0)] * 3)
    low, high = costs.ms_per_request_low, costs.ms_per_request_high
    assert low is not None and high is not None and low < costs.ms_per_request < high
    assert high - low == pytest.approx(0.2 * block(1500, 100, 0.2).ms / 1500, rel=0.01)


def test_a_block_without_a_tick_of_the_clock_is_refused_and_no_traceback():
    stalled = replace(block(400, 400, 0.05), ms=0.0)
    with pytest.raises(InputFault, match="took no tick of its clock"):
        fit_costs([stalled, block(400, 400, 0.05)], [block(400, 40, 0.05)], [block(300, 20, 157.0)])


def test_no_cost_is_below_nothing():
    """A batch that seems to save time is noise."""
    costs = fit_costs(
        [CostSample(400, 400, 0.05, 70.0, 0.3)],
        [CostSample(1500, 100, 0.2, 300.0, 0.3)],
        [block(300, 20, 157.0)],
    )
    assert costs.ms_per_batch == 0.0 and costs.ms_per_request > 0


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """How often it was measured; each time the same."""
    told = []

    def measure(progress):
        told.append("measured")
        return COSTS

    monkeypatch.setattr(frontend_costs, "measure_costs", measure)
    return told


def test_it_is_measured_once_a_host_and_version(tmp_path, measured, monkeypatch):
    assert saved_costs(tmp_path) is None
    assert front_costs(tmp_path) == COSTS == front_costs(tmp_path) == saved_costs(tmp_path)
    assert measured == ["measured"]
    # Another version of what serves, or another host: measured anew, and the first is kept.
    monkeypatch.setattr(frontend_costs, "_host_key", lambda: "another")
    assert saved_costs(tmp_path) is None and front_costs(tmp_path) == COSTS
    assert len(measured) == 2 and len(json.loads((tmp_path / COSTS_FILE).read_text())) == 2


def test_again_measures_anew_once(tmp_path, measured):
    front_costs(tmp_path)
    began = time.time()
    for _ in range(2):
        assert front_costs(tmp_path, since=began) == COSTS
    assert len(measured) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"KEY": {"no": 1}}', '{"KEY": 3}', '{"KEY": {"kept": 9e9, "costs": {"no": 1}}}']
)
def test_what_is_kept_and_makes_no_sense_is_measured_again(tmp_path, measured, text):
    (tmp_path / COSTS_FILE).write_text(text.replace("KEY", frontend_costs._host_key()))
    assert saved_costs(tmp_path) is None and front_costs(tmp_path) == COSTS == saved_costs(tmp_path)


def test_a_request_that_tells_keeps_its_own_and_gpus_need_none(tmp_path, measured):
    outcome, request = cpu_plan([Placed("a")], {"a": "sample:bert"})
    assert workflow.with_front_costs(tmp_path, outcome, request).front is None
    told = workflow.with_front_costs(tmp_path, outcome, request, measure=True)
    assert told.front == COSTS == workflow.with_front_costs(tmp_path, outcome, request).front
    own = FrontCosts(1.0)
    assert (
        workflow.with_front_costs(tmp_path, outcome, replace(request, front=own), measure=True).front == own
    )
    gpu = cpu_plan([Placed("a", "7g.80gb")], {"a": "sample:bert"}, type_="A100-80GB")
    assert workflow.with_front_costs(tmp_path / "other", *gpu, measure=True).front is None
    assert measured == ["measured"]
    assert "The front" in workflow.front_words(outcome, replace(request, front=FrontCosts(1000.0)))
    assert workflow.front_words(outcome, request) == ""


def test_where_nothing_can_be_kept_it_is_measured_all_the_same(tmp_path, measured):
    (tmp_path / "file").write_text("")
    assert front_costs(tmp_path / "file" / "home") == COSTS
    assert front_costs(tmp_path / "new" / "home") == COSTS == saved_costs(tmp_path / "new" / "home")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.repeated
def test_a_front_is_measured(tmp_path):
    shares = []
    found = front_costs(tmp_path, lambda share, text: shares.append(share))
    assert shares == sorted(shares) and shares[0] == 0.0
    assert found.ms_per_request > 0 and found.ms_per_mb > 0 and found.generator_ms > 0
    low, high = found.ms_per_request_low, found.ms_per_request_high
    assert low is not None and high is not None and low <= found.ms_per_request <= high
    # 256 KiB cost more than 64 bytes, and batches of one more than full ones.
    assert found.ms(524_288, 1 / BATCH) > found.ms(128, 1 / BATCH) <= found.ms(128, 1.0)
    assert found == saved_costs(tmp_path)

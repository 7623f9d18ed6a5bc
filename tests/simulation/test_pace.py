"""Servers whose speed is drawn: of mean 1, with the covariance asked for, and nothing where nothing changes."""

from dataclasses import replace

import numpy as np
import pytest

from torchsplit_core.cli.simulate import format_model_load
from torchsplit_core.files import read_text, write_text
from torchsplit_core.simulation import simulate
from torchsplit_core.simulation.pace_process import PaceProcess
from torchsplit_core.simulation.replication import prepare_model, run_model
from torchsplit_core.simulation.validate import PACED_RUNS
from torchsplit_core.values import (
    InputFault,
    Pace,
    PoissonArrivals,
    Server,
    Service,
    SimulatedModel,
    SimulationRequest,
)

MODEL = SimulatedModel("bert", ("whole",), PoissonArrivals(50.0), slo_ms=60.0)
SERVER = Server(
    "cpu0/1c@0", "bert", "whole", 4, {1: 10.0, 2: 16.0, 4: 28.0}, service=Service("lognormal", 0.1)
)
REQUEST = SimulationRequest((MODEL,), (SERVER,), requests_per_model=2000)


def paced(pace: Pace | None, **change: object) -> SimulationRequest:
    return replace(REQUEST, servers=(replace(SERVER, pace=pace),), **change)  # type: ignore[arg-type]


def test_of_mean_1_over_time_and_over_runs():
    pace = PaceProcess(Pace(0.3, 0.5, 0.0), np.random.default_rng(0))
    values = np.array([pace(float(instant)) for instant in range(0, 4_000_000, 50)])
    assert values.mean() == pytest.approx(1.0, abs=0.01) and values.std() == pytest.approx(0.3, rel=0.05)
    levels = [PaceProcess(Pace(0.0, 1.0, 0.2), np.random.default_rng(seed)).level for seed in range(4000)]
    assert np.mean(levels) == pytest.approx(1.0, abs=0.01) and np.std(levels) == pytest.approx(0.2, rel=0.05)


def test_what_is_slow_stays_slow_for_as_long_as_asked():
    pace = PaceProcess(Pace(0.3, 0.5, 0.0), np.random.default_rng(1))
    values = np.array([pace(float(instant)) for instant in range(0, 4_000_000, 100)])
    for lag in (1, 3, 5, 10):
        expected = np.exp(-lag * 0.1 / 0.5)
        assert np.corrcoef(values[:-lag], values[lag:])[0, 1] == pytest.approx(expected, abs=0.05)
    # Asked again, in whatever order, an instant has the same.
    assert [pace(100.0 * place) for place in (7, 3, 39_999)] == values[[7, 3, 39_999]].tolist()


def test_without_spread_the_figures_are_those_without_a_pace():
    still = run_model(prepare_model(paced(None), 0), 0)
    zero = run_model(prepare_model(paced(Pace(0.0, 1.0, 0.0)), 0), 0)
    assert np.array_equal(still.response_ms, zero.response_ms)
    found = simulate(paced(None)).models[0]
    assert found.response_low_ms is None and found.response_high_ms is None
    assert "response_low_ms" not in write_text(simulate(paced(None)))
    assert '"pace"' not in write_text(paced(None))


def test_the_interval_holds_90_percent_of_the_runs_and_widens_with_the_spread():
    widths = []
    for pace in (Pace(0.0, 1.0, 0.0), Pace(0.1, 2.0, 0.05), Pace(0.1, 2.0, 0.2)):
        request = paced(pace)
        found = simulate(request).models[0]
        assert found.completed == PACED_RUNS * 2000
        low, high = found.response_low_ms, found.response_high_ms
        assert low is not None and high is not None and low.p95 is not None and high.p95 is not None
        assert low.p95 < (found.response_ms.p95 or 0) < high.p95
        runs = [
            run_model(prepare_model(request, 0), number).response_ms[200:] for number in range(PACED_RUNS)
        ]
        p95 = [float(np.sort(run)[int(np.ceil(0.95 * len(run))) - 1]) for run in runs]
        assert sum(low.p95 <= one <= high.p95 for one in p95) == 0.9 * PACED_RUNS
        widths.append(high.p95 / low.p95)
        assert f"{low.p95:.4g} to {high.p95:.4g} in 90 % of the runs" in format_model_load(found)
    assert widths == sorted(widths) and widths[2] > 1.5 * widths[0]


def test_a_request_with_a_pace_and_its_outcome_are_read_as_they_were_written():
    request = paced(Pace(0.1, 2.5, 0.05))
    assert read_text(write_text(request))[1] == request
    outcome = simulate(request)
    assert read_text(write_text(outcome))[1] == outcome


@pytest.mark.parametrize("pace", [Pace(-0.1, 1.0, 0.0), Pace(0.1, 0.0, 0.0), Pace(0.1, 1.0, 101.0)])
def test_a_pace_that_makes_no_sense_is_refused(pace):
    with pytest.raises(InputFault, match=r"servers\.cpu0/1c@0\.pace"):
        simulate(paced(pace))

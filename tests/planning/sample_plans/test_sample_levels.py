"""What of the samples decides which are held."""

import numpy as np
import pytest

from tests.support.planning.requests import on_a30, simple
from torchsplit_core.planning.sample_plans.drawn import drawn_samples
from torchsplit_core.planning.sample_plans.sample_levels import base_rates, sample_levels
from torchsplit_core.values import InputFault


def test_the_base_is_what_may_be_missed_least():
    entries = np.array([[1.0, 9.0], [2.0, 8.0], [3.0, 7.0], [4.0, 6.0]])
    assert base_rates(entries, 4).tolist() == [4.0, 9.0]
    assert base_rates(entries, 3).tolist() == [3.0, 8.0]
    assert base_rates(entries, 1).tolist() == [1.0, 6.0]
    assert base_rates(entries, 0).tolist() == [0.0, 0.0]


def test_samples_that_are_the_same_above_the_base_are_one_class():
    entries = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 1.0], [9.0, 9.0]])
    levels = sample_levels(entries, 3, [0.0, 0.0])
    assert levels.base.tolist() == [3.0, 5.0]
    assert levels.weights.tolist() == [3, 1] and levels.index.tolist() == [[0, 0], [1, 1]]
    assert levels.minima_of(np.array([True, False])).tolist() == [3.0, 5.0]
    assert levels.minima_of(np.array([True, True])).tolist() == [9.0, 9.0]
    assert not levels.is_bucketed


def test_a_bucket_needs_its_least_entry():
    entries = np.arange(1.0, 301.0)[:, None]
    levels = sample_levels(entries, 10, [0.0], 30)
    assert levels.is_bucketed and len(levels.levels[0]) <= 30
    needed = levels.levels[0][levels.index[levels.class_of, 0]]
    assert (needed <= levels.entries[:, 0]).all()
    # The upper tail, where entries lie far apart, has no bucket.
    assert levels.levels[0][-5:].tolist() == [296.0, 297.0, 298.0, 299.0, 300.0]


def test_drawn_samples_have_the_mean_the_spread_and_the_correlation_asked_for():
    request = on_a30(*(simple(name, {"1g.6gb": 10.0}, demand_rps=20.0) for name in "abc"))
    drawn = drawn_samples(request, 20_000, 0.6, 0.5, seed=1)
    rates = np.array([model.demand_samples for model in drawn.models])
    assert rates.mean(axis=1) == pytest.approx([20.0] * 3, rel=0.03)
    assert rates.std(axis=1) / rates.mean(axis=1) == pytest.approx([0.5] * 3, rel=0.06)
    logs = np.corrcoef(np.log(rates))
    assert logs[0, 1] == pytest.approx(0.6, abs=0.03) and logs[1, 2] == pytest.approx(0.6, abs=0.03)
    assert drawn_samples(request, 20, 0.6, 0.5, seed=1) == drawn_samples(request, 20, 0.6, 0.5, seed=1)
    assert drawn_samples(request, 20, 0.6, 0.5, seed=2) != drawn_samples(request, 20, 0.6, 0.5, seed=1)
    same = drawn_samples(request, 5, 1.0, 0.5)
    assert same.models[0].demand_samples == same.models[2].demand_samples
    steady = drawn_samples(request, 5, 0.0, 0.0)
    assert set(steady.models[0].demand_samples) == {20.0}


@pytest.mark.parametrize(
    ("count", "correlation", "cv", "where"),
    [
        (0, 0.0, 0.3, "--draw"),
        (100_001, 0.0, 0.3, "--draw"),
        (5, -0.6, 0.3, "--correlation"),
        (5, 1.1, 0.3, "--correlation"),
        (5, float("nan"), 0.3, "--correlation"),
        (5, 0.0, -0.1, "--cv"),
        (5, 0.0, 11.0, "--cv"),
    ],
)
def test_what_cannot_be_drawn_is_refused(count, correlation, cv, where):
    request = on_a30(*(simple(name, {"1g.6gb": 10.0}) for name in "abc"))
    with pytest.raises(InputFault) as caught:
        drawn_samples(request, count, correlation, cv)
    assert caught.value.where == where


def test_three_models_can_be_against_one_another_by_a_half():
    request = on_a30(*(simple(name, {"1g.6gb": 10.0}) for name in "abc"))
    rates = np.array([m.demand_samples for m in drawn_samples(request, 5000, -0.5, 0.4).models])
    assert np.corrcoef(np.log(rates))[0, 1] == pytest.approx(-0.5, abs=0.05)

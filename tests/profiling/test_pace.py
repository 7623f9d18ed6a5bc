"""How a device changes its speed, found in the times of looks that were made up with a known pace."""

import math

import numpy as np
import pytest

from torchsplit_core.profiling.measuring.rounds import MAX_STOLEN_SHARE, TimingRound, segment_rounds
from torchsplit_core.profiling.pace import BETWEEN_RUNS_SD, fit_pace, rounds_of

SIZES_MS = (6.0, 9.0, 15.0)
BEGINS_S = (0.0, 20.0, 40.0)
PIECES, PIECE_S = 20, 0.1


def looks(rng: np.random.Generator, sigma: float, seconds: float, drift: float, noise: float = 0.0) -> list:
    """Three looks at each of three sizes; all sizes drift together."""
    kept = math.exp(-PIECE_S / seconds)
    points = [[] for _ in SIZES_MS]
    for begin in BEGINS_S:
        level = rng.normal(0, drift) if drift else 0.0
        for number, ms in enumerate(SIZES_MS):
            slow = rng.normal(0, sigma)
            pieces = []
            for place in range(PIECES):
                at = begin + 3 * number + place * PIECE_S
                time = ms * math.exp(level + slow + rng.normal(0, noise))
                pieces.append([at, time, noise])
                slow = kept * slow + rng.normal(0, sigma * math.sqrt(1 - kept * kept))
            points[number].append(pieces)
    return points


def test_a_device_that_keeps_its_speed_or_was_looked_at_once_has_no_pace():
    assert fit_pace(looks(np.random.default_rng(0), 0.0, 1.0, 0.0)) is None
    assert fit_pace([]) is None
    points = looks(np.random.default_rng(0), 0.2, 0.4, 0.1)
    assert fit_pace([point[:1] for point in points]) is None


def test_what_runs_vary_by_on_their_own_is_no_pace():
    found = [fit_pace(looks(np.random.default_rng(seed), 0.0, 1.0, 0.0, noise=0.03)) for seed in range(8)]
    assert all(
        pace is None or (pace.cv < 0.015 and pace.drift_cv < math.hypot(0.03, BETWEEN_RUNS_SD))
        for pace in found
    )


def test_runs_part_by_more_than_looks_of_one_minute_show():
    pace = fit_pace(looks(np.random.default_rng(0), 0.2, 0.4, 0.0))
    assert pace is not None and pace.drift_cv > BETWEEN_RUNS_SD


def test_slow_periods_come_back_with_their_spread_and_length():
    found = [fit_pace(looks(np.random.default_rng(seed), 0.2, 0.4, 0.0, noise=0.02)) for seed in range(8)]
    assert all(pace is not None for pace in found)
    assert np.median([pace.cv for pace in found if pace]) == pytest.approx(0.2, rel=0.2)
    assert 0.2 <= float(np.median([pace.seconds for pace in found if pace])) <= 0.8


@pytest.mark.repeated
def test_a_drift_from_minute_to_minute_is_told_apart_from_the_periods_within():
    found = [fit_pace(looks(np.random.default_rng(seed), 0.02, 0.4, 0.15)) for seed in range(8)]
    assert all(pace is not None and pace.cv < 0.06 for pace in found)
    # Three minutes tell little of a drift, so what is to be reckoned with is more than what was seen.
    assert 0.1 < float(np.median([pace.drift_cv for pace in found if pace])) < 0.6
    calm = [fit_pace(looks(np.random.default_rng(seed), 0.02, 0.4, 0.0)) for seed in range(8)]
    assert max(pace.drift_cv for pace in calm if pace) < min(pace.drift_cv for pace in found if pace)


def test_looks_are_cut_in_pieces_and_busy_ones_left_out():
    quiet = TimingRound(((40.0, 40.0, 40.0, 40.0), (90.0,)), 0.0, (100.0, 101.0))
    busy = TimingRound(((400.0,),), 2 * MAX_STOLEN_SHARE, (200.0,))
    (lost, pieces), _ = segment_rounds([quiet, busy])
    # Three runs are more than a tenth of a second, and the fourth is too few for a piece of its own.
    assert lost == 0.0 and pieces == [[100.0, 40.0, 0.0], [101.0, 90.0, 0.0]]
    content = {"course": segment_rounds([quiet, busy]), "held_course": segment_rounds([quiet])}
    assert rounds_of(content, measuring_child_only=False) == [pieces, pieces]
    assert rounds_of(content, measuring_child_only=True) == [pieces, [[200.0, 400.0, 0.0]]]
    assert rounds_of({}, measuring_child_only=False) == []

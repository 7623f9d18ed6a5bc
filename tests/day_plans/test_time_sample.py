"""Which parts of a day are simulated: all or as much work as there may be, each part standing for its stratum."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from tests.support.seeds import in_blocks
from torchsplit_core.day_plans.replay.time_sample import (
    RateOverDay,
    ReplayPiece,
    SimulatedAxis,
    group_pieces,
    sample_level,
    sample_stretches,
)


def random_pieces(seed: int) -> list[ReplayPiece]:
    rng = random.Random(seed)
    bounds = sorted({0.0, 86400.0, *(float(rng.randrange(86400)) for _ in range(30))})
    return [
        ReplayPiece(
            begin, end, number, rng.choice([None, 0.0, rng.uniform(0.1, 50)]), {"whole": (rng.uniform(1, 60),)}, 1,
            rng.choice([1, 64, 2000]), rng.random() < 0.1,
        )
        for number, (begin, end) in enumerate(pairwise(bounds))
    ]  # fmt: skip


@in_blocks("seed", range(50))
def test_the_level_uses_the_work_there_is_and_no_more(seed):
    rng = random.Random(seed)
    pieces = [(piece, rng.choice([1.0, 20.0])) for piece in random_pieces(seed)]

    def work(level):
        return sum(
            each * (piece.requests if piece.whole else min(piece.requests, level * piece.unit))
            for piece, each in pieces
        )

    groups = [((piece,), each) for piece, each in pieces]
    total = work(math.inf)
    assert sample_level(groups, total * 1.001 + 1) == math.inf
    for share in (0.1, 0.5, 0.95):
        level = sample_level(groups, share * total)
        assert work(level) <= share * total * (1 + 1e-9) or level == 0
        assert level == 0 or work(level) == pytest.approx(share * total)


@in_blocks("seed", range(50))
def test_stretches_cover_the_day_and_their_weights_its_time(seed):
    pieces = random_pieces(seed)
    stretches = sample_stretches(group_pieces(pieces, 1), 0.3, np.random.default_rng(seed))
    assert stretches[0].begin_s == 0 and stretches[-1].end_s == 86400
    for before, after in pairwise(stretches):
        assert before.end_s == pytest.approx(after.begin_s, abs=1e-9)
    for piece in pieces:
        mine = [item for item in stretches if item.piece is piece]
        settling = sum(item.length_s for item in mine if item.simulated and item.weight == 0)
        stood_for = sum(item.weight * item.length_s for item in mine if item.simulated)
        assert stood_for == pytest.approx(piece.length_s - settling, abs=1e-6)
        taken = sum(item.length_s for item in mine if item.simulated) * (piece.rate_rps or 0.0)
        if piece.rate_rps and not piece.whole and piece.requests > 0.3 * piece.unit:
            assert taken <= 1.26 * 0.3 * piece.unit
        else:
            assert len(mine) == 1 and mine[0].weight == 1.0
    axis = SimulatedAxis(stretches)
    moments = [axis.to_ms(moment) for moment in np.linspace(1, 86399, 200)]
    assert moments == sorted(moments) and axis.to_ms(0) == -math.inf and axis.to_ms(86400) == math.inf


def test_the_last_requests_before_a_moment_came_at_the_rates_before_it():
    pieces = [
        ReplayPiece(0.0, 100.0, 0, 1.0, {}),
        ReplayPiece(100.0, 200.0, 1, None, {}),
        ReplayPiece(200.0, 300.0, 2, 10.0, {}),
    ]
    rates = RateOverDay(pieces)
    assert rates.total == 1100
    assert rates.last_arrivals_s(300.0, 100.0, 1).tolist() == [295.0]
    assert rates.last_arrivals_s(300.0, 1020.0, 51).tolist()[0] == pytest.approx(90.0)
    before = np.array([1.0, 999.0, 1001.0, 5000.0])
    assert rates.arrival_s(300.0, before).tolist() == pytest.approx([299.9, 200.1, 99.0, 0.0])


@in_blocks("seed", range(30))
def test_of_neighbours_of_an_hour_a_drawn_one_stands_for_all(seed):
    rng = random.Random(seed)
    pieces = [
        ReplayPiece(
            60.0 * number, 60.0 * (number + 1), number, rng.uniform(0.5, 1.2), {"whole": (1.0,)}, 1, 1,
            hour=number // 60,
        )
        for number in range(240)
    ]  # fmt: skip
    groups = group_pieces(pieces, 60)
    assert [piece for group in groups for piece in group] == pieces
    for group in groups:
        assert len({piece.hour for piece in group}) == 1
        assert len(group) == 1 or all(piece.rate_rps < 1 for piece in group)
    stretches = sample_stretches(groups, 1e6, np.random.default_rng(seed))
    for group in groups:
        mine = [item for item in stretches if item.piece in group]
        stood_for = sum(item.weight * item.length_s * item.piece.rate_rps for item in mine if item.simulated)
        assert len(mine) == len(group) and sum(item.simulated for item in mine) == 1
        assert stood_for == pytest.approx(sum(piece.requests for piece in group))

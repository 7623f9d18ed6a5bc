"""Spreads of training estimates: shrunk to the fit's own, a family as one; what they hold of the stored rows."""

import csv
from importlib.resources import files
from math import log, sqrt
from statistics import fmean

import pytest

from benchmarks.training_coverage import LEAST, MOST, ONE_WAY, inside, steps, ways
from benchmarks.training_fit import BETWEEN, PRIOR_FAMILIES, WITHIN, judged_families, spreads
from torchsplit_core.strategy.cost_model.interval import Spread, calibrated


def test_spreads_go_from_the_fits_own_to_those_that_are_seen():
    nothing = spreads([])
    assert (nothing.between, nothing.within) == pytest.approx((BETWEEN, WITHIN))
    assert nothing.degrees == PRIOR_FAMILIES
    wide = [[0.3, 0.5], [-0.5, -0.3]]
    few, many = spreads(wide), spreads(wide * 200)
    assert BETWEEN < few.between < many.between < 0.4 and few.degrees == PRIOR_FAMILIES + 2
    assert WITHIN < few.within < many.within < sqrt(0.02)
    assert many.between == pytest.approx(0.4, rel=0.03) and many.within == pytest.approx(sqrt(0.02), rel=0.03)
    still = spreads([[0.0, 0.0]] * 4)
    assert 0 < still.between < BETWEEN and 0 < still.within < WITHIN
    assert spreads(wide, prior=100).between < few.between


def test_a_family_is_one_however_many_rows_it_has():
    once, often = spreads([[0.1, 0.2], [0.0, -0.1]]), spreads([[0.1, 0.2] * 50, [0.0, -0.1]])
    assert often.between == pytest.approx(once.between) and often.degrees == once.degrees
    # A single row says nothing of the spread within its family.
    assert spreads([[0.1, 0.2], [0.3]]).within == spreads([[0.1, 0.2]]).within


def test_rows_inside_are_those_between_the_ends_around_the_offset():
    spread = Spread(0.1, 0.05, 20)
    high = log(calibrated((), spread).high)
    assert inside([0.0, high * 0.99, -high * 0.99, high * 1.01], [], spread) == 0.75
    # Reckoned 30 % too much: outside, until rows of that kind are known.
    assert inside([0.26] * 4, [], spread) == 0 and inside([0.26] * 4, [0.26] * 3, spread) == 1


def test_every_way_leaves_out_every_family_and_never_all():
    names = set(judged_families(steps()))
    for name, groups in ways().items():
        assert set().union(*groups) == names, name
        assert all(group and group < names for group in groups)
    assert {len(group) for group in ways()[ONE_WAY]} == {4, 5}


def test_the_rows_left_out_lie_in_their_intervals_as_asked():
    text = files("torchsplit_core.strategy").joinpath("data/left_out.csv").read_text(encoding="utf-8")
    families = {}
    for row in csv.DictReader(text.splitlines()):
        low, measured, high = (float(row[name]) for name in ("low_s", "measured_s", "high_s"))
        families.setdefault(row["family"], []).append(low <= measured <= high)
    assert set(families) == set(judged_families(steps()))
    assert LEAST <= fmean(fmean(held) for held in families.values()) <= MOST

"""The check of estimates across GPU types: the shipped constant is the fitted one, and no pair judges itself."""

import statistics

from benchmarks.type_transfer import LEVEL, judged, results, spread_of
from torchsplit_core.profiling.transfer import LOG_PEAK_RATIO_SPREAD


def test_the_interval_that_ships_holds_the_published_results_and_others_hold_a_pair_left_out():
    every = list(judged(results()))
    assert abs(spread_of(every) - LOG_PEAK_RATIO_SPREAD) < 1e-3
    assert LEVEL <= statistics.fmean(one.inside(LOG_PEAK_RATIO_SPREAD) for one in every) < LEVEL + 0.02
    pairs = {one.pair for one in every}
    assert frozenset(("A100-80GB", "A30-24GB")) in pairs and frozenset(("A100-40GB", "T4-16GB")) in pairs
    kept = []
    for pair in pairs:
        spread = spread_of(one for one in every if one.pair != pair)
        kept += [one.inside(spread) for one in every if one.pair == pair]
    assert statistics.fmean(kept) > 0.85
    a30 = [one for one in every if (one.source, one.target) == ("A100-80GB", "A30-24GB")]
    assert statistics.median(one.relative for one in a30) < 0.2

"""The exact search against a look at every pipeline, on small instances of every kind of network."""

import pytest

from tests.support.placement.search_cases import best_of_all, random_instance, worth_of
from torchsplit_core.placement.search import search_thresholds


@pytest.mark.parametrize("part", range(5))
def test_equals_a_look_at_every_pipeline(part):
    for seed in range(part * 50, part * 50 + 50):
        instance = random_instance(seed)
        value, gpus = best_of_all(instance)
        thresholds = search_thresholds(instance, time_limit_s=60)
        assert thresholds.proven, seed
        assert thresholds.value == thresholds.bound == value, seed
        assert sum(len(chosen) for _, chosen in thresholds.segments) == gpus, seed
        if thresholds.segments:
            assert worth_of(instance, thresholds.segments) == value, seed

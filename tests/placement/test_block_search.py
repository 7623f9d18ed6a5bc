"""Layers cut among GPUs of large fleets: pipelines of blocks, and a bound that holds."""

from dataclasses import replace

import pytest

from tests.support.placement.decode_oracle import best_of, best_sum_of
from tests.support.placement.requests import random_decode
from torchsplit_core.placement import block_search, place, violations
from torchsplit_core.placement.request.build import build_request
from torchsplit_core.values import PlacementSolver


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_blocks_are_sound_and_no_pipeline_passes_their_bound(phase, monkeypatch):
    monkeypatch.setattr(block_search, "MOST_VALUES", 0)
    found = met = 0
    for seed in range(60):
        request = replace(
            random_decode(seed, "tensor", phase=phase),
            max_replicas=1 + seed % 2,
            solver=PlacementSolver("exact", 5.0),
        )
        best = best_sum_of(request, 2) if seed % 2 else best_of(request)
        outcome = place(request)
        value = outcome.throughput or 0.0
        assert not list(violations(request, outcome)), seed
        assert value <= best * (1 + 1e-9), seed
        assert outcome.status in ("feasible", "timeout") or value == pytest.approx(best, rel=1e-6), seed
        assert outcome.bound is None or outcome.bound >= best * (1 - 1e-9), seed
        found, met = found + (value > 0), met + (best > 0 and value >= best * (1 - 1e-6))
    assert found > 20 and met > 10


def test_a_fleet_of_many_nodes_has_a_pipeline_within_a_few_percent():
    request = build_request(
        "llama-3.1-70b", "8x8xH100-SXM5-80GB", batch_size=64, max_gpus_per_segment=8, split="tensor"
    )
    outcome = place(replace(request, solver=PlacementSolver("exact", 30.0)))
    assert outcome.status in ("optimal", "feasible") and outcome.gap is not None and outcome.gap < 0.1
    assert max(part.num_gpus for part in outcome.segments) > 1

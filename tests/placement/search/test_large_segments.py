"""Segments of many GPUs: bounds and pipelines by covers, against a look at every pipeline and on large fleets."""

import random
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest

from tests.support.placement.requests import random_request
from tests.support.placement.search_cases import best_of_all, worth_of
from torchsplit_core.placement import place
from torchsplit_core.placement.model.instance import ProblemInstance, SearchResult
from torchsplit_core.placement.model.segments import SegmentModel, build_instance
from torchsplit_core.placement.request.build import build_request
from torchsplit_core.placement.search import search_thresholds, threshold_search
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.large_segments.cover_search import BoundedPipeline, LargeSegmentSearch
from torchsplit_core.placement.search.large_segments.cover_threshold import CoverThreshold
from torchsplit_core.placement.search.large_segments.covers import ROUNDING, Covers, covers_at
from torchsplit_core.placement.search.large_segments.minimal_covers import split_minimal_covers
from torchsplit_core.placement.search.segment_table import build_table, count_multisets
from torchsplit_core.values import (
    PlacementRequest,
    PlacementSolver,
    RooflineGpu,
    RooflineThroughput,
    TableThroughput,
    ThroughputRow,
)

pytestmark = pytest.mark.slow

PEAKS = {"A100": (300.0, 2000.0), "V100": (100.0, 900.0), "T4": (60.0, 300.0), "A10": (120.0, 600.0)}
FIVE = ("H100-SXM5-80GB", "A100-80GB", "L40S-48GB", "V100-SXM2-32GB", "A10-24GB")


def request_of(seed: int, split: str) -> PlacementRequest:
    """Small, with a linear rule, a roofline or a table in turn."""
    request = random_request(seed, "tokens_per_s", split)
    if seed % 3 == 1:
        peaks = {name: RooflineGpu(*of) for name, of in PEAKS.items()}
        phase = "decode" if seed % 2 else "prefill"
        request = replace(request, throughput=RooflineThroughput(phase, gpus=peaks))  # type: ignore[arg-type]
        return with_prompts(request) if phase == "decode" else request
    if seed % 3 == 2:
        draw = random.Random(seed)
        rows = (
            ThroughputRow(name, batch, layers, draw.uniform(50, 1000))
            for name in PEAKS
            for batch in (1.0, 3.0, 8.0)
            for layers in (1, 2, 4)
        )
        return replace(request, throughput=TableThroughput(tuple(rows)))
    return request


def plain_of(request: PlacementRequest) -> ProblemInstance:
    """What a search over thresholds is given: of a decode segments and links alone, one batch in flight."""
    instance = build_instance(SegmentModel(request))
    return instance.with_segment_range(1, instance.max_segments())


def searched(request: PlacementRequest, known: SearchResult | None = None) -> SearchResult:
    return search_thresholds(plain_of(request), time_limit_s=request.solver.time_limit_s, warm_start=known)


def wide(instance: ProblemInstance, seconds: float = 20.0) -> BoundedPipeline:
    return LargeSegmentSearch(instance, lambda value, bound: None).run(SearchClock.start(seconds), ())


def large(nodes: int, most: int, split: str, seconds: float = 30.0, **changes: object) -> PlacementRequest:
    fleet = ",".join(f"{nodes}x8x{name}" for name in FIVE)
    request = build_request(
        "llama-3.1-70b",
        fleet,
        max_gpus_per_segment=most,
        batch_size=512,
        split=split,  # type: ignore[arg-type]
        **changes,  # type: ignore[arg-type]
    )
    return with_prompts(request, seconds)


def with_prompts(request: PlacementRequest, seconds: float = 30.0) -> PlacementRequest:
    """One batch in flight, with the activations of its whole prompts: memory then takes several GPUs a segment."""
    model = request.model
    model = replace(model, sequences_in_flight=model.batch_size, prefill_chunk=model.sequence_length)
    return replace(request, model=model, solver=PlacementSolver("exact", seconds))


@pytest.mark.parametrize("split", ["equal", "proportional"])
def test_equals_a_look_at_every_pipeline(split, monkeypatch):
    monkeypatch.setattr(threshold_search, "_WIDE", 0)
    for seed in range(15):
        instance = plain_of(request_of(seed, split))
        value, gpus = best_of_all(instance)
        found = search_thresholds(instance, time_limit_s=20)
        assert found.proven, seed
        assert found.value == pytest.approx(value, rel=1e-6) and found.bound == found.value, seed
        assert sum(len(chosen) for _, chosen in found.segments) == gpus, seed
        assert not found.segments or worth_of(instance, found.segments) == found.value, seed


@pytest.mark.parametrize("split", ["equal", "proportional"])
def test_the_bound_holds_and_is_met_where_no_link_binds(split):
    for seed in range(15):
        instance = plain_of(request_of(seed, split))
        value, _ = best_of_all(instance)
        found = wide(instance)
        assert found.value <= value * (1 + 1e-12) and value <= found.bound * (1 + 1e-12), seed
        free = replace(instance, links=np.full_like(instance.links, 1e30))
        value, gpus = best_of_all(free)
        found = wide(free)
        assert found.value <= value * (1 + 1e-12) and value <= found.bound * (1 + 1e-12), seed
        # Where a table falls and rises, a share tells the longest part only.
        if seed % 3 < 2:
            assert found.proven() and found.value == pytest.approx(value, rel=1e-6), seed
            assert sum(len(chosen) for _, chosen in found.segments) == gpus, seed


def test_a_gpu_that_can_take_no_part_joins_no_others() -> None:
    """Two GPUs that hold a layer each are linked only by way of one that holds none: proven to be no pipeline."""
    links = np.zeros((3, 3))
    links[2, :2] = links[:2, 2] = 5.0
    instance = ProblemInstance(
        layers=2,
        kinds=(0, 0, 1),
        links=links,
        max_gpus=1,
        value=lambda kinds, count: 1.0 if kinds == (0,) and count == 1 else 0.0,
        shares=lambda threshold, size: np.array([[1.0, 0.0], [0.0, 0.0]]) * (threshold <= 1.0),
    )
    threshold = CoverThreshold(instance, 1.0, SearchClock.start(20.0), 1.0)
    assert [component.gpus.tolist() for component in threshold.components] == [[0], [1]]
    assert threshold.relaxation_status() == "none"
    joined = CoverThreshold(replace(instance, links=np.full((3, 3), 5.0)), 1.0, SearchClock.start(20.0), 1.0)
    assert joined.relaxation_status() == "found"


@pytest.mark.parametrize(("most", "split"), [(64, "equal"), (16, "proportional")])
def test_five_types_and_many_gpus_a_segment_are_proven(most, split):
    request = large(4, most, split, network_gib_per_s=500.0)
    request = with_prompts(
        replace(request, model=replace(request.model, batch_size=2048, sequence_length=1024))
    )
    search = searched(request)
    assert search.proven and search.value == search.bound
    assert max(len(gpus) for _, gpus in search.segments) > 4
    few = searched(replace(request, max_gpus_per_segment=3))
    assert few.proven and not few.segments


@pytest.mark.parametrize("split", ["equal", "proportional"])
def test_one_type_and_64_gpus_a_segment_is_proven(split):
    request = build_request(
        "llama-3.1-70b",
        "16x8xA100-80GB",
        max_gpus_per_segment=64,
        batch_size=512,
        split=split,  # type: ignore[arg-type]
    )
    assert searched(with_prompts(request, 60.0)).proven


def test_a_start_is_confirmed_and_saves_thresholds():
    request = large(2, 16, "equal", network_gib_per_s=500.0)
    first = searched(request)
    again = searched(request, first)
    assert first.proven and first.segments
    assert replace(again, statistics={}) == replace(first, statistics={})
    assert int(again.statistics["cover_thresholds"]) < int(first.statistics["cover_thresholds"])


def test_one_type_a_segment_where_that_is_the_rule():
    request = replace(large(1, 16, "equal", network_gib_per_s=500.0), same_type_segments=True)
    search = searched(request)
    assert search.proven and search.segments
    assert all(len({request.gpus[gpu].type for gpu in gpus}) == 1 for _, gpus in search.segments)
    assert searched(replace(request, same_type_segments=False)).value >= search.value


def test_a_fleet_without_the_memory_is_proven_infeasible():
    request = large(1, 64, "equal")
    outcome = place(with_prompts(replace(request, model=replace(request.model, batch_size=4096))))
    assert outcome.status == "infeasible" and outcome.message.startswith("No pipeline holds all 80 layers")


@pytest.mark.parametrize("split", ["equal", "proportional"])
def test_a_short_time_is_never_infeasible_and_its_bound_holds(split):
    full = searched(large(3, 16, split, network_gib_per_s=500.0))
    assert full.segments
    for seconds in (0.001, 0.1, 0.5):
        search = searched(large(3, 16, split, seconds, network_gib_per_s=500.0))
        assert search.segments or not search.proven
        assert search.bound >= full.value * (1 - 1e-9) and search.value <= full.value * (1 + 1e-9)
        # The same with all that limits a pipeline as a whole, which leaves no more.
        whole = place(large(3, 16, split, seconds, network_gib_per_s=500.0))
        assert whole.status in ("feasible", "timeout")
        assert whole.throughput is None or whole.throughput <= full.bound * (1 + 1e-9)


def test_links_that_bind_leave_a_pipeline_and_a_bound_without_a_whole_table(monkeypatch):
    monkeypatch.setattr(threshold_search, "_WIDE", 0)
    monkeypatch.setattr(threshold_search, "_FEW_MULTISETS", 2)
    monkeypatch.setattr(threshold_search, "_MOST_MULTISETS", 4)
    placed = proven = 0
    for seed in range(10):
        instance = plain_of(request_of(seed, "equal"))
        value, _ = best_of_all(instance)
        thresholds = search_thresholds(instance, time_limit_s=1.0)
        assert thresholds.value <= value * (1 + 1e-12) and value <= thresholds.bound * (1 + 1e-12), seed
        assert not thresholds.proven or thresholds.value == pytest.approx(value, rel=1e-6), seed
        placed, proven = placed + bool(thresholds.segments), proven + thresholds.proven
    assert placed > 4 and proven < 10


def test_only_sets_that_no_smaller_one_replaces_are_kept():
    shares = np.array([[0.5, 0.3, 0.12]])
    covers = Covers(shares, *(np.array([number]) for number in (2, 6, 1, 7)))
    fleet = np.array([9, 3, 9])
    items, stay = split_minimal_covers(covers, fleet)
    assert not len(stay.low)
    wanted = set()
    for size in range(2, 7):
        for kinds in combinations_with_replacement(range(3), size):
            counts = np.bincount(kinds, minlength=3)
            total = float(counts @ shares[0])
            if total >= 1 - ROUNDING and (counts <= fleet).all():
                smallest = min(shares[0][kind] for kind in kinds)
                if size == 2 or total - smallest < 1 - ROUNDING:
                    wanted.add(tuple(counts.tolist()))
    assert {tuple(row) for row in items.counts.tolist()} == wanted
    assert (items.low == 1).all() and (items.high == 7).all()


def test_every_segment_that_reaches_a_threshold_is_in_a_cover():
    for seed in range(12):
        for split in ("equal", "proportional"):
            instance = plain_of(request_of(seed, split))
            table = build_table(instance, SearchClock.start(20))
            assert table is not None and count_multisets(instance) == len(table.multisets)
            for threshold in np.unique(table.values[table.values > 0])[::3].tolist():
                covers = covers_at(instance, threshold)
                for place_, count in np.argwhere(table.values >= threshold).tolist():
                    assert any(
                        _inside(covers, cover, table.counts[place_], count + 1)
                        for cover in range(len(covers.low))
                    ), (seed, split, threshold)


def _inside(covers: Covers, cover: int, counts: np.ndarray, layers: int) -> bool:
    """Whether a part of these GPUs is of the cover, with the layers."""
    shares = covers.shares[cover]
    taken = np.sort(np.repeat(shares, counts))[::-1][: covers.most[cover]]
    taken = taken[taken > 0]
    return bool(
        covers.low[cover] <= layers <= covers.high[cover]
        and len(taken) >= covers.least[cover]
        and taken.sum() >= 1 - 1e-6
    )

"""Pipelines across unlike entries of a fleet: equal to a look at every order, way and division of the layers."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest

from tests.support.strategy.pipelines import TIGHT, divisions, every, holds
from torchsplit_core.files import read_text, write_text
from torchsplit_core.strategy.cost_model.estimate import USABLE, estimate
from torchsplit_core.strategy.search import search_strategy
from torchsplit_core.strategy.search.hetero_pipeline.branch_and_bound import DevicePool, HeteroPipelineSearch
from torchsplit_core.strategy.search.hetero_pipeline.closest_infeasible import CLOSE, closest_infeasible, fits
from torchsplit_core.strategy.search.hetero_pipeline.memory_capacity import FIRST, LAST, MIDDLE
from torchsplit_core.strategy.search.hetero_pipeline.outcome import broken_rule, stages_of
from torchsplit_core.strategy.search.hetero_pipeline.stage_configs import StageConfig, StageConfigs, StageRole
from torchsplit_core.strategy.search.hetero_pipeline.stage_tables import StageTable
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch
from torchsplit_core.strategy.search.machines import read_fleet
from torchsplit_core.strategy.search.software import SOFTWARE
from torchsplit_core.strategy.search.space import SearchSpace
from torchsplit_core.values.strategy.request import (
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    StrategySolver,
    TransformerSizes,
)
from torchsplit_core.values.training import ParallelConfig, TrainingJob
from torchsplit_core.values.units import GIB

LOOSE = TransformerSizes(5, 1024, 16, 16, 4096, 32000, 512)
CASES = {
    "memory binds": (TIGHT, (StrategyNodes(1, 2, "T4-16GB"), StrategyNodes(1, 1, "L4-24GB")), 2, {}),
    "no entry holds a copy": (
        replace(TIGHT, layers=9),
        (StrategyNodes(1, 2, "T4-16GB"), StrategyNodes(1, 1, "L4-24GB")),
        4,
        {"offload": "none"},
    ),
    "memory is free": (
        LOOSE,
        (StrategyNodes(1, 2, "A100-40GB"), StrategyNodes(2, 1, "T4-16GB")),
        4,
        {"recompute": "none"},
    ),
    "slow link": (
        LOOSE,
        (StrategyNodes(1, 2, "A100-40GB", None, 0.2), StrategyNodes(1, 2, "L4-24GB", None, 0.5)),
        4,
        {"offload": "none"},
    ),
    "three kinds": (
        LOOSE,
        (StrategyNodes(1, 2, "A100-40GB"), StrategyNodes(1, 2, "T4-16GB"), StrategyNodes(1, 1, "L4-24GB")),
        4,
        {"recompute": "none", "shard": "none", "offload": "none"},
    ),
    "with a host": (
        TIGHT,
        (StrategyNodes(1, 1, "T4-16GB"), StrategyNodes(1, 1, "CPU-64c"), StrategyNodes(1, 1, "T4-16GB")),
        2,
        {"recompute": "full"},
    ),
}


def searches_of(name: str) -> list[HomogeneousSearch]:
    model, fleet, batch, fix = CASES[name]
    job = TrainingJob(batch, "fp16")
    return [
        HomogeneousSearch(
            one, SearchSpace(model.transformer(), job, one.cluster.gpus_per_node, StrategyFix(**fix))
        )  # type: ignore[arg-type]
        for one in read_fleet(fleet, "fp16")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_search_is_equal_to_every_order_way_and_division(name: str) -> None:
    searches = searches_of(name)
    search = HeteroPipelineSearch(DevicePool(searches))
    search.run(time.monotonic() + 600)
    assert search.best is not None and search.proven() and fits(search.pool)
    assert search.best.seconds == pytest.approx(every(searches), rel=1e-9)
    assert broken_rule(search.best, searches) == ""


@pytest.mark.parametrize("name", ["memory binds", "slow link", "three kinds"])
def test_the_stages_stand_as_the_step_counts_them(name: str) -> None:
    """Those beside another entry's send over the link between entries, all others inside their own."""
    search = HeteroPipelineSearch(DevicePool(searches_of(name)))
    search.run(time.monotonic() + 600)
    best = search.best
    assert best is not None
    entries = [
        entry for entry, segment in zip(best.entries, best.segments, strict=True) for _ in segment.layers
    ]
    stages = stages_of(best)
    for number, (_, _, place) in enumerate(stages):
        assert place.far == (len(set(entries[max(0, number - 1) : number + 2])) > 1)
    seconds = [way.stage_s(layers, place) for way, layers, place in stages]
    assert best.longest_s == pytest.approx(max(seconds)) and best.sum_s == pytest.approx(sum(seconds))


def test_the_first_bound_counts_that_a_pipeline_fills_and_drains() -> None:
    """Two equal entries share layers evenly that dwarf what is sent: the bound lacks little but the end of the step."""
    sizes = TransformerSizes(6, 4096, 32, 32, 16384, 1000, 2048)
    fleet = (StrategyNodes(1, 1, "A100-80GB"), StrategyNodes(1, 1, "A100-80GB"))
    space = SearchSpace(sizes.transformer(), TrainingJob(4), 1, StrategyFix(recompute="none"))
    search = HeteroPipelineSearch(
        DevicePool([HomogeneousSearch(one, space) for one in read_fleet(fleet, "bf16")])
    )
    first = search.bound_s
    search.run(time.monotonic() + 600)
    assert search.best is not None
    assert first <= search.best.seconds < 1.1 * first + search.best.after_s


def test_a_bound_is_never_above_the_best_and_a_search_that_stopped_goes_on() -> None:
    search = HeteroPipelineSearch(DevicePool(searches_of("three kinds")))
    root, bounds = search.bound_s, []
    while not search.proven():
        bounds.append(search.bound_s)
        search.run(time.monotonic() + 1e-4)
    assert search.best is not None
    assert root <= min(bounds) and max(bounds) <= search.best.seconds
    # A step known otherwise that no pipeline beats ends the search at once.
    other = HeteroPipelineSearch(DevicePool(searches_of("three kinds")))
    other.run(time.monotonic() + 600, known_s=root / 2)
    assert other.best is None and other.solved == 0


def test_tables_say_what_each_stage_by_itself_does() -> None:
    for name in ("memory binds", "with a host"):
        for search in searches_of(name):
            table = StageTable(StageConfigs(search, 1).all(), 6)
            assert table.ways
            for number, way in enumerate(table.ways):
                for role in (MIDDLE, FIRST, LAST):
                    for in_flight in (1, 3) if role != LAST else (1,):
                        place = StageRole(in_flight, role == FIRST, role == LAST)
                        fitting = [layers for layers in range(1, 7) if holds(way, layers, place)]
                        assert table.room[number, in_flight - 1, role] == len(fitting)
                    told = [sum(way.after_s(layers, place)) for layers in range(1, 7)]
                    assert table.after[number, role] == pytest.approx(told, rel=1e-12)
            assert np.all(np.isin([way.layer_s + way.near_s for way in table.ways], table.stage_times()))


def test_two_equal_entries_are_reckoned_as_one_with_two_stages() -> None:
    fleet = (StrategyNodes(1, 1, "A100-80GB"), StrategyNodes(1, 1, "A100-80GB"))
    outcome = search_strategy(
        StrategyRequest(LOOSE, fleet, TrainingJob(8), StrategyFix(pipeline=1, recompute="none"))
    )
    best = next(one for one in outcome.candidates if one.across)
    layers = [one.layers_per_stage for one in best.stages]
    even = replace(LOOSE, layers=6)
    outcome = search_strategy(
        StrategyRequest(even, fleet, TrainingJob(8), StrategyFix(shard="none", offload="none"))
    )
    best = next(one for one in outcome.candidates if one.across)
    assert sum(sum(one) for one in layers) == 5 and len(best.stages) == 2
    (machine,) = read_fleet((StrategyNodes(2, 1, "A100-80GB"),), "bf16")
    choices = ParallelConfig(pipeline=2, micro_batch=best.micro_batch, recompute=best.recompute)
    job = TrainingJob(8)
    step = estimate(even.transformer(), machine.device, machine.cluster, choices, job, SOFTWARE)
    same = [one.layers_per_stage for one in best.stages] == [(3,), (3,)]
    assert (
        best.seconds_per_step == pytest.approx(step.seconds, rel=1e-9)
        if same
        else (best.seconds_per_step < step.seconds)
    )


def test_what_no_entry_holds_alone_is_trained_by_all_together() -> None:
    model, fleet, _, fix = CASES["no entry holds a copy"]
    request = StrategyRequest(model, fleet, TrainingJob(8, "fp16"), StrategyFix(**fix))  # type: ignore[arg-type]
    outcome = search_strategy(request)
    assert outcome.status == "optimal" and "No entry holds a copy of the model" in outcome.message
    (best,) = outcome.candidates
    assert best.across and outcome.bound_s == best.seconds_per_step and best.devices == 3
    assert [(one.start_layer, one.end_layer) for one in best.stages][-1][1] == 9
    assert best.stages[0].start_layer == 1 and best.stages[1].start_layer == best.stages[0].end_layer + 1
    for one in best.stages:
        assert sum(one.layers_per_stage) == one.end_layer - one.start_layer + 1
        assert len(one.memory_gib_per_stage) == len(one.seconds_per_stage) == one.stages
        assert max(one.memory_gib_per_stage) == one.memory_gib and one.sequences == 8
        assert one.seconds <= best.seconds_per_step
    assert best.pipeline == sum(one.stages for one in best.stages)
    parts = [getattr(best.parts_s, name) for name in best.parts_s.__dataclass_fields__]
    assert sum(parts) == pytest.approx(best.seconds_per_step, rel=1e-9) and min(parts) >= 0
    assert best.low_s < best.seconds_per_step < best.high_s
    assert read_text(write_text(outcome)) == ("torchsplit.strategy", outcome)
    for place in (0, 1):
        alone = search_strategy(replace(request, fleet=(fleet[place],)))
        assert alone.status == "infeasible"


def test_a_pipeline_that_was_tampered_with_breaks_a_rule() -> None:
    searches = searches_of("no entry holds a copy")
    search = HeteroPipelineSearch(DevicePool(searches))
    search.run(time.monotonic() + 600)
    good = search.best
    assert good is not None
    first, *rest = good.segments
    heavier = replace(first, layers=tuple(count + 9 for count in first.layers))
    assert broken_rule(replace(good, segments=(heavier, *rest)), searches) == "the stages have every layer"
    assert "micro-batches" in broken_rule(replace(good, sequences=good.sequences + 1), searches)
    assert "each once" in broken_rule(replace(good, entries=(good.entries[0],) * 2), searches)
    moved = replace(first, places=tuple(replace(one, in_flight=one.in_flight + 1) for one in first.places))
    assert "stands where" in broken_rule(replace(good, segments=(moved, *rest)), searches)
    thin = replace(rest[0], layers=(1,) * len(rest[0].layers))
    crowd = replace(
        first, layers=(10 - len(first.layers) - len(thin.layers), *(1,) * (len(first.layers) - 1))
    )
    assert "fits its devices" in broken_rule(replace(good, segments=(crowd, thin)), searches)


def test_a_host_gets_a_stage_where_that_helps_and_else_it_says_why_not() -> None:
    helped = search_strategy(
        StrategyRequest(
            TIGHT, (StrategyNodes(1, 1, "T4-16GB"), StrategyNodes(1, 1, "CPU-64c")), TrainingJob(4, "fp16"),
            StrategyFix(offload="none"),
        )
    )  # fmt: skip
    assert {one.type for one in helped.candidates[0].stages} >= {"CPU-64c"}
    fleet = (
        StrategyNodes(1, 1, "A100-80GB"),
        StrategyNodes(1, 1, "L40S-48GB"),
        StrategyNodes(1, 1, "CPU-2c"),
    )
    wide = replace(TIGHT, layers=24)
    left = search_strategy(StrategyRequest(wide, fleet, TrainingJob(8, "fp16"), StrategyFix(offload="none")))
    assert "CPU-2c" not in {one.type for one in left.candidates[0].stages}
    assert "fleet[2], CPU-2c is left out: a layer takes" in left.message


def lacks(way: StageConfig, layers: int, place: StageRole) -> float:
    machine = way.search.machine
    if way.host_bytes(layers, place.first or place.last) > machine.host_bytes:
        return float("inf")
    return way.memory(layers, place).total - USABLE * machine.device.memory_bytes


def least_lack(searches: list[HomogeneousSearch]) -> float:
    """Of every order, way and division of the layers: the least that the fullest stage lacks."""
    space, least = searches[0].space, float("inf")
    for sequences in (
        one for one in range(1, space.job.global_batch + 1) if space.job.global_batch % one == 0
    ):
        ways = [list(StageConfigs(search, sequences).all()) for search in searches]
        for order in permutations(range(len(searches))):
            for count in range(2, len(searches) + 1):
                for chosen in product(*(ways[entry] for entry in order[:count])):
                    whose = [way for way in chosen for _ in range(way.choices.pipeline)]
                    stages = [
                        (way, StageRole(len(whose) - number, number == 0, number == len(whose) - 1))
                        for number, way in enumerate(whose)
                    ]
                    for division in divisions(space.model.layers, len(whose)):
                        lacking = [
                            lacks(way, own, at) for own, (way, at) in zip(division, stages, strict=True)
                        ]
                        least = min(least, max(lacking))
    return least


@pytest.mark.parametrize("offload", ["none", "optimizer"])
def test_what_the_nearest_pipeline_lacks_is_the_least_of_all(offload: str) -> None:
    fleet = (
        StrategyNodes(1, 2, "T4-16GB", host_memory_gib=90),
        StrategyNodes(1, 1, "L4-24GB", host_memory_gib=14),
    )
    model = replace(TIGHT, layers=15 if offload == "none" else 42)
    request = StrategyRequest(
        model,
        fleet,
        TrainingJob(2, "fp16"),
        StrategyFix(offload=offload, recompute="full"),  # type: ignore[arg-type]
    )
    job = request.training
    searches = [
        HomogeneousSearch(one, SearchSpace(model.transformer(), job, one.cluster.gpus_per_node, request.fix))
        for one in read_fleet(fleet, "fp16")
    ]
    across = HeteroPipelineSearch(DevicePool(searches))
    across.run(time.monotonic() + 600)
    found, least = closest_infeasible(across.pool), least_lack(searches)
    assert (
        not fits(across.pool) and across.best is None and across.proven() and found is not None and least > 0
    )
    assert least <= found.missing_bytes * (1 + 1e-12) <= least * (1 + 2 * CLOSE)
    stages = stages_of(found.pipeline)
    assert max(lacks(*stage) for stage in stages) == pytest.approx(found.missing_bytes)
    assert sum(layers for _, layers, _ in stages) == model.layers
    outcome = search_strategy(request)
    assert outcome.status == "infeasible"
    assert f"would need {found.missing_bytes / GIB:.3g} GiB more on fleet[{found.entry}]" in outcome.message


def test_where_nothing_divides_no_pipeline_is_the_nearest() -> None:
    fleet = (StrategyNodes(1, 3, "T4-16GB"), StrategyNodes(1, 3, "L4-24GB"))
    fix = StrategyFix(offload="none", pipeline=1)
    model = replace(TIGHT, layers=40)
    outcome = search_strategy(StrategyRequest(model, fleet, TrainingJob(4, "fp16"), fix))
    assert (
        "No pipeline across entries fits either: no division of the entries into stages goes"
        in outcome.message
    )


def test_fixes_hold_for_every_stage_of_a_pipeline() -> None:
    fleet = (StrategyNodes(1, 4, "T4-16GB"), StrategyNodes(1, 2, "L4-24GB"))
    fix = StrategyFix(tensor=2, recompute="full", micro_batch=1, offload="none")
    outcome = search_strategy(StrategyRequest(TIGHT, fleet, TrainingJob(8, "fp16"), fix))
    best = next(one for one in outcome.candidates if one.across)
    assert all(one.tensor == 2 and one.recompute == "full" and one.micro_batch == 1 for one in best.stages)
    # Chunks of a stage are none of a pipeline across entries.
    chunks = search_strategy(StrategyRequest(LOOSE, fleet, TrainingJob(8, "fp16"), StrategyFix(interleave=1)))
    assert any(one.across for one in chunks.candidates)


def test_out_of_time_it_says_how_far_the_best_may_be_off() -> None:
    fleet = (StrategyNodes(1, 4, "A100-40GB"), StrategyNodes(1, 4, "T4-16GB"))
    request = StrategyRequest(
        replace(LOOSE, layers=12), fleet, TrainingJob(64, "fp16"), solver=StrategySolver(1e-3)
    )
    outcome = search_strategy(request)
    assert outcome.status == "feasible" and outcome.bound_s is not None
    assert outcome.bound_s < outcome.candidates[0].seconds_per_step
    assert f"none shorter than {outcome.bound_s:.4g} s" in outcome.message

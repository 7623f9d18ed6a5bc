"""Pipelines across unlike entries of a fleet: equal to a look at every order, choice and division of the layers."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.support.strategy.pipelines import TIGHT, every
from torchsplit_core.files import read_text, write_text
from torchsplit_core.strategy.cost_model.estimate import estimate
from torchsplit_core.strategy.search import search_strategy
from torchsplit_core.strategy.search.hetero_pipeline.outcome import broken_rule, stages_of
from torchsplit_core.strategy.search.hetero_pipeline.search import HeteroPipelineSearch
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch
from torchsplit_core.strategy.search.machines import read_fleet
from torchsplit_core.strategy.search.software import SOFTWARE
from torchsplit_core.strategy.search.space import SearchSpace
from torchsplit_core.strategy.supported import TRAIN, Runnable, traits_of
from torchsplit_core.training import run_strategy_of
from torchsplit_core.values.strategy.request import (
    Choice,
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    StrategySolver,
    TransformerSizes,
)
from torchsplit_core.values.training import ParallelConfig, TrainingJob

HALF: tuple[Choice, ...] = ("precision",)
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


def searches_of(name: str, other: StrategyFix | None = None) -> list[HomogeneousSearch]:
    model, fleet, batch, given = CASES[name]
    fix = other or StrategyFix(**given)  # type: ignore[arg-type]
    job = TrainingJob(batch, "fp16")
    runnable = Runnable("fp16", traits_of(model), HALF, TRAIN)
    return [
        HomogeneousSearch(
            one,
            SearchSpace(
                model.transformer(),
                job,
                one.cluster.gpus_per_node,
                fix,
                runnable,
            ),
        )
        for one in read_fleet(fleet, "fp16")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_search_is_equal_to_every_order_choice_and_division(name: str) -> None:
    searches = searches_of(name)
    search = HeteroPipelineSearch(searches)
    search.run(time.monotonic() + 600)
    assert search.best is not None and search.bound_s == float("inf")
    assert search.best.seconds == pytest.approx(every(searches), rel=1e-9)
    assert broken_rule(search.best, searches) == ""


@pytest.mark.parametrize("name", ["memory binds", "slow link", "three kinds"])
def test_the_stages_stand_as_the_step_counts_them(name: str) -> None:
    """Those beside another entry's send over the link between entries, all others inside their own."""
    search = HeteroPipelineSearch(searches_of(name))
    search.run(time.monotonic() + 600)
    best = search.best
    assert best is not None
    entries = [segment.entry for segment in best.segments for _ in segment.layers]
    stages = stages_of(best)
    for number, (_, _, role) in enumerate(stages):
        assert role.far == (len(set(entries[max(0, number - 1) : number + 2])) > 1)
    seconds = [config.stage_s(layers, role) for config, layers, role in stages]
    assert best.longest_s == pytest.approx(max(seconds)) and best.sum_s == pytest.approx(sum(seconds))


def test_the_first_bound_counts_that_a_pipeline_fills_and_drains() -> None:
    """Two equal entries share layers evenly that dwarf what is sent: the bound lacks little but the end of the step."""
    sizes = TransformerSizes(6, 4096, 32, 32, 16384, 1000, 2048)
    fleet = (StrategyNodes(1, 1, "A100-80GB"), StrategyNodes(1, 1, "A100-80GB"))
    runnable = Runnable("bf16", traits_of(sizes), (), TRAIN)
    space = SearchSpace(sizes.transformer(), TrainingJob(4), 1, StrategyFix(recompute="none"), runnable)
    search = HeteroPipelineSearch(
        [HomogeneousSearch(machine, space) for machine in read_fleet(fleet, "bf16")]
    )
    # Out of time with a step known otherwise, the bound is the first of all.
    search.run(0.0, known_s=1e9)
    first = search.bound_s
    assert search.best is None
    search.run(time.monotonic() + 600)
    assert search.best is not None and search.bound_s == float("inf")
    assert first <= search.best.seconds < 1.1 * first + search.best.after_s


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
    request = StrategyRequest(
        model,
        fleet,
        TrainingJob(8, "fp16"),
        StrategyFix(**fix),
        may_need=HALF,  # type: ignore[arg-type]
    )
    outcome = search_strategy(request)
    assert outcome.status == "optimal" and "nothing else fits" in outcome.message
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
    run = run_strategy_of(best, precision="bf16")
    assert run.layers == tuple(count for one in best.stages for count in one.layers_per_stage)
    assert (run.choices, run.job.global_batch) == (best.choices, 8)
    for place in (0, 1):
        alone = search_strategy(replace(request, fleet=(fleet[place],)))
        assert alone.status == "infeasible"


def test_a_pipeline_that_was_tampered_with_breaks_a_rule() -> None:
    searches = searches_of("no entry holds a copy")
    search = HeteroPipelineSearch(searches)
    search.run(time.monotonic() + 600)
    good = search.best
    assert good is not None
    first, *rest = good.segments
    heavier = replace(first, layers=tuple(count + 9 for count in first.layers))
    assert broken_rule(replace(good, segments=(heavier, *rest)), searches) == "the stages have every layer"
    assert "micro-batches" in broken_rule(replace(good, sequences=good.sequences + 1), searches)
    assert "each once" in broken_rule(
        replace(good, segments=(first, replace(rest[0], entry=first.entry))), searches
    )
    moved = replace(first, roles=tuple(replace(one, in_flight=one.in_flight + 1) for one in first.roles))
    assert "stands where" in broken_rule(replace(good, segments=(moved, *rest)), searches)
    thin = replace(rest[0], layers=(1,) * len(rest[0].layers))
    crowd = replace(
        first, layers=(10 - len(first.layers) - len(thin.layers), *(1,) * (len(first.layers) - 1))
    )
    assert "fits its devices" in broken_rule(replace(good, segments=(crowd, thin)), searches)


def test_fixes_hold_for_every_stage_of_a_pipeline() -> None:
    fleet = (StrategyNodes(1, 4, "T4-16GB"), StrategyNodes(1, 2, "L4-24GB"))
    fix = StrategyFix(tensor=2, recompute="full", micro_batch=1, offload="none")
    outcome = search_strategy(
        StrategyRequest(TIGHT, fleet, TrainingJob(8, "fp16"), fix, may_need=("precision", "tensor"))
    )
    best = next(one for one in outcome.candidates if one.across)
    assert all(one.tensor == 2 and one.recompute == "full" and one.micro_batch == 1 for one in best.stages)
    # Chunks of a stage are none of a pipeline across entries.
    for chunks in (1, 2):
        chunked = StrategyFix(recompute="full", interleave=chunks)
        search = HeteroPipelineSearch(searches_of("memory binds", chunked))
        search.run(time.monotonic() + 600)
        assert (search.best is not None) == (chunks == 1)


def test_out_of_time_it_says_how_far_the_best_may_be_off() -> None:
    fleet = (StrategyNodes(1, 4, "A100-40GB"), StrategyNodes(1, 4, "T4-16GB"))
    request = StrategyRequest(
        replace(LOOSE, layers=12), fleet, TrainingJob(64, "fp16"), solver=StrategySolver(1e-3), may_need=HALF
    )
    outcome = search_strategy(request)
    assert outcome.status == "feasible" and outcome.bound_s is not None
    assert outcome.bound_s < outcome.candidates[0].seconds_per_step
    assert f"none shorter than {outcome.bound_s:.4g} s" in outcome.message

"""Tenants added to slices that have one or none, and homes of co-located sets."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.planning.requests import on_a30, simple
from tests.support.seeds import repeated
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.fractional.added_tenants.homes import share_homes
from torchsplit_core.planning.fractional.added_tenants.owners import RESTS, give_whole_slices, own_slices
from torchsplit_core.planning.fractional.added_tenants.slice_classes import add_tenants
from torchsplit_core.planning.fractional.added_tenants.survival import made_to_survive
from torchsplit_core.planning.fractional.relaxation import aggregate_shares
from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment, build_planned_gpus
from torchsplit_core.planning.outcome.build import build_planned_models
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.patterns.colocated import hard_sets
from torchsplit_core.planning.problem.build import Choice, Problem, build_problem
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import Colocation, Objective, PlanRequest, PlanStatistics, Point

pytestmark = pytest.mark.slow


def seconds(count: float = 60.0) -> float:
    return time.perf_counter() + count


def level(problem: Problem, assignment: Assignment | None) -> float:
    """The level of the worst-served model; 0 without a plan, which is checked."""
    if assignment is None:
        return 0.0
    request = problem.request
    outcome = unproven_outcome(
        request, build_planned_gpus(request, assignment), PlanStatistics(0.0, 0.0, 0.0, "none")
    )
    assert not list(violations(request, replace(outcome, request_sha256=request_hash(request))))
    return min(model.normalised for model in build_planned_models(problem, assignment))


def three(memory_gib: tuple[float, ...], **changes: object) -> PlanRequest:
    """Models of 10 requests/s on half an A30, of which they need so much memory each."""
    models = []
    for name, gib in zip("abc", memory_gib, strict=True):
        point = Point("A30-24GB", "2g.12gb", 1, 10.0, 100.0, memory_gib=gib)
        spec = simple(name, {"2g.12gb": 10.0}, demand_rps=1.0)
        variant = replace(spec.variants[0], stages=(replace(spec.variants[0].stages[0], points=(point,)),))
        models.append(replace(spec, variants=(variant,)))
    return on_a30(*models, layouts=(("2g.12gb", "2g.12gb"),), sharing="fractional", **changes)


def owned(problem: Problem, *owners: str) -> Assignment:
    """Slices of one GPU that these models own; others are empty."""
    gpu = problem.groups[0].gpu_ids[0]
    of = {problem.request.models[choice.model].name: choice for choice in problem.choices}
    slices = [AssignedSlice(gpu, 0, "2g.12gb", [(of[name], 0.0)] if name else []) for name in owners]
    return Assignment(slices, {gpu: ("2g.12gb", "2g.12gb")}, {gpu: (0, 0)})


@pytest.mark.parametrize(
    ("memory_gib", "owners", "expected"),
    [
        # Two slices for three: the third has a third of each.
        ((8.0, 8.0, 3.0), ("a", "b"), 20 / 3),
        # It fits beside b alone, and they share that slice.
        ((11.0, 8.0, 3.0), ("a", "b"), 5.0),
        # Whoever is on the empty slice too, all three fit.
        ((3.0, 3.0, 3.0), ("a", ""), 20 / 3),
    ],
)
def test_a_third_model_has_what_memory_allows_of_two_slices(memory_gib, owners, expected):
    problem = build_problem(three(memory_gib))
    added = add_tenants(problem, owned(problem, *owners), range(3), seconds())
    assert level(problem, added) == pytest.approx(expected, rel=1e-6)


def test_no_slice_has_more_tenants_than_allowed():
    problem = build_problem(three((3.0, 3.0, 3.0), max_tenants_per_slice=2))
    added = add_tenants(problem, owned(problem, "", ""), range(3), seconds())
    assert added is not None
    assert {len(slice_.tenants) for slice_ in added.slices} == {2}
    assert level(problem, added) > 0


def test_a_co_located_model_gets_no_slice_of_a_gpu_without_its_partner():
    pair = Colocation(("a", "c"))
    problem = build_problem(three((3.0, 3.0, 3.0), colocations=(pair,)))
    added = add_tenants(problem, owned(problem, "b", ""), range(3), seconds())
    assert added is None or {c.model for s in added.slices for c, _ in s.tenants} == {1}


@pytest.mark.parametrize(
    ("rest", "expected"),
    [(1.0, {"a": 2, "b": 0}), (0.8, {"a": 3, "b": 0}), (0.5, {"a": 3, "b": 1}), (0.0, {"a": 3, "b": 1})],
)
def test_whole_slices_and_the_larger_rests(rest, expected):
    problem = build_problem(three((3.0, 3.0, 3.0)))
    of = {problem.request.models[choice.model].name: choice for choice in problem.choices}
    slices = [AssignedSlice(f"gpu{number}", 0, "2g.12gb") for number in range(4)]
    give_whole_slices(slices, [(of["a"], 2.9), (of["b"], 0.7), (of["c"], 0.4)], rest)
    count = Counter(problem.request.models[c.model].name for slice_ in slices for c, _ in slice_.tenants)
    assert {name: count[name] for name in expected} == expected
    assert count["c"] == 0


@repeated("seed", range(6), kept=1)
@pytest.mark.parametrize("size", [(16, 64), (32, 32)])
def test_pooled_shares_stand_on_slices_nearly_without_loss(size: tuple[int, int], seed: int):
    problem = build_problem(fleet_instance(*size, seed=seed, family=Family(sharing="fractional")))
    shares = aggregate_shares(problem, seconds(10.0))
    assert shares is not None
    cases = {problem.choices[number].case for number in shares.amounts}
    levels = [
        level(problem, add_tenants(problem, own_slices(problem, shares, rest), cases, seconds()))
        for rest in RESTS
    ]
    assert max(levels) <= shares.bound * (1 + 1e-6)
    # The chain of pieces alone ends 3 to 30 % below the bound.
    assert max(levels) > 0.97 * shares.bound


def test_without_time_for_parts_that_do_not_fit_there_is_no_plan():
    problem = build_problem(fleet_instance(32, 32, seed=1, family=Family(sharing="fractional")))
    shares = aggregate_shares(problem, seconds(10.0))
    assert shares is not None
    cases = range(len(problem.cases))
    late = add_tenants(problem, own_slices(problem, shares, 1.0), cases, time.perf_counter())
    assert late is None
    assert add_tenants(problem, own_slices(problem, shares, 1.0), cases, seconds()) is not None


@repeated("seed", range(6), kept=1)
@pytest.mark.parametrize("limits", [False, True])
def test_homes_keep_pairs_together_at_little_loss(limits: bool, seed: int):
    family = Family(sharing="fractional", pairs=4, limits=limits)
    request = fleet_instance(16, 64, seed=seed, family=family)
    problem = build_problem(replace(request, colocations=()))
    index = build_problem(request).colocation_index
    tied = replace(problem, request=request, colocation_index=index)
    shares, sets = aggregate_shares(problem, seconds(10.0)), hard_sets(index, 16)
    assert shares is not None and sets is not None
    homes = share_homes(tied, sets, shares, seconds(4.0))
    assert homes is not None
    levels = [level(tied, add_tenants(tied, homes.own_slices(r), homes.cases, seconds())) for r in RESTS]
    assert max(levels) <= shares.bound * (1 + 1e-6)
    if not limits:
        assert max(levels) > 0.96 * shares.bound


def test_a_part_of_a_pool_without_slices_is_left_out():
    models = [simple(name, {"2g.12gb": 10.0, "4g.24gb": 1.0}, demand_rps=1.0) for name in "ab"]
    problem = build_problem(on_a30(*models, sharing="fractional"))
    shares = aggregate_shares(problem, seconds())
    assert shares is not None
    whole = next(number for number, choice in enumerate(problem.choices) if choice.profile == "4g.24gb")
    rounded = replace(shares, amounts={**shares.amounts, whole: 2e-9})
    assert [
        (slice_.profile, [choice.model for choice, _ in slice_.tenants])
        for slice_ in own_slices(problem, rounded, 1.0).slices
    ] == [("2g.12gb", [0]), ("2g.12gb", [1])]


def surviving(*minima_rps: float | None) -> tuple[Problem, Choice, Choice]:
    """Models a and b with these minima on two GPUs, of which either may be lost; and a point of each."""
    request = three((3.0, 3.0, 3.0), objective=Objective("max_min", survives=1))
    models = tuple(
        replace(spec, min_throughput_rps=least)
        for spec, least in zip(request.models, minima_rps, strict=False)
    )
    request = replace(request, gpus=(replace(request.gpus[0], count=2),), models=models)
    free = build_problem(replace(request, objective=Objective("max_min")))
    a, b = (next(c for c in free.choices if c.model == model) for model in range(2))
    return replace(free, request=request), a, b


def halves(problem: Problem, *tenants: list[tuple[Choice, float]]) -> Assignment:
    """Slices with these tenants, two of the first GPU and the rest of the second."""
    first, last = problem.groups[0].gpu_ids
    slices = [
        AssignedSlice(gpu, 0, "2g.12gb", of)
        for gpu, of in zip((first, first, last, last), tenants, strict=False)
    ]
    layouts = dict.fromkeys((first, last), ("2g.12gb", "2g.12gb"))
    return Assignment(slices, layouts, dict.fromkeys((first, last), (0, 0)))


def test_a_model_that_would_lose_too_much_with_a_gpu_is_spread():
    """Both slices of a on one GPU, both of b on the other: equal slices change places, and each keeps half."""
    problem, a, b = surviving(6.0, 6.0)
    apart = halves(problem, [(a, 1.0)], [(a, 1.0)], [(b, 1.0)], [(b, 1.0)])
    assert level(problem, made_to_survive(problem, apart, {})) == pytest.approx(20.0)


def test_what_a_gpu_may_have_of_a_model_follows_from_its_minimum():
    problem, a, b = surviving(15.0, 15.0)
    apart = halves(problem, [(a, 1.0)], [(a, 1.0)], [(b, 1.0)], [(b, 1.0)])
    most_rps: dict[int, float] = {}
    assert made_to_survive(problem, apart, most_rps) is None
    assert most_rps == {0: 5.0, 1: 5.0}


def test_shares_shift_until_a_model_keeps_its_minimum_without_any_gpu():
    """a has 10 requests/s on one GPU and 1 on the other, and must keep 8 without either."""
    problem, a, b = surviving(8.0, None)
    uneven = halves(problem, [(a, 1.0)], [(b, 1.0)], [(a, 0.1), (b, 0.9)])
    # Of the shared slice a has four fifths, b the rest and its own.
    assert level(problem, made_to_survive(problem, uneven, {})) == pytest.approx(12.0, rel=1e-4)


def test_homes_of_many_sets_leave_no_model_without_a_slice():
    """Sixteen models in eight pairs: every GPU is the home of one of them or of none."""
    request = fleet_instance(16, 64, seed=1, family=Family(sharing="fractional", pairs=8))
    problem = build_problem(replace(request, colocations=()))
    index = build_problem(request).colocation_index
    tied = replace(problem, request=request, colocation_index=index)
    shares, sets = aggregate_shares(problem, seconds(10.0)), hard_sets(index, 16)
    assert shares is not None and sets is not None and len(sets) == 8
    homes = share_homes(tied, sets, shares, seconds(4.0))
    assert homes is not None
    assignment = homes.own_slices(1.0)
    of_set = {model: number for number, members in enumerate(sets) for model in members}
    hosts: dict[str, set[int]] = {}
    for slice_ in assignment.slices:
        hosts.setdefault(slice_.gpu_id, set()).update(of_set[choice.model] for choice, _ in slice_.tenants)
    assert max(len(of) for of in hosts.values()) == 1
    assert set().union(*hosts.values()) == set(range(8))
    assert level(tied, add_tenants(tied, assignment, homes.cases, seconds())) > 0.8 * shares.bound


@repeated("seed", range(4), kept=0)
def test_many_gpus_whose_loss_is_survived_are_planned_near_their_bound(seed: int):
    family = Family(sharing="fractional", survives=True, minima=0.5)
    request = fleet_instance(16, 64, seed=seed, family=family, seconds=12.0)
    outcome = plan(request, reasons=False)
    assert not list(violations(request, outcome))
    assert outcome.objective.gap is not None and outcome.objective.gap < 0.02


@repeated("seed", [1, 2], kept=0)
def test_many_gpus_with_pairs_are_planned_near_their_bound(seed: int):
    request = fleet_instance(16, 64, seed=seed, family=Family(sharing="fractional", pairs=4), seconds=12.0)
    outcome = plan(request, reasons=False)
    assert not list(violations(request, outcome))
    assert outcome.objective.gap is not None and outcome.objective.gap < 0.02

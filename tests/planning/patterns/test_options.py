"""Options of models under latency limits: together exactly what the limits allow."""

import random
from itertools import product

from tests.support.planning.requests import A30, LAYOUTS, PROFILES
from tests.support.seeds import in_blocks
from torchsplit_core.planning.patterns import options
from torchsplit_core.planning.patterns.capacity import FleetCapacity, fleet_capacity
from torchsplit_core.planning.patterns.options import ModelOption, build_options
from torchsplit_core.planning.problem.build import Problem, VariantCase, build_problem
from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point, Stage, Variant

Limits = tuple[float, ...]


def limited(seed: int) -> PlanRequest:
    """Models of up to three stages with several points a slice, most of them under a tight limit."""
    rng = random.Random(f"options{seed}")

    def stage(number):
        found = [
            Point(A30, name, batch, round(rng.uniform(1, 20), 1), rng.choice([5.0, 10.0, 20.0, 30.0]) * batch)
            for name in rng.sample(sorted(PROFILES), rng.randint(1, 3))
            for batch in range(1, rng.randint(1, 3) + 1)
        ]
        return Stage(f"s{number}", tuple(found))

    def variant(name):
        count = rng.randint(1, 3)
        return Variant(name, tuple(stage(s) for s in range(count)), (rng.choice([0.0, 5e6]),) * (count - 1))

    models = [
        PlanModel(
            f"m{number}",
            tuple(variant(f"v{v}") for v in range(rng.randint(1, 2))),
            max_latency_ms=rng.choice([None, 25.0, 40.0, 70.0]),
        )
        for number in range(2)
    ]
    fleet = (FleetEntry(A30), FleetEntry(A30, id="other", layouts=LAYOUTS[:3]))
    return PlanRequest(fleet, tuple(models), link_gb_per_s=1.0)


def allowed(model: PlanModel, variant: Variant) -> list[Limits]:
    """Every combination of longest latencies, stage by stage, that the limit has room for."""
    spent = sum(variant.cut_bytes) / 1e9 * 1e3
    levels = [sorted({point.latency_ms for point in stage.points}) for stage in variant.stages]
    most = float("inf") if model.max_latency_ms is None else model.max_latency_ms
    return [limits for limits in product(*levels) if sum(limits) + spent <= most + 1e-9]


def rates_of(variant: Variant, supply: FleetCapacity, limits: Limits) -> list[list[float]]:
    """The most requests/s of each stage on a slice of each pool within these latencies."""
    return [
        [
            max(
                (
                    point.throughput_rps
                    for point in stage.points
                    if point.profile == name and point.latency_ms <= most
                ),
                default=0.0,
            )
            for _, name in supply.pools
        ]
        for stage, most in zip(variant.stages, limits, strict=True)
    ]


def case_of(problem: Problem, option: ModelOption) -> VariantCase:
    """The variant an option runs, by its choices."""
    first = problem.choices[next(number for number in option.stages[0].choices if number >= 0)]
    return problem.cases[first.case]


@in_blocks("seed", range(40))
def test_options_are_all_that_the_limits_allow_and_no_more(seed):
    request = limited(seed)
    problem = build_problem(request)
    supply = fleet_capacity(problem)
    options = build_options(problem, supply)
    assert options is not None
    for index, (model, mine) in enumerate(zip(request.models, options, strict=True)):
        offered = [[stage.rates for stage in option.stages] for option in mine.options]
        for variant in model.variants:
            for limits in allowed(model, variant):
                wanted = rates_of(variant, supply, limits)
                if not all(any(stage) for stage in wanted):
                    continue
                # Some option with as many stages gives at least this on every slice.
                assert any(
                    len(option) == len(wanted)
                    and all((have >= want).all() for have, want in zip(option, wanted, strict=True))
                    for option in offered
                ), (index, variant.name, limits)
        for option in mine.options:
            case = case_of(problem, option)
            assert case.model == index and len(option.stages) == case.stages
            longest = 0.0
            for number, stage in enumerate(option.stages):
                used = [(pool, choice) for pool, choice in enumerate(stage.choices) if choice >= 0]
                assert used and {pool for pool, _ in used} == set(stage.rates.nonzero()[0].tolist())
                for pool, place in used:
                    choice = problem.choices[place]
                    assert (choice.model, choice.variant, choice.stage) == (index, case.variant, number)
                    assert (choice.group, choice.profile) == supply.pools[pool]
                    assert choice.point.throughput_rps == stage.rates[pool]
                longest += max(problem.choices[place].point.latency_ms for _, place in used)
            if model.max_latency_ms is not None:
                moved = sum(model.variants[case.variant].cut_bytes) / 1e9 * 1e3
                assert longest + moved <= model.max_latency_ms + 1e-9


def test_too_many_options_are_refused_rather_than_cut(monkeypatch):
    problems = [build_problem(limited(seed)) for seed in range(20)]
    found = [build_options(problem, fleet_capacity(problem)) for problem in problems]
    counts = [max(len(mine.options) for mine in each or ()) for each in found]
    assert max(counts) > 2
    monkeypatch.setattr(options, "MOST_OPTIONS", 2)
    for problem, count in zip(problems, counts, strict=True):
        assert (build_options(problem, fleet_capacity(problem)) is None) == (count > 2)
    monkeypatch.setattr(options, "MOST_OPTIONS", 1500)
    monkeypatch.setattr(options, "MOST_COMBINATIONS", 0)
    assert any(build_options(problem, fleet_capacity(problem)) is None for problem in problems)

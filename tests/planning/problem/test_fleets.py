"""Plans of mixed fleets (MIG, whole GPUs, no MIG, cores), some that survive a loss, against a look at everything."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.planning.against_all import as_good_as_every_plan, as_good_as_every_set_of_tenants
from tests.support.planning.oracle import least_change, levels_of
from tests.support.planning.shared_oracle import best_shared
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.values import (
    WHOLE_GPU,
    Colocation,
    FleetEntry,
    Objective,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
)

pytestmark = pytest.mark.slow

BLOCK = 50
SLICES = (
    ("A30-24GB", "1g.6gb", 1.0), ("A30-24GB", "2g.12gb", 2.0), ("A30-24GB", WHOLE_GPU, 4.3),
    ("L4-24GB", WHOLE_GPU, 3.0), ("CPU", "1c", 0.1), ("CPU", "2c", 0.2), ("CPU", "3c", 0.25),
)  # fmt: skip
LAYOUTS = (("1g.6gb", "1g.6gb", "2g.12gb"), ("2g.12gb", "2g.12gb"))
ENTRIES = (
    FleetEntry("A30-24GB", layouts=LAYOUTS), FleetEntry("A30-24GB", layouts=LAYOUTS[:1]),
    FleetEntry("A30-24GB", mig=False), FleetEntry("L4-24GB"), FleetEntry("CPU-4c"), FleetEntry("CPU-3c"),
)  # fmt: skip
OF_KNOWN_MEMORY = {"CPU-4c": "CPU-4c.16gib", "CPU-3c": "CPU-3c.12gib"}
"""4 GiB a core: 8 GiB need two."""


def points(rng: random.Random, base: float) -> tuple[Point, ...]:
    found = []
    for kind, profile, size in SLICES:
        if rng.random() < 0.8:
            rate = round(base * size * rng.uniform(0.7, 1.3), 1)
            memory = rng.choice([None, 0.0, 8.0])
            found.append(Point(kind, profile, 1, rate, rng.choice([5.0, 20.0]), memory_gib=memory))
    return tuple(found)


def mixed(seed: int, survives: int) -> PlanRequest:
    """One to three GPUs of all sorts; one or two models, sometimes cut."""
    rng = random.Random(f"fleet{survives}{seed}")
    count = rng.choice([1, 2, 2, 2, 3, 3, 3] if survives else [1, 2, 3])
    fleet = tuple(rng.choice(ENTRIES) for _ in range(count))
    if count == 2 and rng.random() < 0.3:
        fleet = (replace(fleet[0], count=2),)
    models = []
    for index in range(1 if count == 3 else 2):
        base = rng.choice([5.0, 20.0])
        variants = [Variant("whole", (Stage("whole", points(rng, base)),))]
        if count < 3 and rng.random() < 0.3:
            stages = (Stage("a", points(rng, 2 * base)), Stage("b", points(rng, 1.5 * base)))
            variants = rng.choice(
                [[Variant("cut", stages, (0.0,))], [*variants, Variant("cut", stages, (0.0,))]]
            )
        least = rng.choice([0.3, 0.8, 1.2, 2.0, 3.0]) * base
        models.append(PlanModel(
            f"m{index}", tuple(variants), weight=rng.choice([1.0, 2.0]), demand_rps=10.0,
            min_throughput_rps=least if rng.random() < (0.8 if survives else 0.3) else None,
            max_latency_ms=rng.choice([None, None, 12.0, 30.0]), cap_at_demand=rng.random() < 0.2,
        ))  # fmt: skip
    pairs = ()
    if len(models) == 2 and rng.random() < 0.2:
        pairs = (Colocation(("m0", "m1"), rng.choice(["hard", "soft"]), 1e6),)  # type: ignore[arg-type]
    kind = rng.choice(["leximin", "leximin", "max_min", "weighted_sum", "min_gpus"])
    return PlanRequest(
        fleet,
        tuple(models),
        pairs,
        Objective(kind, survives=survives),  # type: ignore[arg-type]
        solver=SolverOptions(30.0),
    )


@repeated("block", range(4))
def test_mixed_fleets_equal_every_plan_looked_at(block):
    used = set()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        outcome, _ = as_good_as_every_plan(mixed(seed, 0), seed)
        used |= {(gpu.type, gpu.slices[0].profile == WHOLE_GPU) for gpu in outcome.gpus if gpu.used}
    assert {("A30-24GB", False), ("A30-24GB", True), ("L4-24GB", True), ("CPU-4c", False)} <= used


@repeated("block", range(6))
def test_plans_that_survive_equal_every_plan_looked_at(block):
    changed = infeasible = relaxed = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        request = mixed(seed, 1)
        outcome, _ = as_good_as_every_plan(request, seed)
        free = plan(replace(request, objective=replace(request.objective, survives=0)), reasons=False)
        if outcome.status == "infeasible":
            infeasible += free.status != "infeasible"
            relaxed += least_relaxed(request, outcome, seed)
            continue
        changed += levels_of(request, free) != pytest.approx(levels_of(request, outcome), rel=1e-6)
    # What is lost must matter in some of them, or this says nothing.
    assert changed >= 1 and infeasible >= 1 and relaxed >= 2


def with_memory(request: PlanRequest) -> PlanRequest:
    return replace(
        request,
        gpus=tuple(
            replace(entry, type=OF_KNOWN_MEMORY.get(entry.type, entry.type)) for entry in request.gpus
        ),
    )


@repeated("block", range(4))
def test_memory_of_cores_counts_as_every_plan_looked_at_says(block):
    changed = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        request = mixed(seed, 0)
        known = with_memory(request)
        if known == request:
            continue
        outcome, _ = as_good_as_every_plan(known, seed)
        free = plan(request, reasons=False)
        changed += outcome.status != free.status or (
            bool(outcome.gpus)
            and levels_of(known, outcome) != pytest.approx(levels_of(request, free), rel=1e-6)
        )
    # What does not fit must matter in some of them, or this says nothing.
    assert changed >= 1


def least_relaxed(request: PlanRequest, outcome: PlanOutcome, seed: int) -> bool:
    """Whether the relaxation could be compared with the least under the same loss; it is that."""
    if any(pair.mode == "hard" for pair in request.colocations):
        return False
    assert outcome.conflicts, seed
    assert outcome.least_relaxation is not None, seed
    total = sum(abs(change.new - change.old) / change.old for change in outcome.least_relaxation)
    assert total == pytest.approx(least_change(request), rel=1e-6, abs=1e-9), seed
    return True


def shared(seed: int, entries: Sequence[FleetEntry] = ENTRIES[1:4], survives: int = 1) -> PlanRequest:
    """Two or three GPUs whose slices are shared; nearly every model has a minimum."""
    rng = random.Random(f"shared{seed}")
    fleet = tuple(rng.choice(entries) for _ in range(rng.choice([2, 2, 3])))
    models = []
    for index in range(1 if len(fleet) == 3 else 2):
        base = rng.choice([5.0, 20.0])
        variant = Variant("whole", (Stage("whole", points(rng, base)),))
        if rng.random() < 0.3:
            variant = Variant(
                "cut", (Stage("a", points(rng, 2 * base)), Stage("b", points(rng, 2 * base))), (0.0,)
            )
        least = rng.choice([None, 0.3 * base, 0.8 * base, 1.5 * base])
        models.append(PlanModel(
            f"m{index}", (variant,), demand_rps=10.0, min_throughput_rps=least,
            max_latency_ms=rng.choice([None, None, 30.0, 60.0]),
        ))  # fmt: skip
    return PlanRequest(
        fleet, tuple(models), objective=Objective("leximin", survives=survives), sharing="fractional",
        solver=SolverOptions(30.0),
    )  # fmt: skip


@repeated("seeds", [range(1, 10), *(range(start, start + 15) for start in range(0, 4 * BLOCK, BLOCK))])
def test_shared_plans_that_survive_equal_every_set_of_tenants(seeds):
    changed = 0
    for seed in seeds:
        request = shared(seed)
        _, expected = as_good_as_every_set_of_tenants(request, seed)
        if expected is None:
            continue
        free = best_shared(replace(request, objective=Objective("leximin")))
        changed += free != pytest.approx(expected, rel=1e-6)
    assert changed >= 1


# Some of the others have an instance that takes seconds to look through.
@repeated(
    "seeds", [(*range(107, 113), 114), *(range(start, start + 15) for start in range(0, 4 * BLOCK, BLOCK))]
)
def test_what_cores_hold_together_is_shared_as_every_set_of_tenants(seeds):
    changed = 0
    for seed in seeds:
        request = shared(seed, (FleetEntry("CPU-3c"), FleetEntry("A30-24GB", mig=False)), survives=0)
        known = with_memory(request)
        _, expected = as_good_as_every_set_of_tenants(known, seed)
        free = best_shared(request)
        changed += (free is None) != (expected is None) or (
            free is not None and expected != pytest.approx(free, rel=1e-6)
        )
    assert changed >= 1

"""Stages as members of co-locations: what names mean, and plans against a look at everything."""

import random
import time
from dataclasses import replace

import pytest

from tests.support.planning.against_all import as_good_as_every_plan, as_good_as_every_set_of_tenants
from tests.support.planning.requests import A30, LAYOUTS, on_a30
from tests.support.seeds import in_blocks, repeated
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.baselines.baseline_plans import build_baselines
from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.leximin import LevelsResult
from torchsplit_core.planning.formulation.objectives import solve_objective
from torchsplit_core.planning.formulation.solution import separations_of
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.colocation_index import (
    ColocationMember,
    colocated_models,
    index_colocations,
    member_names,
    members_of,
)
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    InputFault,
    Objective,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
)

BLOCK = 15


def staged(name: str, *variants: tuple[str, tuple[str, ...]]) -> PlanModel:
    """A model with variants of these stages, each with a point on every slice of an A30."""
    point = Point(A30, "1g.6gb", 1, 10.0, 10.0, memory_gib=1.0)
    return PlanModel(name, tuple(
        Variant(of, tuple(Stage(part, (point,)) for part in parts), (7.0,) * (len(parts) - 1))
        for of, parts in variants
    ))  # fmt: skip


BERT = staged("bert", ("whole", ("whole",)), ("cut1", ("cut1.1of2", "cut1.2of2")), ("cut2", ("a", "b", "c")))
OTHER = staged("other", ("v", ("head", "tail")), ("w", ("head", "end")))
NESTED = staged("bert/a", ("v", ("x",)))


@pytest.mark.parametrize(("name", "expected"), [
    ("bert", ColocationMember(0)),
    ("bert/cut1.1of2", ColocationMember(0, 1, 0)),
    ("bert/cut1.cut1.2of2", ColocationMember(0, 1, 1)),
    ("bert/b", ColocationMember(0, 2, 1)),
    ("bert/cut2.c", ColocationMember(0, 2, 2)),
    ("bert/whole", ColocationMember(0, 0, 0)),
    ("other/w.head", ColocationMember(1, 1, 0)),
    ("other/end", ColocationMember(1, 1, 1)),
    ("bert/a", ColocationMember(2)),  # a model's own name stands before a stage's
    ("bert/cut2.a", ColocationMember(0, 2, 0)),
    ("bert/a/x", ColocationMember(2, 0, 0)),
])  # fmt: skip
def test_a_name_is_a_model_or_a_stage_of_a_variant(name, expected):
    assert members_of((BERT, OTHER, NESTED), Colocation((name,)), "here") == (expected,)


@pytest.mark.parametrize(("names", "told"), [
    (("bert", "other/head"), "other/v.head, other/w.head"),
    (("bert", "other/nothing"), "unknown stage 'other/nothing'. Did you mean other/v.tail?"),
    (("bert", "nobody"), "unknown model 'nobody'. Known models: bert, other. A stage"),
    (("bert", "nobody/a"), "unknown model 'nobody/a'. Known models: bert, other. A stage"),
    (("bert/a", "bert/cut2.a"), "at least two, each once"),
    (("bert/", "other"), "bert/whole.whole"),
])  # fmt: skip
def test_a_name_of_no_one_stage_is_one_message(names, told):
    request = on_a30(BERT, OTHER, colocations=(Colocation(names),))
    with pytest.raises(InputFault) as fault:
        validate(request)
    assert told in str(fault.value) and "colocations[0]" in str(fault.value)


def test_every_name_that_is_offered_names_one_member():
    models = (BERT, OTHER, NESTED)
    names = member_names(models)
    assert names == (
        *("bert", "other", "bert/a", "bert/cut1.1of2", "bert/cut1.2of2", "bert/cut2.a", "bert/b", "bert/c"),
        *("other/v.head", "other/tail", "other/w.head", "other/end"),
    )
    assert len(set(members_of(models, Colocation(names), "here"))) == len(names)
    assert colocated_models(models, Colocation(("bert/b", "other"))) == {"bert", "other"}


def test_neighbouring_stages_weigh_what_they_hand_on():
    each = replace(BERT.variants[2], cut_bytes=(1.0, 2.0), cut_bytes_per_request=(0.0, 5.0))
    bert = replace(BERT, variants=(*BERT.variants[:2], each))
    pairs = {
        ("bert/cut1.1of2", "bert/cut1.2of2"): 7.0, ("bert/c", "bert/b"): 5.0, ("bert/a", "bert/b"): 1.0,
        ("bert/a", "bert/c"): 0.0, ("bert/a", "bert"): 0.0, ("bert/a", "other/tail"): 0.0,
    }  # fmt: skip
    ties = index_colocations(
        PlanRequest((FleetEntry(A30),), (bert, OTHER), tuple(Colocation(names, "soft") for names in pairs))
    )
    assert [tie.bytes_per_request for tie in ties.colocations] == list(pairs.values())
    told = Colocation(("bert/c", "bert/b"), "soft", 9.0)
    (tie,) = index_colocations(PlanRequest((FleetEntry(A30),), (bert,), (told,))).colocations
    assert tie.bytes_per_request == 9.0


def points(rng: random.Random, base: float) -> tuple[Point, ...]:
    """A point on most of the profiles, larger slices faster."""
    found = []
    for name, size in (("1g.6gb", 1), ("2g.12gb", 2), ("4g.24gb", 4)):
        if rng.random() < 0.8:
            rate = round(base * size ** rng.choice([0.5, 1.0]), 1)
            latency, memory = round(1000 / rate, 2), rng.choice([0.0, 3.0, 8.0])
            found.append(Point(A30, name, rng.choice([1, 4]), rate, latency, memory_gib=memory))
    return tuple(found) or points(rng, base)


def tied(seed: int, sharing: str) -> PlanRequest:
    """One or two models, cut and whole, with co-locations of models and stages on at most three GPUs."""
    rng = random.Random(f"tied{sharing}{seed}")
    models = []
    for name in ("m", "n")[: rng.choice([1, 2, 2])]:
        base = rng.choice([5.0, 20.0])
        parts = 3 if rng.random() < 0.15 else 2
        stages = tuple(Stage(f"s{i}", points(rng, base * rng.choice([1.5, 3.0]))) for i in range(parts))
        each = tuple(rng.choice([0.0, 1e5, 2e6]) for _ in range(parts - 1))
        cut = Variant("cut", stages, tuple(rng.choice([0.0, 2e6]) for _ in each), cut_bytes_per_request=each)
        whole = Variant("whole", (Stage("whole", points(rng, base)),))
        variants = (
            rng.choice([(cut,), (cut,), (whole, cut)]) if name == "m" else rng.choice([(whole,), (cut,)])
        )
        least = rng.choice([None, None, 5.0, 15.0])
        models.append(PlanModel(name, variants, demand_rps=rng.choice([1.0, 10.0]), min_throughput_rps=least))
    names = [model.name for model in models]
    names += [
        f"{model.name}/{rng.choice(['', f'{variant.name}.'])}{stage.name}"
        for model in models
        for variant in model.variants
        for stage in variant.stages
    ]
    pairs = []
    for _ in range(rng.randint(1, 2)):
        chosen = rng.sample(names, min(len(names), rng.choice([2, 2, 3])))
        if not any("/" in name for name in chosen):
            chosen[0] = next(name for name in names if "/" in name and name not in chosen)
        mode = rng.choice(["hard", "hard", "soft", "soft", "soft"])
        pairs.append(Colocation(tuple(chosen), mode, rng.choice([0.0, 0.0, 1.0, 1e6])))  # type: ignore[arg-type]
    gpus = 1 if sharing == "fractional" else rng.choice([2, 2, 3])
    layouts = rng.choice([LAYOUTS[1:2], LAYOUTS[2:3], LAYOUTS[1:3]]) if gpus == 2 else LAYOUTS[2:3]
    fleet = (FleetEntry(A30, count=gpus, layouts=layouts),)
    if gpus == 2 and rng.random() < 0.3:
        fleet = (FleetEntry(A30, layouts=layouts), FleetEntry(A30, id="mine", layouts=LAYOUTS[3:]))
    weight = rng.choice([0.0, 0.0, 1e-6]) if any(pair.mode == "soft" for pair in pairs) else 0.0
    kind = rng.choice(["leximin", "leximin", "max_min", "weighted_sum", "min_gpus"])
    return PlanRequest(
        fleet,
        tuple(models),
        tuple(pairs),
        Objective(kind, separation_weight=weight),  # type: ignore[arg-type]
        sharing,  # type: ignore[arg-type]
        rng.choice([None, 0.02, 1.0]),
        solver=SolverOptions(30.0),
    )


def presences(request: PlanRequest, outcome: PlanOutcome) -> list[frozenset[int]]:
    """The members of co-locations on each GPU of a plan."""
    ties = index_colocations(request)
    numbers = {
        (model.name, variant.name, stage.name): (m, v, s)
        for m, model in enumerate(request.models)
        for v, variant in enumerate(model.variants)
        for s, stage in enumerate(variant.stages)
    }
    return [
        frozenset().union(
            *(
                ties.members_at(*numbers[t.model, t.variant, t.stage])
                for item in gpu.slices
                for t in item.tenants
            )
        )
        for gpu in outcome.gpus
    ]


def torn(request: PlanRequest, outcome: PlanOutcome) -> float:
    """Bytes of separations, GPU by GPU."""
    return sum(map(index_colocations(request).separated_bytes, presences(request, outcome)))


def tears(request: PlanRequest, outcome: PlanOutcome) -> bool:
    """Whether a plan tears a co-location that forbids it or makes it cost something."""
    return torn(request, outcome) > 0 or any(
        0 < len(present.intersection(tie.members)) < len(tie.members)
        for present in presences(request, outcome)
        for tie in index_colocations(request).colocations
        if tie.hard
    )


@pytest.mark.slow
@repeated("block", range(12), kept=1)
def test_whole_slices_equal_every_plan_looked_at(block):
    mattered = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        request = tied(seed, "exclusive")
        free = replace(request, colocations=(), objective=replace(request.objective, separation_weight=0.0))
        mattered += tears(request, plan(free, reasons=False))
        outcome, expected = as_good_as_every_plan(request, seed)
        if expected is None:
            continue
        if request.objective.separation_weight == 0:
            assert torn(request, outcome) == pytest.approx(expected), seed
        for baseline in build_baselines(request, outcome):
            if baseline.outcome is not None:
                assert not list(violations(request, baseline.outcome)), (seed, baseline.name)
    # The ties must matter in some of them, or this says nothing.
    assert mattered >= 3


@in_blocks("seed", range(24))
def test_counting_by_presence_is_as_good_as_gpu_by_gpu(seed):
    request = tied(seed, "exclusive")
    together, apart = build_problem(request), build_problem(request, per_gpu=True)
    assert together.colocated == index_colocations(request).members and not apart.colocated
    (here, bytes_here), (there, bytes_there) = solved(together), solved(apart)
    assert here.status == there.status in ("optimal", "infeasible")
    if here.status == "optimal":
        # What max_min does not ask for may differ.
        asked = 1 if request.objective.kind == "max_min" else None
        assert here.values[:asked] == pytest.approx(there.values[:asked], rel=2e-6, abs=1e-7)
        if request.objective.separation_weight == 0:
            assert bytes_here == pytest.approx(bytes_there)


def solved(problem: Problem) -> tuple[LevelsResult, float]:
    """The search's answer, and the bytes of its separations."""
    built = build(problem, "exclusive")
    answer = solve_objective(built, time.perf_counter() + 60.0)
    return answer, separations_of(built, answer.best) if answer.best is not None else 0.0


def test_members_that_never_fit_one_gpu_together_stand_nowhere():
    """Nine stages on the same GPUs, of which none has nine slices; two such GPUs do not make one."""
    stages = tuple(Stage(f"s{i}", (Point(A30, "1g.6gb", 1, 10.0, 10.0),)) for i in range(9))
    long = PlanModel("long", (Variant("v", stages, (0.0,) * 8),))
    free = PlanModel("free", (Variant("whole", (stages[0],)),))
    names = tuple(f"long/{stage.name}" for stage in stages)
    request = on_a30(long, free, count=3, colocations=(Colocation(names),))
    outcome = plan(request)
    assert outcome.status == "optimal"
    assert [model.throughput_rps for model in outcome.models] == [0.0, 120.0]


@pytest.mark.slow
@repeated("seeds", [range(7), range(7, BLOCK), *(range(k * BLOCK, (k + 1) * BLOCK) for k in range(1, 4))])
def test_shared_slices_equal_every_set_of_tenants(seeds):
    planned = 0
    for seed in seeds:
        request = replace(tied(seed, "fractional"), objective=Objective("leximin"))
        outcome, _ = as_good_as_every_set_of_tenants(request, seed, ("optimal", "feasible"))
        planned += outcome.status == "optimal"
    assert planned >= 4

"""Who may stand together on a GPU, how they are dealt out, and that counting by presence loses nothing."""

import random
import time
from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.planning.requests import A30, LAYOUTS, model, on_a30, simple
from tests.support.seeds import in_blocks, repeated
from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.leximin import LevelsResult
from torchsplit_core.planning.formulation.objectives import solve_objective
from torchsplit_core.planning.formulation.solution import separations_of
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.problem.colocation_sets import (
    MAX_MEMBERS_PER_GPU,
    MAX_SETS,
    colocation_sets,
    distribute_members,
)
from torchsplit_core.planning.request.colocation_index import index_colocations
from torchsplit_core.values import Colocation, FleetEntry, Objective, PlanRequest

pytestmark = pytest.mark.slow


def tied(count: int, *pairs: Colocation) -> PlanRequest:
    """So many models, some of them co-located."""
    models = tuple(simple(f"m{number}", {"1g.6gb": 1.0}) for number in range(count))
    return on_a30(*models, colocations=pairs)


@in_blocks("seed", range(40))
def test_presences_are_all_sets_that_keep_hard_pairs_whole(seed):
    rng = random.Random(seed)
    pairs = tuple(
        Colocation(
            tuple(f"m{number}" for number in rng.sample(range(9), rng.randint(2, 3))),
            rng.choice(["hard", "soft"]),  # type: ignore[arg-type]
        )
        for _ in range(rng.randint(1, 4))
    )
    request = tied(9, *pairs)
    members = sorted({int(name[1:]) for pair in pairs for name in pair.models})
    every = chain.from_iterable(combinations(members, size) for size in range(len(members) + 1))
    hard = [{int(name[1:]) for name in pair.models} for pair in pairs if pair.mode == "hard"]
    allowed = {
        frozenset(chosen)
        for chosen in every
        if len(chosen) <= MAX_MEMBERS_PER_GPU
        and all(len(set(chosen) & pair) in (0, len(pair)) for pair in hard)
    }
    found = colocation_sets(index_colocations(request))
    if len(allowed) > MAX_SETS:
        assert found is None
    else:
        assert found is not None and len(found) == len(set(found))
        assert set(found) == allowed


def test_more_presences_than_are_told_apart():
    names = tuple(f"m{number}" for number in range(9))
    assert (
        len(colocation_sets(index_colocations(tied(9, Colocation(names[:8], "soft")))) or ())
        == 256
        == MAX_SETS
    )
    assert colocation_sets(index_colocations(tied(9, Colocation(names, "soft")))) is None
    # Nine models on one GPU together are more than it has slices.
    assert colocation_sets(index_colocations(tied(9, Colocation(names, "hard")))) == (frozenset(),)


@st.composite
def counts(draw: st.DrawFn) -> tuple[dict[int, dict[str, int]], dict[str, int], int]:
    """Instances by model and profile: at least one a GPU of each model, no more than there are slices."""
    slices = draw(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1))
    gpus = draw(st.integers(1, 6))
    left = {name: count * gpus for name, count in slices.items()}
    models = draw(st.integers(1, min(8, sum(slices.values()))))
    found = {number: {} for number in range(models)}

    def take(number):
        name = draw(st.sampled_from([name for name, count in left.items() if count]))
        left[name] -= 1
        found[number][name] = found[number].get(name, 0) + 1

    for number in range(models):
        for _ in range(gpus):
            take(number)
    for _ in range(draw(st.integers(0, sum(left.values())))):
        take(draw(st.integers(0, models - 1)))
    return found, slices, gpus


@settings(max_examples=150, deadline=None, derandomize=True)
@given(counts())
def test_every_gpu_gets_one_of_each_model(drawn):
    counted, slices, gpus = drawn
    dealt = distribute_members(counted, slices, gpus)
    assert len(dealt) == gpus
    used = {}
    for gpu in dealt:
        assert set(gpu) == set(counted)
        for name in slices:
            assert list(gpu.values()).count(name) <= slices[name]
        for number, name in gpu.items():
            used[number, name] = used.get((number, name), 0) + 1
    assert all(times <= counted[number].get(name, 0) for (number, name), times in used.items())


def pairing(seed: int, kind: str) -> PlanRequest:
    """Two or three models with hard and soft co-locations on two or three A30, some of them equal."""
    rng = random.Random(f"pairing{kind}{seed}")
    count = rng.choice([2, 3])
    models = tuple(model(rng, f"m{number}", 1, cuts=True) for number in range(count))
    names = tuple(spec.name for spec in models)
    pairs = [Colocation(names[:2], rng.choice(["hard", "soft"]), rng.choice([1.0, 1e6]))]
    if count == 3:
        pairs.append(Colocation(rng.choice([names, names[1:]]), "soft", rng.choice([1.0, 2e6])))
    if not any(pair.mode == "soft" for pair in pairs):
        pairs = [replace(pair, bytes_per_request=0.0) for pair in pairs]
    weight = rng.choice([0.0, 1e-6, 0.5]) if any(pair.mode == "soft" for pair in pairs) else 0.0
    gamma = rng.choice([None, None, 0.1])
    if kind == "min_gpus":
        models = tuple(replace(spec, min_throughput_rps=rng.choice([None, 5.0, 15.0])) for spec in models)
    fleet = (
        FleetEntry(A30, count=2, layouts=rng.choice([None, LAYOUTS[:3], LAYOUTS[1:]])),
        *rng.choice([(), (), (FleetEntry(A30, id="other", layouts=LAYOUTS[2:], cost=2.0),)]),
    )
    return PlanRequest(fleet, models, tuple(pairs), Objective(kind, gamma, weight), link_gb_per_s=1.0)  # type: ignore[arg-type]


def solved(problem: Problem) -> tuple[LevelsResult, float]:
    """The search's answer, and the bytes of its separations."""
    built = build(problem, "exclusive")
    answer = solve_objective(built, time.perf_counter() + 60.0)
    return answer, separations_of(built, answer.best) if answer.best is not None else 0.0


@repeated("kind", ["leximin", "min_gpus", "max_min", "weighted_sum"], kept=2)
def test_counting_by_presence_is_as_good_as_gpu_by_gpu(kind):
    planned = torn = 0
    for seed in range(16):
        request = pairing(seed, kind)
        together, apart = build_problem(request), build_problem(request, per_gpu=True)
        assert together.colocated and not apart.colocated and len(together.groups) < len(apart.groups)
        (here, bytes_here), (there, bytes_there) = solved(together), solved(apart)
        assert here.status == there.status in ("optimal", "infeasible"), seed
        if here.status == "optimal":
            planned += 1
            # What max_min does not ask for may differ.
            asked = 1 if kind == "max_min" else None
            assert here.values[:asked] == pytest.approx(there.values[:asked], rel=2e-6, abs=1e-7), seed
            if request.objective.separation_weight == 0:
                assert bytes_here == pytest.approx(bytes_there), seed
                torn += bytes_here > 0
    assert planned >= 8 and torn >= 1

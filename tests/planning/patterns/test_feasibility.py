"""Questions about levels, answered by prices and patterns, against every plan of tiny fleets."""

import random
import time
from itertools import pairwise

import numpy as np
import pytest

from tests.support.planning.oracle import Look, fleet_states
from tests.support.planning.pattern_search import searching
from tests.support.planning.requests import A30, LAYOUTS, model
from tests.support.seeds import repeated
from torchsplit_core.planning.patterns import feasibility
from torchsplit_core.planning.patterns.feasibility import Decision, FeasibilityProblem, PatternSearch
from torchsplit_core.values import FleetEntry, PlanRequest

pytestmark = pytest.mark.slow

NEAR = 1e-5
"""Relative step off a level that decides: levels themselves are met with their rounding."""


def tiny(seed: int) -> PlanRequest:
    """Two or three models with any demands on one A30 or two different ones."""
    rng = random.Random(f"decide{seed}")
    two = rng.random() < 0.5
    models = tuple(model(rng, f"m{i}", 1, cuts=not two) for i in range(2 if two else 3))
    fleet = (FleetEntry(A30, layouts=rng.choice([None, LAYOUTS[:2]])),)
    if two:
        fleet = (*fleet, FleetEntry(A30, id="other", layouts=LAYOUTS[2:]))
    return PlanRequest(fleet, models, link_gb_per_s=1.0)


def every_vector(request: PlanRequest) -> list[tuple[float, ...]]:
    """The sorted normalised throughputs of every sound plan."""
    look = Look(request)
    worths = map(look.worth, fleet_states(request))
    return sorted({worth[0] for worth in worths if worth is not None})


def possible(vectors: list[tuple[float, ...]], question: FeasibilityProblem) -> bool:
    """Whether some plan leaves at most so many models below each level (none below the first)."""
    asked = list(zip(question.levels, (0, *question.allowed), strict=True))
    return any(all(vector[allowed] >= level for level, allowed in asked) for vector in vectors)


def questions(rng: random.Random, vectors: list[tuple[float, ...]], models: int) -> list[FeasibilityProblem]:
    """One to three rising levels at and beside what plans reach, mostly their best."""
    values = sorted({value for vector in vectors for value in vector})
    tops = [max(vector[place] for vector in vectors) for place in range(models)]
    found = []
    for _ in range(6):
        count = rng.randint(1, models)
        places = sorted(rng.sample(range(1, models), count - 1))
        base = rng.choice(vectors)
        levels = [
            rng.choice([tops[place], base[place], base[place], rng.choice(values)])
            * rng.choice([1 - NEAR, 1 - NEAR, 1 + NEAR, 1.2])
            for place in (0, *places)
        ]
        if all(after > before for before, after in pairwise(levels)):
            found.append(FeasibilityProblem(tuple(levels), tuple(places)))
    return found


def holds(search: PatternSearch, question: FeasibilityProblem, answer: Decision) -> None:
    """The plan that was found fits the fleet, is made of what its options give, and reaches the levels."""
    assert answer.plan is not None
    supply, demands = search.capacity, search.demand
    used = sum((pattern.usage for pattern in answer.plan.patterns), np.zeros(len(supply.pools), dtype=int))
    assert (used <= supply.slices @ answer.plan.layouts).all()
    per_group = np.bincount(supply.group_of, weights=answer.plan.layouts, minlength=len(supply.gpus))
    assert (per_group <= supply.gpus).all()
    reached = []
    for mine, pattern, unit, least, cap in zip(
        search.options, answer.plan.patterns, demands.units, demands.minima, demands.caps, strict=True
    ):
        rate = 0.0
        if pattern.option >= 0:
            stages = mine.options[pattern.option].stages
            rate = min(
                float(offer.rates @ counts) for offer, counts in zip(stages, pattern.stages, strict=True)
            )
            assert (pattern.usage == pattern.stages.sum(axis=0)).all()
        assert rate == pytest.approx(pattern.rate) and rate >= least * (1 - 1e-8)
        reached.append(min(rate / unit, cap))
    assert possible([tuple(sorted(value * (1 + 1e-8) + 1e-12 for value in reached))], question)


@pytest.mark.parametrize(
    ("block", "many"), [*((block, feasibility.MANY_LAYOUTS) for block in range(4)), (0, 0), (1, 0)]
)
def test_no_is_never_said_where_a_plan_exists(block, many, monkeypatch):
    """`many`: layouts above which interior prices leave out those that no plan can have."""
    monkeypatch.setattr(feasibility, "MANY_LAYOUTS", many)
    monkeypatch.setattr(feasibility, "NEW_LAYOUTS", 1)
    left_out, usable_layouts = [], PatternSearch._usable_layouts

    def usable(search, slack):
        layouts = usable_layouts(search, slack)
        left_out.append(int((~layouts).sum()))
        return layouts

    monkeypatch.setattr(PatternSearch, "_usable_layouts", usable)
    said = {"found": 0, "none": 0}
    for seed in range(block * 15, block * 15 + 15):
        request = tiny(seed)
        vectors = every_vector(request)
        search = searching(request)
        if not vectors:
            if search is not None:
                assert (
                    search.decide(FeasibilityProblem((0.0,)), time.perf_counter() + 30.0, prove=True).verdict
                    == "none"
                )
            continue
        assert search is not None or vectors == [(0.0,) * len(request.models)]
        if search is None:
            continue
        rng = random.Random(seed)
        for question in questions(rng, vectors, len(request.models)):
            prove = rng.random() < 0.7
            until = time.perf_counter() + 30.0
            truth = "found" if possible(vectors, question) else "none"
            priced = search.fleet_share(question, until)
            assert truth == "none" or priced is not None, (seed, question)
            answer = search.decide(question, until, prove=prove)
            # Tiny programs are always settled where a proof is asked for.
            assert answer.verdict == truth or (answer.verdict == "unknown" and not prove), (seed, question)
            if answer.verdict == "found":
                holds(search, question, answer)
            said[truth] += 1
    assert min(said.values()) >= 15, said
    assert (sum(left_out) > 0) == (many == 0)


def test_layouts_offered_a_few_at_a_time_need_no_more_of_the_fleet(monkeypatch):
    offered = 0
    for seed in range(30):
        request = tiny(seed)
        search = searching(request)
        if search is None:
            continue
        for level in (0.2, 0.6, 1.0):
            shares = []
            for many in (feasibility.MANY_LAYOUTS, 0):
                with monkeypatch.context() as patch:
                    patch.setattr(feasibility, "MANY_LAYOUTS", many)
                    patch.setattr(feasibility, "NEW_LAYOUTS", 1)
                    search = searching(request)
                    assert search is not None
                    shares.append(
                        search.fleet_share(FeasibilityProblem((level,)), time.perf_counter() + 30.0)
                    )
            offered += int(search.offered.sum() > len(search.capacity.gpus))
            assert (shares[0] is None) == (shares[1] is None)
            assert shares[0] is None or shares[1] == pytest.approx(shares[0], rel=1e-6)
    assert offered > 10


@repeated(("most", "together"), [(400, 0), (2, 20_000), (2, 0)], kept=1)
def test_the_patterns_of_the_proof_decide_alone(most, together, monkeypatch):
    """Without the patterns that prices bring up, with a list of them cut short, and with a second, longer one."""
    monkeypatch.setattr(PatternSearch, "cheapest_columns", lambda *given: [])
    monkeypatch.setattr(feasibility, "MOST_PER_MODEL", most)
    monkeypatch.setattr(feasibility, "MOST_TOGETHER", together)
    settled = 0
    for seed in range(60):
        request = tiny(seed)
        vectors, search = every_vector(request), searching(request)
        if not vectors or search is None:
            continue
        for question in questions(random.Random(seed), vectors, len(request.models)):
            answer = search.decide(question, time.perf_counter() + 30.0, prove=True)
            if most == 400 or together or answer.verdict != "unknown":
                assert answer.verdict == ("found" if possible(vectors, question) else "none"), (
                    seed,
                    question,
                )
                settled += 1
            if answer.verdict == "found":
                holds(search, question, answer)
    assert settled >= 60


def test_a_list_cut_among_patterns_of_equal_cost_is_no_proof(monkeypatch):
    monkeypatch.setattr(feasibility, "MOST_PER_MODEL", 1)
    monkeypatch.setattr(feasibility, "MOST_TOGETHER", 0)
    request = tiny(344)
    vectors, search = every_vector(request), searching(request)
    assert search is not None
    kept = 0
    for question in questions(random.Random(344), vectors, len(request.models)):
        answer = search.decide(question, time.perf_counter() + 30.0, prove=True)
        if possible(vectors, question):
            kept += 1
            assert answer.verdict != "none", question
    assert kept >= 2


@pytest.mark.parametrize("seed", range(0, 40, 5))
def test_prices_from_other_questions_change_no_answer(seed):
    """One search that has seen many questions says what a fresh one says."""
    request = tiny(seed)
    vectors = every_vector(request)
    used = searching(request)
    if not vectors or used is None:
        return
    for question in questions(random.Random(-seed), vectors, len(request.models)):
        fresh = searching(request)
        assert fresh is not None
        until = time.perf_counter() + 30.0
        verdicts = [search.decide(question, until, prove=True).verdict for search in (used, fresh)]
        assert verdicts == ["found" if possible(vectors, question) else "none"] * 2


def test_no_model_that_runs_stands_below_the_least_level():
    for seed in range(20):
        request = tiny(seed)
        search, vectors = searching(request), every_vector(request)
        if search is not None:
            above = [value for vector in vectors for value in vector if value > 0]
            assert search.least_level() <= min(above, default=float("inf")) * (1 + 1e-9)

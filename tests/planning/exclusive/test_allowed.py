"""Variants that are not allowed: nothing in the planner uses one, and the request keeps it."""

import itertools
import random
from dataclasses import replace

import pytest

from tests.support.planning.edits import with_model
from tests.support.planning.oracle import best_plan
from tests.support.planning.requests import A30, on_a30, random_request, simple
from tests.support.seeds import repeated
from torchsplit_core.files import read_text, write_text
from torchsplit_core.planning import plan
from torchsplit_core.planning.baselines.baseline_plans import build_baselines
from torchsplit_core.planning.explanation.explain import explain_plan
from torchsplit_core.planning.manual.evaluate import ManualGpu, ManualSlice, ManualTenant, evaluate, from_plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.planning.sweep.points import SweepRequest, sweep_requests
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    PlanExplanation,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Point,
    Stage,
    Variant,
)

pytestmark = pytest.mark.slow

NOTHING = PlanStatistics(0.0, 0.0, 0.0, "none")


def forbidding(seed: int, kind: str, sharing: str) -> PlanRequest | None:
    """A random request in which some variants are not allowed; None where no model has two."""
    request, rng = random_request(seed, kind, sharing), random.Random(seed)
    models = []
    for model in request.models:
        out = rng.choice(model.variants).name if len(model.variants) > 1 else None
        variants = tuple(replace(item, allowed=item.name != out) for item in model.variants)
        models.append(replace(model, variants=variants))
    found = replace(request, models=tuple(models))
    return None if found == request else found


def without(request: PlanRequest) -> PlanRequest:
    """The request as if the variants that are not allowed had never been in it."""
    return replace(request, models=tuple(
        replace(model, variants=tuple(item for item in model.variants if item.allowed))
        for model in request.models
    ))  # fmt: skip


def bare(outcome: PlanOutcome | None) -> PlanOutcome | None:
    """The outcome but for the request it names and the time it took."""
    return None if outcome is None else replace(outcome, request_sha256="", statistics=NOTHING)


@repeated(
    ("kind", "sharing"),
    [
        ("min_gpus", "exclusive"),
        ("leximin", "fractional"),
        ("leximin", "exclusive"),
        ("min_gpus", "fractional"),
        *itertools.product(("max_min", "weighted_sum"), ("exclusive", "fractional")),
    ],
    kept=1,
)
def test_it_is_planned_as_if_it_were_not_there(kind, sharing):
    compared, mattered = 0, 0
    for seed in range(8 if sharing == "fractional" else 12):
        request = forbidding(seed, kind, sharing)
        if request is None:
            continue
        found, expected = plan(request), plan(without(request))
        assert found.status == expected.status
        # Where the time ran out first, two runs of one request may differ as well.
        assert found.status == "feasible" or bare(found) == bare(expected), seed
        assert found.request_sha256 == request_hash(request) != expected.request_sha256
        for mine, theirs in zip(build_baselines(request), build_baselines(without(request)), strict=True):
            assert (bare(mine.outcome), mine.reason) == (bare(theirs.outcome), theirs.reason)
        compared += found.status != "feasible"
        free = plan(random_request(seed, kind, sharing))
        mattered += [model.variant for model in free.models] != [model.variant for model in found.models]
    # The flag is not vacuous: with the variant allowed other plans come out.
    assert compared > 3 and mattered > 0


def test_the_best_plan_of_what_is_allowed_is_found():
    compared = 0
    for seed in range(24):
        request = forbidding(seed, "leximin", "exclusive")
        if request is None or len(request.models) > 2:
            continue
        best, found = best_plan(without(request)), plan(request)
        assert (best is None) == (found.objective.value is None)
        if best is not None:
            assert found.objective.value == pytest.approx(best[0][0])
            compared += 1
    assert compared > 3


def cut_or_whole(*, cut: bool = True, whole: bool = True) -> PlanRequest:
    """10 requests/s whole, 30 cut, on the halves of an A30; and a model that has one variant."""
    stages = tuple(
        Stage(name, (Point(A30, "2g.12gb", 1, 30.0, 20.0, memory_gib=0.0),)) for name in ("first", "second")
    )
    variants = (
        Variant(
            "whole", (Stage("whole", (Point(A30, "2g.12gb", 1, 10.0, 50.0, memory_gib=0.0),)),), allowed=whole
        ),
        Variant("cut", stages, (1e6,), allowed=cut),
    )
    fleet = (FleetEntry(A30, count=2, layouts=(("2g.12gb", "2g.12gb"),)),)
    return PlanRequest(fleet, (PlanModel("bert", variants), simple("ocr", {"2g.12gb": 40.0})))


def told(found: PlanExplanation | None) -> PlanExplanation:
    assert found is not None
    return replace(found, seconds=0.0)


def test_explanations_and_quick_plans_do_not_know_it():
    for request in (cut_or_whole(cut=False), cut_or_whole(whole=False)):
        explanation = explain_plan(request, plan(request))
        assert told(explanation) == told(explain_plan(without(request), plan(without(request))))
    shared = replace(cut_or_whole(cut=False), sharing="fractional")
    outcome = plan(shared)
    assert outcome.statistics.details["method"] == "pooled"
    assert {tenant.variant for g in outcome.gpus for s in g.slices for tenant in s.tenants} == {"whole"}


def test_a_plan_that_uses_one_fails_its_check():
    outcome = plan(cut_or_whole())
    assert outcome.models[0].variant == "cut"
    request = cut_or_whole(cut=False)
    moved = replace(outcome, request_sha256=request_hash(request))
    assert "bert: variant cut is not allowed. Allow it, or use whole." in map(str, violations(request, moved))
    other = cut_or_whole(whole=False)
    assert not list(violations(other, replace(outcome, request_sha256=request_hash(other))))


def test_by_hand_it_is_a_fault_and_never_chosen():
    request = cut_or_whole(cut=False)
    evaluation = evaluate(request, from_plan(plan(cut_or_whole())))
    assert evaluation.outcome is None and {(f.model, f.problem, f.remedy) for f in evaluation.faults} == {
        ("bert", "variant cut is not allowed", "Allow it, or use whole.")
    }
    idle = ManualSlice("2g.12gb", 2)
    named = ManualGpu("gpu0", (ManualSlice("2g.12gb", 0, (ManualTenant("bert", stage="first"),)), idle))
    (fault,) = evaluate(request, (named,)).faults
    assert fault.problem == "variant cut is not allowed"
    left_open = ManualGpu("gpu0", (ManualSlice("2g.12gb", 0, (ManualTenant("bert"),)), idle))
    chosen = evaluate(request, (left_open,))
    assert chosen.outcome is not None and chosen.models[0].variant == "whole"
    # Of the others it is the cut that stands, and a cut needs a stage.
    (fault,) = evaluate(cut_or_whole(whole=False), (left_open,)).faults
    assert fault.problem == "names no stage, and variant cut has 2"


def test_a_model_without_any_is_refused():
    with pytest.raises(InputFault) as caught:
        validate(cut_or_whole(cut=False, whole=False))
    fault = caught.value
    assert (fault.where, fault.problem) == ("model bert", "no variant of whole, cut is allowed")
    assert "Allow one" in fault.remedy


def test_the_file_says_only_what_is_not_allowed():
    request = cut_or_whole(cut=False)
    text = write_text(request)
    assert text.count('"allowed": false') == 1 and '"allowed": true' not in text
    assert read_text(text)[1] == request
    assert "allowed" not in write_text(cut_or_whole()) and read_text(write_text(cut_or_whole()))[1] == (
        cut_or_whole()
    )
    assert request_hash(request) != request_hash(cut_or_whole())
    with pytest.raises(InputFault, match="allowed"):
        read_text(text.replace('"allowed": false', '"allowed": "no"'))


def test_requests_from_before_keep_their_fingerprint():
    asked = on_a30(PlanModel("a", (Variant("whole", (Stage("whole"),)),)), link_gb_per_s=1.0)
    # Recorded before variants could be forbidden.
    assert request_hash(asked) == "d071ca5ce4db8b0ddd0a599d0ef16a62a0709b964e3da393e02f1d7e288f61ef"


def test_a_sweep_keeps_it_so_and_offers_no_type_for_it():
    request = cut_or_whole(cut=False)
    for _, one in sweep_requests(request, SweepRequest("demand", "bert", (1.0, 2.0))):
        assert [variant.allowed for variant in one.models[0].variants] == [True, False]
    far = replace(
        request.models[0].variants[1],
        stages=tuple(
            Stage(name, (Point("A100-80GB", "3g.40gb", 1, 9.0, 9.0),)) for name in ("first", "second")
        ),
    )
    whole = request.models[0].variants[0]
    asked = with_model(request, 0, variants=(whole, far))
    with pytest.raises(InputFault, match="A100-80GB"):
        sweep_requests(asked, SweepRequest("gpus", "A100-80GB", (1.0,)))
    allowed = replace(far, allowed=True)
    sweep_requests(
        replace(asked, models=(replace(request.models[0], variants=(whole, allowed)), request.models[1])),
        SweepRequest("gpus", "A100-80GB", (1.0,)),
    )

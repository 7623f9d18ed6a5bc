"""Plans by hand: a solver's own plan gives its figures, every fault is named at once, open choices are best."""

import itertools
import random
from dataclasses import replace
from itertools import product

import pytest

from tests.support.planning.requests import A30, on_a30, published, random_request, simple, whole_model
from tests.support.seeds import repeated
from torchsplit_core.hardware import gpu_type
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.planning import plan
from torchsplit_core.planning.manual.evaluate import ManualGpu, ManualSlice, ManualTenant, evaluate, from_plan
from torchsplit_core.planning.request.fleet import FleetGpu
from torchsplit_core.planning.verification.layout import layout_faults
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    InputFault,
    Objective,
    PlacedProfile,
    PlanModel,
    PlannedSlice,
    PlanRequest,
    Point,
    Stage,
    Variant,
)

pytestmark = pytest.mark.slow

A100 = "A100-80GB"


def hand(name: str, *slices: tuple[str, int, str | None]) -> ManualGpu:
    """A GPU by its id, and (profile, start, model or None) of each slice."""
    return ManualGpu(name, tuple(
        ManualSlice(profile, start, () if model is None else (ManualTenant(model),))
        for profile, start, model in slices
    ))  # fmt: skip


@repeated(
    ("kind", "sharing"),
    [
        ("min_gpus", "exclusive"),
        ("leximin", "fractional"),
        ("leximin", "exclusive"),
        ("min_gpus", "fractional"),
        *itertools.product(["weighted_sum"], ("exclusive", "fractional")),
    ],
    kept=1,
)
def test_a_solvers_plan_gives_its_own_figures(kind, sharing):
    solved = 0
    for seed in range(12 if sharing == "exclusive" else 6):
        request = random_request(seed, kind, sharing)
        best = plan(request)
        if best.objective.value is None:
            continue
        solved += 1
        evaluation = evaluate(request, from_plan(best), best)
        assert evaluation.faults == (), (seed, [str(fault) for fault in evaluation.faults])
        assert evaluation.outcome is not None and evaluation.outcome.gpus == best.gpus
        assert evaluation.objective is not None
        assert evaluation.objective.value == pytest.approx(best.objective.value, rel=1e-9, abs=1e-12)
        assert evaluation.objective.sorted_normalised == pytest.approx(best.objective.sorted_normalised)
        for mine, theirs in zip(evaluation.models, best.models, strict=True):
            assert (mine.name, mine.variant) == (theirs.name, theirs.variant)
            assert mine.throughput_rps == pytest.approx(theirs.throughput_rps)
            assert mine.latency_ms == pytest.approx(theirs.latency_ms)
        if best.status == "optimal":
            assert evaluation.objective.bound == best.objective.value
            assert evaluation.objective.gap == pytest.approx(0.0, abs=1e-9)
    assert solved > 2


def test_what_is_left_open_is_chosen():
    request = published(2)
    gpus = (
        hand("gpu0", ("2g.12gb", 0, "text to speech"), ("2g.12gb", 2, "audio recognition")),
        hand("gpu1", ("4g.24gb", 0, "encoder")),
    )
    found = evaluate(request, gpus, plan(request))
    assert found.faults == () and found.outcome is not None
    verify(request, found.outcome)
    assert {m.name: m.throughput_rps for m in found.models} == {
        "audio recognition": 71.0, "encoder": 7555.0, "text check": 0.0, "text to speech": 3.9,
    }  # fmt: skip
    assert found.objective is not None
    assert (found.objective.value, found.objective.bound, found.objective.gap) == (0.0, 7.8, 1.0)


def batches(limit: float | None) -> PlanModel:
    points = tuple(Point(A30, "2g.12gb", b, 10.0 * b, 5.0 * b, memory_gib=4.0 * b) for b in (1, 2, 3))
    return whole_model("m", points, max_latency_ms=limit)


@pytest.mark.parametrize(("limit", "batch"), [(None, 2), (12.0, 2), (10.0, 2), (9.0, 1)])
def test_the_best_batch_within_limit_and_memory(limit, batch):
    # Batch 3 needs 12 GiB and the slice has 11.69.
    request = on_a30(batches(limit))
    evaluation = evaluate(request, (hand("gpu0", ("2g.12gb", 0, "m")),))
    assert evaluation.outcome is not None
    tenant = evaluation.outcome.gpus[0].slices[0].tenants[0]
    assert tenant.batch_size == batch


def test_shares_left_open_are_equal_and_slow_a_model_down():
    models = (replace(batches(20.0), name="m"), simple("n", {"2g.12gb": 8.0}), simple("o", {"2g.12gb": 8.0}))
    request = PlanRequest((FleetEntry(A30),), models, sharing="fractional")
    tenants = (ManualTenant("m", share=0.5), ManualTenant("n"), ManualTenant("o"))
    evaluation = evaluate(request, (ManualGpu("gpu0", (ManualSlice("2g.12gb", 0, tenants),)),))
    assert evaluation.outcome is not None, evaluation.faults
    shares = [tenant.share for tenant in evaluation.outcome.gpus[0].slices[0].tenants]
    assert shares == [0.5, 0.25, 0.25]
    # Half a slice takes twice as long: batch 2 has 20 ms.
    assert (evaluation.models[0].throughput_rps, evaluation.models[0].latency_ms) == (10.0, 20.0)
    slow = replace(request, models=(batches(19.0), *models[1:]))
    chosen = evaluate(slow, (ManualGpu("gpu0", (ManualSlice("2g.12gb", 0, tenants),)),))
    assert (chosen.models[0].throughput_rps, chosen.models[0].latency_ms) == (5.0, 10.0)


def cut_model(rng: random.Random) -> PlanModel:
    stages = tuple(
        Stage(name, tuple(
            Point(A30, profile, batch, float(rng.randint(1, 60)), float(rng.randint(1, 30)))
            for profile in ("1g.6gb", "2g.12gb")
            for batch in (1, 2, 3)
        ))
        for name in ("first", "second")
    )  # fmt: skip
    limit = float(rng.randint(15, 50))
    return PlanModel("m", (Variant("cut", stages, (0.0,)),), max_latency_ms=limit)


def test_a_limit_over_two_stages_is_divided_best():
    kept = 0
    for seed in range(60):
        rng = random.Random(seed)
        request = on_a30(cut_model(rng))
        places = (("2g.12gb", 0, "first"), ("1g.6gb", 2, "second"), ("1g.6gb", 3, "second"))
        gpu = ManualGpu(
            "gpu0",
            tuple(ManualSlice(p, start, (ManualTenant("m", stage=name),)) for p, start, name in places),
        )
        best = None
        stages = request.models[0].variants[0].stages
        options = [
            [point for point in stages[name == "second"].points if point.profile == profile]
            for profile, _, name in places
        ]
        for one, two, three in product(*options):
            if one.latency_ms + max(two.latency_ms, three.latency_ms) <= (
                request.models[0].max_latency_ms or 0
            ):
                rate = min(one.throughput_rps, two.throughput_rps + three.throughput_rps)
                best = rate if best is None else max(best, rate)
        evaluation = evaluate(request, (gpu,))
        if best is None:
            assert evaluation.outcome is None
            assert all("above the limit" in fault.problem for fault in evaluation.faults)
        else:
            kept += 1
            assert evaluation.models[0].throughput_rps == best, seed
    assert 10 < kept < 60


def test_every_fault_of_a_layout_is_named_at_once():
    request = PlanRequest((FleetEntry(A100),), (simple("m", {"1g.6gb": 1.0}),))
    gpu = hand("gpu0", ("3g.40gb", 2, None), ("2g.20gb", 4, None), ("9g.90gb", 0, None), ("7g.80gb", 0, None))
    told = [str(fault) for fault in evaluate(request, (gpu,)).faults]
    assert told == [
        "gpu0, 3g.40gb at 2: 3g.40gb cannot start at slot 2. Start it at 0 or 4.",
        "gpu0, 9g.90gb at 0: unknown profile '9g.90gb' of A100-80GB. Did you mean 7g.80gb, 4g.40gb or 3g.40gb?",
        "gpu0, 3g.40gb at 2: overlaps 7g.80gb at 0 in slots 2 to 5. Move or drop one of the two.",
        "gpu0, 2g.20gb at 4: overlaps 7g.80gb at 0 in slots 4 to 5. Move or drop one of the two.",
        "gpu0, 2g.20gb at 4: overlaps 3g.40gb at 2 in slots 4 to 5. Move or drop one of the two.",
        "gpu0: takes 12 compute slices, and A100-80GB has 7. Drop a slice, or take a smaller one.",
    ]


@pytest.mark.parametrize("kind", [A30, A100, "H200-141GB"])
def test_layout_faults_agree_with_the_catalogues_check(kind):
    gpu, rng, legal = gpu_type(kind), random.Random(7), 0
    plain = [profile for profile in gpu.profiles if "+" not in profile.name and "-" not in profile.name]
    for _ in range(300):
        chosen = [
            (profile.name, rng.choice((*profile.placement_starts, rng.randint(0, 7))))
            for profile in (rng.choice(plain) for _ in range(rng.randint(1, 4)))
        ]
        faults = list(layout_faults(FleetGpu("g", kind, None, 1.0), [PlannedSlice(*item) for item in chosen]))
        expected = layout_fault(gpu, [PlacedProfile(*item) for item in chosen])
        assert bool(faults) == (expected is not None), (chosen, expected)
        legal += not faults
    assert 20 < legal < 280


def test_layouts_that_were_not_offered():
    request = on_a30(batches(None), layouts=(("2g.12gb", "2g.12gb"),))
    faults = evaluate(request, (hand("gpu0", ("2g.12gb", 0, "m")),)).faults
    assert [(fault.problem, fault.remedy) for fault in faults] == [
        (
            "the layout 2g.12gb is not offered to this GPU",
            "Use one that is, idle slices included: 2g.12gb + 2g.12gb.",
        )
    ]
    fine = evaluate(request, (hand("gpu0", ("2g.12gb", 2, "m"), ("2g.12gb", 0, None)),))
    assert fine.faults == ()


def test_every_fault_of_tenants_is_named():
    request = replace(published(2), colocations=(Colocation(("encoder", "text check")),))

    def told(*gpus):
        return [(fault.gpu, fault.model, fault.problem) for fault in evaluate(request, gpus).faults]

    def on(profile, *tenants):
        return ManualGpu("gpu0", (ManualSlice(profile, 0, tenants),))

    assert told(hand("gpu7"), hand("gpu1"), hand("gpu1")) == [
        (None, None, "unknown GPU 'gpu7'"),
        ("gpu1", None, "is given 2 times"),
    ]
    assert told(on("1g.6gb", ManualTenant("nobody"), ManualTenant("text to speech"))) == [
        ("gpu0", None, "unknown model 'nobody'"),
        ("gpu0", "text to speech", "the model has no point on 1g.6gb"),
    ]
    assert told(
        on("2g.12gb", ManualTenant("audio recognition", share=0.5), ManualTenant("text to speech"))
    ) == [
        ("gpu0", "text to speech", "stands beside audio recognition, and whole slices are not shared"),
        ("gpu0", "audio recognition", "has a share of 0.5, and whole slices are not shared"),
    ]
    assert told(on("2g.12gb", ManualTenant("audio recognition", variant="cut"))) == [
        ("gpu0", "audio recognition", "unknown variant 'cut'")
    ]
    assert told(on("2g.12gb", ManualTenant("audio recognition", stage="half"))) == [
        ("gpu0", "audio recognition", "unknown stage 'half' of variant whole")
    ]
    assert told(on("2g.12gb", ManualTenant("audio recognition", batch_size=64, processes=2))) == [
        ("gpu0", "audio recognition", "the model has no point with batch 64, processes 2 on this slice")
    ]
    assert told(on("2g.12gb", ManualTenant("encoder"))) == [
        ("gpu0", "encoder", "stands here without text check, and they are to be on the same GPUs")
    ]


def test_shared_slices_have_their_own_faults():
    models = tuple(simple(name, {"4g.24gb": 8.0}, memory_gib=10.0) for name in ("a", "b", "c"))
    request = on_a30(*models, sharing="fractional", max_tenants_per_slice=2)

    def told(*tenants):
        evaluation = evaluate(request, (ManualGpu("gpu0", (ManualSlice("4g.24gb", 0, tenants),)),))
        return [fault.problem for fault in evaluation.faults]

    assert told(ManualTenant("a"), ManualTenant("b"), ManualTenant("c")) == [
        "has 3 tenants, at most 2 are allowed",
        "its tenants need 30 GiB, and it has 23.4 GiB",
    ]
    assert told(ManualTenant("a", share=0.7), ManualTenant("b", share=0.6)) == [
        "the shares add up to 1.3, above 1"
    ]
    assert told(ManualTenant("a", share=1.0), ManualTenant("b")) == ["has a share of 0, not above 0"]
    assert told(ManualTenant("a", share=float("nan"))) == ["has a share of nan, not above 0"]
    assert told(ManualTenant("a"), ManualTenant("b")) == []


def test_broken_demands_keep_their_figures():
    limited = replace(simple("slow", {"4g.24gb": 8.0}, latency_ms=50.0), max_latency_ms=40.0)
    asking = simple("asking", {"4g.24gb": 8.0}, min_throughput_rps=9.0)
    large = simple("large", {"4g.24gb": 8.0}, memory_gib=30.0)
    request = on_a30(limited, asking, large, count=3)
    found = evaluate(request, (hand("gpu0", ("4g.24gb", 0, "slow")), hand("gpu1", ("4g.24gb", 0, "asking"))))
    assert [str(fault) for fault in found.faults] == [
        "gpu0, 4g.24gb at 0, slow: takes 50 ms of 50 ms in all, above the limit 40 ms. Give it a larger slice,"
        " a smaller batch or a larger share, or raise the limit.",
        "asking: gets 8 requests/s, below its minimum 9. Give it more or larger slices, or lower its minimum.",
    ]
    assert [model.throughput_rps for model in found.models] == [8.0, 8.0, 0.0]
    assert found.objective is not None and found.objective.bound is None
    full = evaluate(request, (hand("gpu2", ("4g.24gb", 0, "large")),))
    assert "needs 30 GiB, and the slice has 23.4 GiB" in [fault.problem for fault in full.faults]
    assert full.models == ()


def test_the_least_share_must_do_for_the_longest_points():
    stages = tuple(
        Stage(name, (Point(A30, "2g.12gb", 1, 8.0, latency),))
        for name, latency in (("first", 20.0), ("second", 10.0))
    )
    model = PlanModel("m", (Variant("cut", stages, (0.0,)),), max_latency_ms=40.0)
    request = on_a30(model, sharing="fractional")

    def told(share):
        tenants = (ManualTenant("m", stage="first"), ManualTenant("m", stage="second", share=share))
        slices = tuple(ManualSlice("2g.12gb", 2 * place, (tenant,)) for place, tenant in enumerate(tenants))
        return [(f.slice, f.problem) for f in evaluate(request, (ManualGpu("gpu0", slices),)).faults]

    # 20 + 10 / 0.5 ms is within the limit, but a share of 0.5 must do for 30 ms in all.
    assert told(0.5) == [("2g.12gb at 2", "has a share of 0.5, and the limit 40 ms needs 0.75")]
    assert told(0.75) == []
    assert [problem.endswith("above the limit 40 ms") for _, problem in told(0.25)] == [True] * 2


def test_variants_must_be_whole_and_one():
    rng = random.Random(1)
    cut = replace(cut_model(rng), max_latency_ms=None)
    whole = Variant("whole", (Stage("whole", (Point(A30, "2g.12gb", 1, 5.0, 5.0),)),))
    model = replace(cut, variants=(*cut.variants, whole))
    request = on_a30(model)

    def faults(*tenants):
        slices = tuple(ManualSlice("2g.12gb", 2 * place, (tenant,)) for place, tenant in enumerate(tenants))
        return [fault.problem for fault in evaluate(request, (ManualGpu("gpu0", slices),)).faults]

    assert faults(ManualTenant("m")) == []
    assert faults(ManualTenant("m", stage="first")) == ["stage second of variant cut has no instance"]
    assert faults(ManualTenant("m", "cut")) == ["names no stage, and variant cut has 2"]
    assert faults(ManualTenant("m", "whole"), ManualTenant("m", "cut", "first")) == [
        "runs variant cut, and other instances of the model run whole"
    ]


def test_idle_slices_are_noted_and_a_foreign_plan_refused():
    request = published(2)
    evaluation = evaluate(request, (hand("gpu1", ("4g.24gb", 0, None)),))
    assert evaluation.notes == ("gpu1 has slices but no tenant: the plan leaves it unused.",)
    assert evaluation.outcome is not None and not any(gpu.slices for gpu in evaluation.outcome.gpus)
    with pytest.raises(InputFault, match="answers another request"):
        evaluate(request, (), plan(published(1)))


def test_a_bound_of_fewest_gpus():
    models = (simple("a", {"1g.6gb": 10.0, "4g.24gb": 40.0}, min_throughput_rps=40.0),)
    request = on_a30(*models, count=2, objective=Objective("min_gpus"))
    wide = tuple(hand(f"gpu{n}", ("1g.6gb", 0, "a"), ("1g.6gb", 1, "a")) for n in range(2))
    found = evaluate(request, wide, plan(request))
    assert found.objective is not None
    assert (found.objective.value, found.objective.bound, found.objective.gap) == (2.0, 1.0, 0.5)

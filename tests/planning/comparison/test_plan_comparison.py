"""Two plans side by side: what changes, who gains, what is drained; renumbered plans differ in nothing."""

import random
from dataclasses import replace
from itertools import permutations

import pytest

from tests.support.planning.requests import A30, on_a30, published, random_request, simple
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.planning.comparison.description import format_relative
from torchsplit_core.planning.comparison.gpu_matching import match_gpus
from torchsplit_core.planning.comparison.plan_comparison import PlanComparison, compare
from torchsplit_core.values import (
    InputFault,
    ObjectiveValue,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanStatistics,
    Tenant,
)


def tenant(model: str, share: float = 1.0, batch: int = 8) -> Tenant:
    return Tenant(model, "whole", "whole", share, batch, 1, 10.0 * share, None)


def gpu(name: str, *slices: tuple[str, int, str], kind: str = A30) -> PlannedGpu:
    """(profile, start, models by spaces) of each slice."""
    found = tuple(
        PlannedSlice(
            profile, start, tuple(tenant(model, 1 / len(models.split())) for model in models.split())
        )
        for profile, start, models in slices
    )
    return PlannedGpu(name, kind, bool(found), found)


def outcome(gpus: tuple[PlannedGpu, ...], models: tuple[PlannedModel, ...] = ()) -> PlanOutcome:
    return PlanOutcome(
        "0", "feasible", ObjectiveValue("leximin", 1.0), gpus, models, PlanStatistics(0.0, 0.0, 0.0, "none")
    )


def counts(found: PlanComparison) -> tuple[int, int]:
    """Slices that change, and slices that stay with other tenants."""
    slices = [item for one in found.gpus for item in one.slices]
    return (
        sum(item.change != "kept" for item in slices),
        sum(item.change == "kept" and item.changed for item in slices),
    )


@pytest.mark.slow
@repeated("sharing", ["exclusive", "fractional"])
def test_a_plan_and_itself_differ_in_nothing(sharing):
    compared = 0
    for seed in range(5):
        best = plan(random_request(seed, "leximin", sharing))
        if best.objective.value is None:
            continue
        compared += 1
        comparison = compare(best, best)
        assert comparison.same and comparison.drains == () and comparison.renumbered == ()
        assert comparison.lines == ("No slice and no tenant changes.",)
        assert [one.before_id for one in comparison.gpus] == [one.id for one in best.gpus]
    assert compared > 2


def test_a_permuted_fleet_needs_no_change():
    best = plan(published(6))
    rng = random.Random(3)
    for _ in range(5):
        contents = list(best.gpus)
        rng.shuffle(contents)
        dealt = tuple(
            replace(content, id=given.id) for content, given in zip(contents, best.gpus, strict=True)
        )
        comparison = compare(best, replace(best, gpus=dealt))
        assert comparison.same and comparison.drains == ()
        assert counts(comparison) == (0, 0)
        back = dict(comparison.renumbered)
        for one, other in back.items():
            before = next(item for item in best.gpus if item.id == one)
            after = next(item for item in dealt if item.id == other)
            assert before.slices == after.slices
        assert len(back) <= sum(one.slices != two.slices for one, two in zip(best.gpus, dealt, strict=True))


def test_every_change_is_told():
    before = outcome(
        (gpu("g0", ("2g.12gb", 0, "a"), ("2g.12gb", 2, "b")), gpu("g1", ("4g.24gb", 0, "c"))),
        (PlannedModel("a", "whole", 10.0, 2.0, 5.0), PlannedModel("b", "whole", 10.0, 1.0, 5.0),
         PlannedModel("c", "whole", 20.0, 1.0, 5.0), PlannedModel("d", None, 0.0, 0.0, None)),
    )  # fmt: skip
    after = outcome(
        (gpu("g0", ("2g.12gb", 0, "a"), ("1g.6gb", 2, "b"), ("1g.6gb", 3, "d")),
         gpu("g1", ("4g.24gb", 0, "a c"))),
        (PlannedModel("a", "whole", 15.0, 3.0, 5.0), PlannedModel("b", "whole", 5.0, 0.5, 9.0),
         PlannedModel("c", "whole", 20.0, 1.0, 5.0), PlannedModel("d", "whole", 10.0, 0.4, 5.0)),
    )  # fmt: skip
    comparison = compare(before, after)
    assert counts(comparison) == (3, 1)
    assert [(item.gpu_id, item.profile, item.start, item.slice_removed) for item in comparison.drains] == [
        ("g0", "2g.12gb", 2, True)
    ]
    assert [(m.name, m.direction, m.throughput_rps, m.relative, m.latency_ms) for m in comparison.models] == [
        ("a", "gains", 5.0, 0.5, 0.0), ("b", "loses", -5.0, -0.5, 4.0), ("c", "same", 0.0, 0.0, 0.0),
        ("d", "gains", 10.0, None, None),
    ]  # fmt: skip
    assert comparison.lines == (
        "2 slices stay (1 gets another model or share), 1 goes, 2 are new.",
        "b loses 5 requests/s (-50 %); goes from 1 to 0.5 × its demand; its latency goes from 5 to 9 ms.",
        "a gains 5 requests/s (+50 %); goes from 2 to 3 × its demand.",
        "d is served now, with 10 requests/s; goes from 0 to 0.4 × its demand.",
        "Drain first: b (batch 8) on g0 2g.12gb at 2.",
        "g0 (A30-24GB): 1g.6gb at 2 is new, for b (batch 8); 2g.12gb at 2 goes with b (batch 8);"
        " 1g.6gb at 3 is new, for d (batch 8).",
        "g1 (A30-24GB): 4g.24gb at 0 stays, a (batch 8) comes and c has 0.5 of it.",
    )
    assert not comparison.same


def test_tenants_that_change_on_slices_that_stay_are_drained():
    before = outcome((gpu("g0", ("4g.24gb", 0, "a")),))
    swapped = compare(before, outcome((gpu("g0", ("4g.24gb", 0, "b")),)))
    assert [(item.tenants[0].model, item.slice_removed) for item in swapped.drains] == [("a", False)]
    assert "4g.24gb at 0 stays, a (batch 8) makes room for b (batch 8)" in swapped.lines[-1]
    batch = PlannedGpu("g0", A30, True, (PlannedSlice("4g.24gb", 0, (tenant("a", batch=16),)),))
    restarted = compare(before, outcome((batch,)))
    assert [item.tenants[0].batch_size for item in restarted.drains] == [8]
    left = compare(before, outcome((gpu("g0"),)))
    assert counts(left) == (1, 0) and left.drains[0].slice_removed


def test_fleets_and_models_that_come_and_go():
    one = (PlannedModel("a", "whole", 10.0, 1.0, 5.0),)
    before = outcome((gpu("g0", ("4g.24gb", 0, "a")), gpu("g1")), one)
    after = outcome(
        (gpu("g1", ("4g.24gb", 0, "a")), gpu("x", kind="A100-80GB")), (replace(one[0], name="b"),)
    )
    comparison = compare(before, after)
    # The GPU in use stays in use under its new id; the idle one leaves.
    assert [(item.before_id, item.after_id) for item in comparison.gpus] == [
        ("g0", "g1"), ("g1", None), (None, "x"),
    ]  # fmt: skip
    assert [model.direction for model in comparison.models] == ["gone", "new"]
    assert comparison.lines == (
        "No slice and no tenant changes.", "a is gone; it had 10 requests/s.",
        "b is new, with 10 requests/s.", "g1 (A30-24GB): leaves the fleet.",
        "x (A100-80GB): joins the fleet.", "So that the fewest slices change: g0 is g1 in the new plan.",
    )  # fmt: skip
    assert not comparison.same


def some_gpu(rng: random.Random, name: str) -> PlannedGpu:
    layout = rng.choice((
        (),
        (("4g.24gb", 0),),
        (("2g.12gb", 0), ("2g.12gb", 2)),
        (("2g.12gb", 0), ("1g.6gb", 2), ("1g.6gb", 3)),
        (("1g.6gb", 0), ("1g.6gb", 1), ("2g.12gb", 2)),
    ))  # fmt: skip
    return gpu(name, *((profile, start, rng.choice(("a", "b"))) for profile, start in layout))


def test_the_matching_is_as_good_as_every_permutation():
    for seed in range(40):
        rng = random.Random(seed)
        before = [some_gpu(rng, f"g{n}") for n in range(4)]
        after = [some_gpu(rng, f"g{n}") for n in range(rng.choice((3, 4, 5)))]
        found = counts(compare(outcome(tuple(before)), outcome(tuple(after))))
        padded = [*before, *[gpu("none")] * (len(after) - len(before))]
        others = [*after, *[gpu("none")] * (len(before) - len(after))]
        best = min(
            tuple(map(
                sum,
                zip(*(_apart(one, other) for one, other in zip(padded, order, strict=True)), strict=True),
            ))
            for order in permutations(others)
        )  # fmt: skip
        assert found == best, seed


def _apart(one: PlannedGpu, other: PlannedGpu) -> tuple[int, int]:
    mine = {(item.profile, item.start): item.tenants for item in one.slices}
    theirs = {(item.profile, item.start): item.tenants for item in other.slices}
    kept = set(mine) & set(theirs)
    return len(set(mine) ^ set(theirs)), sum(mine[key] != theirs[key] for key in kept)


def test_large_fleets_are_matched_greedily(monkeypatch):
    monkeypatch.setattr("torchsplit_core.planning.comparison.gpu_matching.EXACT", 2)
    before = [gpu(f"g{n}", ("4g.24gb", 0, "a")) for n in range(4)]
    after = [gpu(f"h{n}", ("4g.24gb", 0, "b")) for n in range(3)]
    pairs = match_gpus(before, [gpu("h9"), *after])
    assert [(one and one.id, two and two.id) for one, two in pairs] == [
        ("g0", "h0"), ("g1", "h1"), ("g2", "h2"), ("g3", "h9"),
    ]  # fmt: skip
    fewer = match_gpus(before[:1], after)
    assert [(one and one.id, two and two.id) for one, two in fewer] == [
        ("g0", "h0"), (None, "h1"), (None, "h2"),
    ]  # fmt: skip


def test_many_gpus_that_change_alike_are_one_sentence():
    before = outcome(tuple(gpu(f"g{n}", ("4g.24gb", 0, "a")) for n in range(9)))
    after = outcome(tuple(gpu(f"g{n}", ("2g.12gb", 0, "a"), ("2g.12gb", 2, "a")) for n in range(9)))
    lines = compare(before, after).lines
    assert lines[0] == "0 slices stay, 9 go, 18 are new."
    assert lines[1].startswith(
        "Drain first: a (batch 8) on g0 4g.24gb at 0, g1 4g.24gb at 0, g2 4g.24gb at 0"
    )
    assert lines[2].startswith("g0, g1, g2 and 6 more (A30-24GB): 2g.12gb at 0 is new, for a (batch 8);")
    assert len(lines) == 3


def test_plans_of_different_requests():
    small, large = plan(published(1)), plan(published(2))
    found = compare(small, large)
    # One GPU leaves text to speech out; the second one serves it twice.
    assert {model.name: model.direction for model in found.models} == {
        "audio recognition": "same", "encoder": "same", "text check": "same", "text to speech": "gains",
    }  # fmt: skip
    assert (
        "text to speech is served now, with 7.8 requests/s; goes from 0 to 7.8 × its demand." in found.lines
    )
    assert counts(found) == (2, 0) and found.drains == ()
    assert [one.before_id for one in found.gpus].count(None) == 1
    asking = simple("m", {"4g.24gb": 8.0}, min_throughput_rps=9.0)
    nothing = plan(on_a30(asking))
    with pytest.raises(InputFault, match="before: has no plan to compare: its search ended infeasible"):
        compare(nothing, small)


@pytest.mark.parametrize(
    "change, text",
    [(0.1234, "+12.3 %"), (-1.0, "-100 %"), (8.99, "+899 %"), (14.8, "× 16"), (4000.0, "× 4001")],
)
def test_changes_of_tenfold_and_more_are_factors(change, text):
    assert format_relative(change) == text

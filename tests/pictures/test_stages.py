"""Stages of a cut model on the map: which of how many, a shade each, the row of stages and what crosses the cuts."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.support.app.fleets import A100, cut, drawn, gpu, of_class, plan, tenant, title
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.pictures.slices.stages import stage_flows, stage_positions
from torchsplit_core.values import FleetEntry, PlanModel, PlanOutcome, PlanRequest, Stage, Variant

NAMES = ("head", "body", "tail")
VARIANT = Variant("cut3", tuple(map(Stage, NAMES)), (8e6, 0.0), cut_bytes_per_request=(1e6, 5e5))
REQUEST = PlanRequest((FleetEntry(A100),), (PlanModel("bert", (VARIANT,)),))


def staged() -> PlanOutcome:
    """Tail on the first slice, head on one of another GPU, two copies of the body."""

    def one(stage, rps):
        return tenant("bert", rps, variant="cut3", stage=stage)

    outcome = plan(
        gpu("gpu0", A100, cut("1g.10gb", 0, one("tail", 400.0)), cut("3g.40gb", 4, one("body", 250.0))),  # type: ignore[arg-type]
        gpu("gpu1", A100, cut("4g.40gb", 0, one("head", 500.0)), cut("3g.40gb", 4, one("body", 250.0))),  # type: ignore[arg-type]
    )
    (model,) = outcome.models
    return replace(outcome, models=(replace(model, variant="cut3", throughput_rps=400.0),))


def test_every_slice_says_its_stage_also_a_narrow_one():
    cards = drawn(staged(), request=REQUEST)
    told = {
        title(box).splitlines()[0]: "".join("".join(text.itertext()) + "|" for text in box.iter("text"))
        for card in cards
        for box in of_class(card, "tenant")
    }
    assert len(told) == 3
    for stage, sign in (("head", "s1/3"), ("body", "s2/3"), ("tail", "s3/3")):
        (words,) = (text for name, text in told.items() if f"· {stage}, stage" in name)
        assert sign in words


def test_stages_of_one_model_differ_in_shade_and_whole_models_have_their_own():
    opacity = {}
    for card in drawn(staged(), request=REQUEST):
        for box in of_class(card, "tenant"):
            (ground,) = of_class(box, "ground", tag="rect")
            opacity[box.get("data-stage")] = float(ground.get("fill-opacity", "nan"))
    assert opacity["1"] < opacity["2"] < opacity["3"]


def test_the_row_of_stages_joins_copies_and_tells_what_crosses():
    (flow,) = stage_flows(staged(), REQUEST)
    assert [stage.name for stage in flow.stages] == list(NAMES)
    assert [len(stage.copies) for stage in flow.stages] == [1, 2, 1]
    # 400 requests/s, batches of 8: 8 MB a batch and 1 MB a request, then 0.5 MB a request alone.
    assert flow.bytes_per_s == (pytest.approx(400 * (8e6 / 8 + 1e6)), pytest.approx(400 * 5e5))
    text = fleet_svg(staged(), {}, request=REQUEST).replace(' xmlns="http://www.w3.org/2000/svg"', "")
    (figure,) = ElementTree.fromstring(text).iter("figure")
    words = "".join(figure.itertext()).replace("\u202f", " ")
    assert figure.get("data-flow") == "bert" and "bert runs in 3 stages" in words
    assert words.index("s1/3") < words.index("0.8 GB/s") < words.index("s2/3") < words.index("0.2 GB/s")
    assert "2 × 3g.40gb" in words and "gpu0 to gpu1" in words


def test_what_nobody_told_is_not_claimed():
    bare = replace(VARIANT, cut_bytes=(), cut_bytes_per_request=())
    request = replace(REQUEST, models=(replace(REQUEST.models[0], variants=(bare,)),))
    assert stage_flows(staged(), request)[0].bytes_per_s == (None, None)
    assert "GB/s n/a" in fleet_svg(staged(), {}, request=request)
    # Without a request the names do not say the order, unless they end like 1of3.
    assert stage_positions(staged(), None) == {} and stage_flows(staged(), None) == ()
    assert "<figure" not in fleet_svg(staged(), {})


def test_names_that_tell_their_place_are_read_without_a_request():
    slices = [cut("1g.10gb", i, tenant("m", variant="cut2", stage=f"cut2.{i + 1}of2")) for i in range(2)]
    outcome = plan(gpu("g", A100, *slices))
    outcome = replace(outcome, models=(replace(outcome.models[0], variant="cut2"),))
    assert {place.short for place in stage_positions(outcome, None).values()} == {"s1/2", "s2/2"}
    assert [len(flow.stages) for flow in stage_flows(outcome, None)] == [2]
    half = replace(outcome, gpus=(gpu("g", A100, slices[1]),))
    assert stage_flows(half, None) == ()
    wrong = replace(outcome, gpus=(gpu("g", A100, cut("1g.10gb", 0, tenant("m", stage="5of2"))),))
    assert stage_positions(wrong, None) == {}


def test_names_of_one_family_stay_apart():
    names = ("densenet121-of-the-second-generation", "densenet169-of-the-second-generation-b")
    for profile, starts in (("1g.10gb", (0, 1)), ("2g.20gb", (0, 2))):
        slices = [cut(profile, start, tenant(name)) for start, name in zip(starts, names, strict=True)]
        (card,) = drawn(plan(gpu("g", A100, *slices)))
        shown = ["".join(box.itertext()).replace(title(box), "") for box in of_class(card, "tenant")]
        assert shown[0] != shown[1] and all("…" in text for text in shown)

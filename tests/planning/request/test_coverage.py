"""Which models have figures for which GPUs of a fleet."""

from __future__ import annotations

from dataclasses import replace

from tests.support.app.values import request
from torchsplit_core.planning.request.coverage import Uncovered, uncovered, without_figures
from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point, Stage, Variant

H100 = "H100-SXM5-80GB"


def fleet(*types: str) -> PlanRequest:
    return replace(request(), gpus=tuple(FleetEntry(kind) for kind in types))


def test_a_type_that_every_model_has_figures_for_is_not_named() -> None:
    assert uncovered(fleet("A100-80GB")) == () and without_figures(fleet("A100-80GB")) == ()


def test_a_type_without_figures_is_named_with_the_models_that_lack_them() -> None:
    (found,) = uncovered(fleet("A100-80GB", H100, H100))
    assert found == Uncovered(H100, ("bert", "ocr"), 2) and found.nobody
    assert without_figures(fleet("A100-80GB", H100)) == ()
    assert without_figures(fleet(H100)) == ("bert", "ocr")


def test_figures_of_a_way_that_is_not_allowed_do_not_count() -> None:
    asked = fleet("A100-80GB")
    bert = asked.models[0]
    out = replace(bert, variants=tuple(replace(variant, allowed=False) for variant in bert.variants))
    (found,) = uncovered(replace(asked, models=(out, asked.models[1])))
    assert found.models == ("bert",) and not found.nobody


def test_cores_of_a_host_take_points_of_any_cpu() -> None:
    points = (Point("CPU", "1c", 1, 10.0, 100.0),)
    model = PlanModel("bert", (Variant("whole", (Stage("whole", points),)),))
    request = PlanRequest((FleetEntry("CPU-4c"),), (model,))
    assert uncovered(request) == () and without_figures(request) == ()

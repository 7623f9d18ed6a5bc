"""Which models have figures for which GPUs of a fleet."""

from dataclasses import replace

import pytest

from tests.support.app.values import request
from tests.support.planning.requests import whole_model
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.coverage import (
    UncoveredGpuType,
    check_figures,
    models_without_figures,
    uncovered_gpu_types,
)
from torchsplit_core.values import FleetEntry, InputFault, PlanRequest, Point, Stage, Variant

H100 = "H100-SXM5-80GB"


def fleet(*types: str) -> PlanRequest:
    return replace(request(), gpus=tuple(FleetEntry(kind) for kind in types))


def test_a_type_without_figures_is_named_with_the_models_that_lack_them():
    (found,) = uncovered_gpu_types(fleet("A100-80GB", H100, H100))
    assert found == UncoveredGpuType(H100, ("bert", "ocr"), 2) and found.unusable
    assert models_without_figures(fleet("A100-80GB", H100)) == ()
    assert models_without_figures(fleet(H100)) == ("bert", "ocr")
    assert uncovered_gpu_types(fleet("A100-80GB")) == () and models_without_figures(fleet("A100-80GB")) == ()


def test_figures_of_a_way_that_is_not_allowed_do_not_count():
    asked = fleet("A100-80GB")
    bert = asked.models[0]
    out = replace(bert, variants=tuple(replace(variant, allowed=False) for variant in bert.variants))
    (found,) = uncovered_gpu_types(replace(asked, models=(out, asked.models[1])))
    assert found.models == ("bert",) and not found.unusable


def test_cores_of_a_host_take_points_of_any_cpu():
    points = (Point("CPU", "1c", 1, 10.0, 100.0),)
    model = whole_model("bert", points)
    request = PlanRequest((FleetEntry("CPU-4c"),), (model,))
    assert uncovered_gpu_types(request) == () and models_without_figures(request) == ()


def test_a_fleet_that_nobody_has_figures_for_is_refused_with_the_command_that_mends_it():
    check_figures(fleet("A100-80GB", H100))
    with pytest.raises(InputFault) as caught:
        check_figures(fleet(H100, "L4-24GB"))
    assert caught.value.problem == f"no model has figures for {H100}, L4-24GB, only for A100-80GB"
    assert f"torchsplit estimate REQUEST.json --to {H100},L4-24GB -o REQUEST2.json" in caught.value.remedy
    with pytest.raises(InputFault, match="profile SOURCE --device cpu:1c"):
        check_figures(fleet("CPU-4c"))


def test_a_gpu_left_whole_has_other_figures_than_its_slices():
    whole = replace(fleet(), gpus=(FleetEntry("A100-80GB", mig=False),))
    (found,) = uncovered_gpu_types(whole)
    assert found.name == "A100-80GB:whole" and found.unusable
    with pytest.raises(InputFault, match="--to A100-80GB:whole"):
        check_figures(whole)


def test_warnings_name_idle_types_first_and_blame_limits_only_where_they_are_to_blame():
    asked = fleet("A100-80GB", H100)
    bert, ocr = asked.models
    elsewhere = replace(
        ocr,
        variants=(Variant("whole", (Stage("whole", (Point("A30-24GB", "1g.6gb", 1, 9.0, 9.0),)),)),),
        min_throughput_rps=None,
        max_latency_ms=None,
    )
    slow = replace(bert, max_latency_ms=1e-3, min_throughput_rps=None)
    told = build_problem(replace(asked, models=(slow, elsewhere), colocations=())).warnings
    assert told[0].startswith(f"No model has figures for {H100}, so these GPUs stay idle. Estimate them")
    assert told[1].startswith(f"ocr: no figures for A100-80GB, {H100}, so its throughput is 0.")
    assert [text for text in told if "within its limits" in text] == [
        "bert: no point of it can run on this fleet within its limits, so its throughput is 0."
    ]


def test_points_of_slices_that_no_layout_offers_are_told_as_such():
    asked = fleet("A100-80GB")
    narrow = replace(asked, gpus=(FleetEntry("A100-80GB", layouts=(("1g.20gb",) * 4,)),), colocations=())
    told = build_problem(narrow).warnings
    assert told and all("is of a slice that the fleet's layouts offer" in text for text in told)

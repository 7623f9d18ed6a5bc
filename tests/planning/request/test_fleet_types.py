"""What a fleet is made of: whole GPUs, GPUs without MIG, cores; as text, in requests and in files."""

import json

import pytest

from tests.support.paths import ROOT
from tests.support.planning.requests import whole_model
from torchsplit_core.files import read_file, read_text, write_text
from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.request.allowed_layouts import MAX_DIVISIONS, core_divisions
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.fleet_text import parse_fleet
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import (
    WHOLE_GPU,
    FleetEntry,
    InputFault,
    PlanModel,
    PlanRequest,
    Point,
    Profile,
    ProfileRow,
    Stage,
    Variant,
)

A30, L4 = "A30-24GB", "L4-24GB"


def asked(*points: Point, fleet: tuple[FleetEntry, ...]) -> PlanRequest:
    return PlanRequest(fleet, (whole_model("bert", points),))


def test_a_fleet_is_told_as_text():
    entries = parse_fleet(f"2x{A30},1x{A30}:whole,{L4},2xCPU-16c")
    assert [(entry.type, entry.count, entry.mig) for entry in entries] == [
        (A30, 2, True), (A30, 1, False), (L4, 1, True), ("CPU-16c", 2, True),
    ]  # fmt: skip
    gpus = list_gpus(entries)
    assert [gpu.whole for gpu in gpus] == [False, False, True, True, False, False]
    assert [gpu.id for gpu in gpus] == ["gpu0", "gpu1", "gpu2", "gpu3", "cpu0", "cpu1"]


@pytest.mark.parametrize("text", [
    *("1xCPU-0c", "1xCPU-513c", "1xCPU-4", "1xCPU-8c:whole", "1xL4", "1xA30-24GB:all"),
    *("1xCPU-4c.0gib", "1xCPU-4c.8gb", "1xCPU-4c.gib"),
])  # fmt: skip
def test_what_no_fleet_has_is_one_message(text):
    with pytest.raises(InputFault):
        parse_fleet(text)


def test_k_of_n_cores_have_k_of_n_parts_of_a_hosts_memory():
    (entry,) = parse_fleet("1xCPU-16c.62.5gib")
    host = gpu_type(entry.type)
    assert host.profile("16c").memory_gib == 62.5 and host.profile("4c").memory_gib == 62.5 / 4
    assert all(profile.memory_gib is None for profile in gpu_type("CPU-16c").profiles)


def test_a_point_that_needs_more_than_its_cores_have_stays_out():
    small, large = (Point("CPU", f"{k}c", 1, 10.0 * k, 5.0, memory_gib=9.0) for k in (1, 2))
    outcome = plan(asked(small, large, fleet=(FleetEntry("CPU-4c.32gib"),)))
    assert [item.profile for gpu in outcome.gpus for item in gpu.slices] == ["2c", "2c"]
    assert any("1 point needs more memory" in words for words in outcome.warnings)
    untold = plan(asked(small, large, fleet=(FleetEntry("CPU-4c"),)))
    assert [item.profile for gpu in untold.gpus for item in gpu.slices] == ["1c"] * 4
    assert any("its memory is not known" in words for words in untold.warnings)
    assert not any("its memory is not known" in words for words in outcome.warnings)


def test_a_size_of_cores_that_alone_holds_all_tenants_is_kept():
    """Two slices of 1c serve more than one of 2c, but three tenants fit on no two of 1c."""
    points = tuple(Point("CPU", f"{k}c", 1, rate, 5.0, memory_gib=2.5) for k, rate in ((1, 10.0), (2, 15.0)))
    stage = (Variant("whole", (Stage("whole", points),)),)
    models = tuple(PlanModel(name, stage, demand_rps=10.0) for name in "abc")
    outcome = plan(PlanRequest((FleetEntry("CPU-2c.8gib"),), models, sharing="fractional"))
    assert [item.profile for gpu in outcome.gpus for item in gpu.slices] == ["2c"]
    assert [model.throughput_rps for model in outcome.models] == pytest.approx([5.0] * 3)
    untold = plan(PlanRequest((FleetEntry("CPU-2c"),), models, sharing="fractional"))
    assert [item.profile for gpu in untold.gpus for item in gpu.slices] == ["1c", "1c"]


@pytest.mark.parametrize("other", ["CPU-8c", "CPU-8c.32gib"])
def test_hosts_of_one_fleet_have_the_same_memory_a_core(other):
    point = Point("CPU", "1c", 1, 10.0, 5.0, memory_gib=1.0)
    validate(asked(point, fleet=(FleetEntry("CPU-4c.32gib"), FleetEntry("CPU-8c.64gib"))))
    with pytest.raises(InputFault, match="have different memory per core"):
        validate(asked(point, fleet=(FleetEntry("CPU-4c.32gib"), FleetEntry(other))))


def test_rows_become_points_of_what_the_fleet_has():
    def row(kind, profile):
        return ProfileRow("whole", kind, profile, 1, 1, 10.0, 5.0, None, None, None, "measured")

    rows = (
        row(A30, "1g.6gb"), row(A30, None), row(L4, None), row("CPU", None), row("CPU", "4c"),
        row("CPU", "16c"),
    )  # fmt: skip
    profile = Profile("sample:bert", "", {}, rows)

    def points(text):
        (model,) = build_request([profile], parse_fleet(text)).models
        assert model.source == "sample:bert"
        return {(p.gpu_type, p.profile) for p in model.variants[0].stages[0].points}

    assert points(f"1x{A30}") == {(A30, "1g.6gb")}
    assert points(f"1x{A30}:whole,1x{L4}") == {(A30, WHOLE_GPU), (L4, WHOLE_GPU)}
    assert points("1xCPU-8c") == {("CPU", "4c")}
    assert points(f"1x{A30},1x{A30}:whole,1xCPU-32c") == {
        (A30, "1g.6gb"), (A30, WHOLE_GPU), ("CPU", "4c"), ("CPU", "16c"),
    }  # fmt: skip


def test_files_say_null_for_a_whole_gpu():
    request = asked(Point(A30, WHOLE_GPU, 1, 10.0, 5.0), fleet=(FleetEntry(A30, mig=False), FleetEntry(A30)))
    data = json.loads(write_text(request))
    assert data["models"][0]["variants"][0]["stages"][0]["points"][0]["profile"] is None
    assert data["gpus"][0]["mig"] is False and "mig" not in data["gpus"][1]
    assert read_text(json.dumps(data))[1] == request
    outcome = plan(request)
    told = json.loads(write_text(outcome))
    assert [gpu["slices"] and gpu["slices"][0]["profile"] for gpu in told["gpus"]] == [None, []]
    assert read_text(json.dumps(told))[1] == outcome
    data["models"][0]["variants"][0]["stages"][0]["points"][0]["profile"] = ""
    with pytest.raises(InputFault):
        read_text(json.dumps(data))


@pytest.mark.parametrize(("point", "fleet"), [
    (Point(L4, "1g.6gb", 1, 1.0, 1.0), FleetEntry(L4)),
    (Point("CPU", WHOLE_GPU, 1, 1.0, 1.0), FleetEntry("CPU-8c")),
    (Point("CPU", "4g", 1, 1.0, 1.0), FleetEntry("CPU-8c")),
    (Point("CPU-8c", "4c", 1, 1.0, 1.0), FleetEntry("CPU-8c")),
    (Point(A30, WHOLE_GPU, 1, 1.0, 1.0), FleetEntry(A30, mig=False, layouts=(("4g.24gb",),))),
    (Point(L4, WHOLE_GPU, 1, 1.0, 1.0), FleetEntry(L4, layouts=(("4g.24gb",),))),
    (Point(A30, "4g.24gb", 1, 1.0, 1.0), FleetEntry(A30, layouts=((WHOLE_GPU,),))),
])  # fmt: skip
def test_points_and_layouts_that_no_slice_has_are_refused(point, fleet):
    with pytest.raises(InputFault):
        validate(asked(point, fleet=(fleet,)))


def test_mig_and_whole_gpus_take_only_their_own_points():
    both = (Point(A30, "1g.6gb", 1, 10.0, 5.0), Point(A30, WHOLE_GPU, 1, 70.0, 5.0))
    for mig, rate in ((True, 40.0), (False, 70.0)):
        outcome = plan(asked(*both, fleet=(FleetEntry(A30, mig=mig),)))
        assert outcome.models[0].throughput_rps == rate


def test_the_memory_of_a_whole_gpu_is_a_limit():
    large = asked(Point(L4, WHOLE_GPU, 1, 10.0, 5.0, memory_gib=24.5), fleet=(FleetEntry(L4),))
    outcome = plan(large)
    assert outcome.models[0].throughput_rps == 0.0
    assert any("more memory than the slice has" in text for text in outcome.warnings)


def test_cores_are_divided_into_what_pays():
    assert set(core_divisions("CPU-6c", (2, 4))) == {("2c", "4c"), ("2c", "2c", "2c")}
    assert core_divisions("CPU-2c", (4,)) == ()
    with pytest.raises(InputFault, match=f"{MAX_DIVISIONS:,}"):
        core_divisions("CPU-512c", (1, 2, 3, 4))
    # Halves never serve less here, so 128 cores in eight sizes are no question.
    points = [Point("CPU", f"{2**k}c", 1, 10.0 * 2 ** (0.9 * k), 5.0) for k in range(8)]
    outcome = plan(asked(*points, fleet=(FleetEntry("CPU-128c"),)))
    assert outcome.status == "optimal" and outcome.models[0].throughput_rps == pytest.approx(1280.0)
    assert [item.start for item in outcome.gpus[0].slices] == list(range(128))


def test_too_many_divisions_are_refused_before_they_are_counted():
    # Each size serves far more than two of half of it: all of them pay.
    points = [Point("CPU", f"{size}c", 1, float(size**2), 5.0) for size in (1, 2, 3, 5, 7, 11, 13)]
    with pytest.raises(InputFault, match="CPU-128c can be divided in more than"):
        plan(asked(*points, fleet=(FleetEntry("CPU-128c"),)))


def test_the_example_of_a_mixed_fleet_is_planned_and_survives():
    request = read_file(
        ROOT / "examples" / "fleets" / "mixed_request.json", expected="torchsplit.plan_request"
    )[1]
    stored = read_file(ROOT / "examples" / "fleets" / "mixed_plan.json", expected="torchsplit.plan")[1]
    assert request.objective.survives == 1 and stored.status == "optimal"
    assert not list(violations(request, stored))
    assert {item.profile for gpu in stored.gpus for item in gpu.slices} >= {WHOLE_GPU, "1g.10gb", "4c"}
    assert plan(request).gpus == stored.gpus

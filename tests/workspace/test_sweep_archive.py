"""Sweeps go where their scenarios go: copies, other workspaces, archives and back; hostile archives are refused."""

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from torchsplit_core.jobs import sweep
from torchsplit_core.jobs.job_kinds import SweepParameters
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sweep.points import sweep_requests
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    PlanModel,
    PlanRequest,
    Point,
    Stage,
    Variant,
    ignore_progress,
)
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.store import Store, Workspace
from torchsplit_core.workspace.sweeps import StoredSweep, SweepStore, write_sweep

A30 = "A30-24GB"
GPUS = SweepParameters("r", "gpus", A30, (1, 2, 3))


def request(count: int = 1) -> PlanRequest:
    def model(name, rate):
        points = (Point(A30, "1g.6gb", 1, rate, 10.0), Point(A30, "4g.24gb", 1, 3 * rate, 10.0))
        return PlanModel(name, (Variant("whole", (Stage("whole", points),)),), demand_rps=20.0)

    return PlanRequest((FleetEntry(A30, count=count),), (model("a", 10.0), model("b", 4.0)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> tuple[bytes, StoredSweep]:
    """An archive with two scenarios, one of them swept, and its sweep."""
    made = Store(tmp_path_factory.mktemp("home")).create("w")
    made.put("plan_request", "other", request(2))
    made.put("plan_request", "r", request())
    sweep.sweep_job(made, GPUS, ignore_progress)
    stored = SweepStore(made, "r").load()
    assert stored is not None and sorted(stored.plans) == [1.0, 2.0, 3.0]
    return export_workspace(made), stored


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def swept(store, exported) -> Workspace:
    return import_workspace(store, exported[0])


def sweep_of(workspace: Workspace, scenario: str = "r") -> StoredSweep | None:
    return SweepStore(workspace, scenario).load()


def test_an_archive_brings_back_the_sweep_and_it_goes_on_where_it_stood(swept, exported):
    assert sweep_of(swept) == exported[1] and sweep_of(swept, "other") is None
    again = sweep.sweep_job(swept, replace(GPUS, values=(1, 2, 3, 4)), ignore_progress)
    assert again == {"sweep": "r", "points": 4, "taken_over": 3}


def test_a_sweep_of_an_earlier_state_comes_back_as_such(store, swept):
    swept.put("plan_request", "r", request(5))
    copy = import_workspace(store, export_workspace(swept))
    sweep = sweep_of(copy)
    assert sweep == sweep_of(swept) and sweep is not None and sweep.request == request() != request(5)
    assert copy.get("plan_request", "r") == request(5)


def test_a_sweep_that_is_not_done_comes_back_as_far_as_it_is(store, swept):
    whole = sweep_of(swept)
    assert whole is not None
    with swept.store.connect(write=True) as database:
        write_sweep(database, swept.id, "other", replace(whole, plans={2.0: whole.plans[2.0]}))
    copy = import_workspace(store, export_workspace(swept))
    sweep = sweep_of(copy, "other")
    assert sweep is not None and list(sweep.plans) == [2.0] and sweep.what.values == (1.0, 2.0, 3.0)


def test_a_sweep_whose_scenario_is_gone_stays_behind(store, swept):
    swept.remove("plan_request", "r")
    data = export_workspace(swept)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert json.loads(archive.read("manifest.json"))["sweeps"] == []
    assert sweep_of(import_workspace(store, data)) is None


def test_a_copied_workspace_has_sweeps_of_its_own(store, swept):
    copy = store.copy(swept.id, "copy")
    before = sweep_of(swept)
    assert before is not None and sweep_of(copy) == before
    SweepStore(copy, "r").delete()
    assert sweep_of(swept) == before
    SweepStore(swept, "r").delete()
    again = store.copy(swept.id, "another")
    assert sweep_of(again) is None


def test_a_sweep_is_copied_to_another_scenario_in_place_of_its_own(swept):
    store, other = SweepStore(swept, "r"), SweepStore(swept, "other")
    stored = store.load()
    store.copy_to("other")
    assert other.load() == stored == store.load()
    store.delete()
    assert other.load() == stored
    store.copy_to("other")
    assert other.load() is None


def edited(data: bytes, edit: Callable[[dict[str, Any], dict[str, Any]], None]) -> bytes:
    """The archive with its manifest and its files' contents (as JSON) edited in place."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: json.loads(archive.read(name)) for name in archive.namelist()}
    manifest = files.pop("manifest.json")
    edit(manifest, files)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("manifest.json", json.dumps(manifest))
        for name, content in files.items():
            made.writestr(name, json.dumps(content))
    return buffer.getvalue()


def test_an_archive_without_sweeps_is_as_good_as_ever(store, exported):
    older = edited(exported[0], lambda manifest, files: manifest.pop("sweeps"))
    copy = import_workspace(store, older)
    assert copy.get("plan_request", "r") == request() and sweep_of(copy) is None


def of_sweep(**changes: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda manifest, files: manifest["sweeps"][0].update(changes)


def of_plan(**changes: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda manifest, files: manifest["sweeps"][0]["plans"][0].update(changes)


def stolen(manifest: dict[str, Any], files: dict[str, Any]) -> None:
    """More than a slice gives, and honestly summed up."""
    for gpu in files["sweeps/0000/00"]["gpus"]:
        for item in gpu["slices"]:
            item["start"] = 0


def another_request(manifest: dict[str, Any], files: dict[str, Any]) -> None:
    files["sweeps/0000/request"]["models"][0]["demand_rps"] = 21.0


def same_file(manifest: dict[str, Any], files: dict[str, Any]) -> None:
    plans = manifest["sweeps"][0]["plans"]
    plans[1]["file"] = plans[0]["file"]


def twice(manifest: dict[str, Any], files: dict[str, Any]) -> None:
    plans = manifest["sweeps"][0]["plans"]
    plans[1]["value"] = plans[0]["value"]


def two_of_one(manifest: dict[str, Any], files: dict[str, Any]) -> None:
    manifest["sweeps"] *= 2


def bad_name(manifest: dict[str, Any], files: dict[str, Any]) -> None:
    for entry in (*manifest["results"], *manifest["sweeps"]):
        name = "name" if "name" in entry else "scenario"
        if entry[name] == "r":
            entry[name] = "r\nr"


def half_a_pair(manifest: dict[str, Any], files: dict[str, Any]) -> None:
    manifest["results"][0]["name"] = "\ud800"


@pytest.mark.parametrize(("edit", "words"), [
    (lambda manifest, files: manifest.update(sweeps={}), "sweeps: are {}, not a list"),
    (lambda manifest, files: manifest.update(sweeps=[1]), "is not an object"),
    (of_sweep(scenario="gone"), "is no scenario of the archive"),
    (of_sweep(scenario=["r"]), "is no scenario of the archive"),
    (of_sweep(scenario="r "), "is no scenario of the archive"),
    (two_of_one, "has two"),
    (of_sweep(parameter="colour"), "unknown parameter 'colour'"),
    (of_sweep(parameter=7), "not a text"),
    (of_sweep(target="A30"), "A30"),
    (of_sweep(target=None), "not a text"),
    (of_sweep(values=[3, 2, 1]), "2 comes after 3"),
    (of_sweep(values=list(range(100))), "has 100 values, not 1 to 64"),
    (of_sweep(values="123"), "lists"),
    (of_sweep(values=[1, float("nan")]), "NaN"),
    (of_sweep(values=[1, 10**400]), "finite"),
    (of_sweep(values=[1, True]), "finite"),
    (of_sweep(values=[1, 2, 10**9]), "at most 4096"),
    (of_sweep(values=[1, 3]), "of its values"),
    (of_sweep(request="../../secret"), "lacks the file"),
    (of_sweep(request="results/0000"), "twice"),
    (of_sweep(plans={}), "lists"),
    (of_sweep(plans=[[]]), "is not an object"),
    (of_plan(file="missing"), "lacks the file"),
    (of_plan(limit_s=-1), "time limit -1 s"),
    (of_plan(limit_s="long"), "finite"),
    (of_plan(value=None), "finite"),
    (same_file, "twice"),
    (twice, "two plans at 1"),
    (stolen, "none of its request"),
    (another_request, "none of its request"),
    (bad_name, "cannot be printed"),
    (half_a_pair, "half a surrogate pair"),
])  # fmt: skip
def test_a_hostile_sweep_is_refused_and_leaves_nothing(store, exported, edit, words):
    with pytest.raises(InputFault, match=words):
        import_workspace(store, edited(exported[0], edit))
    assert store.workspaces() == ()


def test_the_untouched_archive_is_taken_after_the_same_handling(store, exported):
    """So that every refusal above is for its edit."""
    copy = import_workspace(store, edited(exported[0], lambda manifest, files: None))
    assert sweep_of(copy) == exported[1]


def test_a_manifest_with_an_endless_number_is_refused(store):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("manifest.json", '{"version": ' + "1" * 5000 + "}")
    with pytest.raises(InputFault, match="thousands of digits"):
        import_workspace(store, buffer.getvalue())


def test_plans_put_back_are_found_under_the_hash_of_their_requests(swept):
    sweep = sweep_of(swept)
    assert sweep is not None
    for value, one in sweep_requests(sweep.request, sweep.what):
        assert sweep.plans[value].outcome.request_sha256 == request_hash(one)

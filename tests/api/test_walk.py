"""The walk as functions of Python: what they give, what they refuse, and the notebook that shows them."""

from dataclasses import replace

import nbformat
import pytest
from nbclient import NotebookClient

import torchsplit_core
from tests.support.paths import ROOT
from torchsplit_core.files import read_file
from torchsplit_core.values import InputFault, Profile, ProfileRow, SolverOptions

REQUEST = ROOT / "examples" / "plan_request.json"
PROFILE = ROOT / "examples" / "profile.json"


def test_a_request_of_a_profile_s_file_is_planned_simulated_and_written(tmp_path):
    _, profile = read_file(PROFILE, expected="torchsplit.profile")
    kind = next(row.gpu_type for row in profile.rows if row.profile)
    asked = torchsplit_core.request(PROFILE, gpus=f"1x{kind}", demand={"diamond": 0.5})
    assert asked.models[0].demand_rps == 0.5
    assert asked == torchsplit_core.request(profile, gpus=f"1x{kind}", demand={"diamond": 0.5})
    planned = torchsplit_core.plan(asked)
    assert planned.outcome.status == "optimal"
    load = torchsplit_core.simulate(planned, load=2.0, requests=2000)
    assert load.outcome.models[0].offered_rps == pytest.approx(1.0)
    assert all(
        path.exists() for path in torchsplit_core.deploy(planned, tmp_path / "files", formats=["mig-parted"])
    )
    planned.save(tmp_path / "plan.json")
    assert read_file(tmp_path / "plan.json", expected="torchsplit.plan")[1] == planned.outcome


def test_a_plan_draws_its_slices_its_verdict_and_its_models():
    planned = torchsplit_core.plan(REQUEST)
    drawn = planned._repr_html_()
    assert "<svg" in drawn and planned.verdict.sentence in drawn
    assert all(f"{model.name}</td>" in drawn for model in planned.request.models)
    assert planned.verdict.sentence in repr(planned)
    assert "<script" not in drawn and "<style" not in drawn


def test_names_of_others_are_text():
    planned = torchsplit_core.plan(REQUEST)
    renamed = {planned.request.models[0].name: "<img src=x>"}
    asked = replace(
        planned.request,
        models=tuple(replace(one, name=renamed.get(one.name, one.name)) for one in planned.request.models),
    )
    again = torchsplit_core.plan(asked)
    load = torchsplit_core.simulate(again, requests=1000)
    assert "<img" not in again._repr_html_() + load._repr_html_()


def test_a_profile_draws_the_best_of_each_slice():
    rows = tuple(
        ProfileRow("whole", "A100-80GB", "1g.10gb", size, 1, 10.0 * size, 100.0, None, None, 1.0, "measured")
        for size in (1, 8)
    )
    drawn = torchsplit_core.api.ProfiledModel(None, Profile("net.py:<b>", "0", {}, rows, ()))  # type: ignore[arg-type]
    assert "<td" in drawn._repr_html_() and "80" in drawn._repr_html_() and "<b>:" not in drawn._repr_html_()
    assert repr(drawn) == "<net.py:<b>: 2 measured>"


def test_the_limit_of_time_given_is_the_request_s():
    assert torchsplit_core.plan(REQUEST, time_limit_s=7.0).request.solver.time_limit_s == 7.0
    assert SolverOptions().time_limit_s != 7.0


@pytest.mark.parametrize(("call", "words"), [
    (lambda: torchsplit_core.request(gpus="1xA100-80GB"), "has no profile"),
    (lambda: torchsplit_core.request(PROFILE, gpus="1xA100"), "Did you mean"),
    (lambda: torchsplit_core.plan(PROFILE), "torchsplit.profile"),
    (lambda: torchsplit_core.plan({"format": "torchsplit.plan_request"}), "is dict, neither PlanRequest"),
    (lambda: torchsplit_core.plan("nowhere.json"), "nowhere.json"),
])  # fmt: skip
def test_what_is_wrong_is_one_message(call, words):
    with pytest.raises(InputFault, match=words):
        call()  # type: ignore[operator]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.repeated
def test_the_notebook_runs_and_draws(tmp_path):
    book = nbformat.read(ROOT / "examples" / "walk.ipynb", as_version=4)
    NotebookClient(book, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    drawn = [
        output["data"]["text/html"]
        for cell in book.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    profile, planned, load = drawn
    assert "measured" in profile and "estimated" in profile
    assert "<svg" in planned and "bert" in planned
    assert "p95" in load
    assert any((tmp_path / "deployment").iterdir())

"""Every page on an empty workspace and on a full one: what it says, what its buttons do."""

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote_plus

import pytest
from streamlit.testing.v1 import AppTest

from app.session import scenario, workspace_list
from app.shell import address as address_of_pages
from app.shell import navigation
from tests.support.app.page import open_page, press, put_plan, said
from tests.support.app.values import SOURCE, cuts, graph, plan, profile, request
from tests.support.paths import ROOT
from tests.support.planning.edits import with_each_model, with_model
from torchsplit_core import jobs
from torchsplit_core.deployment import FORMATS, LAYOUT_FORMATS, WORKLOAD_FORMATS, deploy
from torchsplit_core.files import read_file
from torchsplit_core.hardware import catalogue, without_mig
from torchsplit_core.jobs.job_kinds import (
    EXPLAIN,
    PLAN,
    QUICK_START,
    RUN_HERE,
    QuickStartParameters,
    RequestParameters,
    RunHereParameters,
)
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.training.stored_runs import run_paths
from torchsplit_core.values import (
    CLIENT_TEMPLATE,
    Conflict,
    Demand,
    FleetEntry,
    NodeProfile,
    Relaxation,
    SolverOptions,
)
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.slow

Open = Callable[..., AppTest]
EMPTY = {
    "overview": "Overview", "models": "Models", "model": "Model", "plan": "Plan", "placements": "LLM placements",
    "placement": "Placement", "trainings": "Training", "training": "Training",
    "runs": "Training runs", "host": "Host", "evaluation": "Evaluation",
    "activity": "Activity", "workspace": "Workspace", "help": "Help",
    # The addresses of earlier versions.
    "graph": "Model", "profile": "Model", "partition": "Model", "deploy": "Plan", "place": "Placement",
}  # fmt: skip
"""The heading of every page in an empty workspace."""
MODEL = ("model", "graph", "profile", "partition")
"""Pages whose heading is the model."""


def address(page: AppTest) -> str:
    """The workspace of a page's address."""
    found = page.query_params["workspace"]
    return found if isinstance(found, str) else found[0]


@pytest.mark.parametrize("name", EMPTY)
def test_every_page_opens_on_an_empty_and_on_a_full_workspace(name, page, store):
    empty = page(name, store.create("empty"))
    assert [element.value for element in empty.title] == [EMPTY[name]]
    assert not empty.error


@pytest.mark.parametrize("name", EMPTY)
def test_every_page_shows_a_full_workspace_without_a_fault(name, page, filled):
    full = page(name, filled)
    wanted = SOURCE if name in MODEL else EMPTY[name]
    assert [element.value.replace("\\", "") for element in full.title] == [wanted]
    assert not full.error
    assert address(full) == filled.id


@pytest.mark.parametrize(("name", "words"), [
    ("models", "which model gets which slice"),
    ("graph", "Here you will see a model's dataflow"),
    ("profile", "Here you will see throughput and service time"),
    ("partition", "Here you will see where to cut a model"),
    ("plan", "Here you will see which slice"),
    ("overview", "which model gets which slice"),
    ("deploy", "Here you will see which slice"),
    ("place", "Here you will see which layers"),
    ("workspace", "Nothing yet"),
])  # fmt: skip
def test_an_empty_page_says_what_it_will_show(name, words, page, workspace):
    assert words in said(page(name, workspace))


def test_a_visit_without_an_address_stores_nothing_and_offers_what_there_is(page, filled, store):
    before = store.workspaces()
    for name in ("overview", "models", "plan", "workspace"):
        opened = page(name)
        assert "workspace" not in opened.query_params
        opened.run()
    assert store.workspaces() == before
    assert "1 graph, 1 profile, 1 scenario" in said(page("overview"))
    assert "review" in [link.proto.label for link in page("overview").get("page_link")]


def test_help_has_every_gpu_type_with_its_sources(page, store):
    (table,) = page("help", store.create("empty")).dataframe
    rows = table.value.set_index("GPU type")
    assert set(rows.index) == {*catalogue(), *without_mig()}
    assert rows.at["B300-270GB", "BF16"] == 2250 and "7× 1g.34gb" in rows.at["B300-270GB", "MIG profiles"]
    assert "memory of all MIG profiles" in rows.at["B300-270GB", "not published"]
    assert rows["sources"].str.contains("Peaks: ").all() and rows["SMs"].notna().all()
    assert rows["SMs with MIG"].isna()["RTX-PRO-5000-Blackwell-48GB"]
    assert rows.at["A100-80GB", "SMs with MIG"] == 98


@pytest.mark.parametrize(("kind", "word"), [("placement", "placement"), ("strategy", "training")])
def test_the_overview_has_the_newest_placements_and_trainings(kind, word, page, filled):
    asked = read_file(ROOT / "examples" / f"{kind}_request.json")[1]
    for number in range(5):
        filled.put(f"{kind}_request", f"number {number}", asked)
    links = [link.proto.label for link in page("overview", filled).get("page_link")]
    assert {f"number {number}" for number in range(1, 5)} <= set(links) and "number 0" not in links
    assert f"All 5 {word}s" in links


def test_a_workspace_is_kept_from_its_first_content_on_and_not_called_as_its_scenario(page, store, started):
    opened = press(page("models"), "Plan the measured mix")
    (kept,) = store.workspaces()
    assert kept.name == "Workspace" and [one.name for one in workspace_list.list_workspaces(store)] == [
        "Workspace: Measured A100 mix"
    ]
    assert address(opened) == kept.id
    assert len(store.open(kept.id).artifacts("profile")) == 11 and len(started) == 1


def test_the_users_own_model_is_the_first_door_and_has_a_client_to_copy(page):
    opened = page("overview")
    headers = [header.value for header in opened.header]
    assert headers[:5] == [
        "A model of your own", "Measured A100 mix", "Sample models, measured here", "This machine, for real",
        "Train, then serve",
    ]  # fmt: skip
    assert [code.value.strip() for code in opened.code] == [CLIENT_TEMPLATE.strip()]


def test_this_machine_for_real_opens_where_it_ends(page, workspace, started, monkeypatch):
    went = []
    monkeypatch.setattr(navigation, "go", lambda title, thing=None: went.append(title))
    press(page("models", workspace), "Measure, plan, serve and load")
    assert [job for job, _ in started] == [RUN_HERE] and went == ["Run it"]
    assert navigation.PAGE_LINKS["Run it"].tab == address_of_pages.slug("Run it")


def test_the_door_that_trains_opens_the_run(page, workspace, started, monkeypatch):
    went: list[tuple[str, str | None]] = []
    monkeypatch.setattr(navigation, "go", lambda title, thing=None: went.append((title, thing)))
    press(page("models", workspace), "Train, plan, serve and load")
    assert started == [(RUN_HERE, RunHereParameters("Trained and served here", run="digits-1"))]
    assert went == [("Run", "digits-1")] and list(run_paths(workspace)) == ["digits-1"]


def test_the_first_door_stores_the_measured_mix_and_plans_it(page, workspace, started):
    opened = page("models", workspace)
    press(opened, "Plan the measured mix")
    assert started == [(PLAN, RequestParameters("Measured A100 mix"))]
    request = scenario.request(workspace)
    assert request is not None and len(request.models) == 11
    stored = {artifact.name for artifact in workspace.artifacts("profile")}
    assert {model.source for model in request.models} == stored


def test_the_second_door_asks_for_the_chosen_gpus(page, workspace, started, monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_DOOR_SAMPLES", "sample:clip")
    opened = page("models", workspace)
    opened.number_input(key="door-2-count").set_value(3)
    press(opened, "Trace, measure and plan the samples")
    asked = QuickStartParameters((("A100-80GB", 3),), "Sample models, measured here", ("sample:clip",))
    assert started == [(QUICK_START, asked)]


def test_the_plan_page_answers_its_question_at_the_top_and_names_what_is_not_kept(page, filled, rows):
    opened = page("plan", filled)
    numbers = {metric.label: metric.value for metric in opened.metric}
    assert numbers["Worst-served model gets"].replace("\u202f", " ") == "1.5 × its demand"
    assert numbers["GPUs used"] == "1 of 1"
    text = said(opened)
    assert "proven optimal" in text and "1 of 2 profiles estimated" in text
    assert "not kept" not in said(opened)
    rows.edit(opened, "Objective", "objective", "kind", "max_min")
    assert "objective fair → the worst served alone" in said(opened) and not opened.exception
    press(opened, "Discard")
    short = replace(request(), solver=SolverOptions(0.2))
    filled.put("plan_request", "review", short)
    assert "not kept" not in said(page("plan", filled))
    assert rows.drawn["Objective"]["objective"].values["time_limit_s"] == "0.2"


def test_a_plan_with_a_gap_is_not_called_proven(page, filled):
    filled.put("plan", "review", plan(status="feasible"))
    text = said(page("plan", filled))
    assert "gap 25" in text and "proven optimal" not in text


def test_an_older_plan_is_marked_as_such(page, filled):
    filled.put("plan_request", "review", replace(request(), gpus=(FleetEntry("A100-80GB", count=2),)))
    assert "earlier request" in said(page("plan", filled))


def test_what_is_kept_is_stored_with_the_plan_on_screen(page, filled, started, rows):
    opened = rows.edit(page("plan", filled), "Objective", "objective", "kind", "weighted_sum")
    press(opened, "Keep and prove")
    # It is proven: nothing is left to search for.
    assert started == [(EXPLAIN, RequestParameters("review"))]
    assert filled.get("plan_request", "review").objective.kind == "weighted_sum"
    assert filled.get("plan", "review").objective.kind == "weighted_sum"


def test_an_infeasible_plan_says_what_stands_in_the_way_and_what_would_help(page, filled, started):
    asked = request()
    asked = with_model(asked, 0, min_throughput_rps=900.0)
    filled.put("plan_request", "review", asked)
    outcome = replace(
        plan(asked, "infeasible"),
        conflicts=(Conflict((Demand("min_throughput_rps", "bert"),), "bert reaches 400 at most"),),
        least_relaxation=(Relaxation("bert", "min_throughput_rps", 900.0, 400.0),),
    )
    filled.put("plan", "review", outcome)
    opened = page("plan", filled)
    text = said(opened).replace("\u202f", " ")
    assert "bert's minimum requests per second" in text and "bert reaches 400 at most" in text
    way = opened.button(key="way-out-0")
    assert way.label == "bert −56\u202f%"
    assert "Lower bert's minimum requests per second from 900 to 400" in way.help.replace("\\", "")
    press(opened, way.label)
    assert not started and filled.get("plan_request", "review") == asked
    press(opened, "Keep and prove")
    assert filled.get("plan_request", "review").models[0].min_throughput_rps == 400.0
    assert filled.get("plan", "review").status == "optimal"


def test_a_plan_out_of_time_is_told_apart_from_an_infeasible_one(page, filled):
    filled.put("plan", "review", plan(status="timeout"))
    text = said(page("plan", filled))
    assert "none was ruled out" in text and "infeasible" not in text
    assert "no plan to deploy" in said(page("deploy", filled))


def test_profiles_without_a_request_offer_to_make_one(page, workspace, started):
    workspace.put("profile", SOURCE, profile())
    opened = page("plan", workspace)
    press(opened, "Plan these models")
    assert [model.name for model in workspace.get("plan_request", "plan").models] == ["bert"]
    assert started == [(PLAN, RequestParameters("plan"))]


def test_while_the_second_door_works_nobody_is_asked_to_plan_what_is_there(page, workspace, monkeypatch):
    workspace.put("profile", SOURCE, profile())
    working = jobs.JobStatus("j", "Samples", QUICK_START, "running", 0.5, "", None, None, 1.0)
    monkeypatch.setattr(jobs, "running", lambda w, names=(), request=None: (working,))
    opened = page("plan", workspace)
    assert "the plan appears here by itself" in said(opened)
    assert "Plan these models" not in [button.label for button in opened.button]


def test_every_format_has_its_files_or_the_command_that_writes_them_or_why_there_are_none(page, filled):
    opened = page("deploy", filled)
    assert [tab.label for tab in opened.tabs if tab.label in FORMATS] == list(FORMATS)
    assert "untested on hardware" in said(opened)
    shown = [code.value for code in opened.code]
    for file in deploy(plan(), LAYOUT_FORMATS)[1:]:
        assert file.text.strip() in [text.strip() for text in shown]
    # The models of this plan have no source: placeholders run where any image does.
    shown = "".join(shown)
    assert shown.count("apiVersion: apps/v1") and "services:" in shown and "#SBATCH" in shown
    assert "registry.invalid/" in shown and "PLACEHOLDER" in shown
    told = " ".join(info.value for info in opened.info)
    assert told.count("Left out: what runs in an image of its own") == 2
    asked = filled.get("plan_request", "review")
    known = with_each_model(asked, source="sample:bert")
    put_plan(filled, known, replace(plan(known), request_sha256=request_hash(known)))
    opened = page("deploy", filled)
    commands = [code.value for code in opened.code if code.value.startswith("torchsplit deploy")]
    assert all("review.plan.json --request review.request.json" in command for command in commands)
    assert [command.split("--format ")[1].split()[0] for command in commands] == list(WORKLOAD_FORMATS)


def test_the_zip_holds_every_file_and_keeps_scripts_executable(page, filled, files):
    page("deploy", filled)
    archive = zipfile.ZipFile(io.BytesIO(files["review.deploy.zip"]()))
    imaged = (*LAYOUT_FORMATS, "kubernetes", "compose", "systemd", "slurm")
    written = {file.name for file in deploy(plan(), imaged, filled.get("plan_request", "review"))}
    assert {entry.filename for entry in archive.infolist()} == written | {
        "review.plan.json", "review.request.json",
    }  # fmt: skip
    script = next(entry for entry in archive.infolist() if entry.filename.endswith(".sh"))
    assert script.external_attr >> 16 & 0o111


def test_a_workspace_is_renamed_and_copied_and_a_taken_name_is_one_message(page, filled, store):
    store.create("taken")
    opened = page("workspace", filled)
    opened.text_input(key=f"name-{filled.id}").set_value("taken").run()
    press(opened, "Rename")
    assert len(opened.error) == 1 and "there is already a workspace" in said(opened)
    assert filled.name == "review"
    opened.text_input(key=f"name-{filled.id}").set_value("november").run()
    press(opened, "Rename")
    assert filled.name == "november"
    press(opened, "Copy")
    copied = store.open(address(opened))
    assert copied.id != filled.id and len(copied.artifacts()) == len(filled.artifacts())


def deleted(page: Open, workspace: Workspace) -> AppTest:
    """The start page after a workspace was deleted, in the same session."""
    before = press(page("workspace", workspace), "Delete")
    return open_page("overview", session={"deleted workspace": before.session_state["deleted workspace"]})


def test_a_deleted_workspace_can_be_had_back_and_no_other_is_opened_in_its_place(page, filled, store):
    store.create("another").put("plan_request", "review", request())
    opened = deleted(page, filled)
    assert [one.name for one in store.workspaces()] == ["another"] and "workspace" not in opened.query_params
    assert "Deleted the workspace **review**." in said(opened) and "which model gets which slice" in said(
        opened
    )
    link = press(page("plan", filled), "Undo the deletion")
    assert not link.error and store.open(filled.id).get("plan_request", "review") == request()
    store.soft_delete(filled.id)
    press(opened, "Undo")
    assert address(opened) == filled.id and filled.name == "review" and len(filled.artifacts()) == 5


def test_a_workspace_deleted_for_good_is_gone(page, filled, store):
    opened = press(deleted(page, filled), "Delete for good")
    assert "for good" in said(opened) and not [one for one in opened.button if one.label == "Undo"]
    assert store.deleted_name(filled.id) is None and not list(store.blobs.folder.glob("*/*"))


@pytest.mark.parametrize("name", EMPTY)
def test_the_address_of_a_workspace_that_is_not_here_says_so_and_stays(name, page, filled, store):
    opened = page(name, Workspace(store, "0" * 12))
    assert [element.value for element in opened.title] == ["There is no such workspace"]
    assert f"'{'0' * 12}'" in said(opened) and address(opened) == "0" * 12
    assert len(store.workspaces()) == 1
    press(opened, "review")
    assert address(opened) == filled.id


@pytest.mark.parametrize(
    ("name", "kind"), [("model", "model"), ("plan", "scenario"), ("placement", "placement")]
)
def test_the_address_of_a_thing_that_is_not_here_says_so_and_stays(name, kind, page, filled):
    opened = page(name, filled)
    opened.query_params[kind] = "gone"
    opened.run()
    assert not opened.exception
    assert f"There is no {kind} 'gone' in this workspace" in said(opened)
    assert opened.query_params[kind] == "gone" and not opened.metric


def test_a_damaged_result_is_one_message(page, filled, store):
    artifact = filled.artifacts("plan")[0]
    store.blobs.path(artifact.sha256).write_text("{broken")
    opened = page("plan", filled)
    assert len(opened.error) == 1
    assert "is not what was stored" in said(opened)


def test_a_result_without_its_file_is_named_and_can_be_removed(page, filled, store):
    for item in (filled.artifacts("plan")[0], filled.artifacts("graph")[0]):
        store.blobs.path(item.sha256).write_bytes(b"")
    opened = page("workspace", filled)
    assert "plan review" in opened.warning[0].value and "graph" in opened.warning[0].value
    press(opened, "Remove")
    assert not opened.exception
    assert len(filled.artifacts()) == 4


@pytest.mark.parametrize("name", ["graph", "partition"])
def test_a_graph_is_drawn_without_a_profile_that_does_not_fit_it(name, page, filled):
    other = replace(profile(), nodes=(NodeProfile("no such node", 1.0, 1, 1),))
    filled.put("profile", SOURCE, other)
    opened = page(name, filled)
    assert not opened.error
    assert any("which is no node of the graph" in element.value for element in opened.warning)
    assert opened.query_params["model"] == SOURCE


def test_hand_made_results_are_contract_files(workspace):
    for kind, value in (("graph", graph()), ("profile", profile()), ("partition", cuts()), ("plan", plan())):
        workspace.put(kind, "one", value)
        assert workspace.get(kind, "one") == value


def test_models_are_listed_linked_and_can_be_removed(page, filled):
    opened = page("models", filled)
    assert f'<a href="model?workspace={filled.id}&amp;model={quote_plus(SOURCE)}">' in "".join(
        element.proto.body for element in opened.get("html")
    )
    assert "1 model in this workspace" in said(opened)
    press(opened, "Remove")
    assert not filled.artifacts("graph") and not filled.artifacts("profile")
    assert not filled.artifacts("partition")
    assert filled.artifacts("plan")

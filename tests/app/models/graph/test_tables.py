"""The graph as tables, two models side by side, cuts as stages and devices of a plan."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import streamlit as st

from app.models.graph import tables
from app.models.graph.compare import choices, operations_table, times_table
from app.models.graph.tables import matching_nodes, nodes_table, regions_table
from app.session import cuts as session_cuts
from app.session.model import GraphModel, open_model
from tests.support.app.graphs import NAME, encoder, loose, stored, timed
from tests.support.app.values import SOURCE, cuts, profile, request
from torchsplit_core.graph.architecture import former_architecture_hash
from torchsplit_core.planning.request import edit
from torchsplit_core.values import (
    InputFault,
    PartitionCandidate,
    PartitionOutcome,
    PlannedGpu,
    PlannedSlice,
    Tenant,
)

BARE = encoder(4)


@pytest.fixture(autouse=True)
def session(monkeypatch) -> Iterator[dict[str, Any]]:
    found = {}
    monkeypatch.setattr(st, "session_state", found)
    yield found


@pytest.fixture
def model(workspace) -> GraphModel:
    stored(workspace, BARE, timed(BARE))
    return open_model(workspace, NAME)


def found(pattern: str) -> list[str]:
    return [node.id for node in matching_nodes(BARE, pattern)]


def test_a_search_is_a_regular_expression_over_all_that_names_a_node():
    assert found("SOFT[12]") == ["soft1", "soft2"]
    assert found(r"^embed$") == ["embed"]
    assert found(r"layers\.3\.att") == ["query3", "soft3"]
    assert found("aten.add") == [f"add{i}" for i in range(4)]
    assert found("net.py:7") == [node.id for node in BARE.ops] and found("nothing like it") == []
    everything = found("")
    assert len(everything) == len(BARE.nodes) and everything[:2] == ["ids", "embed"]
    assert everything[-1] == "w_head"


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?P<x"])
def test_a_search_that_is_no_regular_expression_is_one_fault_with_a_remedy(pattern):
    with pytest.raises(InputFault, match="regular expression") as fault:
        matching_nodes(BARE, pattern)
    assert "backslash" in str(fault.value) and repr(pattern)[1:-1] in str(fault.value)


def test_a_row_a_node_and_a_row_a_region_with_all_that_is_known(model):
    table = nodes_table(model.graph, model.analysis, matching_nodes(model.graph, "")).set_index("id")
    assert len(table) == len(BARE.nodes)
    soft = table.loc["soft1"]
    assert soft["module"] == "layers.1.attention" and soft["shape"] == "[2, 16, 8]"
    assert soft["time %"] == pytest.approx(100 / 14) and soft["peak bytes, est."] == 4096
    assert (soft["dominated by"], soft["post-dominated by"]) == ("query1", "add1")
    assert set(table.index[table["cut point"]]) == set(model.analysis.regions.cut_points)
    weight = table.loc["w_head"]
    assert weight[["time %", "peak bytes, est.", "dominated by"]].isna().all()
    assert weight["output bytes"] == 256
    table = regions_table(model.graph, model.analysis)
    whole, *inner = table.to_dict("records")
    assert whole["depth"] == 0 and whole["time %"] == pytest.approx(100)
    assert [(row["from"], row["to"], row["values"]) for row in inner] == [
        ("embed", "add0", 3), ("add0", "add1", 3), ("add1", "add2", 3), ("add2", "add3", 3),
    ]  # fmt: skip
    assert inner[0]["time %"] == pytest.approx(300 / 14) and inner[0]["bytes in"] == 1024


def test_times_that_nobody_measured_are_empty_cells(workspace):
    stored(workspace, BARE)
    bare = open_model(workspace, NAME)
    assert nodes_table(bare.graph, bare.analysis, bare.graph.nodes)["time %"].isna().all()
    assert regions_table(bare.graph, bare.analysis)["time %"].isna().all()


def test_a_table_ends_where_a_browser_would_work_for_seconds(model, monkeypatch):
    monkeypatch.setattr(tables, "MOST_ROWS", 3)
    assert list(nodes_table(model.graph, model.analysis, model.graph.ops)["id"]) == [
        n.id for n in model.graph.ops[:3]
    ]
    assert len(regions_table(model.graph, model.analysis)) == 3


def test_two_models_are_compared_by_their_operations(model, workspace):
    stored(workspace, encoder(6), name="upload:other")
    other = open_model(workspace, "upload:other")
    rows = operations_table(model, other).set_index("operation")
    assert list(rows["difference"]) == [2, 2, 2] and rows.loc["linear", NAME] == 6
    stored(workspace, loose(3), name="upload:loose")
    rows = operations_table(model, open_model(workspace, "upload:loose")).set_index("operation")
    assert rows.loc["relu", [NAME]].isna().all() and rows.loc["relu", "difference"] == 3
    assert rows.index[0] == "linear"
    assert [(kind, name) for kind, _, name in choices(workspace, model)] == [
        ("model", "upload:loose"), ("model", "upload:other"),
    ]  # fmt: skip


def test_two_profiles_of_one_model_are_compared_by_their_modules(model, workspace):
    first = timed(BARE)
    slow = tuple(replace(n, time_share=0.5 if n.id == "head" else 0.5 / 13) for n in first.nodes)
    workspace.put("profile", "gpu", replace(first, nodes=slow))
    workspace.put("profile", "of another", replace(first, architecture_hash="another"))
    workspace.put("profile", "without nodes", replace(first, nodes=()))
    assert [(kind, name) for kind, _, name in choices(workspace, model)] == [("profile", "gpu")]
    other = open_model(workspace, NAME, "gpu")
    assert other.graph.metadata["head"].time_share == 0.5
    assert model.graph.metadata["head"].time_share == pytest.approx(1 / 14)
    rows = times_table(model, other)
    assert rows.iloc[0]["module"] == "head" and rows.iloc[0]["difference"] == pytest.approx(50 - 100 / 14)
    assert rows["time %, left"].sum() == pytest.approx(100) == rows["time %, right"].sum()


def test_how_times_were_found_is_said(model, workspace):
    assert (model.basis, model.basis_colour) == ("measured on this CPU", "green")
    stored(workspace, BARE, timed(BARE, measured=False))
    estimated = open_model(workspace, NAME)
    assert (estimated.basis, estimated.basis_text) == ("estimated", "times estimated")
    stored(workspace, BARE, name="upload:bare")
    bare = open_model(workspace, "upload:bare")
    assert (bare.basis, bare.basis_text, bare.devices) == (None, "not profiled", {})


def test_a_profile_of_the_version_before_is_left_out_with_a_sentence(workspace):
    stored(workspace, BARE, replace(timed(BARE), architecture_hash=former_architecture_hash(BARE)))
    model = open_model(workspace, NAME)
    assert model.misfit is not None and "was measured by an earlier version of TorchSplit" in model.misfit
    assert model.profile is None and not model.graph.metadata
    workspace.put("profile", NAME, replace(timed(BARE), architecture_hash="f" * 64))
    assert open_model(workspace, NAME).misfit is None


def test_stages_are_of_the_cut_chosen(model, workspace):
    assert model.stages == {} and model.best_cut is None
    order = [node.id for node in BARE.ops]

    def cut(at, load):
        stages = (tuple(order[:at]), tuple(order[at:]))
        return PartitionCandidate(stages, (load, 4.0), load, (1024,), (1, 1))

    outcome = PartitionOutcome(
        "optimal", (cut(7, 6.0), cut(4, 7.0)), 6.0, 0.0, source=NAME, architecture_hash="encoder"
    )
    workspace.put("partition", f"{NAME} in 2", outcome)
    workspace.put("partition", f"{NAME}-large in 2", outcome)
    workspace.put("partition", f"{NAME} in 3", replace(outcome, architecture_hash="another"))
    first = open_model(workspace, NAME)
    assert [name for name, stage in first.stages.items() if stage == 0] == order[:7]
    assert first.best_cut == outcome
    session_cuts.choose(workspace, NAME, session_cuts.key_of(outcome.candidates[1]))
    second = open_model(workspace, NAME)
    assert [name for name, stage in second.stages.items() if stage == 0] == order[:4]
    session_cuts.choose(workspace, NAME, "gone")
    assert open_model(workspace, NAME).stages == first.stages
    # the user's own, once there is one
    session_cuts.choose(workspace, NAME, session_cuts.USER_CUT)
    assert open_model(workspace, NAME).stages == first.stages
    session_cuts.set_user_values(workspace, NAME, ["add1"])
    own = open_model(workspace, NAME).stages
    assert own["add1"] == 0 and own["query2"] == 1


def test_devices_are_those_of_the_plan_else_where_it_was_profiled(filled):
    planned = open_model(filled, SOURCE)
    assert planned.devices == dict.fromkeys("abc", "gpu0 4g.40gb@0")
    plan = filled.get("plan", "review")
    idle = replace(plan, gpus=tuple(replace(gpu, slices=()) for gpu in plan.gpus))
    filled.put("plan", "review", idle)
    assert open_model(filled, SOURCE).devices == dict.fromkeys("abc", "this CPU")
    filled.put("plan", "review", replace(plan, gpus=tuple(gpu(i, "whole", "whole") for i in range(5))))
    assert (
        open_model(filled, SOURCE).devices["a"] == "gpu0 1g.10gb@0, gpu1 1g.10gb@0, gpu2 1g.10gb@0 and 2 more"
    )


def gpu(number: int, variant: str, stage: str) -> PlannedGpu:
    tenant = Tenant("bert", variant, stage, 0.2, 8, 1, 9.0, None)
    return PlannedGpu(f"gpu{number}", "A100-80GB", True, (PlannedSlice("1g.10gb", 0, (tenant,)),))


def test_the_stages_of_a_planned_cut_run_on_the_slices_of_each(filled):
    asked = edit.with_cuts(request(), profile(), cuts())
    (variant,) = (variant for variant in asked.models[0].variants if variant.name != "whole")
    filled.put("plan_request", "review", asked)
    filled.put("partition", f"{SOURCE} offered", cuts())
    gpus = tuple(gpu(i, variant.name, stage.name) for i, stage in enumerate(variant.stages))
    filled.put("plan", "review", replace(filled.get("plan", "review"), gpus=gpus))
    assert open_model(filled, SOURCE).devices == {
        "a": "gpu0 1g.10gb@0", "b": "gpu0 1g.10gb@0", "c": "gpu1 1g.10gb@0",
    }  # fmt: skip

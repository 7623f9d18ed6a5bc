"""A plan served and measured as a job: its moments while it runs, its outcome under the scenario's name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving.llm_plans import llm_plan
from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core import workflow
from torchsplit_core.jobs import measure, quick_start
from torchsplit_core.jobs.job_kinds import MeasureParameters, RunHereParameters, UploadedFile
from torchsplit_core.jobs.live_runs import LiveRunFile
from torchsplit_core.jobs.measure import expected_results, local_model_sources, measure_job
from torchsplit_core.serving.load_test import frontend_costs
from torchsplit_core.values import CPU, InputFault, PlanOutcome, PlanRequest, Profile, ProfileRow
from torchsplit_core.values.plan.front import FrontCosts
from torchsplit_core.values.serving.measurement import (
    MeasuredModel,
    MeasuredPoint,
    MeasuredTimes,
    Measurement,
)
from torchsplit_core.workspace.store import Store, Workspace

PLAN, REQUEST = cpu_plan([Placed("bert", batch_size=1, ms=10.0)], {"bert": "sample:bert"}, demand_rps=50.0)
FOUND = Measurement(PLAN.request_sha256, 2.0, 0.5, "here", ())


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr(
        frontend_costs, "measure_costs", lambda progress: FrontCosts(0.2, 0.4, 2.0, 0.3, cores=2)
    )
    made = Store(tmp_path / "home").create("w")
    made.put("plan_request", "cores", REQUEST)
    made.put("plan", "cores", PLAN)
    return made


def quiet(share: float, text: str) -> None:
    assert 0 <= share <= 1 and text


def test_the_moments_live_as_long_as_the_run(workspace, monkeypatch):
    seen: list[Any] = []

    def run(
        outcome: Any, request: Any, serving: Any, load: Any, *, progress: Any, on_sample: Any
    ) -> Measurement:
        on_sample({"at_s": 1.0})
        seen.append((serving.stand_in, load.load, load.duration_s, LiveRunFile(workspace, "cores").read()))
        return FOUND

    monkeypatch.setattr(measure.workflow, "measure", run)
    measure_job(workspace, MeasureParameters("cores", 0.5, 2.0, True), quiet)
    ((stand_in, load, seconds, moments),) = seen
    assert (stand_in, load, seconds) == ("cpu", 0.5, 2.0)
    assert moments[0]["expected"]["bert"]["rate_rps"] == 25.0 and moments[1:] == [{"at_s": 1.0}]
    assert workspace.get("measurement", "cores") == FOUND
    assert LiveRunFile(workspace, "cores").read() == [] and LiveRunFile(workspace, "other").read() == []


def test_what_is_expected_of_a_load():
    found = expected_results(PLAN, REQUEST, 1.0)["expected"]["bert"]
    assert found["rate_rps"] == pytest.approx(50.0) and 10.0 <= found["p95_ms"] < 60.0
    assert expected_results(PLAN, REQUEST, 4.0)["expected"]["bert"] == {"rate_rps": 100.0, "p95_ms": None}


def test_llms_are_expected_by_no_simulation_of_batches_and_keep_their_source(workspace, tmp_path):
    for config in (True, False):
        plan, request = llm_plan("decoder", config=config)
        assert expected_results(plan, request, 1.0) == {"expected": {}}
        parameters = MeasureParameters("cores", 1.0, 2.0)
        with local_model_sources(workspace, plan, request, parameters) as (local, trusted):
            assert (local, trusted) == (request, False)


def with_sources(*sources: str) -> tuple[PlanOutcome, PlanRequest]:
    return cpu_plan(
        [Placed(f"m{i}", start=i) for i, _ in enumerate(sources)], {f"m{i}": s for i, s in enumerate(sources)}
    )


def stored(workspace: Workspace, name: str, content: bytes) -> UploadedFile:
    return UploadedFile(name, workspace.put_bytes("upload", name, content).sha256)


def test_trusted_uploads_are_laid_out_while_they_run(workspace, monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "allowed")
    plan, request = with_sources("net.py:Net", "net.py:Net", "sample:bert", "import:old")
    uploads = {
        "net.py:Net": stored(workspace, "net.py", b"own"),
        "net.pt2": stored(workspace, "net.pt2", b"PK"),
    }
    asked = MeasureParameters("cores", in_place={"m3": "net.pt2"}, uploads=uploads)
    with local_model_sources(workspace, plan, request, asked) as (here, trust):
        first, second, sample, other = (str(model.source) for model in here.models)
        assert trust and first == second and sample == "sample:bert"
        path, _, entry = first.rpartition(":")
        assert entry == "Net" and Path(path).read_bytes() == b"own" and Path(other).read_bytes() == b"PK"
    assert not Path(path).exists() and not Path(other).exists()
    with local_model_sources(workspace, *with_sources("sample:bert"), MeasureParameters("cores")) as (
        _,
        trust,
    ):
        assert not trust


@pytest.mark.parametrize(
    ("name", "form", "server", "rule"),
    [
        ("net.pt2", "none", "allowed", "neither a sample nor an upload"),
        ("net.pt2", "untrusted", "allowed", "is not trusted, and a model that is served is executed"),
        ("net.pt2", "trusted", "refused", "executes nothing that was uploaded"),
        ("net.pt2", "changed", "allowed", "is not the file that was trusted"),
        ("net.py:Net", "untrusted", "allowed", "'net.py' is not trusted, and a .py file is executed"),
        ("net.py:Net", "trusted", "refused", "executes nothing that was uploaded"),
    ],
)
def test_nothing_runs_but_the_content_that_is_trusted(workspace, monkeypatch, name, form, server, rule):
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", server)
    file = stored(workspace, name.partition(":")[0], b"own")
    if form == "untrusted":
        file = replace(file, trusted_sha256=None)
    if form == "changed":
        workspace.put_bytes("upload", file.upload, b"another's")
    uploads = {} if form == "none" else {name: file}
    with (
        pytest.raises(InputFault, match=rule),
        local_model_sources(workspace, *with_sources(name), MeasureParameters("cores", uploads=uploads)),
    ):
        pass


def test_what_another_ran_for_gives_no_points(workspace, monkeypatch):
    times = MeasuredTimes(1.0, 1.0, 1.0)
    told = replace(
        FOUND,
        models=tuple(MeasuredModel(name, 1.0, 1.0, 1.0, times, times, 0.1, 0) for name in ("m0", "m1")),
        points=tuple(
            MeasuredPoint(name, "whole", "whole", "CPU", "1c", 1, 1, 9.0, 1.0, 9.0, 9.0, 20)
            for name in ("m0", "m1")
        ),
    )
    monkeypatch.setattr(measure.workflow, "measure", lambda *given, **more: told)
    plan, request = with_sources("sample:bert", "import:old")
    workspace.put("plan_request", "cores", request)
    workspace.put("plan", "cores", plan)
    measure_job(workspace, MeasureParameters("cores", in_place={"m1": "sample:ocr"}), quiet)
    found: Measurement = workspace.get("measurement", "cores")
    assert found.in_place == {"m1": "sample:ocr"} and [one.model for one in found.points] == ["m0"]


CLIENT = b"""
import torch

class Client:
    batch_sizes = (1, 2)
    def get_model(self):
        return torch.nn.Linear(4, 3)
    def get_example_inputs(self, batch_size):
        return (torch.ones(batch_size, 4),)
"""


@pytest.mark.repeated
@pytest.mark.slow
@pytest.mark.torch
def test_uploads_run_whole_and_cut(workspace, tmp_path, monkeypatch):
    """A Python file whole, a .pt2 in two stages: every request is answered by workers that loaded them."""
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "allowed")
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    batch = ({0: torch.export.Dim("batch", min=1, max=64)},)
    exported = torch.export.export(net, (torch.ones(2, 4),), dynamic_shapes=batch)
    torch.export.save(exported, tmp_path / "chain.pt2")
    nodes = [node.id for node in workflow.trace(str(tmp_path / "chain.pt2")).nodes if node.kind == "op"]
    stages = {"first": tuple(nodes[:2]), "second": tuple(nodes[2:])}
    placed = [Placed("net"), *(Placed("chain", "1c", 1, stage, 2, share=0.5) for stage in stages)]
    plan, request = cpu_plan(
        placed, {"net": "net.py:Client", "chain": "chain.pt2"}, nodes={"chain": stages}, demand_rps=10.0
    )
    workspace.put("plan_request", "cores", request)
    workspace.put("plan", "cores", plan)
    uploads = {
        "net.py:Client": stored(workspace, "net.py", CLIENT),
        "chain.pt2": stored(workspace, "chain.pt2", (tmp_path / "chain.pt2").read_bytes()),
    }
    measure_job(workspace, MeasureParameters("cores", 1.0, 3.0, True, uploads=uploads), quiet)
    found: Measurement = workspace.get("measurement", "cores")
    assert {one.name: one.errors for one in found.models} == {"net": 0, "chain": 0}
    assert all(one.statuses[0][0] == 200 for one in found.models) and len(found.servers) == 3


def test_the_third_door_goes_all_the_way(workspace, monkeypatch):
    asked: list[Any] = []

    def profiled(workspace: Workspace, parameters: Any, progress: Any) -> None:
        asked.append((parameters.sources, parameters.device))
        rows = tuple(
            ProfileRow("whole", CPU, "1c", batch, 1, 100.0 * batch, 10.0, None, None, 0.1, "measured")
            for batch in parameters.batch_sizes
        )
        workspace.put("profile", parameters.sources[0], Profile(parameters.sources[0], "", rows=rows))

    monkeypatch.setattr(quick_start, "profile_job", profiled)
    monkeypatch.setattr(quick_start, "slice_cores", lambda: 1)
    monkeypatch.setattr(measure.workflow, "measure", lambda *given, **more: FOUND)
    found = quick_start.here_job(workspace, RunHereParameters(sources=("sample:bert", "sample:ocr")), quiet)
    assert found == {"measurement": "This machine, for real", "disagreements": 0}
    assert asked == [(("sample:bert",), "cpu:1c"), (("sample:ocr",), "cpu:1c")]
    plan = workspace.get("plan", "This machine, for real")
    (item,) = (item for gpu in plan.gpus for item in gpu.slices)
    assert {tenant.model for tenant in item.tenants} == {"bert", "ocr"} and plan.gpus[0].type == "CPU-1c"
    # What is measured already is not measured again.
    quick_start.here_job(workspace, RunHereParameters(sources=("sample:bert", "sample:ocr")), quiet)
    assert len(asked) == 2


def test_cores_for_slices_leave_one_for_the_front(monkeypatch):
    for cores, slices in ((1, 1), (2, 1), (3, 2), (64, 4)):
        monkeypatch.setattr(quick_start.os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        assert quick_start.slice_cores() == slices


def test_workflow_has_both():
    assert workflow.serve and workflow.measure

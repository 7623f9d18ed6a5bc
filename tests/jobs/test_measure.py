"""A plan served and measured as a job: its moments while it runs, its outcome under the scenario's name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core import workflow
from torchsplit_core.jobs import measure, quick_start
from torchsplit_core.jobs.live_runs import LiveRun
from torchsplit_core.jobs.measure import expected, measure_job
from torchsplit_core.jobs.names import MeasureParameters, RunHereParameters
from torchsplit_core.values import CPU, InputFault, Profile, ProfileRow
from torchsplit_core.values.serving.measurement import Measurement
from torchsplit_core.workspace.store import Store, Workspace

PLAN, REQUEST = cpu_plan([Placed("bert", batch_size=1, ms=10.0)], {"bert": "sample:bert"}, demand_rps=50.0)
FOUND = Measurement(PLAN.request_sha256, 2.0, 0.5, "here", ())


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Store(tmp_path / "home").create("w")
    made.put("plan_request", "cores", REQUEST)
    made.put("plan", "cores", PLAN)
    return made


def quiet(share: float, text: str) -> None:
    assert 0 <= share <= 1 and text


def test_the_moments_live_as_long_as_the_run(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run(outcome: Any, request: Any, serving: Any, load: Any, *, progress: Any, hear: Any) -> Measurement:
        hear({"at_s": 1.0})
        seen.append((serving.stand_in, load.load, load.duration_s, LiveRun(workspace, "cores").read()))
        return FOUND

    monkeypatch.setattr(measure.workflow, "measure", run)
    measure_job(workspace, MeasureParameters("cores", 0.5, 2.0, True), quiet)
    ((stand_in, load, seconds, moments),) = seen
    assert (stand_in, load, seconds) == ("cpu", 0.5, 2.0)
    assert moments[0]["expected"]["bert"]["rate_rps"] == 25.0 and moments[1:] == [{"at_s": 1.0}]
    assert workspace.get("measurement", "cores") == FOUND
    assert LiveRun(workspace, "cores").read() == [] and LiveRun(workspace, "other").read() == []


def test_what_is_expected_of_a_load() -> None:
    found = expected(PLAN, REQUEST, 1.0)["expected"]["bert"]
    assert found["rate_rps"] == pytest.approx(50.0) and 10.0 <= found["p95_ms"] < 60.0
    assert expected(PLAN, REQUEST, 4.0)["expected"]["bert"] == {"rate_rps": 100.0, "p95_ms": None}


def test_uploads_are_served_on_the_command_line(workspace: Workspace) -> None:
    upload = replace(REQUEST, models=(replace(REQUEST.models[0], source="net.pt2"),))
    workspace.put("plan_request", "cores", upload)
    with pytest.raises(InputFault, match="torchsplit measure PLAN"):
        measure_job(workspace, MeasureParameters("cores"), quiet)


def test_the_third_door_goes_all_the_way(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_cores_for_slices_leave_one_for_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, slices in ((1, 1), (2, 1), (3, 2), (64, 4)):
        monkeypatch.setattr(quick_start.os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        assert quick_start.slice_cores() == slices


def test_workflow_has_both() -> None:
    assert workflow.serve and workflow.measure

"""Sweeps as jobs: kept point by point, cancelled, gone on with; and the sweep command."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.planning.requests import on_a30, whole_model
from tests.support.workspace.job_child import own_jobs
from torchsplit_core import jobs
from torchsplit_core.cli.command import main
from torchsplit_core.cli.sweep import parse_vary
from torchsplit_core.files import write_file
from torchsplit_core.jobs import runner, sweep
from torchsplit_core.jobs.job_kinds import JobKind, SweepParameters
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sweep import workers
from torchsplit_core.planning.sweep.points import SweepRequest, sweep_requests
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.values import (
    InputFault,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Point,
    Progress,
    ignore_progress,
)
from torchsplit_core.workspace.plan_cache.cache import PlanCache
from torchsplit_core.workspace.store import Store, Workspace
from torchsplit_core.workspace.sweeps import SweepStore

pytestmark = pytest.mark.slow

A30 = "A30-24GB"
GPUS = SweepParameters("r", "gpus", A30, (1, 2, 3, 4))


def request() -> PlanRequest:
    def model(name: str, rate: float) -> PlanModel:
        points = (Point(A30, "1g.6gb", 1, rate, 10.0), Point(A30, "4g.24gb", 1, 3 * rate, 10.0))
        return whole_model(name, points, demand_rps=20.0)

    return on_a30(model("a", 10.0), model("b", 4.0))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    own_jobs(monkeypatch, sys.modules[__name__])
    made = Store(tmp_path / "home").create("w")
    made.put("plan_request", "r", request())
    return made


def slowly(workspace: Workspace, parameters: SweepParameters, progress: Progress) -> dict[str, Any]:
    """The job, but fleets of 3 GPUs are never done."""
    real = workers._plan_request

    def planned(request: PlanRequest, limit_s: float) -> PlanOutcome:
        if request.gpus[0].count == 3:
            (workspace.store.root / f"busy-{os.getpid()}").touch()
            time.sleep(600)
        return real(request, limit_s)

    workers._plan_request = planned
    return sweep.sweep_job(workspace, parameters, progress)


KINDS = {"slowly": JobKind("tests.jobs.test_sweep:slowly", SweepParameters)}


def wait(until: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := until():
            return found
        time.sleep(0.05)
    raise AssertionError("never happened")


def kept(workspace: Workspace) -> list[float]:
    found = SweepStore(workspace, "r").load()
    return sorted(found.plans) if found is not None else []


def gone(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_was_solved_outlives_cancel_and_is_taken_over(workspace):
    job = jobs.start(workspace, "Sweep r", "slowly", GPUS)
    wait(lambda: kept(workspace) == [1.0, 2.0, 4.0])
    (busy,) = wait(lambda: list(workspace.store.root.glob("busy-*")))
    before = SweepStore(workspace, "r").load()
    jobs.cancel(workspace, job)
    assert jobs.status(workspace, job).state == "cancelled"
    wait(lambda: gone(int(busy.name.partition("-")[2])))
    assert kept(workspace) == [1.0, 2.0, 4.0]
    again = sweep.sweep_job(workspace, GPUS, ignore_progress)
    assert again == {"sweep": "r", "points": 4, "taken_over": 3}
    after = SweepStore(workspace, "r").load()
    assert before is not None and after is not None and sorted(after.plans) == [1.0, 2.0, 3.0, 4.0]
    assert all(after.plans[value] == plan for value, plan in before.plans.items())
    for value, one in sweep_requests(request(), after.what):
        verify(one, after.plans[value].outcome)
    assert [point.value for point in after.points] == [1.0, 2.0, 3.0, 4.0]


def test_a_killed_job_takes_its_processes_along(workspace):
    job = jobs.start(workspace, "Sweep r", "slowly", replace(GPUS, values=(3,)))
    (busy,) = wait(lambda: list(workspace.store.root.glob("busy-*")))
    os.kill(runner._read(workspace.store, job)["pid"], signal.SIGKILL)
    wait(lambda: gone(int(busy.name.partition("-")[2])))
    assert wait(lambda: jobs.status(workspace, job).fault)


def test_plans_are_taken_over_only_where_more_time_would_not_help(workspace, monkeypatch):
    what = SweepRequest("gpus", A30, (1.0, 2.0))
    asked = sweep_requests(request(), what)
    # What other work has proven is taken over whatever time there is.
    monkeypatch.setattr(PlanCache, "lookup", lambda *_: None)
    sweep.sweep_job(workspace, replace(GPUS, values=(1, 2)), ignore_progress)
    store = SweepStore(workspace, "r")
    found = store.load()
    assert found is not None
    unproven = PlanOutcome(
        request_hash(asked[0][1]), "timeout", found.plans[1.0].outcome.objective, (), (),
        found.plans[1.0].outcome.statistics,
    )  # fmt: skip
    store.save_plan(unproven, 5.0)
    again = replace(GPUS, values=(1, 2))
    assert sweep.sweep_job(workspace, replace(again, time_limit_s=5.0), ignore_progress)["taken_over"] == 2
    assert sweep.sweep_job(workspace, replace(again, time_limit_s=6.0), ignore_progress)["taken_over"] == 1
    now = store.load()
    assert now is not None and now.plans[1.0].outcome.status == "optimal"


def test_another_sweep_replaces_the_last_and_goes_with_its_workspace(workspace):
    sweep.sweep_job(workspace, replace(GPUS, values=(1, 2)), ignore_progress)
    wider = sweep.sweep_job(workspace, replace(GPUS, values=(2, 3)), ignore_progress)
    assert wider["taken_over"] == 1 and kept(workspace) == [2.0, 3.0]
    # No result of the pipeline: not listed.
    assert {artifact.kind for artifact in workspace.artifacts()} == {"plan_request"}
    store = SweepStore(workspace, "r")
    found = store.load()
    assert found is not None
    store.delete()
    assert store.load() is None
    with pytest.raises(InputFault, match="has no sweep any more"):
        store.save_plan(found.plans[2.0].outcome, 1.0)
    sweep.sweep_job(workspace, replace(GPUS, values=(1,)), ignore_progress)
    workspace.store.delete(workspace.id)
    with workspace.store.connect() as database:
        assert database.execute("SELECT count(*) FROM sweep_plans").fetchone() == (0,)


def test_senseless_parameters_start_nothing(workspace):
    for bad in (
        replace(GPUS, values=(0, 1)),
        replace(GPUS, target="H200-141GB"),
        replace(GPUS, parameter="demand"),
        replace(GPUS, parameter="colour"),
        replace(GPUS, values=(2, 1)),
    ):
        with pytest.raises(InputFault):
            sweep.sweep_job(workspace, bad, ignore_progress)
    assert SweepStore(workspace, "r").load() is None


def test_the_command_prints_a_table(tmp_path, capsys):
    file = tmp_path / "request.json"
    write_file(request(), file)
    vary = ["sweep", str(file), "--vary"]
    assert main([*vary, f"gpus:{A30}=1..3"]) == 0
    said = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert [row["value"] for row in rows] == ["1", "2", "3"] and {row["proven"] for row in rows} == {"yes"}
    assert "3 proven" in said.err
    # One GPU cannot serve 20 requests/s of both.
    assert rows[0]["p95_ms"] == "" and rows[0]["p95_model"] in ("a", "b") and rows[0]["p95_limit_ms"] == ""
    assert float(rows[2]["p95_ms"]) > 10
    assert main([*vary, "min_throughput:a=1,1000", "-o", str(tmp_path / "t.json")]) == 0
    table = json.loads((tmp_path / "t.json").read_text())
    assert [row["status"] for row in table] == ["optimal", "infeasible"] and "would help" in table[1]["note"]
    assert table[1]["objective"] is None
    assert main([*vary, "min_throughput:a=1000"]) == 3
    assert capsys.readouterr().out.splitlines()[1].startswith("1000,infeasible,no,")
    assert main([*vary, "min_throughput:a=1000.12345678"]) == 3
    assert capsys.readouterr().out.splitlines()[1].startswith("1000.12346,infeasible,no,"), "nine digits"


@pytest.mark.parametrize(
    "vary",
    ["gpus", "gpus:A30-24GB", "gpus:=1", "gpus:A30-24GB=0..2", "gpus:A30-24GB=2..1", "demand:a=nan", "demand:a=1..x",
     "demand:nobody=1", "weight:a=1..2/1000", "weight:a=1..2/2.5", "colour:a=1", "demand:a=", "gpus:A30-24GB=1.5"],
)  # fmt: skip
def test_what_the_command_cannot_vary_is_said_in_a_line(vary, tmp_path, capsys):
    file = tmp_path / "request.json"
    write_file(request(), file)
    assert main(["sweep", str(file), "--vary", vary]) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1


def test_other_options_are_checked_too(tmp_path, capsys):
    file = tmp_path / "request.json"
    write_file(request(), file)
    base = ["sweep", str(file), "--vary", "weight:a=1"]
    assert main([*base, "--time-limit", "0"]) == 2 and "above 0" in capsys.readouterr().err
    assert (
        main([*base, "-o", str(tmp_path / "t.txt")]) == 2
        and "neither in .csv nor in .json" in capsys.readouterr().err
    )


def test_ranges_are_read_as_they_are_written():
    assert parse_vary("demand:a=b=10..40/3") == SweepRequest("demand", "a=b", (10.0, 25.0, 40.0))
    assert parse_vary("weight:sample:x=0.5..2/2") == SweepRequest("weight", "sample:x", (0.5, 2.0))
    assert parse_vary(f"gpus:{A30}=1..64").values == tuple(map(float, range(1, 65)))
    assert len(parse_vary(f"gpus:{A30}=1..1000").values) == len(parse_vary("demand:a=1..9").values) == 8


def test_a_model_called_like_a_formula_is_none_in_the_table(tmp_path, capsys):
    asked = request()
    models = tuple(replace(one, name=f'=HYPERLINK("{one.name}")') for one in asked.models)
    file = tmp_path / "request.json"
    write_file(replace(asked, models=models), file)
    assert main(["sweep", str(file), "--vary", f"gpus:{A30}=3..3"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["p95_model"] in {f"'{one.name}" for one in models}

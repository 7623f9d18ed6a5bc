"""The plan command on requests that forbid a variant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, write_file
from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point, Stage, Variant

A30 = "A30-24GB"


def request(**allowed: bool) -> PlanRequest:
    """10 requests/s whole, 30 in two stages."""
    stages = tuple(Stage(name, (Point(A30, "2g.12gb", 1, 30.0, 20.0),)) for name in ("first", "second"))
    whole = Variant("whole", (Stage("whole", (Point(A30, "2g.12gb", 1, 10.0, 50.0),)),))
    variants = (whole, Variant("cut", stages, (1e6,)))
    model = PlanModel("bert", tuple(replace(item, allowed=allowed.get(item.name, True)) for item in variants))
    return PlanRequest((FleetEntry(A30),), (model,))


@pytest.mark.parametrize(("allowed", "variant"), [({}, "cut"), ({"cut": False}, "whole")])
def test_a_plan_runs_what_is_allowed_and_deploys(
    allowed: dict[str, bool], variant: str, tmp_path: Path
) -> None:
    asked, planned = str(tmp_path / "request.json"), str(tmp_path / "plan.json")
    write_file(request(**allowed), asked)
    assert main(["plan", asked, "-o", planned, "--explain"]) == 0
    outcome = read_file(planned)[1]
    assert outcome.models[0].variant == variant and outcome.explanation is not None
    assert main(["deploy", planned, "-o", str(tmp_path / "out")]) == 0


def test_a_model_that_may_not_run_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = tmp_path / "request.json"
    write_file(request(cut=False, whole=False), asked)
    assert json.loads(asked.read_text())["models"][0]["variants"][0]["allowed"] is False
    assert main(["plan", str(asked), "-o", str(tmp_path / "plan.json")]) == 2
    told = capsys.readouterr().err
    assert "model bert" in told and "Allow one" in told and "Traceback" not in told


def test_a_spare_gpu_is_asked_for_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, planned = str(tmp_path / "request.json"), str(tmp_path / "plan.json")
    known = request()
    model = replace(known.models[0], min_throughput_rps=15.0, demand_rps=35.0)
    write_file(replace(known, gpus=(FleetEntry(A30, count=2),), models=(model,)), asked)
    assert main(["plan", asked, "-o", planned]) == 0
    told = capsys.readouterr().err
    assert "if lost, the worst of" in told and "bert" in told
    assert main(["plan", asked, "-o", planned, "--spare", "1"]) == 0
    told = capsys.readouterr().err
    assert "every minimum holds with any one GPU lost" in told
    alone = str(tmp_path / "alone.json")
    write_file(replace(known, models=(model,)), alone)
    assert main(["plan", alone, "-o", planned, "--spare", "1"]) == 3
    assert "No plan survives the loss of the only GPU" in capsys.readouterr().err
    assert read_file(alone)[1].objective.survives == 0

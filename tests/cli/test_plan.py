"""The plan command on requests that forbid a variant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, write_file
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point, Stage, Variant

A30 = "A30-24GB"


def request(**allowed: bool) -> PlanRequest:
    """10 requests/s whole, 30 in two stages."""
    stages = tuple(Stage(name, (Point(A30, "2g.12gb", 1, 30.0, 20.0),)) for name in ("first", "second"))
    whole = Variant("whole", (Stage("whole", (Point(A30, "2g.12gb", 1, 10.0, 50.0),)),))
    variants = (whole, Variant("cut", stages, (1e6,)))
    model = PlanModel("bert", tuple(replace(item, allowed=allowed.get(item.name, True)) for item in variants))
    return PlanRequest((FleetEntry(A30),), (model,))


def uncertain() -> PlanRequest:
    """One GPU for 100 (60 to 140) requests/s estimated in one batch, or 95 (90 to 96) measured in another."""
    guessed = Point(A30, "4g.24gb", 8, 100.0, 20.0, basis="estimated", low_rps=60.0, high_rps=140.0)
    known = Point(A30, "4g.24gb", 4, 95.0, 20.0, low_rps=90.0, high_rps=96.0)
    stage = Stage("whole", (guessed, known))
    return PlanRequest(
        (FleetEntry(A30),), (PlanModel("bert", (Variant("whole", (stage,)),), demand_rps=80.0),)
    )


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


def test_plan_at_low_plans_the_lower_ends_and_saves_what_it_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, saved = str(tmp_path / "request.json"), str(tmp_path / "low.json")
    write_file(uncertain(), asked)
    for more, rps in (([], 100.0), (["--plan-at", "nominal"], 100.0), (["--plan-at", "low"], 90.0)):
        planned = str(tmp_path / f"{rps}.json")
        assert main(["plan", asked, "-o", planned, "--save-request", saved, *more]) == 0
        outcome = read_file(planned)[1]
        assert outcome.models[0].throughput_rps == rps
        assert outcome.request_sha256 == request_hash(read_file(saved)[1])
        assert ("answers the request with solver.plan_at low" in capsys.readouterr().err) == (rps == 90.0)
    # A request that says low itself is planned so without the option, and at the throughputs with it.
    assert (
        main(["plan", saved, "-o", planned]) == 0 and read_file(planned)[1].models[0].throughput_rps == 90.0
    )
    assert main(["plan", saved, "-o", planned, "--plan-at", "nominal"]) == 0
    assert read_file(planned)[1].request_sha256 == request_hash(uncertain())

"""The plan command on requests that forbid a variant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, write_file
from torchsplit_core.values import (
    FleetEntry,
    PlanModel,
    PlanRequest,
    Point,
    Profile,
    ProfileRow,
    Stage,
    Variant,
)

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


def test_a_plan_says_what_crosses_its_cuts_and_that_its_link_binds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, planned = str(tmp_path / "request.json"), str(tmp_path / "plan.json")
    write_file(request(whole=False), asked)
    assert main(["plan", asked, "-o", planned]) == 0
    told = capsys.readouterr().err
    assert "bert as cut: 0.03 GB/s across its cuts" in told
    assert "warning: bert: cuts travel free: give the link's GB/s" in told
    write_file(replace(request(whole=False), link_gb_per_s=0.01), asked)
    assert main(["plan", asked, "-o", planned, "--explain"]) == 0
    told = capsys.readouterr().err
    assert "bert as cut: 0.01 GB/s across its cuts" in told and "travel free" not in told
    assert "bert: the link binds (0.01 GB/s)" in told
    write_file(request(cut=False), asked)
    assert main(["plan", asked, "-o", planned]) == 0
    assert "across" not in capsys.readouterr().err


def test_a_request_takes_link_and_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, asked = tmp_path / "profile.json", tmp_path / "request.json"
    row = ProfileRow("whole", A30, "2g.12gb", 1, 1, 100.0, 8.0, None, None, None, "estimated")
    write_file(Profile("sample:bert", "h", {}, (row,), ()), profile)
    made = ["request", str(profile), "--gpus", f"1x{A30}", "-o", str(asked)]
    assert main(made) == 0
    written = json.loads(asked.read_text())
    assert written["link_gb_per_s"] is None and "network_gb_per_s" not in written
    assert main([*made, "--link", "12", "--network", "1.5"]) == 0
    found = read_file(asked)[1]
    assert (found.link_gb_per_s, found.network_gb_per_s) == (12.0, 1.5)
    capsys.readouterr()
    for option in ("--link", "--network"):
        assert main([*made, option, "0"]) == 2
        told = capsys.readouterr().err
        assert option in told and "Traceback" not in told


def test_a_model_that_may_not_run_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = tmp_path / "request.json"
    write_file(request(cut=False, whole=False), asked)
    assert json.loads(asked.read_text())["models"][0]["variants"][0]["allowed"] is False
    assert main(["plan", str(asked), "-o", str(tmp_path / "plan.json")]) == 2
    told = capsys.readouterr().err
    assert "model bert" in told and "Allow one" in told and "Traceback" not in told

"""The plan command on requests that forbid a variant."""

import io
import json
import sys
from dataclasses import replace

import pytest

from tests.support.paths import ROOT
from tests.support.planning.requests import on_a30
from tests.support.training.runs import strategy
from torchsplit_core.cli.arguments.run_folders import with_run_folders
from torchsplit_core.cli.command import main
from torchsplit_core.cli.plan_summary import summary_lines
from torchsplit_core.files import read_file, write_file
from torchsplit_core.planning import plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.training import train
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    Objective,
    PlanModel,
    PlanRequest,
    Point,
    Profile,
    ProfileRow,
    Stage,
    Variant,
)
from torchsplit_core.values.strategy.run import RunOptions

A30 = "A30-24GB"
EXAMPLES = ROOT / "examples"


def request(**allowed: bool) -> PlanRequest:
    """10 requests/s whole, 30 in two stages."""
    stages = tuple(Stage(name, (Point(A30, "2g.12gb", 1, 30.0, 20.0),)) for name in ("first", "second"))
    whole = Variant("whole", (Stage("whole", (Point(A30, "2g.12gb", 1, 10.0, 50.0),)),))
    variants = (whole, Variant("cut", stages, (1e6,)))
    model = PlanModel("bert", tuple(replace(item, allowed=allowed.get(item.name, True)) for item in variants))
    return on_a30(model)


def uncertain() -> PlanRequest:
    """One GPU for 100 (60 to 140) requests/s estimated in one batch, or 95 (90 to 96) measured in another."""
    guessed = Point(A30, "4g.24gb", 8, 100.0, 20.0, basis="estimated", low_rps=60.0, high_rps=140.0)
    known = Point(A30, "4g.24gb", 4, 95.0, 20.0, low_rps=90.0, high_rps=96.0)
    stage = Stage("whole", (guessed, known))
    return on_a30(PlanModel("bert", (Variant("whole", (stage,)),), demand_rps=80.0))


@pytest.mark.parametrize(("allowed", "variant"), [({}, "cut"), ({"cut": False}, "whole")])
def test_a_plan_runs_what_is_allowed_and_deploys(allowed, variant, tmp_path):
    asked, planned = str(tmp_path / "request.json"), str(tmp_path / "plan.json")
    write_file(request(**allowed), asked)
    assert main(["plan", asked, "-o", planned, "--explain"]) == 0
    outcome = read_file(planned)[1]
    assert outcome.models[0].variant == variant and outcome.explanation is not None
    assert main(["deploy", planned, "-o", str(tmp_path / "out")]) == 0


def test_models_without_a_source_deploy_as_images_and_what_is_left_out_is_named(tmp_path, capsys, stderr_of):
    given = [
        str(EXAMPLES / "plan.json"), "--request", str(EXAMPLES / "plan_request.json"), "-o", str(tmp_path),
    ]  # fmt: skip
    own = ["--image", "bert=me/bert:1", "--command", "bert=serve --fast"]
    assert main(["deploy", *given, *own]) == 0
    said = capsys.readouterr()
    assert "kubernetes/deployments.yaml" in said.out
    assert "triton leaves out: what runs in an image" in said.err
    assert "resnet50: has no source; registry.invalid/resnet50:set-me stands in its place" in said.err
    assert "bert: has no source" not in said.err
    text = (tmp_path / "compose" / "compose.yaml").read_text()
    assert "image: me/bert:1" in text and "- --fast" in text
    for wrong in (["--image", "bert"], ["--image", "berta=x"], ["--command", "bert='"]):
        assert main(["deploy", *given, *wrong]) == 2
        assert capsys.readouterr().err
    assert "--request" in stderr_of("deploy", given[0], *own, "-o", tmp_path)


def test_steps_of_runs_are_of_the_folders_that_are_named():
    asked = request()
    asked = replace(asked, models=tuple(
        replace(asked.models[0], name=name, source=source)
        for name, source in (("a", "run:net-1@step-2"), ("b", "run:net-2@step-40"), ("c", "sample:bert"), ("d", None))
    ))  # fmt: skip
    resolved = with_run_folders(asked, ["net-2=/runs/b"])
    assert [model.source for model in resolved.models] == [
        "run:net-1@step-2", "/runs/b@step-40", "sample:bert", None,
    ]  # fmt: skip
    assert with_run_folders(asked, []) == asked
    for wrong, problem in (("net-2", "not NAME=FOLDER"), ("net=/runs", "steps of 'net-1', 'net-2'")):
        with pytest.raises(InputFault, match="--run") as fault:
            with_run_folders(asked, [wrong])
        assert problem in str(fault.value)


@pytest.mark.repeated
@pytest.mark.torch
def test_a_plan_with_a_step_of_a_workspaces_run_is_deployed_from_the_runs_folder(tmp_path, stderr_of):
    train("sample:digits", strategy(micro_batch=8), tmp_path / "there", options=RunOptions(steps=1))
    asked = on_a30(replace(request(cut=False).models[0], source="run:digits-1@step-1"))
    write_file(asked, str(tmp_path / "request.json"))
    assert main(["plan", str(tmp_path / "request.json"), "-o", str(tmp_path / "plan.json")]) == 0
    given = [tmp_path / "plan.json", "--format", "compose", "-o", tmp_path / "out"]
    whose = ["--request", tmp_path / "request.json"]
    assert "--run NAME=FOLDER" in stderr_of("deploy", *given, *whose)
    run = ["--run", f"digits-1={tmp_path / 'there'}"]
    assert "given without --request" in stderr_of("deploy", *given, *run)
    assert main(["deploy", *map(str, (*given, *whose, *run))]) == 0
    assert list((tmp_path / "out" / "image" / "models").rglob("*.pt2"))


def test_the_progress_line_has_the_first_plan_and_nothing_else_has(tmp_path, stderr_of, monkeypatch):
    asked, planned = str(tmp_path / "request.json"), str(tmp_path / "plan.json")
    write_file(request(), asked)
    quiet = stderr_of("plan", asked, "-o", planned, code=0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    lines = stderr_of("plan", asked, "-o", planned, code=0).split("\r\033[K")
    assert "first plan" not in quiet and lines[-1] == quiet
    assert lines[1] == "  0% first plan: least normalised rate 30"
    assert lines[-2] == "  0% Raising the worst-served models; first plan: least normalised rate 30"
    assert read_file(planned)[1].objective.value == pytest.approx(30.0)


def test_a_plan_says_what_crosses_its_cuts_and_that_its_link_binds(tmp_path, stderr_of):
    asked, planned = str(tmp_path / "request.json"), str(tmp_path / "plan.json")
    write_file(request(whole=False), asked)
    stderr = stderr_of("plan", asked, "-o", planned, code=0)
    assert ", 30 MB/s across its cuts" in stderr
    assert "warning: bert: transfers between stages count as free. Set the link" in stderr
    write_file(replace(request(whole=False), link_gb_per_s=0.01), asked)
    stderr = stderr_of("plan", asked, "-o", planned, "--explain", code=0)
    assert ", 10 MB/s across its cuts" in stderr and "count as free" not in stderr
    assert "bert: the link binds (0.01 GB/s)" in stderr
    write_file(request(cut=False), asked)
    assert "across" not in stderr_of("plan", asked, "-o", planned, code=0)


def test_a_request_takes_link_and_network(tmp_path, capsys, stderr_of):
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
        stderr = stderr_of(*made, option, "0")
        assert option in stderr and "Traceback" not in stderr


def test_a_model_that_may_not_run_is_one_message(tmp_path, stderr_of):
    asked = tmp_path / "request.json"
    write_file(request(cut=False, whole=False), asked)
    assert json.loads(asked.read_text())["models"][0]["variants"][0]["allowed"] is False
    stderr = stderr_of("plan", asked, "-o", tmp_path / "plan.json")
    assert "model bert" in stderr and "Allow one" in stderr and "Traceback" not in stderr


def test_plan_at_low_plans_the_lower_ends_and_saves_what_it_answers(tmp_path, capsys):
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
    assert main(["plan", saved, "-o", planned]) == 0
    assert read_file(planned)[1].models[0].throughput_rps == 90.0
    assert main(["plan", saved, "-o", planned, "--plan-at", "nominal"]) == 0
    assert read_file(planned)[1].request_sha256 == request_hash(uncertain())


def test_the_summary_names_the_level_that_bound_and_gap_are_of():
    request = uncertain()
    planned = plan(request)
    objective = replace(
        planned.objective, sorted_normalised=(1.25, 2.0, 4.0), bound=2.5, gap=0.2, proven_levels=1
    )
    outcome = replace(planned, status="feasible", objective=objective)
    assert "feasible: leximin 1.25, 1 of 3 levels proven; level 2: 2, bound 2.5, gap 0.2" in summary_lines(
        request, outcome
    )


def test_the_summary_says_what_the_plan_rests_on_and_json_stays_the_outcome(tmp_path, capsys):
    asked = str(tmp_path / "request.json")
    write_file(uncertain(), asked)
    assert main(["plan", asked, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["format"] == "torchsplit.plan"
    for line in (
        "optimal: leximin 1.25, bound 1.25, gap 0, proven",
        "optimal for these figures, of which 1 of 2 are estimated",
        "bert: throughput 100 requests/s (90 % interval 60 to 140, estimated) of 80 wanted",
        "meets its demand: yes",
        "meets its demand even at the low end: no (bert 75 %)",
        "surest to fail: bert: 60 of 80 requests/s at the low end (75 %)",
        "best measured next: bert, stage whole, on A30-24GB 4g.24gb, batch 8, 1 process: estimated, 60 to 140 "
        "requests/s; settles 20 requests/s of what is missing at the low end",
    ):
        assert line in told.err.splitlines()
    assert main(["plan", asked, "--plan-at", "low"]) == 0
    told = capsys.readouterr()
    assert "meets its demand even at the low end: yes" in told.err.splitlines()
    assert "optimal for the low ends of these figures, of which 1 of 2 are estimated" in told.err.splitlines()
    assert "surest to fail" not in told.err and "best measured" not in told.err


def test_bytes_across_cuts_and_what_would_help_are_printed(tmp_path, capsys):
    asked = str(tmp_path / "request.json")
    write_file(request(whole=False), asked)
    assert main(["plan", asked, "-o", str(tmp_path / "plan.json")]) == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("bert: "))
    assert line.endswith("(interval n/a, measured) of 1 wanted, 30 MB/s across its cuts")
    for demands, line in (
        ({"min_throughput_rps": 150.0}, "lower min_throughput_rps of bert from 150 to 100 requests/s"),
        (
            {"min_throughput_rps": 50.0, "max_latency_ms": 15.0},
            "raise max_latency_ms of bert from 15 to 20 ms",
        ),
    ):
        write_file(replace(uncertain(), models=(replace(uncertain().models[0], **demands),)), asked)  # type: ignore[arg-type]
        assert main(["plan", asked, "-o", str(tmp_path / "plan.json")]) == 3
        told = capsys.readouterr().err.splitlines()
        assert [one for one in told if one.startswith("would help: ")] == [f"would help: {line}"]


def test_a_spare_gpu_is_asked_for_on_the_command_line(tmp_path, stderr_of):
    asked, planned = str(tmp_path / "request.json"), str(tmp_path / "plan.json")
    known = request()
    model = replace(known.models[0], min_throughput_rps=15.0, demand_rps=35.0)
    write_file(replace(known, gpus=(FleetEntry(A30, count=2),), models=(model,)), asked)
    stderr = stderr_of("plan", asked, "-o", planned, code=0)
    assert "if lost, the worst of" in stderr and "bert" in stderr
    stderr = stderr_of("plan", asked, "-o", planned, "--spare", "1", code=0)
    assert "every minimum holds with any one GPU lost" in stderr
    alone = str(tmp_path / "alone.json")
    write_file(replace(known, models=(model,)), alone)
    assert "No plan survives the loss of the only GPU" in stderr_of(
        "plan", alone, "-o", planned, "--spare", "1", code=3
    )
    assert read_file(alone)[1].objective.survives == 0


def test_the_fewest_gpus_of_models_without_a_minimum_are_refused_or_take_the_demands(tmp_path, capsys):
    asked, planned, saved = (str(tmp_path / name) for name in ("request.json", "plan.json", "saved.json"))
    known = request()
    model = replace(known.models[0], demand_rps=15.0)
    write_file(replace(known, models=(model,), objective=Objective("min_gpus")), asked)
    sweep = ["sweep", asked, "--vary", "gpus:A30-24GB=1,2"]
    for command in (["plan", asked, "-o", planned], sweep):
        assert main(command) == 2
        assert capsys.readouterr().err == (
            "torchsplit: min_gpus: no model has a minimum, so the fewest GPUs is none. Give a model a minimum "
            "(min_throughput_rps), or take the demands as minima (--demands-as-minima).\n"
        )
        assert not (tmp_path / "plan.json").exists()
    assert main(["plan", asked, "-o", planned, "--demands-as-minima", "--save-request", saved]) == 0
    made = read_file(saved)[1]
    assert [model.min_throughput_rps for model in made.models] == [15.0]
    outcome = read_file(planned)[1]
    assert outcome.request_sha256 == request_hash(made) and outcome.models[0].throughput_rps >= 15.0
    assert main([*sweep, "--demands-as-minima"]) == 0
    # A sweep of a minimum from 0 on asks for one.
    assert main(["sweep", asked, "--vary", "min_throughput:bert=0,15"]) == 0


def test_a_plan_tells_response_times_where_asked(tmp_path, capsys, stderr_of):
    asked = str(tmp_path / "request.json")
    models = tuple(replace(model, demand_rps=6.0) for model in request(cut=False).models)
    write_file(replace(request(cut=False), models=models), asked)
    assert "simulated:" not in stderr_of("plan", asked, "-o", tmp_path / "plan.json", code=0)
    assert main(["plan", asked, "-o", str(tmp_path / "plan.json"), "--simulate"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("simulated:")]
    # Two instances of 10 requests/s.
    assert len(lines) == 1 and lines[0].startswith("simulated: bert: 6 of 20 requests/s offered, 6.0")
    assert " served over 16," in lines[0] and " s simulated, response mean 1" in lines[0]
    assert "p95" in lines[0] and "±" in lines[0]


def limited(limit: float) -> PlanRequest:
    points = tuple(
        Point(A30, "4g.24gb", batch, 1000 * batch / (10 + batch), 10.0 + batch) for batch in (1, 2, 4)
    )
    variant = Variant("whole", (Stage("whole", points),))
    return on_a30(PlanModel("bert", (variant,), demand_rps=100.0, max_response_ms=limit))


def test_a_plan_says_what_its_clients_wait_and_what_bounds_it(tmp_path, stderr_of):
    asked, planned = str(tmp_path / "request.json"), str(tmp_path / "plan.json")
    write_file(limited(60.0), asked)
    stderr = stderr_of("plan", asked, "-o", planned, code=0)
    (got,) = read_file(planned)[1].models
    assert got.response_ms.p95 <= 60.0 and got.max_wait_ms == 0.0
    assert f"p95 {got.response_ms.p95:.4g} ms" in stderr and "p95 within 60 ms" in stderr
    assert f"bound by {got.response_bound_by} (" in stderr
    write_file(limited(10.9), asked)
    stderr = stderr_of("plan", asked, "-o", planned, code=3)
    assert "max_response_ms 10.9 is below the 11 ms" in stderr
    assert "would help: raise the max_response_ms" in stderr
    assert read_file(planned)[1].conflicts[0].demands[0].demand == "max_response_ms"


def test_a_state_of_standard_input_is_named_in_the_note(tmp_path, monkeypatch, capsys):
    request, state = tmp_path / "request.json", EXAMPLES / "host_state.json"
    assert main(["request", str(EXAMPLES / "profile.json"), "--current", str(state), "-o", str(request)]) == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(state.read_bytes())))
    assert main(["plan", str(request), "--current", "-", "-o", str(tmp_path / "plan.json")]) == 0
    assert "note: planned from standard input, so this" in capsys.readouterr().err

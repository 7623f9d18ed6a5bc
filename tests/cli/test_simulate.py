"""The simulate command: a request, a plan with its request, arrivals by name or table, and faults."""

import json
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, read_text
from torchsplit_core.values import (
    DeterministicArrivals,
    GammaArrivals,
    MmppArrivals,
    PoissonArrivals,
    RateState,
    SimulationRequest,
    TraceArrivals,
)

EXAMPLES = ROOT / "examples"
PLAN = [str(EXAMPLES / "plan.json"), "--request", str(EXAMPLES / "plan_request.json"), "--requests", "400"]
DEMANDS = {model.name: model.demand_rps for model in read_file(EXAMPLES / "plan_request.json")[1].models}


def simulated(folder: Path, *arguments: str) -> SimulationRequest:
    saved = folder / "made.json"
    assert (
        main(["simulate", *PLAN, *arguments, "--save-request", str(saved), "-o", str(folder / "out.json")])
        == 0
    )
    return read_file(saved, expected="torchsplit.simulation_request")[1]


def test_the_example_request_has_the_example_outcome(capsys):
    assert main(["simulate", str(EXAMPLES / "simulation_request.json"), "--json"]) == 0
    printed = capsys.readouterr()
    outcome = read_text(printed.out)[1]
    expected = read_file(EXAMPLES / "simulation.json")[1]
    for field in ("models", "servers", "highest_load", "warnings"):
        assert getattr(outcome, field) == getattr(expected, field), (
            "run python -m tools.write_examples --simulation"
        )
    bert, load = expected.models[0], expected.highest_load
    span = f"{bert.throughput_rps:.4g} served over {bert.completed / bert.throughput_rps:.3g} s simulated"
    assert f"bert: 250 of 400 requests/s offered, {span}, response mean" in printed.err
    factors = f"{load.low:.4g} times the request's rates, no longer at {load.high:.4g}\n"
    assert f"highest load: p95 keeps every limit at {factors}" in printed.err


def test_a_plan_is_simulated_at_a_load_and_its_request_saved(tmp_path, capsys):
    request = simulated(tmp_path, "--load", "1.2", "--slo", "bert=500", "--find", "90", "--seed", "3")
    assert {model.name: model.arrivals for model in request.models} == {
        name: PoissonArrivals(rate * 1.2) for name, rate in DEMANDS.items()
    }
    assert request.models[0].slo_ms == 500.0 and request.find is not None and request.find.percentile == 90.0
    assert (request.requests_per_model, request.seed) == (400, 3)
    first = json.loads((tmp_path / "out.json").read_text())
    # The file's factor is of the rates simulated, the words are of the plan's own.
    words = f"at {1.2 * first['highest_load']['factor']:.4g} times the request's rates"
    assert words in capsys.readouterr().err
    again = tmp_path / "again.json"
    assert main(["simulate", str(tmp_path / "made.json"), "-o", str(again), "--replications", "5"]) == 0
    assert first["models"] == json.loads(again.read_text())["models"]
    assert first["highest_load"]["factor"] > 0


def test_arrivals_have_names_and_a_model_its_own(tmp_path):
    given = [
        "--arrivals", "gamma:2", "--arrivals", "bert=mmpp:0.5@8,3@2", "--arrivals", "resnet50=deterministic",
    ]  # fmt: skip
    found = {model.name: model.arrivals for model in simulated(tmp_path, *given).models}
    assert found == {
        "bert": MmppArrivals((RateState(0.5 * DEMANDS["bert"], 8.0), RateState(3 * DEMANDS["bert"], 2.0))),
        "mobilenetv2": GammaArrivals(DEMANDS["mobilenetv2"], 2.0),
        "resnet50": DeterministicArrivals(DEMANDS["resnet50"]),
    }


def test_a_table_of_arrivals_is_a_trace(tmp_path):
    (tmp_path / "trace.csv").write_text("time_s\n0\n0.5\n0.75\n")
    request = simulated(tmp_path, "--arrivals", str(tmp_path / "trace.csv"))
    assert {model.arrivals for model in request.models} == {TraceArrivals((0.0, 0.5, 0.75))}
    models = json.loads((tmp_path / "out.json").read_text())["models"]
    assert {model["completed"] for model in models} == {3}
    assert {model["response_ci95_ms"]["mean"] for model in models} == {None}


def test_a_model_without_an_instance_and_another_request_are_said(tmp_path, stderr_of):
    asked = json.loads((EXAMPLES / "plan_request.json").read_text())
    asked["models"].append(asked["models"][0] | {"name": "more"})
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    asked_at, out = str(tmp_path / "asked.json"), str(tmp_path / "o.json")
    stderr = stderr_of("simulate", PLAN[0], "--request", asked_at, "--requests", "100", "-o", out, code=0)
    assert "more has no instance" in stderr and "answers another request" in stderr


@pytest.mark.parametrize(("arguments", "match"), [
    (PLAN[:1], "--request"),
    ([str(EXAMPLES / "profile.json")], "is a torchsplit.profile, which cannot be simulated"),
    ([str(EXAMPLES / "simulation_request.json"), "--arrivals", "poisson"], "has its own arrivals"),
    ([*PLAN, "--arrivals", "weekly"], "--arrivals"),
    ([*PLAN, "--arrivals", "gamma:much"], "gamma:much"),
    ([*PLAN, "--arrivals", "gamma:0"], "cv: "),
    ([*PLAN, "--arrivals", "mmpp:1"], "mmpp:1"),
    ([*PLAN, "--arrivals", "none.csv"], "none.csv"),
    ([*PLAN, "--load", "0"], "--load: "),
    ([*PLAN, "--load", "nan"], "--load: "),
    ([*PLAN, "--slo", "bert"], "--slo: 'bert' is not MODEL=MS"),
    ([*PLAN, "--slo", "nobody=5"], "--slo: unknown model 'nobody'. Known models: "),
    ([*PLAN, "--slo", "bert=inf"], "slo_ms: "),
    ([*PLAN, "--find", "100"], "percentile: "),
    ([*PLAN, "--replications", "0"], "replications: "),
    ([*PLAN, "--seed", "-1"], "seed: "),
])  # fmt: skip
def test_faults_of_the_input_are_one_message(arguments, match, tmp_path, capsys):
    assert main(["simulate", *arguments, "-o", str(tmp_path / "o.json")]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("torchsplit:")]
    assert len(told) == 1 and match in told[0]
    assert not (tmp_path / "o.json").exists()


CHATS = str(EXAMPLES / "simulations" / "chats_on_two_engines.json")


def test_engines_print_tokens_and_write_each_request(tmp_path, capsys):
    rows, out = tmp_path / "rows.csv", tmp_path / "out.json"
    few = ["--requests", "200", "--replications", "2"]
    assert main(["simulate", CHATS, *few, "-o", str(out), "--requests-out", str(rows)]) == 0
    chat = read_file(out)[1].models[0]
    printed = capsys.readouterr().err
    width = f"{chat.ttft_ci95_ms.p95:.2g}"
    assert (
        f", TTFT mean {chat.ttft_ms.mean:.4g} ms, p95 {chat.ttft_ms.p95:.4g} ± {width} ms, TPOT mean"
        in printed
    )
    assert f"{chat.output_tokens_per_s:.4g} output tokens/s, goodput {chat.goodput:.2%}\n" in printed
    header, *lines = rows.read_text().splitlines()
    assert header == (
        "model,replication,request,arrival_s,prompt_tokens,output_tokens,start_s,first_token_s,last_token_s"
    )
    assert len(lines) == 400 and lines[200].startswith("chat,1,0,")
    for line in lines:
        arrival, start, first, last = (float(line.split(",")[place]) for place in (3, 6, 7, 8))
        assert arrival <= start < first <= last


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "has bert with a share of 0"), (2.0, "has tenants whose shares add up to 2")],
)
@pytest.mark.parametrize("command", [
    ("simulate", "--request", PLAN[2]), ("transition", "--from", EXAMPLES / "host_state.json"),
    ("apply", "--from", EXAMPLES / "host_state.json"), ("deploy", "-o", "out"),
])  # fmt: skip
def test_a_plan_with_an_impossible_share_is_refused(command, share, words, tmp_path, stderr_of, monkeypatch):
    plan = json.loads((EXAMPLES / "plan.json").read_text())
    plan["gpus"][0]["slices"][0]["tenants"][0]["share"] = share
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    monkeypatch.chdir(tmp_path)
    assert f"slices of gpu0: 1g.10gb at 0: {words}" in stderr_of(command[0], "plan.json", *command[1:])
    assert not (tmp_path / "out").exists()


def test_rows_are_of_engines_alone(tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    assert main(["simulate", str(EXAMPLES / "simulation_request.json"), "--requests-out", str(rows)]) == 2
    assert "--requests-out: is given, and no server is an engine" in capsys.readouterr().err
    assert not rows.exists()

"""simulate DAY --trace on the command line: the outcome, its summary, and options that do not fit."""

import json

import pytest

from tests.support.paths import EXAMPLES
from torchsplit_core.cli.command import main

DAYS = EXAMPLES / "days"
DAY, REQUEST, TRACE = (
    str(DAYS / f"three_windows{name}") for name in (".json", "_request.json", "_trace.csv")
)
QUICK = ("--requests", "1000", "--replications", "1")


def test_the_example_is_simulated_and_its_sides_are_told(tmp_path, capsys):
    out = tmp_path / "replay.json"
    assert main(["simulate", DAY, "--request", REQUEST, "--trace", TRACE, "-o", str(out), *QUICK]) == 0
    replay = json.loads(out.read_text())
    assert replay["format"] == "torchsplit.day_replay" and replay["basis"] == "simulated"
    assert [side["name"] for side in replay["sides"]] == ["windows", "static", "rule"]
    err = capsys.readouterr().err
    assert "by window: 43.03 GPU-hours" in err and "one plan: 72 GPU-hours, at most 3 GPUs, no changes" in err
    assert "Simulated, " in err and "one by one in each of 1 replications" in err
    assert "warning: the sample has" in err


def test_options_of_the_trace_the_rule_and_the_limits_count(tmp_path, capsys):
    trace = tmp_path / "trace.csv"
    rows = [line.split(",") for line in (DAYS / "three_windows_trace.csv").read_text().splitlines()]
    rows[0][1] = "words"
    trace.write_text("\n".join(map(",".join, rows)))
    arguments = ["simulate", DAY, "--request", REQUEST, "--trace", str(trace), "--json", *QUICK]
    assert main(arguments) == 2
    assert "no column of the model 'bert'" in capsys.readouterr().err
    more = [
        "--map",
        "words=bert",
        "--scale",
        "0.5",
        "--rule-target",
        "0.5",
        "--slo",
        "bert=50",
        "--seed",
        "3",
    ]
    assert main([*arguments, *more]) == 0
    replay = json.loads(capsys.readouterr().out)
    assert replay["rule"]["target"] == 0.5 and replay["seed"] == 3
    assert replay["sides"][0]["models"][0]["max_response_ms"] == 50
    whole = sum(float(cell) for row in rows[1:] for cell in row[1:]) * 600
    assert replay["trace"]["requests"] == pytest.approx(0.5 * whole)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((DAY,), ("--trace", "is missing", "a day is simulated over a trace")),
        ((DAY, "--trace", TRACE), ("--request", "is missing")),
        ((DAY, "--trace", TRACE, "--slo", "bert=50"), ("--request", "is missing")),
        ((DAY, "--request", REQUEST, "--trace", TRACE, "--find", "95"), ("--find", "is of one plan")),
        ((DAY, "--request", REQUEST, "--trace", TRACE, "--load", "2"), ("--load", "--scale")),
        (
            (DAY, "--request", REQUEST, "--trace", TRACE, "--trace-day", "2"),
            ("--trace-day", "has 1 whole days"),
        ),
        ((DAY, "--request", REQUEST, "--trace", TRACE, "--rule-target", "2"), ("--rule-target", "is 2")),
        ((DAY, "--request", REQUEST, "--trace", TRACE, "--slo", "x=5"), ("--slo", "unknown model 'x'")),
        ((DAY, "--request", REQUEST, "--trace", TRACE, "--slo", "bert=-5"), ("--slo bert", "not above 0")),
        (
            (str(EXAMPLES / "plan.json"), "--request", REQUEST, "--trace", TRACE),
            ("torchsplit.day", "plan.json"),
        ),
        (
            (str(EXAMPLES / "simulation_request.json"), "--rule-target", "0.5"),
            ("--rule-target", "without --trace"),
        ),
    ],
)
def test_what_does_not_fit_is_said(arguments, words, capsys):
    assert main(["simulate", *arguments]) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in words), err

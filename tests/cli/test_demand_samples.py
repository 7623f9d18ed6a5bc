"""Demand samples on the command line: from a trace or drawn, the share to hold, the samples held out, the curve."""

import csv
import json

import pytest

from tests.support.paths import EXAMPLES
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, write_file

PROFILE = str(EXAMPLES / "profile.json")


@pytest.fixture
def trace(tmp_path):
    name = read_file(PROFILE)[1]
    path = tmp_path / "trace.csv"
    model = made(tmp_path).models[0].name
    assert name
    rows = "".join(f"{600 * number},{rate}\n" for number, rate in enumerate((1, 2, 3, 1, 1e9, 2)))
    path.write_text(f"time_s,{model}\n{rows}")
    return str(path)


def made(tmp_path, *options):
    out = tmp_path / "request.json"
    assert main(["request", PROFILE, "--gpus", "2xA100-80GB", *options, "-o", str(out)]) == 0
    return read_file(out)[1]


def test_a_request_with_the_samples_of_a_trace(tmp_path, trace):
    request = made(tmp_path, "--demand-samples", trace, "--attainment", "0.8")
    assert request.models[0].demand_samples == (1.0, 2.0, 3.0, 1.0, 1e9, 2.0)
    assert (request.objective.kind, request.objective.attainment) == ("min_gpus", 0.8)
    largest = made(tmp_path, "--demand-samples", trace, "--objective", "attainment")
    assert (largest.objective.kind, largest.objective.attainment) == ("attainment", None)


def test_a_request_with_drawn_samples(tmp_path, capsys):
    request = made(tmp_path, "--draw", "50", "--cv", "0.4", "--attainment", "0.9")
    assert len(request.models[0].demand_samples) == 50
    assert request == made(tmp_path, "--draw", "50", "--cv", "0.4", "--attainment", "0.9")
    out = str(tmp_path / "x.json")
    both = [
        "request",
        PROFILE,
        "--gpus",
        "2xA100-80GB",
        "--draw",
        "5",
        "--demand-samples",
        "t.csv",
        "-o",
        out,
    ]
    assert main(both) == 2 and "--demand-samples too" in capsys.readouterr().err


def test_a_plan_says_what_it_holds(tmp_path, trace, capsys):
    write_file(made(tmp_path, "--demand-samples", trace), tmp_path / "r.json")
    out = tmp_path / "plan.json"
    assert main(["plan", str(tmp_path / "r.json"), "--attainment", "0.8", "-o", str(out)]) == 0
    said = capsys.readouterr().err
    assert "objective min_gpus and attainment 0.8" in said
    assert "5 of 6 samples are held (0.8333 of them), 5 asked for" in said
    assert "in 5 of 6 samples" in said
    samples = json.loads(out.read_text())["samples"]
    assert (samples["count"], samples["held"], samples["required"]) == (6, 5, 5)
    assert main(["plan", str(tmp_path / "r.json"), "--attainment", "1", "-o", str(out)]) == 3
    said = capsys.readouterr().err
    assert "the most is 5 (83.3%)" in said and "would help: lower the attainment" in said
    assert main(["plan", str(tmp_path / "r.json"), "--attainment", "0", "-o", str(out)]) == 2
    assert "objective.attainment: is 0.0, not above 0" in capsys.readouterr().err


def test_the_samples_held_out(tmp_path, trace, capsys):
    write_file(made(tmp_path, "--demand-samples", trace), tmp_path / "r.json")
    saved = tmp_path / "half.json"
    command = [
        "plan",
        str(tmp_path / "r.json"),
        "--attainment",
        "0.6",
        "--holdout",
        "--save-request",
        str(saved),
    ]
    assert main([*command, "-o", str(tmp_path / "plan.json")]) == 0
    assert "of the 3 samples that planning did not see, 3 are held (1 of them)" in capsys.readouterr().err
    assert read_file(saved)[1].models[0].demand_samples == (1.0, 3.0, 1e9)


def test_the_curve_of_gpus_by_share(tmp_path, trace, capsys):
    write_file(made(tmp_path, "--demand-samples", trace), tmp_path / "r.json")
    capsys.readouterr()
    assert main(["sweep", str(tmp_path / "r.json"), "--vary", "attainment=0.5,0.8,1"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["value"], row["status"]) for row in rows] == [
        ("0.5", "optimal"), ("0.8", "optimal"), ("1", "infeasible")
    ]  # fmt: skip
    assert [row["objective"] for row in rows] == ["1", "1", ""]
    assert main(["sweep", str(tmp_path / "r.json"), "--vary", "attainment=0.5,1.5"]) == 2
    assert "objective.attainment: is 1.5, above 1" in capsys.readouterr().err

"""The command history: a table or a plan request of a job history, its notes, and what it refuses."""

import csv
import json
from pathlib import Path

import pytest

from tests.support.paths import EXAMPLES
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file

SACCT = str(EXAMPLES / "history" / "sacct.csv")
REQUEST = str(EXAMPLES / "plan_request.json")


def test_a_table_by_class_and_hour(tmp_path, capsys):
    out = tmp_path / "hours.csv"
    assert main(["history", SACCT, "--class-by", "gres", "-o", str(out)]) == 0
    stderr = capsys.readouterr().err
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["job_class"] for row in rows} == {"a100_1g.10gb", "a100_2g.20gb", "a100_7g.80gb", "(all)"}
    assert "warning: no row on 2026-03-05" in stderr and "taken as UTC" in stderr
    assert main(["history", SACCT, "--json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed) == 5 * 24 and printed[0]["gpu_utilisation_mean"] is None


def test_a_request_with_windows_and_samples(tmp_path, capsys):
    out = tmp_path / "week.json"
    assert main(["history", SACCT, "--request", REQUEST, "--map", "train-vit=bert", "-o", str(out)]) == 0
    stderr = capsys.readouterr().err
    assert "bert: a job takes" in stderr and "classes that are no model" not in stderr
    filled, plain = read_file(out)[1], read_file(REQUEST)[1]
    for model, before in zip(filled.models, plain.models, strict=True):
        assert model.demand_rps == before.demand_rps
        assert [window.start for window in model.demand_windows] == ["00:00", "06:00", "12:00", "18:00"]
        assert len(model.demand_samples) == 6 * 24
    # The mean over equal windows is that over all hours: jobs of both classes / observed seconds.
    means = [window.demand_rps.mean for window in filled.models[0].demand_windows]
    with Path(SACCT).open() as file:
        names = [row["JobName"].rpartition("-")[0] for row in csv.DictReader(file, delimiter="|")]
    jobs = sum(name in ("bert", "train-vit") for name in names)
    assert sum(means) / 4 == pytest.approx(jobs / (6 * 24 * 3600))
    assert main(["history", SACCT, "--request", REQUEST, "--peak", "-o", str(out)]) == 0
    assert "classes that are no model: train-vit" in capsys.readouterr().err
    model = read_file(out)[1].models[0]
    assert model.demand_rps == max(window.demand_rps.p95 for window in model.demand_windows)


def test_bounds_and_a_zone_choose_the_hours(tmp_path, capsys):
    bounds = ("--time-zone", "Europe/Berlin", "--from", "2026-03-03", "--to", "2026-03-04T12:00")
    assert main(["history", SACCT, *bounds, "-o", str(tmp_path / "out.csv")]) == 0
    assert "from 2026-03-02 23:00 to 2026-03-04 11:00 UTC, 36 hours" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    (["--peak"], "--peak: is given without --request"),
    (["--request", ""], "the name of a file is empty"),
    (["--windows", "00:00-24:00"], "--windows: is given without --request"),
    (["--time-zone", "Mars/Olympus"], "--time-zone: unknown time zone 'Mars/Olympus'"),
    (["--time-zone", "../../etc/passwd"], "--time-zone: unknown time zone"),
    (["--from", "soon"], "--from: is 'soon', not a time"),
    (["--from", "2027-01-01"], "history: has no whole observed hour"),
    (["--request", REQUEST, "--windows", "07:00-22:00"], "--windows: 00:00 belongs to no window"),
    (["--request", REQUEST, "--windows", "07:30-07:30"], "--windows: 07:30 is within an hour"),
    (["--request", REQUEST, "--windows", "07:00"], "--windows: '07:00' is not FROM-TO"),
    (["--request", REQUEST, "--map", "bert"], "--map: 'bert' is not CLASS=MODEL"),
    (["--request", REQUEST, "--map", "brt=bert"], "--map: the history has no class 'brt'. Did you mean bert?"),
    (["--request", REQUEST, "--map", "bert=x"], "--map: the request has no model 'x'"),
    (["--request", REQUEST, "--map", "bert=bert", "--map", "bert=resnet50"], "--map: gives 'bert' to 'bert' and to"),
    (["--request", REQUEST, "--class-by", "user"], "--map: is missing: the models bert, mobilenetv2, resnet50 are"),
    (["--request", SACCT], "sacct.csv"),
])  # fmt: skip
def test_what_is_refused_is_one_message(words, said, capsys):
    assert main(["history", SACCT, *words]) == 2
    stderr = capsys.readouterr().err.strip().splitlines()[-1]
    assert stderr.startswith("torchsplit: ") and said in stderr

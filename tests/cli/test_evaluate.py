"""torchsplit evaluate on a grid of two cells: files, going on, what stands in its way."""

import json
from dataclasses import replace

import pytest

from torchsplit_core import __version__
from torchsplit_core.cli.command import main
from torchsplit_core.evaluation import grid, run
from torchsplit_core.values.evaluation.outcome import CaseKey, EvaluationSettings

SETTINGS = EvaluationSettings(quick=True, requests_per_model=200, replications=2, time_limit_s=2.0)


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    keys = tuple(
        CaseKey("S1", "stock", "exclusive", "off", "equal", rule) for rule in ("whole_gpu", "uniform")
    )
    monkeypatch.setattr(run, "cases", lambda quick: keys)
    monkeypatch.setattr(grid, "QUICK", SETTINGS)


def test_it_writes_its_files_and_goes_on_where_it_stood(tmp_path, capsys):
    folder, doc = tmp_path / "found", tmp_path / "doc.md"
    assert main(["evaluate", "--quick", "-o", str(folder), "--doc", str(doc), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["format"] == "torchsplit.evaluation"
    assert printed.out == (folder / "evaluation.json").read_text()
    assert "2 cases in" in printed.err and printed.err.count("claim ") == 4
    assert doc.read_text().startswith("# Evaluation") and (tmp_path / "doc.json").read_text() == printed.out
    assert main(["evaluate", "--quick", "-o", str(folder), "--doc", "doc.html"]) == 2
    assert (folder / "report.html").exists()
    (folder / "own.txt").write_text("stays")
    assert main(["evaluate", "--quick", "-o", str(folder)]) == 0
    assert json.loads((folder / "evaluation.json").read_text())["statistics"]["taken_over"] == 2
    assert main(["evaluate", "--quick", "-o", str(folder), "--fresh"]) == 0
    assert json.loads((folder / "evaluation.json").read_text())["statistics"]["taken_over"] == 0
    assert (folder / "own.txt").read_text() == "stays"


def test_a_run_that_is_stopped_leaves_what_it_has(tmp_path, capsys, monkeypatch):
    done = run.evaluate_case

    def stopped(key, *rest):
        if key.planner == "uniform":
            raise KeyboardInterrupt
        return done(key, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "evaluate_case", stopped)
    assert main(["evaluate", "--quick", "-o", str(tmp_path)]) == 130
    left = json.loads((tmp_path / "evaluation.json").read_text())
    assert not left["complete"] and [case["key"]["planner"] for case in left["cases"]] == ["whole_gpu"]
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["a file", "damaged", "below a file"])
def test_a_folder_that_will_not_do_is_refused_with_a_message(name, tmp_path, stderr_of):
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "evaluation.json").write_text('{"format": "torchsplit.plan"}')
    where = {"a file": file, "damaged": tmp_path, "below a file": file / "folder"}[name]
    stderr = stderr_of("evaluate", "-o", where)
    assert stderr.count("torchsplit: ") == 1 and str(where.parent) in stderr and "Traceback" not in stderr


def test_without_a_folder_it_says_what_is_missing(capsys):
    assert main(["evaluate"]) == 2
    assert capsys.readouterr().err == (
        "torchsplit: evaluate: -o/--output is missing. See torchsplit evaluate --help.\n"
    )


def test_it_says_beforehand_what_its_searches_take_and_holds_to_it(tmp_path, capsys, stderr_of, monkeypatch):
    rule = CaseKey("S1", "stock", "exclusive", "off", "equal", "first_fit")
    keys = (
        rule,
        *(
            replace(rule, planner="planner", weights="fewest_gpus", sharing=s)
            for s in ("exclusive", "fractional")
        ),
        replace(rule, planner="planner", weights="throughput"),
    )
    monkeypatch.setattr(run, "cases", lambda quick: keys)
    asked = []
    told = []
    searched = run.plan_all

    def plan_each(requests, limit_s, hear):
        asked.append(limit_s)
        told.append(capsys.readouterr().err)
        assert {request.solver.time_limit_s for request in requests} <= {limit_s}
        searched(requests, limit_s, hear)

    monkeypatch.setattr(run, "plan_all", plan_each)
    folder = str(tmp_path / "found")
    assert main(["evaluate", "--quick", "--time-limit", "3", "-o", folder]) == 0
    # Three plans by two at once are two rounds of 3 s.
    assert told[0].startswith("3 plans × at most 3\u202fs, 2 at once: at most 6\u202fs of search.")
    assert asked == [3.0]
    capsys.readouterr()
    left = json.loads((tmp_path / "found" / "evaluation.json").read_text())
    assert left["settings"]["time_limit_s"] == 3.0 and left["statistics"]["version"] == __version__
    made = f"Made by torchsplit evaluate --quick --time-limit 3 on {left['statistics']['made']} with"
    assert made in (tmp_path / "found" / "report.html").read_text()
    assert main(["evaluate", "--quick", "--time-limit", "3", "-o", folder]) == 0
    assert told[1].startswith("No plan is left to search for.")
    capsys.readouterr()
    assert "search for 3 s, not for 2 s. Add --time-limit 3 to go on" in stderr_of(
        "evaluate", "--quick", "-o", folder
    )
    for wrong in ("0", "nan", "inf"):
        assert main(["evaluate", "--quick", "--time-limit", wrong, "-o", folder]) == 2
        assert capsys.readouterr().err.startswith("torchsplit: --time-limit: is ")


def test_the_quick_grid_is_a_part_of_the_whole():
    assert len(grid.cases(quick=True)) < len(grid.cases(quick=False)) / 2

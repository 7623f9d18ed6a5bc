"""A grid of two cells: run, resumed, written, and the document beside its stored outcome."""

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.support.paths import ROOT
from torchsplit_core.evaluation import output_folder, run
from torchsplit_core.evaluation.claims.verdicts import judge_claims
from torchsplit_core.evaluation.mixes import case_request
from torchsplit_core.evaluation.report.bar_charts import bar_charts, chart_svg
from torchsplit_core.evaluation.report.csv_files import CASE_COLUMNS, cases_csv
from torchsplit_core.evaluation.report.html_report import report
from torchsplit_core.evaluation.report.markdown import document
from torchsplit_core.evaluation.report.result_tables import tables
from torchsplit_core.files import read_file, write_text
from torchsplit_core.planning import plan
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault
from torchsplit_core.values.evaluation.outcome import CaseKey, EvaluationOutcome, EvaluationSettings

PLANNED = CaseKey("S1", "stock", "exclusive", "off", "equal", "planner")
RULE = replace(PLANNED, planner="first_fit")
NONE = replace(PLANNED, planner="whole_gpu")
SETTINGS = EvaluationSettings(quick=True, requests_per_model=400, replications=2, time_limit_s=20.0)
STORED = ROOT / "docs" / "reference" / "evaluation.json"


@pytest.fixture(scope="module")
def told() -> tuple[EvaluationOutcome, list[EvaluationOutcome], list[float]]:
    """The grid's outcome, what was kept on the way, the progress that was told."""
    kept = []
    shares = []
    outcome = run.evaluate(
        keys=(RULE, NONE, PLANNED), settings=SETTINGS, keep=kept.append,
        progress=lambda share, _: shares.append(share),
    )  # fmt: skip
    return outcome, kept, shares


@pytest.fixture(scope="module")
def stored() -> EvaluationOutcome:
    return read_file(STORED, expected="torchsplit.evaluation")[1]


def test_planner_and_rule_answer_one_request_and_are_compared(told):
    outcome, kept, shares = told
    rule, none, planned = outcome.cases
    assert [case.key for case in outcome.cases] == [RULE, NONE, PLANNED]
    assert len({case.request_sha256 for case in outcome.cases}) == 1
    assert none.figures is None and "need a whole GPU each" in none.why_not
    # The proven worst-served model of the published mix, and a rule that leaves GPUs free.
    assert planned.figures and planned.figures.common_load == pytest.approx(1.895, abs=1e-3)
    assert planned.gap == 0 and planned.basis == "measured" and planned.figures.at_low is None
    assert rule.figures and 1 <= rule.figures.common_load < planned.figures.common_load
    assert rule.gap is rule.status is None
    assert [len(one.cases) for one in kept] == [0, 1, 2, 3, 3]
    assert [one.complete for one in kept] == [False] * 4 + [True] and kept[-1] == outcome
    assert shares == sorted(shares) and shares[-1] == 1.0
    worst = outcome.claims[1].parts[2].comparisons
    assert [(one.label, one.result) for one in worst] == [
        ("S1-stock-exclusive-off-equal-planner / first_fit", "better")
    ]


def test_what_is_known_is_taken_over_and_nothing_else(told, monkeypatch):
    outcome, kept, _ = told
    asked = []
    monkeypatch.setattr(run, "plan_all", lambda requests, *_: asked.append(len(requests)))
    again = run.evaluate(keys=(RULE, NONE, PLANNED), settings=SETTINGS, known=outcome)
    assert again.cases == outcome.cases and again.statistics["taken_over"] == 3
    # Two of three were there when it was cut off.
    monkeypatch.setattr(run, "evaluate_case", lambda *_: pytest.fail("a rule is done again"))
    run.evaluate(keys=(RULE, NONE, PLANNED), settings=SETTINGS, known=kept[2])
    assert asked == [0, 1]
    monkeypatch.undo()
    other = replace(SETTINGS, requests_per_model=200)
    assert run.evaluate(keys=(RULE,), settings=other, known=outcome).statistics["taken_over"] == 0
    foreign = replace(outcome, cases=tuple(replace(case, request_sha256="0" * 64) for case in outcome.cases))
    assert run.evaluate(keys=(NONE,), settings=SETTINGS, known=foreign).statistics["taken_over"] == 0


class Loaded(HTMLParser):
    """What a page would load, and the tags that are open at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str | None]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [(name, value) for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag == "script":
            self.found.append((tag, None))
        if tag not in ("meta", "path", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "rect"):
            assert self.open.pop() == tag


def test_every_file_is_written_whole_and_read_back(told, tmp_path):
    outcome = told[0]
    paths = output_folder.write_files(outcome, tmp_path / "new" / "folder")
    assert {path.name for path in paths} >= {
        "evaluation.json", "cases.csv", "models.csv", "claims.csv", "report.html",
    }  # fmt: skip
    assert output_folder.read_previous(tmp_path / "new" / "folder", SETTINGS) == outcome
    with pytest.raises(InputFault, match="is of the quick grid, not of the whole one"):
        output_folder.read_previous(tmp_path / "new" / "folder", replace(SETTINGS, quick=False))
    assert write_text(outcome) == paths[0].read_text()
    for picture in (path for path in paths if path.suffix == ".svg"):
        ElementTree.fromstring(picture.read_text())
    rows = list(csv.DictReader(io.StringIO(cases_csv(outcome))))
    assert tuple(rows[0]) == CASE_COLUMNS and [row["planner"] for row in rows] == [
        "first_fit", "whole_gpu", "planner",
    ]  # fmt: skip
    assert rows[1]["common_load"] == "" and float(rows[2]["common_load"]) == pytest.approx(1.895, abs=1e-3)
    page = Loaded()
    page.feed(report(outcome))
    assert page.found == [] and page.open == []


def test_a_folder_that_cannot_be_used_is_told(tmp_path):
    assert output_folder.read_previous(tmp_path / "none", SETTINGS) is None
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputFault, match="is a file, not a folder"):
        output_folder.read_previous(file, SETTINGS)
    (tmp_path / output_folder.OUTCOME_FILE).write_text("{}")
    with pytest.raises(InputFault, match="to start anew"):
        output_folder.read_previous(tmp_path, SETTINGS)


def test_pictures_show_what_is_unknown_as_such(stored):
    (loads, *_) = bar_charts(stored)
    assert loads.name == "common_load"
    text = chart_svg(loads)
    assert "n/a" in text and "the planner" in text and 'role="img"' in text


def test_pictures_say_where_a_search_ended_early(stored):
    def picture(gap):
        cases = tuple(
            replace(case, gap=gap if case.key.planner == "planner" else None) for case in stored.cases
        )
        return chart_svg(bar_charts(replace(stored, cases=cases))[0])

    assert ", gap 9.0 %</text>" in picture(0.09) and "the search ended early" in picture(0.09)
    assert ", gap &lt; 0.1 %</text>" in picture(1e-5)
    assert "gap" not in picture(0.0)


def test_the_document_is_that_of_the_stored_outcome(stored):
    assert stored.complete and not stored.settings.quick
    text = (ROOT / "docs" / "reference" / "evaluation.md").read_text(encoding="utf-8")
    assert text == document(stored), (
        "run torchsplit evaluate -o evaluation --doc docs/reference/evaluation.md"
    )
    assert judge_claims(stored.cases) == stored.claims
    assert not re.search(r"@[A-Z]+@", text)


def test_a_rule_of_the_stored_outcome_is_found_again(stored):
    key = replace(RULE, regime="any")
    (before,) = (case for case in stored.cases if case.key == key)
    (now,) = run.evaluate(keys=(key,), settings=stored.settings).cases
    assert write_text(replace(stored, cases=(now,))) == write_text(replace(stored, cases=(before,)))


def test_the_measured_mix_is_proven_on_one_gpu_with_shares_and_on_two_without():
    exclusive = replace(PLANNED, weights="fewest_gpus")
    outcome = run.evaluate(keys=(exclusive, replace(exclusive, sharing="fractional")), settings=SETTINGS)
    assert [(case.figures and case.figures.gpus_used, case.gap) for case in outcome.cases] == [(2, 0), (1, 0)]
    said = outcome.claims[0]
    assert said.verdict == said.parts[1].verdict == "supported" and said.parts[1].counts
    (table,) = (table for table in tables(outcome) if table.title.startswith("Fewest GPUs"))
    assert [row[4:5] + row[6:] for row in table.rows] == [("2", "proven"), ("1", "proven")]
    assert "the fewest GPUs that carry every demand" in document(outcome)


@pytest.mark.parametrize("looser_first", [True, False])
def test_a_plan_on_fewer_layouts_never_beats_the_plan_on_all(monkeypatch, looser_first):
    free = replace(PLANNED, regime="any")
    strict = case_request(PLANNED, 20.0)
    best = plan(strict)
    nothing = no_plan(case_request(free, 20.0), "timeout", best.statistics)

    def plan_each(requests, _, hear):
        answers = {request_hash(strict): best, request_hash(case_request(free, 20.0)): nothing}
        order = range(len(requests)) if not looser_first else reversed(range(len(requests)))
        for position in order:
            hear(position, answers[request_hash(requests[position])])

    monkeypatch.setattr(run, "plan_all", plan_each)
    outcome = run.evaluate(keys=(free, PLANNED), settings=SETTINGS)
    loads = [case.figures.common_load for case in outcome.cases if case.figures]
    assert loads == pytest.approx([best.objective.value] * 2) and outcome.cases[0].status == "feasible"


def test_what_is_stricter_is_a_matter_of_layouts_shares_and_pairs():
    free = CaseKey("S1", "any", "fractional", "off", "equal", "planner")
    assert run._is_stricter(PLANNED, free) and run._is_stricter(replace(free, colocation="soft"), free)
    assert not run._is_stricter(free, free) and not run._is_stricter(free, PLANNED)
    assert not run._is_stricter(replace(PLANNED, weights="favoured"), free)
    assert not run._is_stricter(
        replace(PLANNED, colocation="hard"),
        replace(PLANNED, regime="any", sharing="exclusive", colocation="off", mix="S2"),
    )

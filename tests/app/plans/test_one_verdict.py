"""One verdict: every place that tells of a plan says the same of it, and the command's exit code goes with it."""

import html
import re
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.plans.compare import comparison_table
from app.plans.history import versions_table as table_of_versions
from app.plans.load import runs
from app.plans.report import report
from app.plans.screen.layout import INK
from app.plans.verdict import COLOURS, verdict_of
from tests.support.app import plan_page
from tests.support.app.page import press_key, put_plan, said
from tests.support.app.values import plan, request
from tests.support.planning.edits import with_each_model
from torchsplit_core.cli import main
from torchsplit_core.deployment import REMOVES
from torchsplit_core.files import write_file
from torchsplit_core.planning import plan as solved
from torchsplit_core.planning.comparison.plan_totals import totals_of
from torchsplit_core.values import FleetEntry, PlanRequest
from torchsplit_core.workspace.versions import Version

BOXES = {"green": "success", "amber": "warning", "red": "error"}


def limited(ms: float) -> PlanRequest:
    """The two models with another limit of the service time, which is 40 ms; the response of ocr is longer."""
    asked = request()
    return with_each_model(asked, max_latency_ms=ms)


def nobody() -> PlanRequest:
    """No model has figures for the fleet."""
    return replace(request(), gpus=(FleetEntry("H100-SXM5-80GB"),))


def impossible() -> PlanRequest:
    asked = request()
    return with_each_model(asked, min_throughput_rps=5000.0)


CASES = {
    "green": (lambda: limited(80.0), "green", 0),
    "late": (lambda: limited(45.0), "amber", 0),
    "short": (lambda: replace(request(), gpus=(FleetEntry("A100-80GB", layouts=(("3g.40gb",),)),)), "red", 0),
    "nobody": (nobody, "red", 2),
    "impossible": (impossible, "red", 3),
}


def told(page: AppTest) -> dict[str, list[str]]:
    """What stands in boxes, by the level whose colour the box has."""
    return {level: [_plain(element.value) for element in page.get(kind)] for level, kind in BOXES.items()}


def _plain(text: str) -> str:
    return text.replace("\\", "").replace("\u202f", " ")


@pytest.mark.parametrize("case", list(CASES))
def test_every_page_the_report_and_the_command_tell_one_verdict(case, page, workspace, tmp_path, capsys):
    make, level, code = CASES[case]
    asked = make()
    outcome = solved(asked)
    verdict = verdict_of(asked, outcome)
    assert verdict.level == level
    put_plan(workspace, asked, outcome)

    for name in ("plan", "overview", "deploy"):
        opened = page(name, workspace)
        boxes = told(opened)
        assert verdict.sentence in boxes[level], name
        others = [text for other in BOXES if other != level for text in boxes[other]]
        assert not any("get their demand" in text or "No model is served" in text for text in others), name
        # A plan that serves nobody is not praised.
        assert ("proven optimal" in said(opened)) == (case in ("green", "late", "short")), name
    if outcome.models:
        shown = page("plan", workspace)
        ink = said(shown).partition("st-key-card-0")[2].partition("</style>")[0]
        assert [one for one in INK if INK[one] in ink] == [one for one in INK if one == level]

    written = report("review", asked, outcome, {})
    assert f'<p class="verdict {COLOURS[level]}">{html.escape(verdict.sentence)}</p>' in written
    if outcome.models:
        assert written.index(html.escape(verdict.sentence)) < written.index("Worst-served model gets")
    assert html.escape(verdict.sentence) in comparison_table([("review", asked, outcome)])
    for fact in verdict.facts:
        assert html.escape(f"{fact.question}: {fact.text}") in written

    file = str(tmp_path / "request.json")
    write_file(asked, file)
    capsys.readouterr()
    assert main(["plan", file, "-o", str(tmp_path / "plan.json")]) == code
    progress = re.compile(r" *\d+% ")
    lines = [line for line in capsys.readouterr().err.splitlines() if not progress.match(line)]
    if case == "nobody":
        # The command refuses to search for what cannot be; a plan of before is told of as above.
        assert "no model has figures for" in lines[0] and "torchsplit estimate" in lines[0]
        return
    assert lines[0] == f"{level}: {verdict.sentence}"
    assert any("max_response_ms" in line for line in lines) == (case == "late")


def test_the_tab_under_load_agrees_with_the_first_line(page, workspace, monkeypatch):
    # What the page draws first is a quick look; here it is as long as the verdict's simulation.
    monkeypatch.setattr(runs, "quick", runs.full)
    for ms, words in (
        (80.0, "All models keep their limits at p95"),
        (45.0, "1 of 2 models exceeds its limit at p95"),
    ):
        asked = limited(ms)
        put_plan(workspace, asked, plan(asked))
        shown = page("plan", workspace)
        plan_page.tab(shown, "Under load")
        line = next(_plain(element.value) for element in shown.markdown if "at p95" in str(element.value))
        assert words in line
        for one in verdict_of(asked, plan(asked)).late:
            assert one.exceeds and f"{one.limit_ms:g} ms" in line


def test_one_press_plans_for_the_response_time(page, workspace):
    asked = limited(45.0)
    put_plan(workspace, asked, plan(asked))
    opened = page("plan", workspace)
    press_key(opened, "plan-for-response")
    changes = next(_plain(one.proto.body) for one in opened.get("html") if "Draft ·" in str(one.proto.body))
    assert "response" in changes and "45" in changes
    # Its quick plan counts no waiting: until the search has simulated, the broken limit is red and nothing is proven.
    assert any("exceeds its limit" in text for text in told(opened)["red"])
    assert "proven optimal" not in said(opened)
    assert not [element for element in opened.button if element.key == "plan-for-response"]


def test_who_serves_nobody_has_nothing_to_lose(page, workspace):
    put_plan(workspace, nobody(), solved(nobody()))
    text = said(page("plan", workspace))
    assert "No model is served, so losing a GPU changes nothing." in text
    assert "whichever GPU is lost" not in text and "most to" not in text
    past = table_of_versions([Version(1, 0.0, (), "optimal", "", totals_of(solved(nobody())))])
    assert "serves no model" in past and "proven optimal" not in past


def test_a_plan_by_hand_is_judged_as_every_plan(page, workspace):
    asked = limited(45.0)
    put_plan(workspace, asked, plan(asked))
    opened = page("plan", workspace)
    plan_page.tab(opened, "By hand")
    sentence = verdict_of(asked, plan(asked)).sentence
    assert told(opened)["amber"].count(sentence) == 2


def test_the_page_and_the_readme_tell_the_same_of_what_applying_removes(page, workspace):
    asked = limited(45.0)
    put_plan(workspace, asked, plan(asked))
    opened = page("deploy", workspace)
    assert any(REMOVES in text for text in told(opened)["amber"])
    readme = next(_plain(one.value) for one in opened.markdown if "Before you apply" in str(one.value))
    assert REMOVES in readme and verdict_of(asked, plan(asked)).sentence in readme

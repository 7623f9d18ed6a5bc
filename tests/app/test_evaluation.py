"""The page Evaluation: empty, with what was found, and the work it starts."""

from dataclasses import replace

from streamlit.testing.v1 import AppTest

from app.evaluation import page as page_module
from app.evaluation import shipped
from tests.support.app.page import press_key, turn_to
from tests.support.paths import ROOT
from torchsplit_core import jobs
from torchsplit_core.evaluation.grid import settings_of
from torchsplit_core.evaluation.report.result_tables import made_words
from torchsplit_core.files import read_file
from torchsplit_core.jobs.job_kinds import EVALUATE, EvaluateParameters
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.values.evaluation.outcome import EvaluationOutcome


def stored() -> EvaluationOutcome:
    return read_file(ROOT / "docs" / "reference" / "evaluation.json")[1]


def said(page: AppTest) -> str:
    kinds = ("html", "markdown", "info", "caption")
    return "\n".join(str(getattr(e, "value", None) or e.proto.body) for kind in kinds for e in page.get(kind))


def test_an_empty_page_shows_what_comes_with_it_and_what_each_button_takes(page, workspace, started):
    opened = page("evaluation", workspace)
    text = said(opened)
    assert "four claims: that sharing slices" in text
    assert all(claim.text in text and claim.verdict.capitalize() in text for claim in stored().claims)
    assert f"This one came with TorchSplit. {escape_markdown(made_words(stored()))}" in text
    text = text.replace("\u202f", " ")
    # 56 plans in 28 rounds of 2 s, and 160 in 80 rounds of 5 s.
    assert "72 cases of 2 mixes. 56 plans × at most 2 s, 2 at once: at most 56 s of search." in text
    assert "192 cases of 4 mixes. 160 plans × at most 5 s, 2 at once: at most 6 min 40 s of search." in text
    opened.number_input(key="evaluate-quick-limit 2").set_value(0.5).run()
    opened.number_input(key="evaluate-whole-limit 5").set_value(1.0).run()
    text = said(opened).replace("\u202f", " ")
    assert "160 plans × at most 1 s, 2 at once: at most 80 s of search." in text
    opened.button(key="evaluate-quick").click().run()
    press_key(opened, "evaluate-whole")
    assert started == [
        (EVALUATE, EvaluateParameters(quick=True, time_limit_s=0.5)),
        (EVALUATE, EvaluateParameters(quick=False, time_limit_s=1.0)),
    ]


def test_without_the_documents_one_sentence_stands_in_its_place(page, workspace, monkeypatch, tmp_path):
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "evaluation.json")
    opened = page("evaluation", workspace)
    assert "is not part of this installation" in said(opened) and not opened.get("download_button")
    assert not opened.button(key="evaluate-quick").disabled


def test_the_newest_of_the_workspace_is_shown_first_and_says_when_it_was_made(page, workspace):
    whole = stored()
    made = {"made": "2026-11-25 10:00 UTC", "version": "0.1.0", "seconds": 30.0, "taken_over": 0}
    quick = replace(whole, settings=settings_of(True, 3.0), statistics=made)
    workspace.put("evaluation", "whole", whole)
    workspace.put("evaluation", "quick", quick)
    opened = page("evaluation", workspace)
    words = "Made by torchsplit evaluate --quick --time-limit 3 on 2026-11-25 10:00 UTC with TorchSplit 0.1.0"
    assert escape_markdown(words) in said(opened) and "This one came with TorchSplit" not in said(opened)
    assert "It begins anew and replaces the stored one, which has other settings." in said(opened)
    turn_to(opened, page_module.WHICH, page_module.SHIPPED)
    assert "This one came with TorchSplit" in said(opened)


def test_every_view_of_a_stored_evaluation_is_shown(page, workspace):
    outcome = stored()
    workspace.put("evaluation", "whole", outcome)
    opened = page("evaluation", workspace)
    text = said(opened)
    assert all(claim.text in text and claim.verdict.capitalize() in text for claim in outcome.claims)
    assert "Untested on hardware" in text
    for view, word in (("Tables", "The planner beside the rules"), ("Mixes", "ParvaGPU"), ("Pictures", "")):
        turn_to(opened, "evaluation-tab", view)
        headings = [element.value for element in opened.header]
        assert word in said(opened) or word in headings
    assert {button.proto.label for button in opened.get("download_button")} >= {
        "Report (HTML)",
        "Cases (CSV)",
    }


def test_one_that_is_not_done_says_so_and_has_no_verdicts(page, workspace):
    part = stored()
    settings = settings_of(True, 3.0)
    part = replace(part, settings=settings, cases=part.cases[:5], claims=(), complete=False)
    workspace.put("evaluation", "quick", part)
    opened = page("evaluation", workspace)
    text = said(opened)
    assert "5 of 72 cases are done. Press *Evaluate quickly* again" in text and "1\\." not in text
    assert not opened.get("download_button")
    # It goes on only with the limit that it began with.
    assert opened.number_input(key="evaluate-quick-limit 3").value == 3.0 and "begins anew" not in text


def test_while_it_runs_nobody_is_asked_to_start_it_again(page, workspace, monkeypatch):
    part = replace(stored(), cases=stored().cases[:5], claims=(), complete=False)
    workspace.put("evaluation", "whole", part)
    monkeypatch.setattr(jobs, "running", lambda *_: ("a job",))
    text = said(page("evaluation", workspace))
    assert "5 of 192 cases are done." in text and "goes on by itself" in text and "again" not in text

"""Heads of tables, cards and badges say what they mean: by the glossary of docs/reference/metrics.md."""

import html
import re
from dataclasses import replace

import pytest

from app.format.badges import Badge
from app.format.glossary import explain, read_entries
from app.format.html import table_html
from app.format.word_aliases import ALIASES, EXTRA_EXPLANATIONS, PATTERNS
from app.models.cuts.candidate_tables import OBJECTIVE_LABELS
from app.overview.work import COLOURS
from app.plans.measurement import tab as run_tab
from app.plans.summary import basis_badge, metrics, status_badge
from tests.support.app.values import plan, request
from tests.support.paths import ROOT

HEAD = re.compile(r"<th(?P<attributes>[^>]*)>(?P<text>[^<]*)</th>")
UNEXPLAINED = {"{html.escape(key)}", "{html.escape(name)}", "{name}", "{what}", "batch {batch}"}
"""Heads that are names, or made of such."""
BADGE = re.compile(r"(?:widgets\.badge|Badge)\(\s*f?\"([^\"]+)\"")
SENTENCES = {("load", "results.py")}
"""Where a badge is a whole sentence, which needs no explanation."""


def test_aliases_lead_to_words_that_there_are():
    titles = {part.lower() for word in read_entries() for part in (word.title, *word.title.split(", "))}
    assert [title for title in ALIASES.values() if title not in titles] == []
    assert [key for _, key in PATTERNS if key not in EXTRA_EXPLANATIONS and key not in titles] == []


def test_every_head_of_a_table_in_the_dashboard_has_an_explanation():
    bare = []
    for path in (ROOT / "app").rglob("*.py"):
        for head in HEAD.finditer(path.read_text(encoding="utf-8")):
            text = head["text"]
            if (
                "title=" not in head["attributes"]
                and text not in UNEXPLAINED
                and not explain(html.unescape(text))
            ):
                bare.append((path.name, text))
    assert bare == []


def test_a_head_gets_the_word_and_keeps_a_title_of_its_own():
    made = table_html('<th class="n">gap</th><th title="mine">bound</th><th>nobody knows this</th>', [])
    assert f'<th class="n" title="{html.escape(explain("gap"))}">gap</th>' in made
    assert '<th title="mine">bound</th><th>nobody knows this</th>' in made


@pytest.mark.parametrize("names", ["models_table", "llms_table", "slices_table"])
def test_every_column_of_a_run_here_has_an_explanation(names):
    source = (ROOT / "app" / "plans" / "measurement" / "tab.py").read_text(encoding="utf-8")
    body = source.partition(f"def {names}(")[2].partition("\ndef ")[0]
    columns = re.findall(r'^ {16}"([^"]+)": ', body, re.MULTILINE)
    assert callable(getattr(run_tab, names)) and len(columns) > 8
    assert [column for column in columns if not explain(column)] == []


@pytest.mark.parametrize("name", ["candidates_table", "stages_table"])
def test_every_column_of_cuts_has_an_explanation(name):
    source = (ROOT / "app" / "models" / "cuts" / "candidate_tables.py").read_text(encoding="utf-8")
    body = source.partition(f"def {name}(")[2].partition("\ndef ")[0]
    columns = re.findall(r'^ {4,16}f?"([^"]+)": |row\[f?"([^"]+)"\]', body, re.MULTILINE)
    texts = [first or second for first, second in columns]
    texts = [
        text.replace("{OBJECTIVE_LABELS[objective]}", what).replace("{batch}", "8")
        for text in texts
        for what in OBJECTIVE_LABELS.values()
    ]
    assert len(texts) > 8 and [text for text in texts if not explain(text)] == []


def test_badges_and_cards_of_a_plan_have_explanations():
    solved, asked = plan(), request()
    gap = replace(solved, status="feasible", objective=replace(solved.objective, gap=0.17))
    unproven = replace(gap, objective=replace(gap.objective, gap=None))
    badges = [status_badge(one) for one in (solved, gap, unproven)]
    badges += [
        status_badge(replace(solved, status=status, gpus=(), models=()))
        for status in ("infeasible", "timeout")
    ]
    badges += [one for one in (basis_badge(solved, asked), basis_badge(solved, None)) if one is not None]
    badges += [Badge(state, colour) for state, colour in COLOURS.items()]
    assert len({badge.text for badge in badges}) == len(badges)
    assert [badge.text for badge in badges if not badge.help] == []
    assert [card.label for card in metrics(solved, asked) if not card.help] == []


def test_every_badge_with_words_of_its_own_has_an_explanation():
    bare = []
    for path in (ROOT / "app").rglob("*.py"):
        for text in BADGE.findall(path.read_text(encoding="utf-8")):
            shown = text.replace("{what}", "worst served proven best")
            shown = re.sub(r"\{[^{}]*basis\}", "measured", shown)
            shown = re.sub(r"\{[^{}]*\}", "7", shown)
            if path.parts[-2:] not in SENTENCES and not explain(shown):
                bare.append((path.name, shown))
    assert bare == []

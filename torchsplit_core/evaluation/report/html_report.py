"""An evaluation as HTML: the parts that the dashboard shows too, and a file that opens offline and prints.

It has no script and loads nothing; its policy forbids both. Every text is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from torchsplit_core.evaluation.report.bar_charts import bar_charts, chart_svg
from torchsplit_core.evaluation.report.formatting import figure
from torchsplit_core.evaluation.report.result_tables import ReportTable, made_words, settings_words, tables
from torchsplit_core.values.evaluation.outcome import Claim, ClaimPart, Comparison, EvaluationOutcome

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --ground: #fbfcfa; --ink: #1b1f24; --line: #dcdedb; --card: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ground: #0e1418; --ink: #e6eaee; --line: #2b343d; --card: #131a20; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 "Source Sans", system-ui, sans-serif;
  max-width: 1180px; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1rem 0 .2rem; }
section.claim, figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem;
  margin: 0 0 .8rem; }
.verdict { border-left: 5px solid; border-radius: 4px; padding: .2rem .7rem; font-weight: 600; margin: .4rem 0; }
.supported { border-color: #0f766e; } .cannot-be-said { border-color: #d97706; }
.not-supported { border-color: #d92d20; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; vertical-align: bottom; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid var(--line); }
th.n, td.n { text-align: right; }
td.n, td.name { white-space: nowrap; }
figure { overflow-x: auto; }
p { max-width: 75ch; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; background: none; } details > * { display: block; }
  figure, section.claim, tr { break-inside: avoid; } table { font-size: 7.5pt; } div.wide { overflow: visible; }
  td.n, td.name { white-space: normal; } figure svg { min-width: 0 !important; } }
"""


def report(outcome: EvaluationOutcome) -> str:
    """The whole file as text."""
    provenance = f"{made_words(outcome)} {settings_words(outcome)} Untested on hardware."
    parts = [
        "<h1>Evaluation</h1>",
        f"<p>{html.escape(provenance)}</p>",
        "<h2>Four claims about plans</h2>",
        *map(claim_html, outcome.claims),
        "<h2>Pictures</h2>",
        pictures_html(outcome),
        *map(table_section, tables(outcome)),
        "<h2>The mixes</h2>",
        mixes_html(outcome),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>TorchSplit evaluation</title><style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body>"
        "</html>\n"
    )


def claim_html(claim: Claim, level: int = 3) -> str:
    """A claim with its verdict, its parts and their comparisons, under a heading of that level."""
    kind = claim.verdict.replace(" ", "-")
    parts = "".join(map(_part_html, claim.parts))
    return (
        f'<section class="claim"><h{level}>{claim.number}. {html.escape(claim.text)}</h{level}>'
        f'<p class="verdict {kind}">{html.escape(claim.verdict.capitalize())}</p>'
        f"<p>{html.escape(claim.words)}</p>{parts}</section>"
    )


def _part_html(part: ClaimPart) -> str:
    note = "" if part.counts else " (told beside it)"
    heading = f"<p><b>{html.escape(part.title)}{note}: {html.escape(part.verdict)}.</b> {html.escape(part.words)}</p>"
    if not part.comparisons:
        return f"{heading}<p>{html.escape(part.rule)}</p>"
    rows = "".join(map(_comparison_row, part.comparisons))
    head = '<th>case</th><th class="n">tested</th><th class="n">beside</th><th>result</th>'
    return (
        f"{heading}<details><summary>{html.escape(part.metric)}: {len(part.comparisons)} comparisons</summary>"
        f'<p>{html.escape(part.rule)}</p><div class="wide" tabindex="0"><table class="ts">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _comparison_row(comparison: Comparison) -> str:
    result = f"{comparison.result}: {comparison.note}" if comparison.note else comparison.result
    return (
        f'<tr><td>{html.escape(comparison.label)}</td><td class="n">{figure(comparison.tested, 4)}</td>'
        f'<td class="n">{figure(comparison.reference, 4)}</td><td>{html.escape(result)}</td></tr>'
    )


def pictures_html(outcome: EvaluationOutcome) -> str:
    """Every picture in a figure."""
    return "".join(f"<figure>{chart_svg(chart)}</figure>" for chart in bar_charts(outcome))


def table_section(table: ReportTable) -> str:
    """A table under its title."""
    return f"<section><h2>{html.escape(table.title)}</h2>{table_html(table)}</section>"


def table_html(table: ReportTable) -> str:
    """A table with an explanation of its words."""
    rows = "".join(f"<tr>{_cells('td', row, table)}</tr>" for row in table.rows)
    return (
        f'<p>{html.escape(table.about)}</p><div class="wide" tabindex="0"><table class="ts"><thead><tr>'
        f"{_cells('th', table.columns, table)}</tr></thead><tbody>"
        f"{rows}</tbody></table></div>"
    )


def _cells(tag: str, values: Iterable[str], table: ReportTable) -> str:
    return "".join(
        f'<{tag} class="{_kind(table, number)}">{html.escape(value)}</{tag}>'
        for number, value in enumerate(values)
    )


def _kind(table: ReportTable, column: int) -> str:
    return "n" if table.is_figure(column) else "name" if column < table.names else "words"


def mixes_html(outcome: EvaluationOutcome) -> str:
    """The basis of each mix."""
    return "".join(
        f"<p><b>{html.escape(mix.title)}</b> ({html.escape(mix.name)}; {mix.gpus} × {html.escape(mix.gpu_type)}; "
        f"{html.escape(', '.join(mix.models))}). {html.escape(mix.about)}</p>"
        for mix in outcome.mixes
    )

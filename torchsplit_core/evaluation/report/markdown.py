"""The document docs/reference/evaluation.md."""

from __future__ import annotations

from importlib import resources

from torchsplit_core.evaluation.report.result_tables import (
    ReportTable,
    colocation_texts,
    command_words,
    made_words,
    objective_texts,
    settings_words,
    tables,
)
from torchsplit_core.values.evaluation.outcome import Claim, EvaluationOutcome


def document(outcome: EvaluationOutcome) -> str:
    """The whole document: data/document.md filled with the results."""
    text = (resources.files("torchsplit_core.evaluation") / "data" / "document.md").read_text("utf-8")
    colocations = colocation_texts(case.key for case in outcome.cases)
    parts = {
        "COMMAND": f"{command_words(outcome.settings)} -o evaluation --doc docs/reference/evaluation.md",
        "SETTINGS": f"{made_words(outcome)} {settings_words(outcome)}",
        "VERDICTS": _verdicts(outcome),
        "CLAIMS": "\n\n".join(map(_claim, outcome.claims)),
        "TIED": "; ".join(("off", *(f"{tying}, {words}" for tying, words in colocations.items()))),
        "WEIGHED": "; ".join(objective_texts(case.key for case in outcome.cases)),
        "MIXES": _mixes(outcome),
        "TABLES": "\n\n".join(map(_table, tables(outcome))),
    }
    for name, content in parts.items():
        text = text.replace(f"@{name}@", content)
    return text


def _verdicts(outcome: EvaluationOutcome) -> str:
    rows = "\n".join(
        f"| {claim.number} | {_cell(claim.text)} | **{claim.verdict}** |" for claim in outcome.claims
    )
    return f"| | claim | verdict |\n|---|---|---|\n{rows}"


def _claim(claim: Claim) -> str:
    lines = [f"### {claim.number}. {claim.verdict.capitalize()}", "", claim.words, ""]
    lines.append("| what | verdict | found | rule |")
    lines.append("|---|---|---|---|")
    seen_rules: set[str] = set()
    for part in claim.parts:
        title = part.title if part.counts else f"{part.title} (told beside it)"
        rule = "as above" if part.rule in seen_rules else part.rule
        seen_rules.add(part.rule)
        lines.append(f"| {_cell(title)} | {part.verdict} | {_cell(part.words)} | {_cell(rule)} |")
    return "\n".join(lines)


def _mixes(outcome: EvaluationOutcome) -> str:
    rows = "\n".join(
        f"| `{mix.name}` | {mix.gpus} × {mix.gpu_type} | {_cell(', '.join(mix.models))} | {_cell(mix.about)} |"
        for mix in outcome.mixes
    )
    return f"| mix | fleet | models | what it rests on |\n|---|---|---|---|\n{rows}"


def _table(table: ReportTable) -> str:
    head = " | ".join(map(_cell, table.columns))
    rule = " | ".join("---:" if table.is_figure(number) else "---" for number in range(len(table.columns)))
    rows = "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in table.rows)
    return f"## {table.title}\n\n{table.about}\n\n| {head} |\n| {rule} |\n{rows}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

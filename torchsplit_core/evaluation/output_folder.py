"""An evaluation as files in a folder, and the results of an earlier run there."""

from __future__ import annotations

from pathlib import Path

from torchsplit_core.evaluation.report.bar_charts import bar_charts, chart_svg
from torchsplit_core.evaluation.report.csv_files import cases_csv, claims_csv, models_csv
from torchsplit_core.evaluation.report.html_report import report
from torchsplit_core.files import read_file, replace_file, write_file
from torchsplit_core.values import InputFault
from torchsplit_core.values.evaluation.outcome import EvaluationOutcome, EvaluationSettings

OUTCOME_FILE = "evaluation.json"


def read_previous(folder: Path, settings: EvaluationSettings) -> EvaluationOutcome | None:
    """The outcome in the folder, perhaps with cases missing; None if there is none.

    Raises InputFault if the folder is a file, or if its outcome cannot be read, or is of the other grid (quick or
    whole), or of another time limit.
    """
    if folder.exists() and not folder.is_dir():
        raise InputFault("-o", f"{folder} is a file, not a folder", "Name a folder; it is made if missing.")
    if not (folder / OUTCOME_FILE).exists():
        return None
    try:
        previous: EvaluationOutcome = read_file(folder / OUTCOME_FILE, expected="torchsplit.evaluation")[1]
    except InputFault as fault:
        raise InputFault(
            fault.where,
            fault.problem,
            f"Remove {folder / OUTCOME_FILE} to start anew, or name another folder.",
        ) from fault
    if previous.settings.quick != settings.quick:
        stored_grid, wanted_grid = "the quick grid", "the whole one"
        if settings.quick:
            stored_grid, wanted_grid = "the whole grid", "the quick one"
        raise InputFault(
            str(folder / OUTCOME_FILE),
            f"is of {stored_grid}, not of {wanted_grid}",
            "Name another folder, or add --fresh.",
        )
    limit = previous.settings.time_limit_s
    if limit != settings.time_limit_s:
        raise InputFault(
            str(folder / OUTCOME_FILE),
            f"is of plans that search for {limit:g} s, not for {settings.time_limit_s:g} s",
            f"Add --time-limit {limit:g} to go on with it or --fresh to begin anew, or name another folder.",
        )
    return previous


def save_outcome(outcome: EvaluationOutcome, folder: Path) -> None:
    """Save the outcome so far, from which the next run continues. Raises InputFault if it cannot be written."""
    write_file(outcome, folder / OUTCOME_FILE)


def write_files(outcome: EvaluationOutcome, folder: Path) -> tuple[Path, ...]:
    """Write every file of a complete evaluation, the outcome first, each atomically; others stay.

    Raises InputFault if one cannot be written.
    """
    save_outcome(outcome, folder)
    texts = {
        "cases.csv": cases_csv(outcome),
        "models.csv": models_csv(outcome),
        "claims.csv": claims_csv(outcome),
        "report.html": report(outcome),
        **{f"{chart.name}.svg": chart_svg(chart, standalone=True) for chart in bar_charts(outcome)},
    }
    for name, text in texts.items():
        replace_file(folder / name, text)
    return (folder / OUTCOME_FILE, *(folder / name for name in texts))

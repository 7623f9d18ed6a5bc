"""An evaluation as the files of a folder, and what a run before this one has left there."""

from __future__ import annotations

from pathlib import Path

from torchsplit_core.evaluation.report.page import report
from torchsplit_core.evaluation.report.pictures import picture_svg, pictures
from torchsplit_core.evaluation.report.tables import cases_csv, claims_csv, models_csv
from torchsplit_core.files import read_file, replace_file, write_file
from torchsplit_core.values import InputFault
from torchsplit_core.values.evaluation.outcome import EvaluationOutcome, EvaluationSettings

OUTCOME = "evaluation.json"


def left_in(folder: Path, settings: EvaluationSettings) -> EvaluationOutcome | None:
    """The outcome, perhaps with cases missing, that stands in the folder; None where there is none.

    Raises InputFault where the folder is a file, where its outcome cannot be read, and where it is one of the other
    grid, the quick one or the whole, or of searches with another time limit.
    """
    if folder.exists() and not folder.is_dir():
        raise InputFault("-o", f"{folder} is a file, not a folder", "Name a folder; it is made if missing.")
    if not (folder / OUTCOME).exists():
        return None
    try:
        found: EvaluationOutcome = read_file(folder / OUTCOME, expected="torchsplit.evaluation")[1]
    except InputFault as fault:
        raise InputFault(
            fault.where,
            fault.problem,
            f"Remove {folder / OUTCOME} to start anew, or name another folder.",
        ) from fault
    if found.settings.quick != settings.quick:
        there, asked = "the quick grid", "the whole one"
        if settings.quick:
            there, asked = "the whole grid", "the quick one"
        raise InputFault(
            str(folder / OUTCOME), f"is of {there}, not of {asked}", "Name another folder, or add --fresh."
        )
    limit = found.settings.time_limit_s
    if limit != settings.time_limit_s:
        raise InputFault(
            str(folder / OUTCOME),
            f"is of plans that search for {limit:g} s, not for {settings.time_limit_s:g} s",
            f"Add --time-limit {limit:g} to go on with it or --fresh to begin anew, or name another folder.",
        )
    return found


def keep(outcome: EvaluationOutcome, folder: Path) -> None:
    """The outcome so far, from which the next run goes on. Raises InputFault where it cannot be written."""
    write_file(outcome, folder / OUTCOME)


def write(outcome: EvaluationOutcome, folder: Path) -> tuple[Path, ...]:
    """Every file of a complete evaluation, the outcome first. Each appears whole or not at all; others stay.

    Raises InputFault where one cannot be written.
    """
    keep(outcome, folder)
    texts = {
        "cases.csv": cases_csv(outcome),
        "models.csv": models_csv(outcome),
        "claims.csv": claims_csv(outcome),
        "report.html": report(outcome),
        **{f"{one.name}.svg": picture_svg(one, alone=True) for one in pictures(outcome)},
    }
    for name, text in texts.items():
        replace_file(folder / name, text)
    return (folder / OUTCOME, *(folder / name for name in texts))

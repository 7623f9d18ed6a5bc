"""history --request: the plan request with the demand of a history."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchsplit_core import files
from torchsplit_core.cli.common import write_outcome
from torchsplit_core.values import InputFault, quoted

if TYPE_CHECKING:
    from torchsplit_core.tables.job_history.observed_hours import ObservedHours
    from torchsplit_core.tables.job_history.records import GpuJob

MOST_NAMED = 12
"""Classes that a note names; it counts the others."""


def write_filled_request(
    classes: Mapping[str, Sequence[GpuJob]], observed: ObservedHours, options: argparse.Namespace
) -> None:
    """Write the request with the demand of its models' classes. Raises InputFault."""
    from torchsplit_core.planning.request.demand_windows import check_windows
    from torchsplit_core.planning.request.validate import validate
    from torchsplit_core.tables.job_history import request_demand
    from torchsplit_core.tables.job_history.hourly_figures import hour_series, mean_duration_s

    windows = request_demand.parse_windows(options.windows or request_demand.DEFAULT_WINDOWS)
    check_windows("--windows", windows)
    request_demand.check_full_hours(windows)
    request = files.read_file(options.request, expected="torchsplit.plan_request")[1]
    models = request_demand.models_of_classes(request, list(classes), _entries(options.map))
    jobs_of = {model: [job for name in names for job in classes[name]] for model, names in models.items()}
    rates = {model: hour_series(jobs, observed).rates for model, jobs in jobs_of.items()}
    request, notes = request_demand.with_demand(request, rates, observed.hours, windows, peak=options.peak)
    validate(request)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    durations = {model: mean_duration_s(jobs) for model, jobs in jobs_of.items()}
    known = {model: seconds for model, seconds in durations.items() if seconds is not None}
    for warning in request_demand.unit_warnings(request, known):
        print(f"warning: {warning}", file=sys.stderr)
    used = {name for names in models.values() for name in names}
    if left_out := [name for name in classes if name not in used]:
        more = f" and {len(left_out) - MOST_NAMED} more" if len(left_out) > MOST_NAMED else ""
        names = ", ".join(left_out[:MOST_NAMED]) + more
        print(f"warning: classes that are no model: {names} (--map CLASS=MODEL)", file=sys.stderr)
    write_outcome(request, options)


def _entries(texts: Sequence[str]) -> list[tuple[str, str]]:
    entries = []
    for text in texts:
        job_class, separator, model = text.rpartition("=")
        if not separator or not job_class.strip() or not model.strip():
            raise InputFault(
                "--map", f"{quoted(text)} is not CLASS=MODEL", "Write for example train-bert=bert."
            )
        entries.append((job_class.strip(), model.strip()))
    return entries

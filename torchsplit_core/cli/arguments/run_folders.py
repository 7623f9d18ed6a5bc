"""The option --run: where the training runs lie that a plan request of a workspace names as `run:NAME@step-N`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from torchsplit_core.values import InputFault, PlanRequest, quoted


def add_run_option(parser: argparse.ArgumentParser) -> None:
    """Add --run to a command that takes a plan request."""
    parser.add_argument(
        "--run",
        dest="runs",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="the folder of the training run that the request's source run:NAME@step-N is a step of",
    )


def with_run_folders(request: PlanRequest, given: list[str]) -> PlanRequest:
    """The request with the folder in place of each run that has one.

    Raises InputFault for anything else than NAME=FOLDER, and for a name that no source of the request has.
    """
    if not given:
        return request
    from torchsplit_core.training.stored_runs import RUN_PREFIX

    folders = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not name or not equals or not folder:
            raise InputFault(
                "--run", f"is {quoted(text)}, not NAME=FOLDER", "Write the run's name, = and its folder."
            )
        folders[name] = str(Path(folder).expanduser().absolute())
    models, named = [], set()
    for model in request.models:
        source = model.source or ""
        if source.startswith(RUN_PREFIX):
            name, _, step = source.removeprefix(RUN_PREFIX).rpartition("@")
            named.add(name)
            source = f"{folders[name]}@{step}" if name in folders else source
        models.append(replace(model, source=source or None))
    if unknown := sorted(folders.keys() - named):
        listed = ", ".join(map(quoted, sorted(named)))
        raise InputFault(
            "--run",
            f"names {quoted(unknown[0])}, and no model of the request is a step of that run",
            f"The request has steps of {listed}." if named else "Leave the option out.",
        )
    return replace(request, models=tuple(models))

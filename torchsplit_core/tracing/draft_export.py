"""Draft exports: torch follows the path of the example inputs, and reports its assumptions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._logging.structured import INTERN_TABLE
from torch.export import ExportedProgram, draft_export

from torchsplit_core.model_source import is_user_file
from torchsplit_core.tracing.export_inputs import DynamicSizes

MOST_NOTES = 20
TRACE_FOLDER = "TORCH_TRACE"
"""The variable with the folder of torch's log, from which torch makes its report."""


def export_draft(model: torch.nn.Module, sizes: DynamicSizes) -> ExportedProgram:
    """Export along the path of the example inputs. Raises whatever the model or torch raises."""
    shapes = sizes.dynamic_shapes(model)
    with _log_folder(), torch.no_grad():
        return draft_export(model, sizes.args, sizes.kwargs, dynamic_shapes=shapes)


def describe_assumptions(program: ExportedProgram) -> tuple[str, ...]:
    """The assumptions of a draft export, a sentence for each place in the model's code."""
    notes: dict[str, None] = {}
    for failure in _failures(program):
        kind, data = str(failure.failure_type), failure.data
        if kind == "DATA_DEPENDENT_ERROR":
            place, code = _user_location(data)
            notes[
                f"{place}: `{code}` depends on values of the data; traced for what the example inputs give. "
                "Other data may take another way, which this graph does not have."
            ] = None
        elif kind == "MISSING_FAKE_KERNEL":
            notes[
                f"operator {data['op']} has no fake kernel (torch.library.register_fake): the shape of its "
                "result is the one that the example inputs gave."
            ] = None
        elif kind == "MISMATCHED_FAKE_KERNEL":
            notes[f"operator {data['op']} has a wrong fake kernel: {data['reason']}."] = None
    sentences = list(notes)
    omitted = len(sentences) - MOST_NOTES
    return (*sentences[:MOST_NOTES], *([f"{omitted} more places of that kind."] if omitted > 0 else []))


def _failures(program: ExportedProgram) -> list[Any]:
    report = program._report
    return [] if report is None else list(report.failures)


def _user_location(data: dict[str, Any]) -> tuple[str, str]:
    """file.py:12 and its code, for the innermost frame in the user's code."""
    files = {number: name for name, number in INTERN_TABLE.items()}
    frames = [(files.get(frame["filename"], ""), frame) for frame in data["user_stack"]]
    user_frames = [(path, frame) for path, frame in frames if path and is_user_file(path)] or frames[-1:]
    path, frame = user_frames[-1]
    return f"{Path(path).name}:{frame['line']}", str(frame["loc"])


@contextmanager
def _log_folder() -> Iterator[None]:
    """Write torch's log to a temporary folder."""
    before = os.environ.get(TRACE_FOLDER)
    with tempfile.TemporaryDirectory(prefix="torchsplit-draft-") as folder:
        os.environ[TRACE_FOLDER] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[TRACE_FOLDER]
            else:
                os.environ[TRACE_FOLDER] = before

"""Detects which of the known tables a text is, and reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torchsplit_core.files import read_text
from torchsplit_core.tables.import_result import Imported
from torchsplit_core.tables.profile_csv import read_profile_csv
from torchsplit_core.tables.sheet import read_sheet
from torchsplit_core.tables.triton_csv import (
    is_model_analyzer,
    is_perf_analyzer,
    read_model_analyzer,
    read_perf_analyzer,
)

TableKind = Literal["profiles", "model_analyzer", "perf_analyzer", "json"]


def detect(text: str, origin: str = "the file") -> TableKind:
    """The kind of the text by its header: a user's table, one of Triton's two, or a contract file.

    Raises InputFault for what is neither JSON nor a table.
    """
    if text.lstrip("\ufeff").lstrip().startswith("{"):
        return "json"
    header = read_sheet(text, origin).header
    if is_perf_analyzer(header):
        return "perf_analyzer"
    if is_model_analyzer(header) or {"GPU UUID", "Model Config Path"} & set(header):
        return "model_analyzer"
    return "profiles"


def read_any(
    text: str,
    *,
    mapping: Mapping[str, str] | None = None,
    gpu_type: str = "A100-80GB",
    slice_name: str | None = None,
    model: str | None = None,
    batch_size: int | None = None,
    instances: int = 1,
    origin: str = "the file",
    skip_bad: bool = False,
) -> Imported:
    """The profiles of any text that `detect` knows; a profile in JSON is returned unchanged.

    With a mapping the text is read as a user's table, whatever its header. Raises InputFault as the readers do.
    """
    kind = "profiles" if mapping else detect(text, origin)
    if kind == "json":
        _, profile = read_text(text.lstrip("\ufeff"), origin=origin, expected="torchsplit.profile")
        return Imported((profile,))
    if kind == "model_analyzer":
        return read_model_analyzer(
            text, gpu_type=gpu_type, slice_name=slice_name, origin=origin, skip_bad=skip_bad
        )
    if kind == "perf_analyzer":
        return read_perf_analyzer(
            text,
            model=model,
            batch_size=batch_size,
            instances=instances,
            gpu_type=gpu_type,
            slice_name=slice_name,
            origin=origin,
            skip_bad=skip_bad,
        )
    return read_profile_csv(
        text,
        mapping=mapping,
        gpu_type=gpu_type,
        origin=origin,
        skip_bad=skip_bad,
        model=model,
        slice_name=slice_name,
        batch_size=batch_size,
    )

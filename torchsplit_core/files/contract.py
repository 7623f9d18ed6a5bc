"""Reading and writing contract files: text ↔ strict model ↔ frozen value.

File models are made of the values (`file_models`), so one pair of functions serves all formats.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from functools import cache, reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from torchsplit_core.files.atomic_write import replace_file
from torchsplit_core.files.json_text import TRUSTED_BYTES, measure, parse_json, refuse_large
from torchsplit_core.files.validation_faults import fault_of
from torchsplit_core.graph.serialization import graph_from_dict, graph_to_text
from torchsplit_core.values import InputFault, quoted, suggestion, system_reason

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

    from torchsplit_core.values import PlacementRequest

LARGEST_FILE_BYTES = 512 * 2**20
"""A larger contract file is refused before it is read."""

STANDARD_STREAM, STANDARD_NAME = "-", "standard input"
"""The path that means standard input, and its name in messages."""

_stdin_read: object = None
"""The standard input that was read: a second read would find nothing."""

FORMATS: Mapping[str, str] = {
    "torchsplit.graph": "torchsplit_core.graph.torch_graph:TorchGraph",
    "torchsplit.profile": "torchsplit_core.values.profile:Profile",
    "torchsplit.plan_request": "torchsplit_core.values.plan.request:PlanRequest",
    "torchsplit.llm_points": "torchsplit_core.values.plan.llm:LlmPoints",
    "torchsplit.plan": "torchsplit_core.values.plan.outcome:PlanOutcome",
    "torchsplit.partition_request": "torchsplit_core.values.partition:PartitionRequest",
    "torchsplit.partition": "torchsplit_core.values.partition:PartitionOutcome",
    "torchsplit.placement_request": "torchsplit_core.values.placement:PlacementRequest",
    "torchsplit.placement": "torchsplit_core.values.placement:PlacementOutcome",
    "torchsplit.placement_frontier": "torchsplit_core.values.placement:PlacementFrontier",
    "torchsplit.stages": "torchsplit_core.values.stages:StageManifest",
    "torchsplit.simulation_request": "torchsplit_core.values.simulation.request:SimulationRequest",
    "torchsplit.simulation": "torchsplit_core.values.simulation.outcome:SimulationOutcome",
    "torchsplit.measurement": "torchsplit_core.values.serving.measurement:Measurement",
    "torchsplit.strategy_request": "torchsplit_core.values.strategy.request:StrategyRequest",
    "torchsplit.strategy": "torchsplit_core.values.strategy.outcome:StrategyOutcome",
    "torchsplit.routes": "torchsplit_core.values.serving.routes:Routes",
    "torchsplit.evaluation": "torchsplit_core.values.evaluation.outcome:EvaluationOutcome",
    "torchsplit.host_state": "torchsplit_core.values.plan.host_state:HostState",
    "torchsplit.transition": "torchsplit_core.values.transition.outcome:Transition",
    "torchsplit.day": "torchsplit_core.values.day.outcome:DayOutcome",
    "torchsplit.prices": "torchsplit_core.values.plan.prices:PriceTable",
    "torchsplit.day_replay": "torchsplit_core.values.day.replay:DayReplay",
}
"""Format name → value class, imported when the format is first read."""

IN_VERSION_2 = ("torchsplit.placement_request", "torchsplit.placement", "torchsplit.placement_frontier")
"""Formats that are written in version 2 and read in version 1 for ever."""


def newest_version(format_name: str) -> int:
    """The version that is written."""
    return 2 if format_name in IN_VERSION_2 else 1


def value_class(format_name: str) -> type:
    """The class of a format's values."""
    module, _, name = FORMATS[format_name].partition(":")
    kind: type = getattr(import_module(module), name)
    return kind


def _is_earlier(format_name: str, version: int) -> bool:
    return version < newest_version(format_name)


@cache
def _model(format_name: str, version: int) -> type[BaseModel]:
    """The file model, made when first used: a job that only writes a graph starts twice as fast without pydantic."""
    if format_name == "torchsplit.graph":
        from torchsplit_core.files.graph_model import GraphFile

        return GraphFile
    from torchsplit_core.files.file_models import file_model

    return file_model(value_class(format_name), _is_earlier(format_name, version), (format_name, version))


@cache
def _adapter(format_name: str, version: int) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    from torchsplit_core.files.file_models import file_type

    earlier = _is_earlier(format_name, version)
    return TypeAdapter(file_type(value_class(format_name), earlier, (format_name, version)))


def schema_of(format_name: str) -> dict[str, Any]:
    """The JSON schema of a format: of its one version, or of any of its versions."""
    newest = newest_version(format_name)
    if newest == 1:
        return _model(format_name, 1).model_json_schema(by_alias=True)
    from pydantic import Field, TypeAdapter

    models = [_model(format_name, version) for version in range(newest, 0, -1)]
    any_version: Any = reduce(or_, models)
    return TypeAdapter(Annotated[any_version, Field(discriminator="version")]).json_schema(by_alias=True)


def read_text(
    text: str, *, origin: str = "the file", expected: str | None = None, memory_bytes: int = TRUSTED_BYTES
) -> tuple[str, Any]:
    """A contract file's format name and value, of any version.

    Raises InputFault where it is not one (or not `expected`), and where reading it could need more than
    `memory_bytes`.
    """
    name, version, data = _parsed(text, origin, expected, memory_bytes)
    del text
    return name, _value(name, version, data, origin)


def _parsed(
    text: str, origin: str, expected: str | None, memory_bytes: int
) -> tuple[str, int, dict[str, Any]]:
    """A contract file's format name, version and plain data, whose fields are not checked yet."""
    data = parse_json(text, origin, memory_bytes=memory_bytes)
    if not isinstance(data, dict):
        raise InputFault(
            origin, "is JSON, but not an object with a format", "Pass a file that TorchSplit wrote."
        )
    if "format" not in data:
        raise InputFault(
            origin, "does not say what it is: it has no field format", "Pass a file that TorchSplit wrote."
        )
    name = data["format"]
    if not isinstance(name, str) or name not in FORMATS:
        raise InputFault(
            f"{origin}: format",
            f"is {quoted(name)}, not a known format",
            suggestion(name, FORMATS, "formats"),
        )
    if expected is not None and name != expected:
        raise InputFault(origin, f"is a {name} file, not a {expected} file", f"Pass a {expected} file.")
    version, newest = data.get("version"), newest_version(name)
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= newest:
        raise InputFault(
            f"{origin}: version",
            f"is {quoted(version)}, not a version of {name} that can be read"
            if "version" in data
            else "is missing",
            f"Give 1{f' to {newest}' if newest > 1 else ''}, or update TorchSplit if the file is newer.",
        )
    if name != "torchsplit.graph":
        refuse_large(measure(text).checked_bytes, memory_bytes, origin)
    return name, version, data


def _value(name: str, version: int, data: dict[str, Any], origin: str) -> Any:
    """The value of plain data. Raises InputFault if it breaks a rule of its format."""
    if name == "torchsplit.graph":
        # It checks itself: file models of a million nodes would need several times the memory.
        try:
            return graph_from_dict(data)
        except InputFault as fault:
            raise fault.within(origin) from fault
    return _checked(name, version, data, origin)


def _checked(name: str, version: int, data: dict[str, Any], origin: str) -> Any:
    """The value of plain data that pydantic checks. Raises InputFault for a broken rule."""
    from pydantic import ValidationError

    try:
        return _adapter(name, version).validate_python(data)
    except ValidationError as error:
        raise fault_of(error, _model(name, version), data, origin) from error


def read_file(path: str | Path, *, expected: str | None = None) -> tuple[str, Any]:
    """Like `read_text`, for a path; `-` is standard input."""
    return read_text(_text_of(path), origin=origin_of(path), expected=expected)


def read_versioned(path: str | Path, *, expected: str) -> tuple[int, Any]:
    """The version of a file in the format `expected`, and its value: answers are written in the same version."""
    origin = origin_of(path)
    name, version, data = _parsed(_text_of(path), origin, expected, TRUSTED_BYTES)
    return version, _value(name, version, data, origin)


def origin_of(path: str | Path) -> str:
    """What messages call a path."""
    return STANDARD_NAME if str(path) == STANDARD_STREAM else str(path)


def standard_input(most_bytes: int) -> bytes:
    """All of it, at most one byte more than `most_bytes`. Raises InputFault the second time, and where it is closed."""
    global _stdin_read
    if sys.stdin is None:
        raise InputFault(STANDARD_NAME, "is closed", "Name a file.")
    if _stdin_read is sys.stdin:
        raise InputFault(STANDARD_NAME, "is named twice, and can be read once", "Name a file for the other.")
    _stdin_read = sys.stdin
    return sys.stdin.buffer.read(most_bytes + 1)


def _text_of(path: str | Path) -> str:
    """The text of a contract file. Raises InputFault where it cannot be read or is too large."""
    where = origin_of(path)
    if not where:
        raise InputFault("", "the name of a file is empty", "Name a file.")
    try:
        if str(path) == STANDARD_STREAM:
            data = standard_input(LARGEST_FILE_BYTES)
            size = len(data)
        else:
            size = Path(path).stat().st_size
            if size <= LARGEST_FILE_BYTES:
                # A device or a pipe has size 0, and a device may have no end.
                with Path(path).open("rb") as file:
                    data = file.read(LARGEST_FILE_BYTES + 1)
                size = len(data)
        if size > LARGEST_FILE_BYTES:
            most = LARGEST_FILE_BYTES >> 20
            problem = f"has more than the {most} MiB of a contract file"
            raise InputFault(where, problem, "Pass a smaller file.")
        return data.decode("utf-8")
    except OSError as error:
        raise InputFault(where, f"cannot be read: {system_reason(error)}", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise InputFault(where, "is not text in UTF-8", "Pass a JSON file.") from error


def format_of(value: Any) -> str:
    """The format name of a value."""
    qualified_name = f"{type(value).__module__}:{type(value).__qualname__}"
    for name, class_name in FORMATS.items():
        if qualified_name == class_name:
            return name
    raise TypeError(f"no file format for {type(value).__name__}")


def write_text(value: Any, version: int | None = None) -> str:
    """The value as its contract file, indented, ending in a newline; in the newest version unless one is named."""
    name = format_of(value)
    if name == "torchsplit.graph":
        return graph_to_text(value)
    version = version or newest_version(name)
    if name == "torchsplit.placement_request":
        return _placement_text(value, version)
    return _checked_text(name, value, version)


def _checked_text(name: str, value: Any, version: int) -> str:
    """The value as text, if it passes the checks of its format: numbers become those that a reader gets."""
    from torchsplit_core.files.file_models import to_data

    head, earlier = {"format": name, "version": version}, _is_earlier(name, version)
    checked = _checked(name, version, head | to_data(value, earlier), name.removeprefix("torchsplit."))
    return json.dumps(head | to_data(checked, earlier), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _placement_text(request: PlacementRequest, version: int) -> str:
    """A placement request with a line a row of its matrix, which has a million entries for 1,024 GPUs."""
    rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in request.bandwidth_gib_per_s)
    text = _checked_text(format_of(request), dataclasses.replace(request, bandwidth_gib_per_s=()), version)
    empty = f'"bandwidth_{"gb" if version == 1 else "gib"}_per_s": []'
    assert text.count(empty) == 1, "no other field of a request has this name"
    return text.replace(empty, f"{empty[:-1]}\n  {rows}\n ]") if rows else text


def write_file(value: Any, path: str | Path, version: int | None = None) -> Path:
    """Like `write_text`, to a path, whole or not at all. Raises InputFault where it cannot be written."""
    path = Path(path)
    replace_file(path, write_text(value, version))
    return path

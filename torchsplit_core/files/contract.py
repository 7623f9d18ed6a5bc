"""Reading and writing contract files: text ↔ strict model ↔ frozen value.

A value and its file model have the same field names, so one pair of functions serves all
formats: pydantic checks the text, then a type adapter builds the value, and back. Where the
file says another name, it is the field's alias.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from torchsplit_core.files.json_text import OWN_BYTES, measure, parse_json, refuse_large
from torchsplit_core.files.replace import replace_file
from torchsplit_core.graph.serialization import graph_from_dict, graph_to_text
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.model_source import Told
from torchsplit_core.values import (
    WHOLE_GPU,
    InputFault,
    PartitionOutcome,
    PartitionRequest,
    PlacementFrontier,
    PlacementOutcome,
    PlacementRequest,
    PlanOutcome,
    PlanRequest,
    Profile,
    SimulationOutcome,
    SimulationRequest,
    StageManifest,
)
from torchsplit_core.values.evaluation.outcome import EvaluationOutcome
from torchsplit_core.values.limits import LONGEST_NAME, SMALLEST_POSITIVE
from torchsplit_core.values.serving.measurement import Measurement
from torchsplit_core.values.serving.routes import Routes
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.request import StrategyRequest

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter, ValidationError

LARGEST_FILE_BYTES = 512 * 2**20
"""A larger contract file is refused before it is read."""

FORMATS: Mapping[str, tuple[str, type[Any]]] = {
    "torchsplit.graph": ("GraphFile", TorchGraph),
    "torchsplit.profile": ("ProfileFile", Profile),
    "torchsplit.plan_request": ("PlanRequestFile", PlanRequest),
    "torchsplit.plan": ("PlanOutcomeFile", PlanOutcome),
    "torchsplit.partition_request": ("PartitionRequestFile", PartitionRequest),
    "torchsplit.partition": ("PartitionOutcomeFile", PartitionOutcome),
    "torchsplit.placement_request": ("PlacementRequestFile", PlacementRequest),
    "torchsplit.placement": ("PlacementOutcomeFile", PlacementOutcome),
    "torchsplit.placement_frontier": ("PlacementFrontierFile", PlacementFrontier),
    "torchsplit.stages": ("StageManifestFile", StageManifest),
    "torchsplit.simulation_request": ("SimulationRequestFile", SimulationRequest),
    "torchsplit.simulation": ("SimulationOutcomeFile", SimulationOutcome),
    "torchsplit.measurement": ("MeasurementFile", Measurement),
    "torchsplit.strategy_request": ("StrategyRequestFile", StrategyRequest),
    "torchsplit.strategy": ("StrategyOutcomeFile", StrategyOutcome),
    "torchsplit.routes": ("RoutesFile", Routes),
    "torchsplit.evaluation": ("EvaluationOutcomeFile", EvaluationOutcome),
}
"""Format name → (name of its newest version's file model, value class)."""

EARLIER: Mapping[str, tuple[str, ...]] = {
    "torchsplit.placement_request": ("PlacementRequestFile1",),
    "torchsplit.placement": ("PlacementOutcomeFile1",),
    "torchsplit.placement_frontier": ("PlacementFrontierFile1",),
}
"""Format name → file models of its versions 1, 2, … before the newest: they are read for ever."""


def newest_version(format_name: str) -> int:
    """The version that is written."""
    return len(EARLIER.get(format_name, ())) + 1


@cache
def _model(format_name: str, version: int) -> type[BaseModel]:
    """The file model. Loaded when first used: a job that only writes a graph starts twice as fast without."""
    from torchsplit_core.files import (
        evaluation_models,
        measurement_models,
        models,
        partition_models,
        placement_models,
        route_models,
        simulation_models,
        stage_models,
        strategy_models,
    )

    name = (*EARLIER.get(format_name, ()), FORMATS[format_name][0])[version - 1]
    rooms = (
        models, partition_models, placement_models, stage_models, simulation_models, strategy_models,
        measurement_models, route_models, evaluation_models,
    )  # fmt: skip
    room = next(one for one in rooms if hasattr(one, name))
    found: type[BaseModel] = getattr(room, name)
    return found


@cache
def _adapter(format_name: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(FORMATS[format_name][1])


def schema_of(format_name: str) -> dict[str, Any]:
    """The JSON schema of a format: of its one version, or of any of its versions."""
    newest = newest_version(format_name)
    if newest == 1:
        return _model(format_name, 1).model_json_schema(by_alias=True)
    from pydantic import Field, TypeAdapter

    models = [_model(format_name, version) for version in range(newest, 0, -1)]
    any_version: Any = reduce(or_, models)
    return TypeAdapter(Annotated[any_version, Field(discriminator="version")]).json_schema(by_alias=True)


def _fault(error: ValidationError, origin: str) -> InputFault:
    """The first of pydantic's complaints, in our four parts."""
    errors = error.errors(include_url=False)
    first = errors[0]
    where = ".".join(str(part)[:LONGEST_NAME] for part in first["loc"]) or "the file"
    more = f" ({len(errors) - 1} more fault(s) in this file)" if len(errors) > 1 else ""
    value = first.get("input")
    if first["type"] == "missing":
        value = "nothing"
    if isinstance(value, (dict, list)):
        value = f"{type(value).__name__} of {len(value)} entries"
    remedy = {
        "extra_forbidden": "Remove the key, or check its spelling in docs/file-formats.md.",
        "missing": "Add the field; docs/file-formats.md shows an example.",
    }.get(first["type"], "Mend the value; docs/file-formats.md gives the field's rule.")
    return InputFault(f"{origin}: {where}", value, _rule(first) + more, remedy)


def _rule(complaint: Mapping[str, Any]) -> str:
    """What pydantic asks for, as a person would say it."""
    if complaint.get("ctx", {}).get("ge") == SMALLEST_POSITIVE:
        above = complaint["input"] > 0
        return f"must be at least {SMALLEST_POSITIVE:g}" if above else "must be above 0"
    told: str = complaint["msg"]
    return told[:1].lower() + told[1:]


def read_text(
    text: str, *, origin: str = "the file", expected: str | None = None, memory_bytes: int = OWN_BYTES
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
    """A contract file's format name, version and plain data, whose fields nobody has checked yet."""
    data = parse_json(text, origin, memory_bytes=memory_bytes)
    if not isinstance(data, dict):
        raise InputFault(origin, type(data).__name__, "a contract file is a JSON object", "Check the file.")
    name = data.get("format")
    if not isinstance(name, str) or name not in FORMATS:
        raise InputFault(
            f"{origin}: format",
            name,
            f"format is one of {', '.join(FORMATS)}",
            "Pass a file that TorchSplit wrote.",
        )
    if expected is not None and name != expected:
        raise InputFault(
            f"{origin}: format", name, f"this command reads {expected}", f"Pass a {expected} file."
        )
    version, newest = data.get("version"), newest_version(name)
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= newest:
        rule = "version is 1" if newest == 1 else f"version is 1 to {newest}"
        raise InputFault(f"{origin}: version", version, rule, "Convert the file, or update TorchSplit.")
    if name != "torchsplit.graph":
        refuse_large(measure(text).checked_bytes, memory_bytes, origin)
    return name, version, data


def _value(name: str, version: int, data: dict[str, Any], origin: str) -> Any:
    """The value that plain data stands for. Raises InputFault where it breaks a rule of its format."""
    if name == "torchsplit.graph":
        # It checks itself: file models of a million nodes would need several times the memory.
        try:
            return graph_from_dict(data)
        except InputFault as fault:
            raise InputFault(
                f"{origin}: {fault.where}", Told(fault.value), fault.rule, fault.remedy
            ) from fault
    found = _checked(_model(name, version), data, origin)
    plain = found.model_dump(by_alias=False, exclude={"format", "version"})
    _rename_profiles(name, plain, None, WHOLE_GPU)
    return _adapter(name).validate_python(plain)


def _checked(model: type[BaseModel], data: dict[str, Any], origin: str, *, own: bool = False) -> BaseModel:
    """The file model of plain data; `own`: of a value, by its field names. Raises InputFault for a broken rule."""
    from pydantic import ValidationError

    try:
        return model.model_validate(data, by_alias=not own, by_name=own)
    except ValidationError as error:
        raise _fault(error, origin) from error


def read_file(path: str | Path, *, expected: str | None = None) -> tuple[str, Any]:
    """Like `read_text`, for a path."""
    return read_text(_text_of(Path(path)), origin=str(path), expected=expected)


def read_versioned(path: str | Path, *, expected: str) -> tuple[int, Any]:
    """The version of a file in the format `expected`, and its value: to answer in the version that was asked in."""
    name, version, data = _parsed(_text_of(Path(path)), str(path), expected, OWN_BYTES)
    return version, _value(name, version, data, str(path))


def _text_of(path: Path) -> str:
    """The text of a contract file. Raises InputFault where it cannot be read or is too large."""
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE_BYTES:
            raise InputFault(
                str(path), f"{size} bytes", "a contract file has at most 512 MiB", "Pass a smaller one."
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputFault(
            str(path), error.strerror or "unreadable", "the input file can be read", "Check the path."
        ) from error
    except UnicodeDecodeError as error:
        raise InputFault(
            str(path), "binary data", "a contract file is JSON text", "Pass a JSON file."
        ) from error


def format_of(value: Any) -> str:
    """The format name of a value."""
    for name, (_, value_class) in FORMATS.items():
        if isinstance(value, value_class):
            return name
    raise TypeError(f"no file format for {type(value).__name__}")


def write_text(value: Any, version: int | None = None) -> str:
    """The value as its contract file, indented, ending in a newline; in the newest version unless one is named."""
    name = format_of(value)
    if isinstance(value, TorchGraph):
        return graph_to_text(value)
    version = version or newest_version(name)
    if isinstance(value, PlacementRequest):
        return _placement_text(value, version)
    return _checked_text(name, value, version)


def _checked_text(name: str, value: Any, version: int) -> str:
    """The value as text by its file model."""
    plain = {"format": name, "version": version, **_lists(dataclasses.asdict(value))}
    _rename_profiles(name, plain, WHOLE_GPU, None)
    found = _checked(_model(name, version), plain, name.removeprefix("torchsplit."), own=True)
    data = found.model_dump(by_alias=True)
    if name == "torchsplit.plan":
        _drop_unused_demand_keys(data)
        if data["explanation"] is None:
            del data["explanation"]
        for model in data["models"]:
            _drop_defaults(model, response_ms=None, max_wait_ms=None, response_bound_by=None)
    if name == "torchsplit.profile":
        _drop_empty_additions(data)
    if name == "torchsplit.plan_request":
        _drop_request_defaults(data)
    if name == "torchsplit.simulation_request":
        _drop_simulation_defaults(data)
    if name == "torchsplit.partition":
        for candidate in data["candidates"]:
            _drop_defaults(candidate, cut_bytes_fixed=[], cut_bytes_per_request=[])
    if name == "torchsplit.placement_request":
        _drop_defaults(data, max_replicas=1)
        _drop_defaults(data["model"], sequences_in_flight=None, prefill_chunk=None)
    if name == "torchsplit.strategy_request":
        data["fix"] = {name: value for name, value in data["fix"].items() if value is not None}
        if data["model"]["kind"] == "source":
            _drop_defaults(data["model"], measured_steps=[])
    if name == "torchsplit.evaluation":
        for case in data["cases"]:
            for model in case["models"]:
                _drop_defaults(model, **dict.fromkeys(_ONLY_WHERE_ESTIMATED), overloaded_at_low=False)
    if name in ("torchsplit.placement", "torchsplit.placement_frontier"):
        _drop_empty_of_pipelines(data)
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


_ONLY_WHERE_ESTIMATED = ("p50_low_ms", "p50_high_ms", "p95_low_ms", "p95_high_ms", "bytes_across_cuts_per_s")
"""Figures of an evaluated model that most have not got."""


def _placement_text(request: PlacementRequest, version: int) -> str:
    """A placement request with a line a row of its matrix, which has a million entries for 1,024 GPUs."""
    rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in request.bandwidth_gib_per_s)
    text = _checked_text(format_of(request), dataclasses.replace(request, bandwidth_gib_per_s=()), version)
    empty = f'"bandwidth_{"gb" if version == 1 else "gib"}_per_s": []'
    assert text.count(empty) == 1, "no other field of a request has this name"
    return text.replace(empty, f"{empty[:-1]}\n  {rows}\n ]") if rows else text


def _drop_defaults(data: dict[str, Any], **defaults: Any) -> None:
    """Leave out what was added after the first files were written and is not used."""
    for key, default in defaults.items():
        if key in data and data[key] == default:
            del data[key]


def _drop_empty_of_pipelines(data: dict[str, Any]) -> None:
    """The additions to a placement or a curve that it does not use; those of segments are empty in files of old."""
    _drop_defaults(data, replicas=[])
    for pipeline in (data, *data.get("replicas", ()), *data.get("points", ())):
        _drop_defaults(pipeline, sequences_in_flight=None)
        for segment in pipeline.get("segments", ()):
            _drop_defaults(segment, gpu_types={}, num_gpus=0, workload_per_gpu=0.0)


_ADDITIONS = ("device", "percentiles_ms", "memory_parts_gib", "sequence_length", "time_shares", "times_ms")
"""Fields of a profile's entries that files of old have not got."""


def _drop_empty_additions(profile: dict[str, Any]) -> None:
    """What only measured rows and nodes have is left out of the hundreds that are estimated."""
    for entry in (*profile["rows"], *profile["failures"], *profile["nodes"]):
        for key in _ADDITIONS:
            if key in entry and not entry[key]:
                del entry[key]
    if not profile["failures"]:
        del profile["failures"]


def _rename_profiles(name: str, plain: dict[str, Any], old: str | None, new: str | None) -> None:
    """A whole GPU is null in files, and a text among values: profiles are sorted and compared."""
    for entry in _profiled(name, plain):
        if entry["profile"] == old:
            entry["profile"] = new


def _profiled(name: str, plain: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The points of a request or a measurement, the slices of a plan."""
    if name == "torchsplit.plan_request":
        for model in plain["models"]:
            for variant in model["variants"]:
                for stage in variant["stages"]:
                    yield from stage["points"]
    if name == "torchsplit.plan":
        for gpu in plain["gpus"]:
            yield from gpu["slices"]
    if name == "torchsplit.measurement":
        yield from plain["points"]


def _drop_request_defaults(request: dict[str, Any]) -> None:
    """What was added to plan requests after their first files were written."""
    _drop_defaults(request, network_gb_per_s=None)
    _drop_defaults(request["solver"], plan_at="nominal")
    _drop_defaults(request["objective"], survives=0)
    for gpu in request["gpus"]:
        _drop_defaults(gpu, node=None, mig=True)
    for model in request["models"]:
        _drop_defaults(model, source=None, max_response_ms=None, response_percentile=95.0, arrivals=None)
        for variant in model["variants"]:
            _drop_defaults(variant, allowed=True, cut_bytes_per_request=[])
            for stage in variant["stages"]:
                _drop_defaults(stage, nodes=[])
                for point in stage["points"]:
                    _drop_defaults(point, low_rps=None, high_rps=None)


def _drop_simulation_defaults(request: dict[str, Any]) -> None:
    """What the contract's first requests had not got, and the spread of services that have none."""
    _drop_defaults(request, find=None)
    for model in request["models"]:
        _drop_defaults(model, cut_bytes=[], cut_bytes_per_request=[])
    for server in request["servers"]:
        _drop_defaults(server["service"], cv=None)


def _drop_unused_demand_keys(plan: dict[str, Any]) -> None:
    """A demand names either a model or, for a co-location, models: the other key is left out."""
    for conflict in plan["conflicts"]:
        conflict["demands"] = [
            {key: entry for key, entry in demand.items() if entry is not None}
            for demand in conflict["demands"]
        ]


def _lists(value: Any) -> Any:
    """Tuples as lists and mappings as dicts, as a strict file model wants them."""
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return value


def write_file(value: Any, path: str | Path, version: int | None = None) -> Path:
    """Like `write_text`, to a path, whole or not at all. Raises InputFault where it cannot be written."""
    path = Path(path)
    replace_file(path, write_text(value, version))
    return path

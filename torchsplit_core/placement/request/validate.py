"""Validation of a placement request before anything is computed; every breach is an InputFault."""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.placement.model.memory import is_decode
from torchsplit_core.values import (
    InputFault,
    LinearThroughput,
    PlacementRequest,
    RooflineThroughput,
    TableThroughput,
    quoted,
    suggestion,
)
from torchsplit_core.values.limits import (
    LARGEST_MAGNITUDE,
    LARGEST_WHOLE,
    SMALLEST_POSITIVE,
    check_name,
    check_number,
    check_whole,
)

MAX_GPUS = 4096
"""Its matrix of links takes 128 MiB; benchmarks/placement_search.py goes up to 1,280."""

MAX_LAYERS = 10_000
"""Published decoders have up to 126 (data/decoders.json). Chosen, not measured."""


def validate(request: PlacementRequest) -> None:
    """Raise InputFault for the first thing wrong with the request; unknown GPU types are found with the speeds."""
    _model(request)
    _fleet(request)
    _matrix(request.bandwidth_gib_per_s, len(request.gpus))
    _throughput(request)
    check_whole("max_gpus_per_segment", request.max_gpus_per_segment, least=1, most=MAX_GPUS)
    check_whole("max_replicas", request.max_replicas, least=1, most=MAX_GPUS)
    check_number("communication_efficiency", request.communication_efficiency, positive=True)
    if request.communication_efficiency > 1:
        raise InputFault(
            "communication_efficiency",
            f"is {request.communication_efficiency:g}, above the largest share 1",
            "Write 0.85 for 85 %.",
        )
    _one_of("units", request.units, ("tokens_per_s", "seed_literal"))
    _one_of("split", request.split, ("equal", "proportional", "tensor"))
    _one_of("solver.method", request.solver.method, ("exact", "literal"))
    check_number("solver.time_limit_s", request.solver.time_limit_s, positive=True)
    _literal(request)
    _split(request)
    _decode(request)


def _literal(request: PlacementRequest) -> None:
    """What the published program does not support."""
    if request.solver.method != "literal":
        return
    lacks, remedy = "", "Use exact."
    if request.max_replicas > 1:
        lacks = f"places one pipeline, and max_replicas is {request.max_replicas}"
        remedy = "Use exact, or max_replicas 1."
    elif is_decode(request):
        lacks = "has no sequences in flight, which a decode keeps in memory"
    elif request.split == "tensor":
        lacks = "can not cut a layer among GPUs, and split is tensor"
    if lacks:
        raise InputFault("solver.method", f"the published program (literal) {lacks}", remedy)


def _split(request: PlacementRequest) -> None:
    if request.split == "tensor":
        if not isinstance(request.throughput, RooflineThroughput):
            raise InputFault(
                "split",
                f"is tensor, which is computed from the GPUs' peaks, but throughput is {request.throughput.kind}",
                "Use a roofline, or split equal or proportional.",
            )
        return
    largest = min(request.max_gpus_per_segment, len(request.gpus))
    if request.model.batch_size < largest:
        raise InputFault(
            "model.batch_size",
            f"is {request.model.batch_size}, fewer sequences than the {largest} GPUs that a segment may have",
            f"Raise it to {largest}, or lower max_gpus_per_segment to {request.model.batch_size}.",
        )


def _decode(request: PlacementRequest) -> None:
    model = request.model
    for name in ("sequences_in_flight", "prefill_chunk"):
        value = getattr(model, name)
        if value is None:
            continue
        check_whole(f"model.{name}", value, least=1, most=LARGEST_WHOLE)
        if not is_decode(request):
            raise InputFault(
                f"model.{name}",
                f"is {value}, but only a decode has it: a roofline throughput with the phase decode",
                "Leave it out, or set throughput.phase to decode.",
            )
    requested = model.sequences_in_flight
    if requested is not None and requested < model.batch_size:
        raise InputFault(
            "model.sequences_in_flight",
            f"is {requested}, fewer than the {model.batch_size} sequences of one batch",
            f"Raise it to {model.batch_size} or more, or lower batch_size to {requested}.",
        )


def _model(request: PlacementRequest) -> None:
    model = request.model
    check_whole("model.layers", model.layers, least=1, most=MAX_LAYERS)
    for name in ("hidden_size", "ffn_size", "sequence_length", "batch_size"):
        check_whole(f"model.{name}", getattr(model, name), least=1, most=LARGEST_WHOLE)
    check_number("model.layer_weight_gb", model.layer_weight_gib)
    check_number("model.bytes_per_element", model.bytes_per_element, positive=True)
    if model.key_value_size is not None:
        check_whole("model.key_value_size", model.key_value_size, least=1, most=LARGEST_WHOLE)
    if model.active_layer_weight_gib is not None:
        check_number("model.active_layer_weight_gb", model.active_layer_weight_gib)
        if model.active_layer_weight_gib > model.layer_weight_gib:
            raise InputFault(
                "model.active_layer_weight_gb",
                f"is {model.active_layer_weight_gib:g}, more than the whole layer_weight_gb {model.layer_weight_gib:g}",
                "Lower it, or leave it out where a token passes all weights.",
            )


def _fleet(request: PlacementRequest) -> None:
    if not request.gpus:
        raise InputFault("gpus", "is empty", "Add a GPU with id, type and memory_gib.")
    if len(request.gpus) > MAX_GPUS:
        raise InputFault(
            "gpus",
            f"has {len(request.gpus)} GPUs, more than the {MAX_GPUS} that a placement takes",
            "Place it on a part of them.",
        )
    seen: dict[str, int] = {}
    for number, gpu in enumerate(request.gpus):
        if isinstance(gpu.id, bool) or not isinstance(gpu.id, int | str) or gpu.id == "":
            raise InputFault(
                f"gpus[{number}].id",
                f"is {quoted(gpu.id)}, neither a whole number nor a text",
                "Name the GPU.",
            )
        if isinstance(gpu.id, int):
            check_whole(f"gpus[{number}].id", gpu.id, least=-LARGEST_WHOLE)
        else:
            check_name(f"gpus[{number}].id", gpu.id)
        if str(gpu.id) in seen:
            raise InputFault(
                f"gpus[{number}].id",
                f"is {quoted(gpu.id)}, as gpus[{seen[str(gpu.id)]}].id is",
                "Rename one of the two.",
            )
        seen[str(gpu.id)] = number
        check_number(f"gpus[{number}].memory_gib", gpu.memory_gib, positive=True)


def _matrix(matrix: Sequence[Sequence[float]], gpus: int) -> None:
    if len(matrix) != gpus:
        raise InputFault(
            "bandwidth_gib_per_s",
            f"has {len(matrix)} rows for {gpus} GPUs",
            "Give a row for each GPU, in their order: GiB/s to every other, 0 where there is no link.",
        )
    for number, row in enumerate(matrix):
        if len(row) != gpus:
            raise InputFault(
                f"bandwidth_gib_per_s[{number}]",
                f"has {len(row)} entries for {gpus} GPUs",
                "Give GiB/s to each GPU, in their order, 0 where there is no link.",
            )
        for index, entry in enumerate(row):
            # Called for a million entries: the usual number passes on its first comparison.
            if type(entry) is not float or (entry and not SMALLEST_POSITIVE <= entry <= LARGEST_MAGNITUDE):
                check_number(f"bandwidth_gib_per_s[{number}][{index}]", entry)


def _throughput(request: PlacementRequest) -> None:
    spec = request.throughput
    if isinstance(spec, LinearThroughput):
        for name, coefficients in spec.coefficients.items():
            for part in ("sequence", "batch", "layers", "constant"):
                value = getattr(coefficients, part)
                check_number(f"throughput.coefficients.{name}.{part}", value, signed=True)
    elif isinstance(spec, TableThroughput):
        for number, row in enumerate(spec.rows):
            where = f"throughput.rows[{number}]"
            check_number(f"{where}.batch", row.batch, positive=True)
            check_whole(f"{where}.layers", row.layers, least=1, most=MAX_LAYERS)
            check_number(f"{where}.throughput", row.throughput, positive=True)
    elif isinstance(spec, RooflineThroughput):
        _one_of("throughput.phase", spec.phase, ("prefill", "decode"))
        for name in ("compute_efficiency", "memory_efficiency"):
            share = getattr(spec, name)
            if share is not None:
                check_number(f"throughput.{name}", share, positive=True)
                if share > 1:
                    raise InputFault(
                        f"throughput.{name}",
                        f"is {share:g}, above the largest share of the peak, 1",
                        "Write 0.5 for half.",
                    )
        for name, peak in spec.gpus.items():
            check_number(f"throughput.gpus.{name}.tflops", peak.tflops, positive=True)
            check_number(f"throughput.gpus.{name}.memory_gb_per_s", peak.memory_gb_per_s, positive=True)
    else:
        raise InputFault(
            "throughput",
            f"is {quoted(spec)}, neither linear, table nor roofline",
            "Choose one of these three kinds.",
        )


def _one_of(where: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputFault(where, f"unknown value {quoted(value)}", suggestion(value, known, "values"))

"""Verifies an outcome from the request alone: no solver, no instance, none of their numbers.

It shares with the search only the speed of a single GPU; memory, division of the batch, segments and links are computed
again here, from the rules of docs/file-formats.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from torchsplit_core.placement.model.speed import RooflineSpeed, Speed, speeds_by_type
from torchsplit_core.values import (
    InternalFault,
    PlacedLink,
    PlacedReplica,
    PlacedSegment,
    PlacementOutcome,
    PlacementRequest,
    RooflineThroughput,
    TableThroughput,
)
from torchsplit_core.values.placement import GpuId
from torchsplit_core.values.units import GIB

TOLERANCE = 1e-9
"""Relative tolerance of sums, limits and throughputs."""

PROVEN = 1e-6
"""Values closer than this, relatively, are equal."""


def verify(request: PlacementRequest, outcome: PlacementOutcome) -> None:
    """Raise InternalFault for the first thing in which the outcome breaks the request or the contract."""
    for fault in violations(request, outcome):
        raise InternalFault(f"The placement fails its check: {fault}")


def violations(request: PlacementRequest, outcome: PlacementOutcome) -> Iterator[str]:
    """Everything that is wrong with the outcome, in words."""
    if outcome.units != request.units:
        yield f"its units are {outcome.units}, not {request.units}"
    if outcome.basis != ("measured" if isinstance(request.throughput, TableThroughput) else "estimated"):
        yield f"its basis is {outcome.basis}, though its speeds are {request.throughput.kind}"
    if outcome.status in ("infeasible", "timeout"):
        placement = outcome.segments or outcome.links or outcome.replicas
        if placement or outcome.throughput is not None or outcome.gap is not None:
            yield f"status {outcome.status} with a placement"
        if outcome.status == "infeasible" and (outcome.bound is not None or not outcome.message):
            yield "infeasible with a bound, or without its cause"
        return
    if not outcome.segments:
        yield f"status {outcome.status} without segments"
        return
    speed = speeds_by_type(request)
    if request.max_replicas > 1:
        faults, value = _check_replicas(request, outcome, speed)
    else:
        faults, value = _check_pipeline(request, outcome, speed)
        if outcome.replicas:
            faults.append("it has several pipelines where one was asked for")
    yield from faults
    if value is not None:
        yield from _objective_faults(outcome, value)


def _check_replicas(
    request: PlacementRequest, outcome: PlacementOutcome, speed: Mapping[str, Speed]
) -> tuple[list[str], float | None]:
    """What is wrong with the pipelines, each alone and together; the sum of their throughputs if all are valid."""
    faults: list[str] = []
    values: list[float] = []
    used: set[GpuId] = set()
    if not 1 <= len(outcome.replicas) <= request.max_replicas:
        faults.append(
            f"it has {len(outcome.replicas)} pipelines, and 1 to {request.max_replicas} were asked for"
        )
    for number, replica in enumerate(outcome.replicas):
        where = f"pipeline {number}"
        replica_faults, value = _check_pipeline(request, replica, speed)
        faults += [f"{where}: {fault}" for fault in replica_faults]
        if value is not None:
            values.append(value)
            if not _equal(value, replica.throughput):
                faults.append(f"{where}: its throughput is {value}, not {replica.throughput}")
        replica_gpus = {gpu for segment in replica.segments for gpu in segment.gpu_ids}
        if used & replica_gpus:
            faults.append(f"{where} has a GPU of an earlier pipeline")
        used |= replica_gpus
    throughputs = [replica.throughput for replica in outcome.replicas]
    if throughputs != sorted(throughputs, reverse=True):
        faults.append("its pipelines do not stand with the fastest first")
    if outcome.replicas:
        first = outcome.replicas[0]
        if (outcome.segments, outcome.links) != (first.segments, first.links):
            faults.append("its segments and links are not those of its first pipeline")
        if outcome.latency_s != max(replica.latency_s for replica in outcome.replicas):
            faults.append(f"its pass takes {outcome.latency_s} s, which is not the longest of its pipelines")
        under_way = [
            replica.sequences_in_flight
            for replica in outcome.replicas
            if replica.sequences_in_flight is not None
        ]
        if outcome.sequences_in_flight != (sum(under_way) if under_way else None):
            faults.append(
                f"it has {outcome.sequences_in_flight} sequences in flight, not those of its pipelines"
            )
    return faults, sum(values) if values and len(values) == len(outcome.replicas) else None


def _check_pipeline(
    request: PlacementRequest, claimed: PlacementOutcome | PlacedReplica, speed: Mapping[str, Speed]
) -> tuple[list[str], float | None]:
    """What is wrong with one pipeline, and its throughput; None if its shape gives none."""
    segments, links = claimed.segments, claimed.links
    faults = list(_shape_faults(request, segments, links))
    if faults:
        # The checks below look up GPUs and their parts, so the pipeline must be valid.
        return faults, None
    values = []
    for number, segment in enumerate(segments):
        value = _rate(request, segment, _parts(segment), speed)
        values.append(value)
        segment_faults = _segment_faults(request, segment, value, speed, len(segments))
        faults += [f"segment {number}: {fault}" for fault in segment_faults]
    for first, second, link in zip(segments, segments[1:], links, strict=False):
        value = _link(request, first, second)
        values.append(value)
        if not _equal(value, link.throughput):
            faults.append(
                f"link {link.from_segment} → {link.to_segment} carries {value}, not {link.throughput}"
            )
        if value <= 0:
            faults.append(f"there is no link from segment {link.from_segment} to {link.to_segment}")
    if min(values) <= 0:
        return faults, min(values)
    pass_s = _pass_s(request, values[: len(segments)], values[len(segments) :])
    if claimed.latency_s is not None and not _equal(pass_s, claimed.latency_s):
        faults.append(f"a pass takes {pass_s} s, not {claimed.latency_s}")
    under_way = _under_way(request, len(segments)) if _decodes(request) else None
    if claimed.sequences_in_flight != under_way:
        faults.append(f"{under_way} sequences are in flight, not {claimed.sequences_in_flight}")
    # A pass gives at most one token of every sequence in flight.
    return faults, min(values) if under_way is None else min(*values, under_way / pass_s)


def _decodes(request: PlacementRequest) -> bool:
    return isinstance(request.throughput, RooflineThroughput) and request.throughput.phase == "decode"


def _under_way(request: PlacementRequest, segments: int) -> int:
    """Sequences in flight: those requested, else a batch for every segment."""
    return request.model.sequences_in_flight or segments * request.model.batch_size


def _shape_faults(
    request: PlacementRequest, segments: tuple[PlacedSegment, ...], links: tuple[PlacedLink, ...]
) -> Iterator[str]:
    """Every layer once and in order, every GPU at most once and known, sizes within the rules."""
    order = {gpu.id: index for index, gpu in enumerate(request.gpus)}
    reached = 0
    used: set[GpuId] = set()
    for number, segment in enumerate(segments):
        where = f"segment {number}"
        if segment.start_layer != reached + 1 or segment.end_layer < segment.start_layer:
            yield f"{where} has layers {segment.start_layer} to {segment.end_layer} after layer {reached}"
        reached = segment.end_layer
        ids = segment.gpu_ids
        if not 1 <= len(ids) <= request.max_gpus_per_segment:
            yield f"{where} has {len(ids)} GPUs"
        if any(gpu not in order for gpu in ids):
            yield f"{where} has a GPU that is not in the fleet"
            continue
        if list(ids) != sorted(ids, key=lambda gpu: order[gpu]) or len(set(ids)) < len(ids):
            yield f"{where} does not list its GPUs once each in the order of the fleet"
        if used & set(ids):
            yield f"{where} has a GPU of an earlier segment"
        used |= set(ids)
        if request.same_type_segments and len({request.gpus[order[gpu]].type for gpu in ids}) > 1:
            yield f"{where} mixes GPU types"
        if isinstance(segment.batch_per_gpu, tuple) != (request.split == "proportional"):
            yield f"{where} does not give the batch as its split wants it"
        elif len(_parts(segment)) != len(ids) or len(segment.memory_gib) != len(ids):
            yield f"{where} does not give the batch and memory of every GPU"
        types = [request.gpus[order[gpu]].type for gpu in ids]
        if dict(segment.gpu_types) != {name: types.count(name) for name in types}:
            yield f"{where} has other types of GPUs than {dict(segment.gpu_types)}"
        if segment.num_gpus != len(ids) or segment.workload_per_gpu != segment.batch_per_gpu:
            yield f"{where} tells its number of GPUs or their work in two ways"
    if reached != request.model.layers:
        yield f"it ends with layer {reached} of {request.model.layers}"
    if [(link.from_segment, link.to_segment) for link in links] != list(pairwise(range(len(segments)))):
        yield "its links do not join the segments in their order"


def _parts(segment: PlacedSegment) -> tuple[float, ...]:
    given = segment.batch_per_gpu
    return given if isinstance(given, tuple) else (given,) * len(segment.gpu_ids)


def _segment_faults(
    request: PlacementRequest,
    segment: PlacedSegment,
    value: float,
    speed: Mapping[str, Speed],
    segments: int,
) -> Iterator[str]:
    parts, batch = _parts(segment), float(request.model.batch_size)
    if request.split == "tensor":
        if any(not _equal(part, batch) for part in parts):
            yield f"its GPUs do not work on the whole batch of {batch:g} together"
    elif min(parts) <= 0 or not _equal(sum(parts), batch):
        yield f"its parts {parts} do not make up the batch of {batch:g}"
    if request.split == "equal" and not _equal(parts[0], batch / len(parts)):
        yield f"its part {parts[0]} is not an equal one"
    of = {gpu.id: gpu for gpu in request.gpus}
    for gpu_id, part, claimed_gib in zip(segment.gpu_ids, parts, segment.memory_gib, strict=True):
        needed = _memory_gib(request, segment, part, segments)
        if not _equal(needed, claimed_gib):
            yield f"GPU {gpu_id} needs {needed} GiB, not {claimed_gib}"
        if needed > of[gpu_id].memory_gib * (1 + TOLERANCE):
            yield f"GPU {gpu_id} needs {needed} GiB and has {of[gpu_id].memory_gib}"
    if not _equal(value, segment.throughput):
        yield f"its throughput is {value}, not {segment.throughput}"
    if request.split == "proportional":
        yield from _equal_parts_faults(request, segment, value, speed, segments)


def _equal_parts_faults(
    request: PlacementRequest,
    segment: PlacedSegment,
    value: float,
    speed: Mapping[str, Speed],
    segments: int,
) -> Iterator[str]:
    """The search must prove the best parts; here equal ones must not beat them."""
    of = {gpu.id: gpu for gpu in request.gpus}
    count = len(segment.gpu_ids)
    part = request.model.batch_size / count
    needed = _memory_gib(request, segment, part, segments)
    if all(needed <= of[gpu_id].memory_gib for gpu_id in segment.gpu_ids):
        other = _rate(request, segment, (part,) * count, speed)
        if other > value * (1 + TOLERANCE):
            yield f"equal parts give {other}, more than its own {value}"


def _memory_gib(request: PlacementRequest, segment: PlacedSegment, part: float, segments: int) -> float:
    """GiB of a GPU of the segment with this part of the batch, in a pipeline of so many segments."""
    model = request.model
    layers: float = segment.end_layer - segment.start_layer + 1
    if request.split == "tensor":
        layers /= len(segment.gpu_ids)
    width = 3 * model.hidden_size + model.ffn_size
    if not _decodes(request):
        elements = 1.15 * part * model.sequence_length * width
    else:
        held = _under_way(request, segments) * part / model.batch_size
        elements = 1.15 * part * (model.prefill_chunk or 1) * width
        elements += held * model.sequence_length * 2 * (model.key_value_size or model.hidden_size) * layers
    return layers * model.layer_weight_gib + elements * model.bytes_per_element / GIB


def _rate(
    request: PlacementRequest,
    segment: PlacedSegment,
    parts: tuple[float, ...],
    speed: Mapping[str, Speed],
) -> float:
    """Tokens/s of a segment with these parts; with equal ones, n times the least rate."""
    of = {gpu.id: gpu.type for gpu in request.gpus}
    layers = segment.end_layer - segment.start_layer + 1
    if request.split == "tensor" and len(parts) > 1:
        return _tensor_rate(request, segment, speed)
    rates = [
        speed[of[gpu_id]].rate(part, layers) for gpu_id, part in zip(segment.gpu_ids, parts, strict=True)
    ]
    if len(parts) == 1:
        return rates[0]
    slowest = max(part / rate for part, rate in zip(parts, rates, strict=True))
    return request.communication_efficiency * request.model.batch_size / slowest


def _tensor_rate(request: PlacementRequest, segment: PlacedSegment, speed: Mapping[str, Speed]) -> float:
    """Tokens/s of layers cut among the GPUs: the slowest one's time, plus two all-reduces a layer."""
    index_of = {gpu.id: number for number, gpu in enumerate(request.gpus)}
    places = [index_of[gpu_id] for gpu_id in segment.gpu_ids]
    count, model = len(places), request.model
    link = min(request.bandwidth_gib_per_s[i][j] for i in places for j in places if i != j)
    if link <= 0:
        return 0.0
    layer_s, tokens = 0.0, 1
    for place in places:
        roofline = speed[request.gpus[place].type]
        assert isinstance(roofline, RooflineSpeed), "layers are cut among GPUs where speeds are a roofline's"
        tokens = roofline.tokens
        arithmetic = roofline.flops * model.batch_size / (count * roofline.flops_per_s)
        moved = roofline.fixed_bytes / count + model.batch_size * (
            roofline.kept_bytes / count + 2 * roofline.state_bytes
        )
        layer_s = max(layer_s, arithmetic, moved / roofline.bytes_per_s)
    sent = 2 * (count - 1) / count * model.batch_size * tokens * model.hidden_size * model.bytes_per_element
    layers = segment.end_layer - segment.start_layer + 1
    return model.batch_size * tokens / (layers * (layer_s + 2 * sent / GIB / link))


def _link(request: PlacementRequest, first: PlacedSegment, second: PlacedSegment) -> float:
    index_of = {gpu.id: number for number, gpu in enumerate(request.gpus)}
    least = min(
        request.bandwidth_gib_per_s[index_of[i]][index_of[j]] for i in first.gpu_ids for j in second.gpu_ids
    )
    model = request.model
    tokens = model.batch_size * model.sequence_length
    transfers_per_s = least / (tokens * model.hidden_size * model.bytes_per_element / GIB)
    return transfers_per_s if request.units == "seed_literal" else transfers_per_s * tokens


def _pass_s(request: PlacementRequest, segments: list[float], links: list[float]) -> float:
    """Seconds of a pass of the batch through all segments and links in turn; links are in the request's units."""
    batch_tokens = request.model.batch_size * request.model.sequence_length
    tokens = request.model.batch_size if _decodes(request) else batch_tokens
    scale = batch_tokens if request.units == "seed_literal" else 1
    return sum(tokens / value for value in segments) + sum(tokens / (value * scale) for value in links)


def _objective_faults(outcome: PlacementOutcome, value: float) -> Iterator[str]:
    if outcome.throughput is None or not _equal(value, outcome.throughput):
        yield f"its throughput is {value}, not {outcome.throughput}"
        return
    bound, gap = outcome.bound, outcome.gap
    if bound is None or gap is None:
        if outcome.status == "optimal" or bound is not None or gap is not None:
            yield "it has no bound and gap"
        return
    if bound < value * (1 - TOLERANCE):
        yield f"its bound {bound} is below its throughput {value}"
    if abs(gap - (bound - value) / bound) > TOLERANCE:
        yield f"its gap {gap} is not that of its bound"
    if outcome.status == "optimal" and gap > PROVEN:
        yield f"optimal with a gap of {gap}"


def _equal(first: float, second: float) -> bool:
    return abs(first - second) <= TOLERANCE * max(abs(first), abs(second))

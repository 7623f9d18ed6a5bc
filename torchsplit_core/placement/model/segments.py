"""The throughput of a segment on a multiset of GPU kinds, and the request as a search's instance."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from torchsplit_core.placement.model.batch_split import proportional_parts
from torchsplit_core.placement.model.instance import BatchShares, InFlightLimit, ProblemInstance, SegmentValue
from torchsplit_core.placement.model.latency import link_tokens_per_s, tokens_per_pass
from torchsplit_core.placement.model.memory import is_decode, largest_part, needed_gib
from torchsplit_core.placement.model.speed import RooflineSpeed, speeds_by_type, tensor_rate
from torchsplit_core.placement.model.symmetry_classes import are_interchangeable
from torchsplit_core.values import PlacementRequest
from torchsplit_core.values.units import GIB

ROUNDING = 1e-10
"""Relative width within which throughputs are equal; parts are a thousand times more exact."""


@dataclass(frozen=True)
class BatchDivision:
    """Tokens/s of a segment, and the sequences of each of its GPUs."""

    throughput: float
    parts: tuple[float, ...]


class SegmentModel:
    """Segments of one request by (kinds ascending, layer count), in a pipeline of so many segments.

    GPUs of one kind have one type and memory, and, if layers are cut among GPUs, equal links to all others.
    """

    def __init__(self, request: PlacementRequest) -> None:
        """For a pipeline of one segment. Raises InputFault for a GPU type that the throughput model does not know."""
        self.request, self.segments = request, 1
        sorts: list[tuple[str, float, int]] = [
            (gpu.type, gpu.memory_gib, exchange)
            for gpu, exchange in zip(request.gpus, _exchange_classes(request), strict=True)
        ]
        numbers = {sort: number for number, sort in enumerate(dict.fromkeys(sorts))}
        self.kinds = tuple(numbers[sort] for sort in sorts)
        self.types = tuple(name for name, _, _ in numbers)
        self.groups = tuple(self.types.index(name) for name in self.types)
        self.memory_gib = tuple(memory for _, memory, _ in numbers)
        of_type = speeds_by_type(request)
        self.speeds = tuple(of_type[name] for name in self.types)
        self._links = _links_of_kinds(request, self.kinds) if request.split == "tensor" else None
        self._of_segments = {1: self}
        self._clear_cache()

    def _clear_cache(self) -> None:
        self._known: dict[tuple[tuple[int, ...], int], BatchDivision | None] = {}
        self._alike: dict[int, np.ndarray] = {}
        self._within: tuple[float, np.ndarray] | None = None

    def for_pipeline(self, segments: int) -> SegmentModel:
        """The same for a pipeline of so many segments: the more, the more keys and values stay in memory."""
        if not is_decode(self.request) or self.request.model.sequences_in_flight is not None:
            return self
        if segments not in self._of_segments:
            other = copy(self)
            other.segments = segments
            other._clear_cache()
            self._of_segments[segments] = other
        return self._of_segments[segments]

    def value(self, kinds: tuple[int, ...], layers: int) -> float:
        """Tokens/s; 0 if memory or the rule of one type forbids the segment."""
        division = self.division(kinds, layers)
        return division.throughput if division else 0.0

    def shares(self, threshold: float, size: int) -> np.ndarray:
        """See `ProblemInstance.shares`: 1 / size for equal parts, else the largest part within the time."""
        if self.request.split == "proportional" and size > 1:
            if self._within is None or self._within[0] != threshold:
                self._within = (threshold, self._largest_shares(threshold))
            return self._within[1]
        if size not in self._alike:
            rows = range(1, self.request.model.layers + 1)
            values = [
                [self.value((kind,) * size, count) for count in rows] for kind in range(len(self.types))
            ]
            self._alike[size] = np.array(values, dtype=np.float64)
        return np.where(self._alike[size] >= threshold, 1.0 / size, 0.0)

    def _largest_shares(self, threshold: float) -> np.ndarray:
        """(kinds, M): the largest part of the batch, as a share of it, within time and memory."""
        request = self.request
        batch = float(request.model.batch_size)
        # Rounding of a throughput must not refute it.
        limit = request.communication_efficiency * batch / threshold * (1 + ROUNDING)
        shares = np.zeros((len(self.types), request.model.layers))
        for kind, speed in enumerate(self.speeds):
            for count in range(1, request.model.layers + 1):
                within = speed.parts_within(limit, count)
                longest = min(within[-1][1], batch) if within else 0.0
                room = largest_part(request, count, self.memory_gib[kind], self.segments)
                shares[kind, count - 1] = max(0.0, min(longest, room)) / batch
        return shares

    def division(self, kinds: tuple[int, ...], layers: int) -> BatchDivision | None:
        """The division of the batch and its throughput; None if the segment is forbidden."""
        key = (kinds, layers)
        if key not in self._known:
            self._known[key] = self._divide(kinds, layers)
        return self._known[key]

    def _divide(self, kinds: tuple[int, ...], layers: int) -> BatchDivision | None:
        request, count = self.request, len(kinds)
        if request.same_type_segments and len({self.types[kind] for kind in kinds}) > 1:
            return None
        batch = float(request.model.batch_size)
        if request.split == "proportional" and count > 1:
            most = {
                kind: largest_part(request, layers, self.memory_gib[kind], self.segments) for kind in kinds
            }
            speeds_here = [self.speeds[kind] for kind in kinds]
            parts = proportional_parts(speeds_here, [most[kind] for kind in kinds], batch, layers)
            if parts is None:
                return None
            slowest = max(
                part / speed.rate(part, layers) for speed, part in zip(speeds_here, parts, strict=True)
            )
            return BatchDivision(request.communication_efficiency * batch / slowest, parts)
        if request.split == "tensor":
            return self._tensor_division(kinds, layers)
        part = batch / count
        if any(needed_gib(request, layers, part, self.segments) > self.memory_gib[kind] for kind in kinds):
            return None
        least = min(self.speeds[kind].rate(part, layers) for kind in kinds)
        factor = count * request.communication_efficiency if count > 1 else 1.0
        return BatchDivision(least * factor, (part,) * count)

    def _tensor_division(self, kinds: tuple[int, ...], layers: int) -> BatchDivision | None:
        """Every layer cut among the GPUs; forbidden if two of them have no link."""
        batch, count = float(self.request.model.batch_size), len(kinds)
        needed = needed_gib(self.request, layers / count, batch, self.segments)
        if any(needed > self.memory_gib[kind] for kind in kinds):
            return None
        if count == 1:
            return BatchDivision(self.speeds[kinds[0]].rate(batch, layers), (batch,))
        assert self._links is not None, "links of kinds are known where layers are cut"
        link = min(self._links[pair] for pair in permutations(kinds, 2))
        if link <= 0:
            return None
        cut = [speed for kind in kinds if isinstance(speed := self.speeds[kind], RooflineSpeed)]
        return BatchDivision(tensor_rate(cut, batch, layers, link), (batch,) * count)


def _exchange_classes(request: PlacementRequest) -> tuple[int, ...]:
    """The class of exchangeable GPUs of each GPU; all 0 unless layers are cut among GPUs: only then does a segment's
    throughput depend on the links among its own."""
    if request.split != "tensor":
        return (0,) * len(request.gpus)
    links = np.array(request.bandwidth_gib_per_s, dtype=np.float64)
    sorts = tuple((gpu.type, gpu.memory_gib) for gpu in request.gpus)
    class_of: list[int] = []
    firsts: list[int] = []
    for gpu in range(len(sorts)):
        home = next(
            (number for number, first in enumerate(firsts) if are_interchangeable(links, sorts, first, gpu)),
            None,
        )
        if home is None:
            home = len(firsts)
            firsts.append(gpu)
        class_of.append(home)
    return tuple(class_of)


def _links_of_kinds(request: PlacementRequest, kinds: tuple[int, ...]) -> dict[tuple[int, int], float]:
    """GiB/s from a GPU of the one kind to one of the other; 0 from a kind of one GPU to itself."""
    links = request.bandwidth_gib_per_s
    members: dict[int, list[int]] = {}
    for gpu, kind in enumerate(kinds):
        members.setdefault(kind, []).append(gpu)
    kind_links = {}
    for source, source_gpus in members.items():
        for destination, others in members.items():
            target = others[0] if source != destination else source_gpus[-1]
            kind_links[source, destination] = (
                links[source_gpus[0]][target] if target != source_gpus[0] else 0.0
            )
    return kind_links


def link_values(request: PlacementRequest) -> np.ndarray:
    """float64 (N, N): capacity of each link in tokens/s, or in transfers/s with the units `seed_literal`."""
    model = request.model
    tokens = model.batch_size * model.sequence_length
    transfer_gib = tokens * model.hidden_size * model.bytes_per_element / GIB
    values = np.array(request.bandwidth_gib_per_s, dtype=np.float64) / transfer_gib
    return values * tokens if request.units == "tokens_per_s" else values


def build_instance(model: SegmentModel) -> ProblemInstance:
    """The request as an instance for a search."""
    request = model.request
    return ProblemInstance(
        layers=request.model.layers,
        kinds=model.kinds,
        links=link_values(request),
        max_gpus=min(request.max_gpus_per_segment, len(request.gpus)),
        value=model.value,
        shares=_batch_shares(model),
        groups=model.groups if request.same_type_segments else None,
        flight=_in_flight_limit(model) if is_decode(request) else None,
    )


def _batch_shares(model: SegmentModel) -> BatchShares | None:
    """None if layers are cut: a segment's throughput then does not depend on its GPUs one by one."""
    return None if model.request.split == "tensor" else model.shares


def _in_flight_limit(model: SegmentModel) -> InFlightLimit:
    request = model.request

    def for_segments(segments: int) -> tuple[SegmentValue, BatchShares | None]:
        pipeline_model = model.for_pipeline(segments)
        return pipeline_model.value, _batch_shares(pipeline_model)

    requested = request.model.sequences_in_flight
    return InFlightLimit(
        float(tokens_per_pass(request)),
        link_tokens_per_s(request, 1.0),
        None if requested is None else float(requested),
        for_segments,
    )

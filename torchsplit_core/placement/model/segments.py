"""What a segment is worth on a multiset of GPU kinds, and the request as the instance that a search reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.batch_split import proportional_parts
from torchsplit_core.placement.model.instance import Instance
from torchsplit_core.placement.model.memory import largest_part, needed_gib
from torchsplit_core.placement.model.speed import speeds
from torchsplit_core.values import PlacementRequest
from torchsplit_core.values.units import GIB

ROUNDING = 1e-10
"""Relative width of a throughput that is not told apart; parts are divided to a thousandth of it."""


@dataclass(frozen=True)
class Division:
    """Tokens/s of a segment, and the sequences of each of its GPUs."""

    throughput: float
    parts: tuple[float, ...]


class SegmentModel:
    """Segments of one request by (kinds ascending, layer count). GPUs of one kind have one type and memory."""

    def __init__(self, request: PlacementRequest) -> None:
        """Raises InputFault for a GPU type that the throughput model does not know."""
        self.request = request
        numbers: dict[tuple[str, float], int] = {}
        self.kinds = tuple(
            numbers.setdefault((gpu.type, gpu.memory_gib), len(numbers)) for gpu in request.gpus
        )
        self.types = tuple(name for name, _ in numbers)
        self.groups = tuple(self.types.index(name) for name in self.types)
        self.memory_gib = tuple(memory for _, memory in numbers)
        of_type = speeds(request)
        self.speeds = tuple(of_type[name] for name in self.types)
        self._known: dict[tuple[tuple[int, ...], int], Division | None] = {}
        self._alike: dict[int, np.ndarray] = {}
        self._within: tuple[float, np.ndarray] | None = None

    def value(self, kinds: tuple[int, ...], layers: int) -> float:
        """Tokens/s; 0 where memory or the rule of one type forbids the segment."""
        found = self.division(kinds, layers)
        return found.throughput if found else 0.0

    def shares(self, threshold: float, size: int) -> np.ndarray:
        """What `Instance.shares` wants: 1 / size where parts are equal, else the longest part within the time."""
        if self.request.split == "proportional" and size > 1:
            if self._within is None or self._within[0] != threshold:
                self._within = (threshold, self._longest(threshold))
            return self._within[1]
        if size not in self._alike:
            rows = range(1, self.request.model.layers + 1)
            values = [
                [self.value((kind,) * size, count) for count in rows] for kind in range(len(self.types))
            ]
            self._alike[size] = np.array(values, dtype=np.float64)
        return np.where(self._alike[size] >= threshold, 1.0 / size, 0.0)

    def _longest(self, threshold: float) -> np.ndarray:
        """(kinds, M): the largest part of the batch, as a share of it, within time and memory."""
        request = self.request
        batch = float(request.model.batch_size)
        # What rounding may take from a throughput must not refute it.
        limit = request.communication_efficiency * batch / threshold * (1 + ROUNDING)
        shares = np.zeros((len(self.types), request.model.layers))
        for kind, speed in enumerate(self.speeds):
            for count in range(1, request.model.layers + 1):
                within = speed.parts_within(limit, count)
                longest = min(within[-1][1], batch) if within else 0.0
                room = largest_part(request, count, self.memory_gib[kind])
                shares[kind, count - 1] = max(0.0, min(longest, room)) / batch
        return shares

    def division(self, kinds: tuple[int, ...], layers: int) -> Division | None:
        """How the batch is divided and what comes of it; None where the segment is forbidden."""
        key = (kinds, layers)
        if key not in self._known:
            self._known[key] = self._divide(kinds, layers)
        return self._known[key]

    def _divide(self, kinds: tuple[int, ...], layers: int) -> Division | None:
        request, count = self.request, len(kinds)
        if request.same_type_segments and len({self.types[kind] for kind in kinds}) > 1:
            return None
        batch = float(request.model.batch_size)
        if request.split == "proportional" and count > 1:
            most = {kind: largest_part(request, layers, self.memory_gib[kind]) for kind in kinds}
            speeds_here = [self.speeds[kind] for kind in kinds]
            parts = proportional_parts(speeds_here, [most[kind] for kind in kinds], batch, layers)
            if parts is None:
                return None
            slowest = max(
                part / speed.rate(part, layers) for speed, part in zip(speeds_here, parts, strict=True)
            )
            return Division(request.communication_efficiency * batch / slowest, parts)
        part = batch / count
        if any(needed_gib(request, layers, part) > self.memory_gib[kind] for kind in kinds):
            return None
        least = min(self.speeds[kind].rate(part, layers) for kind in kinds)
        factor = count * request.communication_efficiency if count > 1 else 1.0
        return Division(least * factor, (part,) * count)


def link_values(request: PlacementRequest) -> np.ndarray:
    """float64 (N, N): what a link carries, in tokens/s, or in transfers/s with the units `seed_literal`."""
    model = request.model
    tokens = model.batch_size * model.sequence_length
    transfer_gib = tokens * model.hidden_size * model.bytes_per_element / GIB
    values = np.array(request.bandwidth_gib_per_s, dtype=np.float64) / transfer_gib
    return values * tokens if request.units == "tokens_per_s" else values


def instance_of(model: SegmentModel) -> Instance:
    """The request behind the segments as a search reads it."""
    request = model.request
    return Instance(
        layers=request.model.layers,
        kinds=model.kinds,
        links=link_values(request),
        max_gpus=min(request.max_gpus_per_segment, len(request.gpus)),
        value=model.value,
        shares=model.shares,
        groups=model.groups if request.same_type_segments else None,
    )

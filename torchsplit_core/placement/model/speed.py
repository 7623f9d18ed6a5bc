"""Speed of one GPU: tokens/s for a number of layers and a part of the batch, by each of three models.

A part of b sequences takes b / rate(b): a time, up to the tokens of a sequence. `parts_within` is its inverse: the
parts that take at most a time. They may be several intervals, because a table, or a linear model with a negative
constant, may be slower for a part than for a larger one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchsplit_core.hardware import peak_names, peaks
from torchsplit_core.values import (
    InputFault,
    LinearCoefficients,
    LinearThroughput,
    PlacementModel,
    PlacementRequest,
    RooflineGpu,
    RooflineThroughput,
    TableThroughput,
    ThroughputRow,
    quoted,
    suggestion,
)
from torchsplit_core.values.units import GB, GIB

Intervals = tuple[tuple[float, float], ...]
"""Ascending and disjoint; closed, but without 0."""

COMPUTE_EFFICIENCY = 0.62
"""Share of the peak FLOP/s: the matrix products of the measured A100 library (profiling/roofline.py, fitted)."""

MEMORY_EFFICIENCY = 0.52
"""Share of the peak memory bandwidth: fitted on the same library."""


class Speed(Protocol):
    """The speed of one GPU type with one model."""

    def rate(self, batch: float, layers: int) -> float:
        """Tokens/s with a part of `batch` > 0 sequences."""

    def parts_within(self, limit: float, layers: int) -> Intervals:
        """The parts b > 0 with b / rate(b, layers) ≤ limit, for limit > 0."""


@dataclass(frozen=True)
class LinearSpeed:
    """max(1, a·sequence + b·batch + c·layers + d)."""

    coefficients: LinearCoefficients
    sequence: int

    def rate(self, batch: float, layers: int) -> float:
        return max(1.0, self._fixed(layers) + self.coefficients.batch * batch)

    def _fixed(self, layers: int) -> float:
        coefficients = self.coefficients
        return coefficients.sequence * self.sequence + coefficients.layers * layers + coefficients.constant

    def parts_within(self, limit: float, layers: int) -> Intervals:
        # b ≤ limit · max(1, fixed + slope·b): either b ≤ limit, or b · (1 − limit·slope) ≤ limit · fixed.
        fixed, left = self._fixed(layers), 1.0 - limit * self.coefficients.batch
        if left > 0:
            return ((0.0, max(limit, limit * fixed / left)),)
        if fixed >= 0:
            return ((0.0, float("inf")),)
        if left == 0:
            return ((0.0, limit),)
        again = limit * fixed / left
        return ((0.0, limit), (again, float("inf"))) if again > limit else ((0.0, float("inf")),)


@dataclass(frozen=True)
class RooflineSpeed:
    """A step takes the longer of its arithmetic and its memory traffic; both grow in proportion to the part.

    Figures of one layer: `flops`, `kept_bytes` (keys and values) and `state_bytes` (the hidden state, read and written)
    for one sequence of the part, `fixed_bytes` (weights) for any part. `tokens`: those of a sequence in a step.
    """

    flops_per_s: float
    bytes_per_s: float
    flops: float
    kept_bytes: float
    state_bytes: float
    fixed_bytes: float
    tokens: int

    @property
    def part_bytes(self) -> float:
        """Bytes of one sequence and layer."""
        return self.kept_bytes + 2.0 * self.state_bytes

    def rate(self, batch: float, layers: int) -> float:
        arithmetic = self.flops * batch / self.flops_per_s
        traffic = (self.fixed_bytes + self.part_bytes * batch) / self.bytes_per_s
        return batch * self.tokens / (layers * max(arithmetic, traffic))

    def shared_layer_s(self, batch: float, gpus: int) -> float:
        """Seconds of a layer cut among so many GPUs; all but the hidden state is divided."""
        arithmetic = self.flops * batch / gpus / self.flops_per_s
        cut_bytes = (self.fixed_bytes + self.kept_bytes * batch) / gpus
        return max(arithmetic, (cut_bytes + 2.0 * self.state_bytes * batch) / self.bytes_per_s)

    def parts_within(self, limit: float, layers: int) -> Intervals:
        seconds = limit * self.tokens / layers
        high = seconds * self.flops_per_s / self.flops
        high = min(high, (seconds * self.bytes_per_s - self.fixed_bytes) / self.part_bytes)
        return ((0.0, high),) if high > 0 else ()


@dataclass(frozen=True)
class TableSpeed:
    """Times b / rate at the measured batches × layers, linear between them in both.

    Below the smallest batch or layer count the time of the smallest; above the largest in proportion, as for several of
    the largest in turn.
    """

    batches: tuple[float, ...]
    layers: tuple[int, ...]
    times: tuple[tuple[float, ...], ...]

    def rate(self, batch: float, layers: int) -> float:
        return batch / _interpolate(self.batches, self._column(layers), batch)

    def _column(self, layers: int) -> tuple[float, ...]:
        """The times of the measured batches at this layer count."""
        return tuple(_interpolate(self.layers, row, layers) for row in self.times)

    def parts_within(self, limit: float, layers: int) -> Intervals:
        column = self._column(layers)
        pieces: list[tuple[float, float]] = []
        if column[0] <= limit:
            pieces.append((0.0, self.batches[0]))
        for index in range(len(column) - 1):
            low, high = column[index], column[index + 1]
            start, end = self.batches[index], self.batches[index + 1]
            if min(low, high) > limit:
                continue
            if max(low, high) > limit:
                meet = start + (end - start) * (limit - low) / (high - low)
                start, end = (start, meet) if low <= limit else (meet, end)
            pieces.append((start, end))
        if column[-1] <= limit:
            pieces.append((self.batches[-1], self.batches[-1] * limit / column[-1]))
        return _merge_intervals(pieces)


def _interpolate(
    points: tuple[float, ...] | tuple[int, ...], values: tuple[float, ...], where: float
) -> float:
    """Linear between the points; the first value below them, in proportion above."""
    if where <= points[0]:
        return values[0]
    if where >= points[-1]:
        return values[-1] * where / points[-1]
    after = bisect_right(points, where)
    start, end = points[after - 1], points[after]
    share = (where - start) / (end - start)
    return values[after - 1] + share * (values[after] - values[after - 1])


def _merge_intervals(pieces: list[tuple[float, float]]) -> Intervals:
    """Merge ascending pieces that touch."""
    merged: list[tuple[float, float]] = []
    for start, end in pieces:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def speeds_by_type(request: PlacementRequest) -> Mapping[str, Speed]:
    """The speed of every GPU type of the fleet. Raises InputFault for a type that the model does not have."""
    types = dict.fromkeys(gpu.type for gpu in request.gpus)
    spec = request.throughput
    if isinstance(spec, LinearThroughput):
        return {name: _linear_speed(spec, name, request.model) for name in types}
    if isinstance(spec, RooflineThroughput):
        return {name: _roofline_speed(spec, name, request.model) for name in types}
    return {name: _table_speed(spec, name) for name in types}


def key_value_gib(model: PlacementModel) -> float:
    """GiB of keys and values that one sequence keeps in one layer."""
    width = model.key_value_size or model.hidden_size
    return 2.0 * width * model.sequence_length * model.bytes_per_element / GIB


def _linear_speed(spec: LinearThroughput, name: str, model: PlacementModel) -> LinearSpeed:
    if name not in spec.coefficients:
        known = ", ".join(spec.coefficients) or "none"
        raise InputFault(
            "throughput.coefficients",
            f"has no entry for the GPU type {quoted(name)} of the fleet, only for {known}",
            "Add one for it.",
        )
    return LinearSpeed(spec.coefficients[name], model.sequence_length)


def _roofline_speed(spec: RooflineThroughput, name: str, model: PlacementModel) -> RooflineSpeed:
    """One layer: 2 FLOPs a weight and token, attention 4·hidden a token and token seen (half of them in prefill)."""
    gpu = spec.gpus.get(name) or _catalogue_peaks(name)
    compute = COMPUTE_EFFICIENCY if spec.compute_efficiency is None else spec.compute_efficiency
    memory = MEMORY_EFFICIENCY if spec.memory_efficiency is None else spec.memory_efficiency
    weight_bytes = model.layer_weight_gib * GIB
    active = weight_bytes if model.active_layer_weight_gib is None else model.active_layer_weight_gib * GIB
    tokens, seen = (
        (model.sequence_length, model.sequence_length / 2)
        if spec.phase == "prefill"
        else (1, float(model.sequence_length))
    )
    flops = tokens * (2.0 * active / model.bytes_per_element + 4.0 * model.hidden_size * seen)
    return RooflineSpeed(
        gpu.tflops * 1e12 * compute,
        gpu.memory_gb_per_s * GB * memory,
        flops,
        # Prefill writes what decode reads: the keys and values.
        key_value_gib(model) * GIB,
        tokens * model.hidden_size * model.bytes_per_element,
        weight_bytes,
        tokens,
    )


def tensor_rate(gpus: Sequence[RooflineSpeed], batch: float, layers: int, link_gib_per_s: float) -> float:
    """Tokens/s of layers cut among GPUs, each with the whole batch.

    A layer takes the time of its slowest GPU and two all-reduces of the batch's hidden state; on a ring each GPU sends
    2(n − 1)/n of it over the slowest link among them (Patarasuk and Yuan, 2009).
    """
    count = len(gpus)
    slowest = max(gpu.shared_layer_s(batch, count) for gpu in gpus)
    reduced = 2 * (2 * (count - 1) / count) * batch * gpus[0].state_bytes / (link_gib_per_s * GIB)
    return batch * gpus[0].tokens / (layers * (slowest + reduced))


def _catalogue_peaks(name: str) -> RooflineGpu:
    if name not in peak_names():
        remedy = suggestion(name, peak_names(), "GPU types")
        raise InputFault(
            "gpus, type",
            f"unknown GPU type {quoted(name)}",
            f"{remedy} For another GPU give its peaks in throughput.gpus.",
        )
    peak = peaks(name)
    tflops = peak.bf16_tflops or peak.fp16_tflops
    if tflops is None or peak.memory_gb_per_s is None:
        raise InputFault(
            "gpus, type",
            f"the catalogue does not know the 16-bit FLOP/s and memory bandwidth of {name}",
            "Give its peaks in throughput.gpus.",
        )
    return RooflineGpu(tflops, peak.memory_gb_per_s)


def _table_speed(spec: TableThroughput, name: str) -> TableSpeed:
    rows: dict[tuple[float, int], ThroughputRow] = {}
    for number, row in enumerate(spec.rows):
        if row.gpu_type != name:
            continue
        if (row.batch, row.layers) in rows:
            raise InputFault(
                f"throughput.rows[{number}]",
                f"has {name}, batch {row.batch:g}, {row.layers} layers a second time",
                "Drop one of the two.",
            )
        rows[row.batch, row.layers] = row
    if not rows:
        known = ", ".join(dict.fromkeys(row.gpu_type for row in spec.rows)) or "none"
        raise InputFault(
            "throughput.rows",
            f"has no row for the GPU type {quoted(name)} of the fleet, only for {known}",
            "Add its rows.",
        )
    batches = tuple(sorted({batch for batch, _ in rows}))
    layers = tuple(sorted({count for _, count in rows}))
    for batch in batches:
        for count in layers:
            if (batch, count) not in rows:
                raise InputFault(
                    "throughput.rows",
                    f"has {name} with batch {batch:g} and with {count} layers, but not with both in one row",
                    "Add the row.",
                )
    times = tuple(tuple(batch / rows[batch, count].throughput for count in layers) for batch in batches)
    return TableSpeed(batches, layers, times)

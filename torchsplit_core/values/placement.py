"""Placing an LLM's layers on particular GPUs: request, outcome, and the frontier of throughput against latency.

Memory and the links of a fleet count GiB of 2^30 bytes, the peaks of a GPU GB of 10^9 (values/units.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torchsplit_core.values.fields import (
    Added,
    Amount,
    Count,
    Divisor,
    Efficiency,
    Facts,
    FileField,
    Name,
    NonNegative,
    Positive,
    Range,
    Required,
    Signed,
    Whole,
)
from torchsplit_core.values.limits import LARGEST_WHOLE
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.status import SolveStatus

GpuId = Annotated[int, Range(ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)] | Name


@dataclass(frozen=True, slots=True)
class PlacementModel:
    """A decoder of equal layers, and the batch that goes through it.

    Sizes are elements of one token (hidden, feed-forward, `key_value_size`: the keys of one layer, as many again
    are its values; None: hidden_size). `active_layer_weight_gib` is what of a layer's weights one token passes
    (less than all where experts are chosen; None: all). Lengths are tokens, the batch sequences.

    Of decode alone: `sequences_in_flight` are the sequences under way in a pipeline (None: a batch for each of its
    segments), `prefill_chunk` the tokens of a prompt that pass at once beside it (None: activations are those of one
    token).
    """

    layers: Count
    hidden_size: Count
    ffn_size: Count
    layer_weight_gib: Annotated[Amount, FileField(key="layer_weight_gb")]
    sequence_length: Count
    batch_size: Count
    bytes_per_element: Divisor = 2.0
    key_value_size: Count | None = None
    active_layer_weight_gib: Annotated[Amount | None, FileField(key="active_layer_weight_gb")] = None
    sequences_in_flight: Added[Count | None] = None
    prefill_chunk: Added[Count | None] = None


@dataclass(frozen=True, slots=True)
class PlacementGpu:
    """One GPU of the fleet. `type` is a name that the throughput model knows."""

    id: GpuId
    type: Name
    memory_gib: Annotated[Divisor, FileField(version_1_key="memory_gb")]


@dataclass(frozen=True, slots=True)
class LinearCoefficients:
    """What a token of the sequence, a sequence of the batch and a layer add to `constant` (tokens/s)."""

    sequence: Signed
    batch: Signed
    layers: Signed
    constant: Signed


@dataclass(frozen=True, slots=True)
class LinearThroughput:
    """Tokens/s of a GPU: max(1, sequence·s + batch·b + layers·c + constant), by GPU type."""

    coefficients: Mapping[str, LinearCoefficients]
    kind: Literal["linear"] = "linear"


@dataclass(frozen=True, slots=True)
class ThroughputRow:
    """Tokens/s of one GPU of this type that holds so many layers and gets so many sequences at once."""

    gpu_type: Name
    batch: Divisor
    layers: Count
    throughput: Divisor


@dataclass(frozen=True, slots=True)
class TableThroughput:
    """Measured throughput: for each GPU type every batch size with every layer count that it has."""

    rows: tuple[ThroughputRow, ...]
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class RooflineGpu:
    """Peaks of a GPU type: dense tera-FLOP/s at the model's precision, and GB/s (10^9) of its memory."""

    tflops: Divisor
    memory_gb_per_s: Divisor


@dataclass(frozen=True, slots=True)
class RooflineThroughput:
    """Throughput from peaks: the catalogue's by name, or those given in `gpus`; shares of them that are reached.

    None for an efficiency: the share that fits the measured A100 library (docs/guides/placement.md).
    """

    phase: Literal["prefill", "decode"]
    compute_efficiency: Efficiency | None = None
    memory_efficiency: Efficiency | None = None
    gpus: Mapping[str, RooflineGpu] = field(default_factory=dict)
    kind: Literal["roofline"] = "roofline"


Throughput = LinearThroughput | TableThroughput | RooflineThroughput

Split = Literal["equal", "proportional", "tensor"]
"""How the GPUs of a segment share its work: parts of the batch, equal or by speed, or every layer cut into n."""


@dataclass(frozen=True, slots=True)
class PlacementSolver:
    """`exact`: a search with a proven bound; `literal`: the published program unchanged. `time_limit_s` in all."""

    method: Literal["exact", "literal"] = "exact"
    time_limit_s: Divisor = 60.0


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """The whole question. `bandwidth_gib_per_s[i][j]` is from GPU i to GPU j in the order of `gpus`; 0: no link.

    max_replicas: at most so many pipelines of the whole model at once, on GPUs of their own; with more than one
    the sum of their throughputs counts.
    """

    model: PlacementModel
    gpus: tuple[PlacementGpu, ...]
    throughput: Throughput
    bandwidth_gib_per_s: Annotated[
        tuple[tuple[Amount, ...], ...], FileField(version_1_key="bandwidth_gb_per_s")
    ]
    max_gpus_per_segment: Annotated[Count, FileField(default=(1,))]
    communication_efficiency: Annotated[Efficiency, FileField(default=(0.85,))]
    units: Literal["tokens_per_s", "seed_literal"] = "tokens_per_s"
    split: Split = "equal"
    same_type_segments: bool = False
    max_replicas: Added[Count] = 1
    solver: PlacementSolver = field(default_factory=PlacementSolver)


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """Layers `start_layer` to `end_layer` (from 1, both included) on these GPUs, in the order of the fleet.

    throughput is tokens/s. batch_per_gpu: sequences, one figure for all where the batch is split equally, else one
    a GPU; the whole batch where layers are split. memory_gib: what each GPU needs. gpu_types (GPUs of each type),
    num_gpus and workload_per_gpu (batch_per_gpu) say the same as the published result says it.
    """

    start_layer: Count
    end_layer: Count
    gpu_ids: tuple[GpuId, ...]
    throughput: Positive
    batch_per_gpu: Positive | tuple[Positive, ...]
    memory_gib: Annotated[tuple[NonNegative, ...], FileField(version_1_key="memory_gb")] = ()
    gpu_types: Added[Mapping[str, Count]] = field(default_factory=dict)
    num_gpus: Added[Whole] = 0
    workload_per_gpu: Added[NonNegative | tuple[Positive, ...]] = 0.0


@dataclass(frozen=True, slots=True)
class PlacedLink:
    """From one segment to the next, counted from 0. throughput is in the units of the request."""

    from_segment: Whole
    to_segment: Whole
    throughput: Positive


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """One pipeline of several: its own throughput, the seconds of a pass, and its parts in pipeline order.

    sequences_in_flight: of a decode, as in PlacementOutcome.
    """

    throughput: Positive
    latency_s: Positive
    segments: tuple[PlacedSegment, ...]
    links: tuple[PlacedLink, ...]
    sequences_in_flight: Added[Count | None] = None


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """Segments in pipeline order, the throughput of the whole, and a bound no plan passes.

    throughput is the least of the segments' and links', in decode also of sequences_in_flight / latency_s: more
    tokens than one for each sequence under way do not come of a pass. sequences_in_flight: of a decode, those of all
    its pipelines; None otherwise.

    latency_s: seconds of one pass of the batch through all segments and links, one behind the other: in decode the
    least time per token of a sequence (`seconds_per_token` adds the wait for the slowest segment), in prefill that
    to its first token; None if it was not computed.
    replicas: where the request allows several, all pipelines, the fastest first; throughput and bound are then of
    their sum, segments and links those of the first, and latency_s is the longest.
    infeasible is proven; timeout has no segments, and its bound may be known. gap = (bound − throughput) / bound.
    basis: measured where the speeds are a table's, also between its rows, else estimated.
    """

    status: SolveStatus
    throughput: NonNegative | None
    bound: NonNegative | None
    gap: NonNegative | None
    segments: Required[tuple[PlacedSegment, ...]] = ()
    links: Required[tuple[PlacedLink, ...]] = ()
    message: str = ""
    units: Literal["tokens_per_s", "seed_literal"] = "tokens_per_s"
    basis: Basis = "estimated"
    latency_s: Positive | None = None
    replicas: Added[tuple[PlacedReplica, ...]] = ()
    sequences_in_flight: Added[Count | None] = None
    statistics: Facts = field(default_factory=dict)

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds from a sequence's token to its next in decode, the longest of its pipelines; None otherwise.

        Little's law: sequences in flight / throughput. It is at least `latency_s`; what it is longer is the wait for
        the slowest segment.
        """
        if self.units != "tokens_per_s":
            return None
        pipelines = self.replicas or (self,)
        times = [
            pipeline.sequences_in_flight / pipeline.throughput
            for pipeline in pipelines
            if pipeline.sequences_in_flight is not None and pipeline.throughput
        ]
        return max(times, default=None)


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One pipeline of the curve; throughput in the units of the request, the rest as in PlacementOutcome.

    latency_bound_s: no pipeline of at least this throughput has a lower latency. proven: its own equals it.
    """

    throughput: Positive
    latency_s: Positive
    latency_bound_s: NonNegative
    proven: bool
    segments: tuple[PlacedSegment, ...]
    links: tuple[PlacedLink, ...]
    sequences_in_flight: Added[Count | None] = None


@dataclass(frozen=True, slots=True)
class PlacementFrontier:
    """The curve of one pipeline, by rising throughput and so by rising latency.

    status: optimal, every point is proven; feasible, some are not, or a higher throughput is not excluded; infeasible
    is proven; timeout has no points. complete: all are proven and none is missing between them; else the curve may be
    coarse. throughput_bound: no pipeline has more; None where there is none, or where it is not known.
    """

    status: SolveStatus
    points: Required[tuple[FrontierPoint, ...]] = ()
    throughput_bound: Required[NonNegative | None] = None
    complete: Required[bool] = False
    message: str = ""
    units: Literal["tokens_per_s", "seed_literal"] = "tokens_per_s"
    basis: Basis = "estimated"
    statistics: Facts = field(default_factory=dict)

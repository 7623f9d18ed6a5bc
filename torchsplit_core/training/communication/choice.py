"""Which exchange of gradients makes a step shortest, from measured times alone; no torch, no clock.

Model of a step (DDP: Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3; Wait-free backpropagation: Zhang et
al., Poseidon, USENIX ATC 2017). Gradient i is ready r_i seconds after the backward pass began. Bucket j has those up to
the first that fill its cap, in the order in which they are ready. Its exchange begins when its last gradient is ready
and the exchange before it is over:

    begin_j = max(r_last(j) + delay_j, end_(j−1));   end_j = begin_j + t(bytes_j)
    step = rest + max(backward + delay, end_last)

t: measured seconds of an exchange by its bytes. delay_j: processor seconds of the exchanges before, which the backward
pass on the same cores does not get (0 on a GPU). rest: what a step takes besides backward pass and exchange.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from torchsplit_core.values.strategy.communication import (
    COMPRESSIONS,
    CommunicationRequest,
    Hook,
)
from torchsplit_core.values.units import MIB

DEFAULT_CAP_MIB, FIRST_CAP_MIB = 25.0, 1.0
"""DDP's default buckets (torch/nn/parallel/distributed.py): 25 MiB, the first 1 MiB."""
CAPS_MIB = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 50.0, 100.0)
GRADIENT_BYTES = 4
WORTH_IT = 0.05
"""Share of a step that a choice must save for DDP's default buckets to be left: predictions err by as much."""
WORTH_LOSING = 0.05
"""Share that a compression must save of the fastest exchange without loss."""
NEAR = 0.01
"""Predictions within this share are equal: of these the largest buckets are taken, with the fewest exchanges."""
POWERSGD_MIN_RATE = 2
"""A matrix is compressed if that makes it this many times smaller (torch's default min_compression_rate)."""


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """Measured seconds of one exchange of all ranks, by bytes of gradients, ascending; `processor_s`: of a rank's
    cores."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    processor_s: tuple[float, ...]

    def seconds_of(self, size: float) -> float:
        """Seconds for `size` bytes."""
        return _interpolate(self.sizes, self.seconds, size)

    def processor_of(self, size: float) -> float:
        """Seconds of a rank's cores in it, at most its seconds."""
        return min(_interpolate(self.sizes, self.processor_s, size), self.seconds_of(size))

    @property
    def latency_s(self) -> float:
        """Seconds of the smallest exchange."""
        return self.seconds[0]

    @property
    def bytes_per_s(self) -> float:
        """Gradient bytes per second of the largest exchange."""
        return self.sizes[-1] / self.seconds[-1] if self.seconds[-1] else float("inf")


def _interpolate(sizes: Sequence[int], values: Sequence[float], size: float) -> float:
    """Linear between sizes, constant below the first, beyond the last by the last two; never falling."""
    rising = [*accumulate(values, max)]
    if size <= sizes[0] or len(sizes) == 1:
        return rising[0] * max(1.0, size / sizes[0])
    place = min(bisect_left(sizes, size), len(sizes) - 1)
    slope = (rising[place] - rising[place - 1]) / (sizes[place] - sizes[place - 1])
    return rising[place] + (size - sizes[place]) * slope


@dataclass(frozen=True, slots=True)
class GradientTimeline:
    """The gradients of a step in the order in which they are ready.

    `shapes` of the weights; `ready_s`: seconds since the backward pass began, by the slowest rank; `backward_s`: the
    whole pass; `rest_s`: the step without backward pass and exchange.
    """

    shapes: tuple[tuple[int, ...], ...]
    ready_s: tuple[float, ...]
    backward_s: float
    rest_s: float

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each gradient, in single precision."""
        return tuple(GRADIENT_BYTES * prod(shape) for shape in self.shapes)


@dataclass(frozen=True, slots=True)
class ExchangeCosts:
    """Measured times of the hooks that may be chosen.

    `powersgd_s_per_byte`: processor seconds of PowerSGD's products for a byte of compressed gradient, None where it
    may not be chosen. `on_processor`: whether the backward pass runs on the cores that exchange.
    """

    transfers: Mapping[Hook, TransferTimes]
    powersgd_s_per_byte: float | None = None
    on_processor: bool = True


@dataclass(frozen=True, slots=True)
class ExchangeCandidate:
    """An exchange with its predicted seconds. `bucket_mib` None: DDP's default buckets. `exposed_s`: of the exchange,
    after the backward pass; `sent_bytes`: of gradients, after compression."""

    hook: Hook
    bucket_mib: float | None
    buckets: int
    step_s: float
    exposed_s: float
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class ExchangeChoice:
    """What a run takes, why, and every candidate, fastest first."""

    hook: Hook
    bucket_mib: float | None
    reason: str
    candidates: tuple[ExchangeCandidate, ...] = ()


def assign_buckets(sizes: Sequence[int], bucket_mib: float | None) -> list[range]:
    """The gradients of each bucket, as DDP divides them: a bucket is closed by the gradient that fills it."""
    cap = (DEFAULT_CAP_MIB if bucket_mib is None else bucket_mib) * MIB
    limit = FIRST_CAP_MIB * MIB if bucket_mib is None else cap
    buckets, begin, filled = list[range](), 0, 0
    for place, size in enumerate(sizes):
        filled += size
        if filled >= limit:
            buckets.append(range(begin, place + 1))
            begin, filled, limit = place + 1, 0, cap
    return [*buckets, range(begin, len(sizes))] if begin < len(sizes) else buckets


def powersgd_bytes(shape: tuple[int, ...], rank: int) -> tuple[int, int] | None:
    """Bytes of the two thin matrices that stand for a gradient; None if it is sent whole.

    As torch's powerSGD_hook: rows by the first dimension; (rows + columns) · rank · 2 < rows · columns.
    """
    rows, columns = shape[0] if shape else 1, prod(shape[1:])
    fitted = min(rows, columns, rank)
    if (rows + columns) * fitted * POWERSGD_MIN_RATE >= rows * columns:
        return None
    return GRADIENT_BYTES * rows * fitted, GRADIENT_BYTES * columns * fitted


def choose(
    timeline: GradientTimeline, costs: ExchangeCosts, request: CommunicationRequest, processes: int
) -> ExchangeChoice:
    """The exchange with the shortest predicted step among those that the request leaves.

    Without a fixed hook, DDP's default buckets and no compression stay unless another choice saves more than WORTH_IT
    of the step, and a compression unless it saves WORTH_LOSING of the fastest exchange without loss.
    """
    if processes == 1:
        return ExchangeChoice("ddp", None, "one process: there is nothing to exchange")
    candidates = predict_all(timeline, costs, request)
    lossless = [item for item in candidates if item.hook not in COMPRESSIONS]
    best = _largest_near(candidates)
    if lossless and best.hook in COMPRESSIONS:
        plain = _largest_near(lossless)
        if best.step_s > plain.step_s * (1 - WORTH_LOSING):
            best = plain
    default = next((item for item in candidates if _is_default(item)), None)
    if default and best.step_s > default.step_s * (1 - WORTH_IT):
        best = default
    return ExchangeChoice(
        best.hook, best.bucket_mib, _reason(best, default, timeline, costs, request), tuple(candidates)
    )


def predict_all(
    timeline: GradientTimeline, costs: ExchangeCosts, request: CommunicationRequest
) -> list[ExchangeCandidate]:
    """Every candidate that the request leaves, fastest first; DDP's default first among equals."""
    hooks = [hook for hook in costs.transfers if request.hook in (None, hook)]
    if costs.powersgd_s_per_byte is not None and request.hook in (None, "powersgd"):
        hooks.append("powersgd")
    caps: Sequence[float | None] = (None, *CAPS_MIB) if request.bucket_mib is None else (request.bucket_mib,)
    candidates, seen = list[ExchangeCandidate](), set[tuple[Hook, tuple[range, ...]]]()
    for hook in hooks:
        for cap in caps:
            buckets = assign_buckets(timeline.sizes, cap)
            if (hook, (*buckets,)) not in seen:
                seen.add((hook, (*buckets,)))
                candidates.append(_predict(timeline, costs, hook, cap, buckets, request.rank))
    return sorted(candidates, key=lambda item: (item.step_s, not _is_default(item)))


def _is_default(candidate: ExchangeCandidate) -> bool:
    return candidate.hook == "all_reduce" and candidate.bucket_mib is None


def _largest_near(candidates: Sequence[ExchangeCandidate]) -> ExchangeCandidate:
    """Of candidates whose predictions are nearly the best, the one with the fewest exchanges."""
    fastest = min(item.step_s for item in candidates)
    near = [item for item in candidates if item.step_s <= fastest * (1 + NEAR)]
    return min(near, key=lambda item: (item.buckets, item.step_s))


def _predict(
    timeline: GradientTimeline,
    costs: ExchangeCosts,
    hook: Hook,
    bucket_mib: float | None,
    buckets: Sequence[range],
    rank: int,
) -> ExchangeCandidate:
    delay = end = backward_delay = 0.0
    sent = 0
    for bucket in buckets:
        shapes = [timeline.shapes[place] for place in bucket]
        seconds, processor, size = _bucket_cost(shapes, costs, hook, rank)
        # The exchange of the last bucket begins after the backward pass and delays nothing of it.
        backward_delay = delay
        end = max(end, timeline.ready_s[bucket[-1]] + delay) + seconds
        delay += processor if costs.on_processor else 0.0
        sent += size
    backward = timeline.backward_s + backward_delay
    step = timeline.rest_s + max(backward, end)
    return ExchangeCandidate(hook, bucket_mib, len(buckets), step, max(0.0, end - backward), sent)


def _bucket_cost(
    shapes: Sequence[tuple[int, ...]], costs: ExchangeCosts, hook: Hook, rank: int
) -> tuple[float, float, int]:
    """Seconds of a bucket's exchange, of a rank's cores in it, and the bytes that each rank gives."""
    size = sum(GRADIENT_BYTES * prod(shape) for shape in shapes)
    if hook != "powersgd":
        transfer = costs.transfers[hook]
        sent = size // 2 if hook in COMPRESSIONS else size
        return transfer.seconds_of(size), transfer.processor_of(size), sent
    assert costs.powersgd_s_per_byte is not None
    matrices = [(shape, powersgd_bytes(shape, rank)) for shape in shapes]
    thin = [sum(pair[side] for _, pair in matrices if pair) for side in (0, 1)]
    whole = sum(GRADIENT_BYTES * prod(shape) for shape, pair in matrices if pair is None)
    products = costs.powersgd_s_per_byte * (size - whole)
    plain = costs.transfers["all_reduce"]
    # Three exchanges, one after another, also where one of them is empty.
    parts = (whole, *thin)
    return (
        products + sum(plain.seconds_of(part) for part in parts),
        products + sum(plain.processor_of(part) for part in parts),
        sum(parts),
    )


WORDS: Mapping[Hook, str] = {
    "ddp": "DDP's own exchange",
    "all_reduce": "a plain all-reduce",
    "hierarchical": "an all-reduce within each node, then between the nodes",
    "bf16": "an all-reduce of gradients rounded to bf16",
    "fp16": "an all-reduce of gradients rounded to fp16",
    "powersgd": "PowerSGD",
}


def describe_exchange(hook: Hook, bucket_mib: float | None) -> str:
    """An exchange in words."""
    sized = "DDP's default buckets" if bucket_mib is None else f"buckets of {bucket_mib:g} MiB"
    return f"{WORDS[hook]} in {sized}"


def _reason(
    best: ExchangeCandidate,
    default: ExchangeCandidate | None,
    timeline: GradientTimeline,
    costs: ExchangeCosts,
    request: CommunicationRequest,
) -> str:
    """Why the choice, in a sentence."""
    total = sum(timeline.sizes)
    plain = costs.transfers["all_reduce"]
    link = (
        f"{total / 1e6:.3g} MB of gradients take {plain.seconds_of(total):.3g} s to exchange "
        f"({plain.bytes_per_s / 1e6:.3g} MB/s, {plain.latency_s * 1e3:.2g} ms at least), the backward pass "
        f"{timeline.backward_s:.3g} s"
    )
    fixed = [name for name in ("hook", "bucket_mib") if getattr(request, name) is not None]
    words = f"{describe_exchange(best.hook, best.bucket_mib)}: a step of {best.step_s:.3g} s predicted"
    if default and best != default:
        words += f", {default.step_s:.3g} s by DDP's defaults"
    elif default:
        words += f", and no other choice saves {WORTH_IT:.0%} of it"
    if fixed:
        words += f" (the request fixes {' and '.join(fixed)})"
    elif not request.lossy:
        words += "; compression was not allowed"
    return f"{words}. {link}"

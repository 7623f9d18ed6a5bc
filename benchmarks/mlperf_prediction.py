"""Predict a Server row's response times from the SingleStream and Offline results of its slice.

The two points give the line of a batch's time (BERT: Offline alone). `benchmarks/mlperf_ways.py` says how batches are
formed. The constants below follow the code of the submitters' servers; five numbers (`Fitted`) were fitted to rows of
v1.0 and v1.1. Of the Server results only their validity is used: a valid result's p99 kept its limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.mlperf_front import arrivals
from benchmarks.mlperf_rows import Row, own_offline, own_single
from benchmarks.mlperf_streams import Batcher, SliceService, serve_by_streams, service_from_two_points
from benchmarks.mlperf_ways import Way, way_of
from torchsplit_core.hardware import neighbour_load

REQUESTS = 300_000
WARM_UP = 0.05
PERCENTILES = (50, 95, 99)

BEYOND = 1.1
"""A slice that served more than this times the rate of its points has points of another configuration."""

LIMITS_MS: dict[str, float] = {
    "resnet50": 15,
    "ssd-resnet34": 100,
    "retinanet": 100,
    "bert": 130,
    "rnnt": 1000,
}
"""Limit, in ms, of the p99 of a valid Server result: MLPerf Inference rules, latency constraints of the data centre."""

ROUNDS = 3
"""Iterations between the batches and the work limit that they imply (`soft_drop`)."""

FASTEST = 1.5
"""The search for a slice's speed stops at this multiple of the speed that its points give."""

GPUS = {"A30": "A30-24GB"}
"""GPU names of the rows that differ from the catalogue's."""


@dataclass(frozen=True)
class Fitted:
    """Parameters that the two points do not determine; the same for every row.

    `floor_share`: share of a batch's floor that keeps the slice from other streams. `hop_ms`: time from the end of a
    batch until its stream takes the next (queues and answers, for which SingleStream does not wait). For BERT:
    `launch_ms`, fixed cost of a batch (staging, copies, launches, answers); `unfilled`, the time, in requests, that a
    batch loses to matrices too small to fill the slice; `bert_share`, its `floor_share`. All fitted by
    `benchmarks/simulation_mlperf.py`.
    """

    floor_share: float = 0.75
    hop_ms: float = 0.02
    launch_ms: float = 2.2
    unfilled: float = 0.7
    bert_share: float = 0.5


@dataclass(frozen=True)
class Prediction:
    """p50, p95 and p99 in ms, or why they are missing."""

    times_ms: tuple[float, float, float] | None
    missing: str = ""


def predict(
    server: Row, rows: Sequence[Row], fitted: Fitted | None = None, requests: int = REQUESTS
) -> Prediction:
    """Predict a Server row's response times at its measured rate."""
    fitted = fitted or Fitted()
    if server.place is None or server.rate is None:
        return Prediction(None, "no rate or unreadable slices")
    way = way_of(server)
    service = service_of(server, rows, way, fitted)
    if service is None:
        return Prediction(None, "no SingleStream or Offline result")
    found = _within(server, service, way, fitted, requests)
    usual = way_of(server, own=False)
    if found.times_ms and found.times_ms[2] > _limit_ms(server) and usual != way:
        # The configuration that the row names cannot have kept the limit at any speed: use the usual one.
        return _within(server, service, usual, fitted, requests)
    return found


def _limit_ms(server: Row) -> float:
    return server.limit_ms or LIMITS_MS.get(server.family, math.inf)


def _within(server: Row, service: SliceService, way: Way, fitted: Fitted, requests: int) -> Prediction:
    """Response times of slices served this way; if their p99 exceeds the limit, of faster slices that keep it."""
    assert server.place is not None and server.rate is not None
    slices, rate_per_ms, limit_ms = server.place[0], server.rate / 1e3, _limit_ms(server)
    batcher = Batcher(
        way.max_batch,
        way.wait_us / 1e3,
        way.streams,
        way.ahead,
        way.window,
        fitted.bert_share if server.family == "bert" else fitted.floor_share,
        fitted.hop_ms,
        slices=slices if way.one_queue else 1,
    )
    if rate_per_ms / slices > BEYOND * capacity_per_ms(service, batcher):
        return Prediction(None, "more than the points can carry")

    def times(speed: float) -> tuple[float, float, float]:
        faster = SliceService(service.floor_ms / speed, service.per_request_ms / speed)
        return _times(faster, way, batcher, slices, rate_per_ms, requests)

    found = times(1.0)
    if found[2] > limit_ms:
        found = times(_speed_within(lambda speed: times(speed)[2], limit_ms))
    return Prediction(found)


def _speed_within(p99_ms: Callable[[float], float], limit_ms: float) -> float:
    """Least speedup over the slice's points at which its p99 keeps the limit; 1 if even FASTEST does not."""
    low, high = 0.0, math.log(FASTEST)
    if p99_ms(FASTEST) > limit_ms:
        return 1.0
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if p99_ms(math.exp(middle)) > limit_ms else (low, middle)
    return math.exp(high)


def _times(
    service: SliceService, way: Way, batcher: Batcher, slices: int, rate_per_ms: float, requests: int
) -> tuple[float, float, float]:
    """p50, p95 and p99 of one slice's requests."""
    gaps, work = _drawn(requests, way.spread, way.longest)
    due = reached = np.cumsum(gaps) * (slices / batcher.slices / rate_per_ms)
    if way.front:
        rng = np.random.default_rng(1)
        due, reached = arrivals(requests, rate_per_ms, slices, way.max_batch, rng)
        due, reached = due[:requests], reached[:requests]
    response = serve_by_streams(reached, service, batcher, work)
    if way.soft_drop < 1 and work is not None:
        for _ in range(ROUNDS):
            most = float(np.quantile(_running_work(reached + response, work), way.soft_drop))
            response = serve_by_streams(reached, service, replace(batcher, most_work=most), work)
    waited = (response + (reached - due))[int(WARM_UP * requests) :]
    served = waited[np.isfinite(waited)]
    # Deferred requests are answered after the run: a percentile of all requests is a higher one of the others.
    places = [min(100.0, percent * len(waited) / len(served)) for percent in PERCENTILES]
    found = np.percentile(served, places)
    return float(found[0]), float(found[1]), float(found[2])


def _running_work(ends: NDArray[np.float64], work: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cumulative work of each request's batch, up to and including that request.

    Requests of a batch end together. Deferred requests have no finite end; they are the first of their batch.
    """
    done = np.concatenate(([0.0], np.cumsum(work)))
    served = np.where(np.isfinite(ends), np.arange(len(ends)), len(ends) - 1)
    ends = ends[np.minimum.accumulate(served[::-1])[::-1]]
    first = np.concatenate(([True], np.abs(np.diff(ends)) > 1e-6))
    start = np.maximum.accumulate(np.where(first, np.arange(len(ends)), 0))
    return np.asarray(done[1:] - done[start])


def capacity_per_ms(service: SliceService, batcher: Batcher) -> float:
    """Requests per ms that full batches on all streams complete."""
    size = batcher.max_batch
    alone = batcher.streams * size / (batcher.hop_ms + service.batch_ms(size))
    if batcher.streams == 1:
        return alone
    return min(alone, size / (batcher.floor_share * service.floor_ms + size * service.per_request_ms))


def service_of(server: Row, rows: Sequence[Row], way: Way, fitted: Fitted) -> SliceService | None:
    """The batch-time line of the Server row's slice, beside the neighbours it had; None if its points are missing.

    BERT's SingleStream engine differs from that of Server and Offline (CUDA graphs, other kernels: only its
    configurations have `use_graphs` and lack `use_small_tile_gemm_plugin`), so SingleStream does not give BERT's floor.
    """
    offline = own_offline(server, rows)
    if offline is None:
        return None
    share = _share(server)
    per_request = 1e3 / _alone(offline)
    if server.family == "bert":
        per_request /= share
        return SliceService(fitted.launch_ms + fitted.unfilled * per_request, per_request)
    single = own_single(server, rows)
    single_ms = single.single_ms(mean=way.spread > 0) if single else None
    if single is None or single_ms is None:
        return None
    if single.loaded:
        single_ms *= _share(single)
    return service_from_two_points(single_ms, 1e3 / per_request).beside_neighbours(share)


def _share(row: Row) -> float:
    """Share of its speed that the row's slice keeps beside its neighbours; 1 where nobody measured it."""
    if not row.loaded:
        return 1.0
    gpu = row.texts["gpu"]
    found = neighbour_load(GPUS.get(gpu, gpu))
    return found.share if found else 1.0


def _alone(offline: Row) -> float:
    """Samples/s of one slice of an Offline row with idle neighbours."""
    assert offline.place is not None and offline.rate is not None
    return offline.rate / offline.place[0] / _share(offline)


@cache
def _drawn(
    requests: int, spread: float, longest: float
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Gaps between requests and the work of each (means 1), equal for every row; work is None if all are alike."""
    rng = np.random.default_rng(0)
    gaps = rng.standard_exponential(requests)
    if not spread:
        return gaps, None
    work = np.minimum(np.exp(rng.normal(0.0, spread, requests)), longest)
    return gaps, work / work.mean()

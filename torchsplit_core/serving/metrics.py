"""Metrics of a server: counters for Prometheus, and the times of batches for load tests."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from torchsplit_core.serving.plan import ServingPlan, WorkerSpec
from torchsplit_core.serving.protocol.http_server import HttpServer

RESPONSE_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MAX_BATCH_TIMES = 4096
"""Newest times kept for each server and batch size."""
MAX_TRACE_BATCHES = 2**16
"""Batches kept in a trace."""


@dataclass(slots=True)
class BatchTrace:
    """Batches in time: start (s of the host's clock), rows, ms from dispatch to result.

    Keeps at most MAX_TRACE_BATCHES; when full, every second one is dropped, so that samples cover the whole run.
    """

    batches: list[tuple[float, int, float]] = field(default_factory=list)
    _stride: int = 1
    _seen: int = 0

    def add(self, begin_s: float, rows: int, whole_ms: float) -> None:
        """Record a batch."""
        if self._seen % self._stride == 0:
            if len(self.batches) == MAX_TRACE_BATCHES:
                del self.batches[1::2]
                self._stride *= 2
            self.batches.append((begin_s, rows, whole_ms))
        self._seen += 1


def _times_by_rows() -> dict[int, deque[float]]:
    return defaultdict(lambda: deque(maxlen=MAX_BATCH_TIMES))


@dataclass(slots=True)
class BatchStats:
    """Batches of one server: busy time, waiting time of their rows, and their times by batch size.

    `whole_ms` is from dispatch to result, `compute_ms` the worker's part of it. `deaths` counts its workers' deaths.
    """

    batches: int = 0
    rows: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0
    deaths: int = 0
    whole_ms: dict[int, deque[float]] = field(default_factory=_times_by_rows)
    compute_ms: dict[int, deque[float]] = field(default_factory=_times_by_rows)
    trace: BatchTrace = field(default_factory=BatchTrace)

    def to_json(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "rows": self.rows,
            "busy_s": self.busy_s,
            "waited_s": self.waited_s,
            "deaths": self.deaths,
            "whole_ms": {str(rows): list(times) for rows, times in self.whole_ms.items()},
            "compute_ms": {str(rows): list(times) for rows, times in self.compute_ms.items()},
            "course": self.trace.batches,
        }


class ServerMetrics:
    """Metrics of a serving process. `batch_stats` is by server id of the plan's simulation."""

    def __init__(self, serving_plan: ServingPlan) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        labels = ["model", "stage", "slice"]
        self.requests = counter(
            "torchsplit_requests", "Requests answered, by the status of their answer", ["model", "status"]
        )
        self.response = histogram(
            "torchsplit_response_seconds",
            "From the whole request's arrival to its answer, of those answered 200",
            ["model"],
            buckets=RESPONSE_BUCKETS,
        )
        self.sizes = histogram("torchsplit_batch_rows", "Rows of a batch", labels, buckets=BATCH_BUCKETS)
        self.busy = counter(
            "torchsplit_busy_seconds",
            "Seconds in which a tenant of a slice had a batch, of all its processes",
            labels,
        )
        self.deaths = counter("torchsplit_worker_deaths", "Workers that died", labels)
        self.queue = gauge("torchsplit_queue_rows", "Rows that wait", ["model", "stage"])
        self.utilisation = gauge(
            "torchsplit_utilisation_ratio",
            "Share of the time since the last look in which a tenant's processes on a slice were busy",
            labels,
        )
        self._refused = counter(
            "torchsplit_refused", "Requests and connections that a limit refused, by the limit", ["reason"]
        )
        self._connections = gauge("torchsplit_connections", "Connections that are open")
        self._active_requests = gauge("torchsplit_requests_at_work", "Requests that wait for their answer")
        self._held = gauge("torchsplit_held_bytes", "Bytes of bodies of requests not answered yet")
        self._request_counters: dict[tuple[str, int], Any] = {}
        self._response_histograms: dict[str, Any] = {}
        self.batch_stats: dict[str, BatchStats] = {}
        self._specs: dict[str, WorkerSpec] = {}
        for spec in serving_plan.workers:
            self._specs.setdefault(spec.server, spec)
        self.reset()
        self._last_sample = time.monotonic(), dict.fromkeys(self._specs, 0.0)
        self._busy_s = dict.fromkeys(self._specs, 0.0)

    def reset(self) -> None:
        """Clear the batch statistics; the Prometheus metrics go on."""
        self.batch_stats = {name: BatchStats() for name in self._specs}

    def observe_batch(
        self,
        spec: WorkerSpec,
        rows: int,
        waited_s: float,
        begin_s: float,
        spent_s: float,
        compute_ms: float | None,
    ) -> None:
        """Record a batch.

        Args:
            spec: the worker that ran it.
            rows: its rows.
            waited_s: waiting time, summed over the rows.
            begin_s: its start, by time.perf_counter.
            spent_s: from dispatch to the delivery of the results.
            compute_ms: the worker's compute time; None if there was no result.
        """
        labels = (spec.model, spec.stage, spec.slice)
        self.sizes.labels(*labels).observe(rows)
        self.busy.labels(*labels).inc(spent_s)
        self._busy_s[spec.server] += spent_s
        stats = self.batch_stats[spec.server]
        stats.batches += 1
        stats.rows += rows
        stats.busy_s += spent_s
        stats.waited_s += waited_s
        if compute_ms is not None:
            stats.whole_ms[rows].append(spent_s * 1e3)
            stats.compute_ms[rows].append(compute_ms)
            stats.trace.add(begin_s, rows, spent_s * 1e3)

    def count_death(self, spec: WorkerSpec) -> None:
        """Record the death of a worker."""
        self.deaths.labels(spec.model, spec.stage, spec.slice).inc()
        self.batch_stats[spec.server].deaths += 1

    def observe_response(self, model: str, status: int, seconds: float) -> None:
        """Record a response."""
        # Looking up a label takes longer than counting.
        counter = self._request_counters.get((model, status))
        if counter is None:
            counter = self._request_counters[model, status] = self.requests.labels(model, str(status))
        counter.inc()
        if status == 200:
            times = self._response_histograms.get(model)
            if times is None:
                times = self._response_histograms[model] = self.response.labels(model)
            times.observe(seconds)

    def count_refusal(self, reason: str) -> None:
        """Count a request or connection that a limit rejected."""
        self._refused.labels(reason).inc()

    def observe_server(self, server: HttpServer) -> None:
        """Export the server's connections, active requests and held bytes."""
        self._connections.set_function(lambda: len(server.connections))
        self._active_requests.set_function(lambda: server.active_requests)
        self._held.set_function(lambda: server.held_bytes)

    def exposition(self, waiting: dict[tuple[str, str], int]) -> bytes:
        """The text for Prometheus; `waiting` gives the rows in each queue by (model, stage)."""
        for (model, stage), rows in waiting.items():
            self.queue.labels(model, stage).set(rows)
        now, (then, before) = time.monotonic(), self._last_sample
        if now - then >= 1.0:
            for name, spec in self._specs.items():
                share = (self._busy_s[name] - before[name]) / (now - then) / spec.processes
                self.utilisation.labels(spec.model, spec.stage, spec.slice).set(min(1.0, share))
            self._last_sample = now, dict(self._busy_s)
        return generate_latest(self.registry)

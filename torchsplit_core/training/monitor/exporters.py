"""Exports a run's figures while it trains: an endpoint for Prometheus, event files for TensorBoard.

The process that starts the ranks serves and writes them from the run's folder; the ranks do not know of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from torchsplit_core.checkpoints.trained_run import METRICS
from torchsplit_core.training.monitor.discovery import published_endpoint
from torchsplit_core.training.monitor.gpu_sampler import GPU_FIGURES, read_gpus
from torchsplit_core.training.monitor.run_reader import RunReader
from torchsplit_core.training.monitor.run_view import RunView
from torchsplit_core.training.monitor.tail import JsonTail
from torchsplit_core.training.periodic import run_periodically
from torchsplit_core.training.run_folder import TENSORBOARD, WATCH
from torchsplit_core.values import InputFault, system_reason
from torchsplit_core.values.strategy.run import Exports

Metric = GaugeMetricFamily | CounterMetricFamily
PREFIX = "torchsplit_train_"
STEP_FIGURES = {
    "loss": ("Mean loss over the samples of the step", "loss"),
    "step_seconds": ("Seconds of the step", "step_s"),
    "samples": ("Samples of the step, of all ranks", "samples"),
    "processes": ("Ranks that took part in the step", "world_size"),
}
"""Figures of the last step: their descriptions, and names in `metrics.jsonl`. TensorBoard's tags are train/NAME."""


@contextlib.contextmanager
def export_metrics(run: Path, exports: Exports) -> Iterator[int | None]:
    """Serve and write the figures while a run trains; yields the endpoint's port, None without one.

    Raises InputFault for a port that is taken, and if the package tensorboard is not installed.
    """
    with contextlib.ExitStack() as stack:
        port = None
        if exports.metrics_port is not None:
            port = stack.enter_context(_serve_metrics(run, exports.metrics_host, exports.metrics_port))
        if exports.tensorboard:
            stack.enter_context(_write_event_files(run))
        yield port


@contextlib.contextmanager
def _serve_metrics(run: Path, host: str, port: int) -> Iterator[int]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(RunReader(run)))
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else str(error)
        raise InputFault(
            "--metrics-port", f"cannot listen at {host}:{port}: {reason}", "Choose another port."
        ) from error
    try:
        with published_endpoint(run, host, int(server.server_port)):
            yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class RunCollector(Collector):
    """The figures of a run, read from its folder at each scrape. Unknown figures are left out, never zero."""

    def __init__(self, reader: RunReader) -> None:
        self.reader = reader

    def collect(self) -> Iterable[Metric]:
        """All figures; none before the run has begun."""
        try:
            view = self.reader.view()
        except InputFault:
            return
        yield from _run_metrics(view)
        yield from _rank_metrics(view)
        yield from _gpu_metrics(view)


def _run_metrics(view: RunView) -> Iterable[Metric]:
    if len(view.steps):
        yield GaugeMetricFamily(f"{PREFIX}step", "The last step that is done", view.last_step)
        for name, (words, column) in STEP_FIGURES.items():
            yield GaugeMetricFamily(f"{PREFIX}{name}", words, getattr(view.steps, column)[-1])
    if view.steps.validations:
        held_out = GaugeMetricFamily(
            f"{PREFIX}validation", "Mean of a metric over held-out samples, of the last measurement", labels=["metric"]
        )  # fmt: skip
        for name, value in view.steps.validations[-1][1].items():
            held_out.add_metric([name], value)
        yield held_out
    if view.target_steps:
        yield GaugeMetricFamily(f"{PREFIX}wanted_steps", "The step that the run ends with", view.target_steps)
    if view.checkpoints:
        newest = view.checkpoints[-1]
        yield GaugeMetricFamily(
            f"{PREFIX}checkpoint_step", "The step of the newest complete checkpoint", newest.step
        )
        yield GaugeMetricFamily(f"{PREFIX}checkpoint_bytes", "Its bytes on disk", newest.bytes)
    events = CounterMetricFamily(f"{PREFIX}events", "Events of the run by kind", labels=["kind"])
    for kind in sorted({event.kind for event in view.events}):
        events.add_metric([kind], sum(event.kind == kind for event in view.events))
    yield events


def _rank_metrics(view: RunView) -> Iterable[Metric]:
    step = GaugeMetricFamily(f"{PREFIX}rank_step", "The last step that a rank told of", labels=["rank"])
    peak = GaugeMetricFamily(f"{PREFIX}rank_peak_bytes", "Peak memory of a rank", labels=["rank"])
    share = GaugeMetricFamily(
        f"{PREFIX}rank_communication_ratio",
        "Share of both passes that only exchanges gradients",
        labels=["rank"],
    )
    parts = GaugeMetricFamily(
        f"{PREFIX}rank_part_seconds", "Seconds of a step by what they were for", labels=["rank", "part"]
    )
    kinds = GaugeMetricFamily(
        f"{PREFIX}rank_communication_seconds",
        "Seconds of a step in communication, by kind",
        labels=["rank", "kind"],
    )
    blocks = GaugeMetricFamily(
        f"{PREFIX}rank_block_seconds",
        "Seconds of a micro-batch in a block of a pipeline",
        labels=["rank", "block"],
    )
    for rank in view.ranks:
        name = str(rank.rank)
        step.add_metric([name], rank.step)
        peak.add_metric([name], rank.peak_bytes)
        if rank.communication_share is not None:
            share.add_metric([name], rank.communication_share)
        for part, seconds in (rank.parts_s or {}).items():
            parts.add_metric([name, part], seconds)
        for kind, seconds in (rank.communication_s or {}).items():
            kinds.add_metric([name, kind], seconds)
        for block, spent in rank.blocks_s.items():
            if spent is not None:
                blocks.add_metric([name, block], spent)
    yield from (step, peak, share, parts, kinds, blocks)


def _gpu_metrics(view: RunView) -> Iterable[Metric]:
    for name, (words, value_of) in GPU_FIGURES.items():
        family = GaugeMetricFamily(f"{PREFIX}gpu_{name}", words, labels=["node", "gpu"])
        for gpu in view.gpus:
            value = value_of(gpu)
            if value is not None:
                family.add_metric([gpu.node, str(gpu.index)], value)
        yield family


@contextlib.contextmanager
def _write_event_files(run: Path) -> Iterator[None]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputFault(
            "--tensorboard",
            "needs the package tensorboard, which is not installed",
            "Install it: pip install tensorboard.",
        ) from error
    event_writer = _EventWriter(run, SummaryWriter)
    try:
        with run_periodically(event_writer.write_new, "tensorboard"):
            yield
    finally:
        event_writer.write_new()
        event_writer.close()


class _EventWriter:
    """Writes each step's line, and with the last one new GPU samples of the nodes; repeated steps replace old ones."""

    def __init__(self, run: Path, make_writer: Any) -> None:
        self.folder, self._make_writer, self._watch = run / TENSORBOARD, make_writer, run / WATCH
        self._lines, self._last_step = JsonTail(run / METRICS), 0
        # Samples that an earlier command left are not new.
        self._sampled_at = {(gpu.node, gpu.index): gpu.sampled_at for gpu in read_gpus(self._watch)}
        self._writer: Any = None

    def write_new(self) -> None:
        """Write the new lines."""
        lines = self._lines.read_new()[1]
        for line in lines:
            step = line.get("step")
            if not isinstance(step, int):
                continue
            if self._writer is None or step <= self._last_step:
                self.close()
                # Hide what an earlier run or attempt wrote from this step on.
                self._writer = self._make_writer(str(self.folder), purge_step=step)
            for name, (_, column) in STEP_FIGURES.items():
                if isinstance(line.get(column), int | float):
                    self._writer.add_scalar(f"train/{name}", line[column], step)
            for name, value in dict(line.get("validation") or {}).items():
                self._writer.add_scalar(f"validation/{name}", value, step)
            self._last_step = step
        if self._writer is not None:
            if lines:
                self._write_gpus()
            self._writer.flush()

    def _write_gpus(self) -> None:
        for gpu in read_gpus(self._watch):
            key = gpu.node, gpu.index
            if self._sampled_at.get(key) == gpu.sampled_at:
                continue
            self._sampled_at[key] = gpu.sampled_at
            for name, (_, value_of) in GPU_FIGURES.items():
                if (value := value_of(gpu)) is not None:
                    self._writer.add_scalar(
                        f"train/gpu_{name}/{gpu.node}/{gpu.index}", value, self._last_step
                    )

    def close(self) -> None:
        """Close the current event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

"""Profile a model on the devices of this host; `jobs.profile` does so for a workspace.

Devices of different GPUs are measured in parallel, those of one GPU in turn: otherwise they would disturb
each other. Each measured point is stored at once, so that a killed run can resume.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from torchsplit_core.checkpoints.trained_run import with_step
from torchsplit_core.hardware import (
    NvmlFault,
    catalogue,
    choose_devices,
    gpu_state,
    instability_words,
    measure_cores,
    open_nvml,
    restore_from_journal,
    temporary_slices,
)
from torchsplit_core.profiling.points import MeasuredPoint, MeasurementSettings
from torchsplit_core.telemetry import schema, span
from torchsplit_core.values import (
    Device,
    InputFault,
    InternalFault,
    Profile,
    Progress,
    SlicesToMake,
    ignore_progress,
)

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph
    from torchsplit_core.profiling.measured_model import MeasuredModel
    from torchsplit_core.workspace.store import Store

ESTIMATED_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes estimated for every slice of the catalogue, besides those measured."""


def profile(
    source: str,
    *,
    graph: TorchGraph | None = None,
    device: str = "auto",
    batch_sizes: Sequence[int] | None = None,
    gpu_types: Sequence[str] | None = None,
    trust: bool = False,
    settings: MeasurementSettings | None = None,
    store: Store | None = None,
    since: float = 0.0,
    at_once: bool = False,
    make_slices: SlicesToMake | None = None,
    on_graph: Callable[[TorchGraph], object] = lambda graph: None,
    progress: Progress = ignore_progress,
) -> tuple[TorchGraph, Profile]:
    """The model's graph (made where none is given) and its profile: measured here, estimated on MIG slices.

    `batch_sizes` None measures those that the model's client offers.
    `device` has the syntax of `choose_devices`; `gpu_types` are estimated, by default the whole catalogue; for
    types that are named, unsourced catalogue figures cause a warning.
    With a `store`, points are stored, and those stored since `since` (Unix seconds) are reused. A graph with the
    architecture hash of the previous version is traced again, for it lacks the arguments. `at_once` measures
    slices of one GPU together. With `make_slices` its slices are measured too: each is created and measured, then
    the GPU's former layout is restored.
    A `.pt2` that is not trusted is never executed: everything is estimated. With `settings.sequence_length` the
    graph is always traced again at that length, and the estimates follow it. Raises InputFault.
    """
    from torchsplit_core.graph.architecture import uses_former_scheme
    from torchsplit_core.graph.sizes import bytes_per_request
    from torchsplit_core.profiling.interpolation import interpolate_slices
    from torchsplit_core.profiling.merge import merge
    from torchsplit_core.profiling.roofline import estimate_rows

    source = with_step(source)
    archive = source.endswith(".pt2")
    length = settings.sequence_length if settings else None
    if archive and length is not None:
        raise InputFault(
            "sequence lengths",
            f"{source} has only the length it was exported with",
            "Profile FILE.py:NAME, whose client offers sequence_lengths, or leave them out.",
        )
    if graph is not None and (uses_former_scheme(graph) or length is not None):
        graph = None
    if graph is None and archive:
        from torchsplit_core.tracing import trace

        graph = trace(source, trust=trust, progress=lambda share, text: progress(0.3 * share, text))
        on_graph(graph)
    types = tuple(gpu_types or catalogue())
    # Types that nobody named get no rows where figures are missing, and no warning.
    estimate = partial(estimate_rows, warn=bool(gpu_types))
    grid = {*ESTIMATED_BATCH_SIZES, *(batch_sizes or ())}
    if archive and not trust:
        assert graph is not None
        return graph, _not_executed(source, graph, estimate(graph, types, sorted(grid)))
    run = _ProfileRun(
        source, trust, settings or MeasurementSettings(), batch_sizes, store, since, on_graph, progress
    )
    if store is not None:
        restore_slices(store)
    results: tuple[MeasuredModel, ...] = ()
    if device or make_slices is None:
        results = run.measure(choose_devices(device), graph, at_once)
    if make_slices is not None:
        results += run.measure_mig_slices(make_slices, results[0].graph if results else graph)
    graph = results[0].graph
    grid |= {row.batch_size for result in results for row in result.rows}
    estimated = [replace(row, sequence_length=length) for row in estimate(graph, types, sorted(grid))]
    merged = interpolate_slices(merge(source, results, estimated))
    return graph, replace(
        merged, environment={**merged.environment, "bytes_per_request": bytes_per_request(graph)}
    )


def _not_executed(source: str, graph: TorchGraph, rows: Any) -> Profile:
    from torchsplit_core.profiling.roofline import estimated_nodes

    return Profile(
        source=source,
        architecture_hash=graph.architecture_hash,
        environment={"note": "not executed: the file is not trusted; every figure is estimated"},
        rows=rows,
        nodes=estimated_nodes(graph),
    )


class _ProfileRun:
    """Profiles one model on several devices; progress is the mean over devices."""

    def __init__(
        self,
        source: str,
        trust: bool,
        settings: MeasurementSettings,
        batch_sizes: Sequence[int] | None,
        store: Store | None,
        since: float,
        on_graph: Callable[[TorchGraph], object],
        progress: Progress,
    ) -> None:
        self.source, self.trust, self.settings, self.batch_sizes = source, trust, settings, batch_sizes
        self.store, self.since, self.on_graph, self.progress = store, since, on_graph, progress
        self.shares: dict[str, float] = {}
        self.lock = Lock()
        self.stopped = False

    def measure(
        self, devices: Sequence[Device], graph: TorchGraph | None, at_once: bool
    ) -> tuple[MeasuredModel, ...]:
        """Measure on every device. Raises InputFault if one cannot measure the model at all."""
        self.shares = {device.id: 0.0 for device in devices}
        if graph is None:
            # The first measurement traces the graph, under whose hash all others store their points.
            first = self._measure_device(devices[0], None, 1)
            return first, *(self.measure(devices[1:], first.graph, at_once) if devices[1:] else ())
        ordered = sorted(devices, key=lambda device: device.physical)
        groups = [tuple(group) for _, group in groupby(ordered, key=lambda device: device.physical)]
        if at_once:
            groups = [(device,) for device in ordered]
        concurrent = {
            device.id: sum(device.physical == other.physical for other in devices) for device in devices
        }

        def work(group: tuple[Device, ...]) -> list[MeasuredModel]:
            return [
                self._measure_device(device, graph, concurrent[device.id] if at_once else 1)
                for device in group
            ]

        if len(groups) == 1:
            return tuple(work(groups[0]))
        with ThreadPoolExecutor(len(groups)) as pool:
            try:
                return tuple(result for group in pool.map(work, groups) for result in group)
            except BaseException:
                # If one is ended, all are: the others stop at their next progress report and end their children.
                self.stopped = True
                raise

    def measure_mig_slices(self, wanted: SlicesToMake, graph: TorchGraph | None) -> tuple[MeasuredModel, ...]:
        """Create and measure one slice after another, then restore the GPU's layout. Untested on hardware."""
        if self.store is None:
            raise InternalFault("slices are made only where a store holds the journal of the change")
        self.shares = dict.fromkeys(wanted.profiles, 0.0)
        results: list[MeasuredModel] = []
        for name in wanted.profiles:
            with (
                open_nvml() as nvml,
                temporary_slices(
                    nvml, wanted.gpu_index, (name,), wanted.consent, journal=journal_of(self.store)
                ) as (device,),
            ):
                results.append(self._measure_device(device, results[0].graph if results else graph, 1))
            self.shares |= {name: 1.0}
        return tuple(results)

    def _measure_device(self, device: Device, graph: TorchGraph | None, concurrent: int) -> MeasuredModel:
        from torchsplit_core.graph.architecture import former_architecture_hash
        from torchsplit_core.workspace.measured_points import (
            PointStore,
            exclusive_measurement,
            old_batch_sizes,
        )

        counts = (1, *sorted({*self.settings.processes} - {1}))
        done = 0

        def advance(share: float, text: str) -> None:
            if self.stopped:
                raise KeyboardInterrupt
            with self.lock:
                self.shares[device.id] = min(1.0, (done + share) / len(counts))
                mean = sum(self.shares.values()) / len(self.shares)
                self.progress(mean, text if len(self.shares) == 1 else f"{device.id}: {text}")

        with contextlib.ExitStack() as stack:
            if self.store is not None and concurrent == 1:
                stack.enter_context(exclusive_measurement(self.store, device, advance))
            before = state_of(device)
            stack.enter_context(
                span(
                    schema.PROFILE,
                    model=self.source,
                    device=device.name,
                    slice=device.profile,
                    basis=device.basis,
                )
            )
            result = self._measure_points(device, graph, concurrent, 1, self.batch_sizes, advance)
            sizes = [
                *(row.batch_size for row in result.rows),
                *(failure.batch_size for failure in result.failures),
            ]
            for count in counts[1:]:
                done += 1
                try:
                    concurrent_result = self._measure_points(
                        device, result.graph, concurrent, count, sizes, advance
                    )
                except InputFault as fault:
                    # The result of a single process stays valid.
                    result = replace(result, notes=(*result.notes, f"{count} processes: {fault}"))
                else:
                    result = _merge_process_counts(result, concurrent_result)
            after = state_of(device)
            front, notes = self._front_costs(device, advance)
            result = replace(result, notes=(*result.notes, *_instability_notes(result), *notes))
        done = len(counts)
        advance(0.0, "done")
        state: dict[str, Any] = {"state_before": before, "state_after": after} if before or after else {}
        if self.store is not None:
            former = former_architecture_hash(result.graph)
            if old := old_batch_sizes(
                PointStore(self.store, self._points_key(device, concurrent, 1)), former
            ):
                state |= {"old_points": list(old)}
        environment = {**result.environment, "slices_measured_at_once": concurrent, **state, **front}
        return replace(result, environment=environment)

    def _front_costs(self, device: Device, advance: Progress) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The frontend's costs for plans on this slice of cores, stored or measured now; or a note why unknown."""
        if self.store is None or device.kind != "cpu" or device.profile is None:
            return {}, ()
        from torchsplit_core.serving.load_test.frontend_costs import front_costs

        try:
            return {
                "front": asdict(
                    front_costs(self.store.root, lambda share, text: advance(1.0, text), self.since)
                )
            }, ()
        except InputFault as fault:
            return {}, (f"What the front of a served plan carries is not known: {fault}",)

    def _points_key(self, device: Device, concurrent: int, processes: int) -> str:
        """The store key of the points measured with this number of processes."""
        from torchsplit_core.workspace.measured_points import place_of

        key = place_of(device, self.settings) + (f"/{concurrent} at once" if concurrent > 1 else "")
        return key + (f"/{processes} processes" if processes > 1 else "")

    def _measure_points(
        self,
        device: Device,
        graph: TorchGraph | None,
        concurrent: int,
        processes: int,
        batch_sizes: Sequence[int] | None,
        advance: Progress,
    ) -> MeasuredModel:
        """Measure with `processes` at once; reuse stored points and store new ones."""
        from torchsplit_core.profiling.measuring.measurement import measure
        from torchsplit_core.tracing.trace import DESCRIBER, EXPORTER
        from torchsplit_core.workspace.measured_points import PointStore

        stored: tuple[MeasuredPoint, ...] = ()
        save: Callable[[MeasuredPoint], None] = _discard_point
        if self.store is not None:
            points = PointStore(self.store, self._points_key(device, concurrent, processes), self.since)
            stored = points.load(graph.architecture_hash if graph else None)
            save = points.save
        return measure(
            self.source,
            graph,
            device,
            exporter=EXPORTER,
            describer=DESCRIBER,
            batch_sizes=batch_sizes,
            trust=self.trust,
            settings=self.settings,
            processes=processes,
            known=stored,
            keep=save,
            on_graph=self.on_graph,
            progress=advance,
        )


def _merge_process_counts(single: MeasuredModel, concurrent: MeasuredModel) -> MeasuredModel:
    """The result of one process, with the rows and failures of several at once added."""
    taken_over = [*single.environment["taken_over"], *concurrent.environment["taken_over"]]
    # The pace belongs to the device and was tracked over minutes only with one process.
    pace = next((row.pace for row in single.rows), None)
    return replace(
        single,
        rows=(*single.rows, *(replace(row, pace=pace) for row in concurrent.rows)),
        failures=(*single.failures, *concurrent.failures),
        notes=(*single.notes, *concurrent.notes),
        environment={**single.environment, "taken_over": taken_over},
    )


def _instability_notes(result: MeasuredModel) -> tuple[str, ...]:
    """Notes on a slice of cores, measured just now, whose speed is not stable."""
    cores = str(result.environment.get("cores", ""))
    words = instability_words(measure_cores(map(int, cores.split(",")))) if cores else None
    return () if words is None else (f"{words[0].upper()}{words[1:]}.",)


def state_of(device: Device) -> str:
    """Clock, temperature and throttling of a device's GPU in words; empty if it reports none."""
    if device.kind == "cpu":
        return ""
    try:
        with open_nvml() as nvml:
            state = gpu_state(nvml, device.physical)
    except NvmlFault:
        return ""
    return state.words() if state else ""


def journal_of(store: Store) -> Path:
    """The path of the MIG change journal."""
    return store.root / "mig-journal.json"


def restore_slices(store: Store) -> str | None:
    """Undo an interrupted change of MIG slices. Returns a sentence on what was undone, None if nothing."""
    if not journal_of(store).exists():
        return None
    try:
        with open_nvml() as nvml:
            return restore_from_journal(nvml, journal_of(store))
    except NvmlFault as fault:
        raise InputFault(
            "MIG slices",
            f"are still as a measurement that was cut off left them: {fault.words}",
            f"Start the driver and profile again, or restore by hand what stands in {journal_of(store)}.",
        ) from fault


def _discard_point(point: MeasuredPoint) -> None:
    """Store nothing: without a store a point exists only in the profile."""

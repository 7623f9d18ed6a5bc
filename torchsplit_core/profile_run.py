"""Profile a model on the devices of this host: what the command line calls, and what jobs run.

Devices of different GPUs are measured side by side, those of one GPU one after the other: two at once would
measure each other. What is measured goes to the store point by point, so that a run that was killed goes
on where it stood.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from torchsplit_core.hardware import (
    NvmlFault,
    catalogue,
    choose_devices,
    gpu_state,
    open_nvml,
    restore_from_journal,
    temporary_slices,
)
from torchsplit_core.profiling.points import KeptPoint, Settings
from torchsplit_core.telemetry import schema, span
from torchsplit_core.values import Device, InputFault, InternalFault, Profile, Progress, ignore_progress

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph
    from torchsplit_core.profiling.rows import Found
    from torchsplit_core.storage import Artifact, Store, Workspace

DEFAULT_BATCH_SIZES = (1, 2, 4)
"""Measured on the host by default."""
_IDENTITIES: dict[tuple[str, str], str] = {}
"""Store and content of a graph → its architecture hash; contents never change under their name."""
ESTIMATED_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Estimated for every slice of the catalogue, beside those measured."""


def profile(
    source: str,
    *,
    graph: TorchGraph | None = None,
    device: str = "auto",
    batch_sizes: Sequence[int] = DEFAULT_BATCH_SIZES,
    gpu_types: Sequence[str] | None = None,
    trust: bool = False,
    settings: Settings | None = None,
    store: Store | None = None,
    since: float = 0.0,
    at_once: bool = False,
    make_slices: SlicesToMake | None = None,
    hear_graph: Callable[[TorchGraph], object] = lambda graph: None,
    progress: Progress = ignore_progress,
) -> tuple[TorchGraph, Profile]:
    """The model's graph (made where none is given) and its profile: measured here, estimated on MIG slices.

    `device` is the text of `choose_devices`; `gpu_types` are those to estimate, the whole catalogue by default.
    With a `store` points are kept and those kept since `since` (Unix seconds) are taken over. `at_once` measures
    slices of one GPU together. With `make_slices` its slices are measured too: each is made, measured and the
    GPU's former layout restored.
    A `.pt2` that is not trusted is never executed: everything is estimated. Raises InputFault.
    """
    from torchsplit_core.profiling.estimate import estimate_rows
    from torchsplit_core.profiling.fill import fill_slices
    from torchsplit_core.profiling.merge import merge

    archive = source.endswith(".pt2")
    if graph is None and archive:
        from torchsplit_core.tracing import trace

        graph = trace(source, trust=trust, progress=lambda share, text: progress(0.3 * share, text))
        hear_graph(graph)
    types = tuple(gpu_types or catalogue())
    grid = tuple(sorted({*ESTIMATED_BATCH_SIZES, *batch_sizes}))
    if archive and not trust:
        assert graph is not None
        return graph, _not_executed(source, graph, estimate_rows(graph, types, grid))
    run = _Run(source, trust, settings or Settings(), tuple(batch_sizes), store, since, hear_graph, progress)
    if store is not None:
        restore_slices(store)
    found: tuple[Found, ...] = ()
    if device or make_slices is None:
        found = run.measure(choose_devices(device), graph, at_once)
    if make_slices is not None:
        found += run.measure_made(make_slices, found[0].graph if found else graph)
    graph = found[0].graph
    merged = merge(source, found, estimate_rows(graph, types, grid))
    return graph, fill_slices(merged)


def _not_executed(source: str, graph: TorchGraph, rows: Any) -> Profile:
    from torchsplit_core.profiling.estimate import estimated_nodes

    return Profile(
        source=source,
        architecture_hash=graph.architecture_hash,
        environment={"note": "not executed: the file is not trusted; every figure is estimated"},
        rows=rows,
        nodes=estimated_nodes(graph),
    )


class _Run:
    """One model on some devices; progress is the mean of theirs."""

    def __init__(
        self,
        source: str,
        trust: bool,
        settings: Settings,
        batch_sizes: tuple[int, ...],
        store: Store | None,
        since: float,
        hear_graph: Callable[[TorchGraph], object],
        progress: Progress,
    ) -> None:
        self.source, self.trust, self.settings, self.batch_sizes = source, trust, settings, batch_sizes
        self.store, self.since, self.hear_graph, self.progress = store, since, hear_graph, progress
        self.shares: dict[str, float] = {}
        self.lock = Lock()
        self.stopped = False

    def measure(
        self, devices: Sequence[Device], graph: TorchGraph | None, at_once: bool
    ) -> tuple[Found, ...]:
        """What every device gave. Raises InputFault where one cannot measure the model at all."""
        self.shares = {device.id: 0.0 for device in devices}
        if graph is None:
            # The first measurement makes the graph, under whose hash all others keep their points.
            first = self._one(devices[0], None, 1)
            return first, *(self.measure(devices[1:], first.graph, at_once) if devices[1:] else ())
        ordered = sorted(devices, key=lambda device: device.physical)
        groups = [tuple(group) for _, group in groupby(ordered, key=lambda device: device.physical)]
        if at_once:
            groups = [(device,) for device in ordered]
        beside = {
            device.id: sum(device.physical == other.physical for other in devices) for device in devices
        }

        def work(group: tuple[Device, ...]) -> list[Found]:
            return [self._one(device, graph, beside[device.id] if at_once else 1) for device in group]

        if len(groups) == 1:
            return tuple(work(groups[0]))
        with ThreadPoolExecutor(len(groups)) as pool:
            try:
                return tuple(found for group in pool.map(work, groups) for found in group)
            except BaseException:
                # Whoever ends one ends all: the others stop, and end their children, at their next news.
                self.stopped = True
                raise

    def measure_made(self, wanted: SlicesToMake, graph: TorchGraph | None) -> tuple[Found, ...]:
        """One slice after the other: made, measured, the GPU's former layout restored. Untested on hardware."""
        if self.store is None:
            raise InternalFault("slices are made only where a store holds the journal of the change")
        self.shares = dict.fromkeys(wanted.profiles, 0.0)
        found: list[Found] = []
        for name in wanted.profiles:
            with (
                open_nvml() as nvml,
                temporary_slices(
                    nvml, wanted.gpu_index, (name,), wanted.consent, journal=journal_of(self.store)
                ) as (device,),
            ):
                found.append(self._one(device, found[0].graph if found else graph, 1))
            self.shares |= {name: 1.0}
        return tuple(found)

    def _one(self, device: Device, graph: TorchGraph | None, beside: int) -> Found:
        from torchsplit_core.profiling.measurement import measure

        def advance(share: float, text: str) -> None:
            if self.stopped:
                raise KeyboardInterrupt
            with self.lock:
                self.shares[device.id] = share
                mean = sum(self.shares.values()) / len(self.shares)
                self.progress(mean, text if len(self.shares) == 1 else f"{device.id}: {text}")

        known: tuple[KeptPoint, ...] = ()
        keep = _keep_nothing
        with contextlib.ExitStack() as stack:
            if self.store is not None:
                from torchsplit_core.measurements import PointStore, one_measurement, place_of

                if beside == 1:
                    stack.enter_context(one_measurement(self.store, device, advance))
                place = place_of(device, self.settings) + (f"/{beside} at once" if beside > 1 else "")
                points = PointStore(self.store, place, self.since)
                known = points.known(graph.architecture_hash if graph else None)
                keep = points.keep
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
            found = measure(
                self.source,
                graph,
                device,
                batch_sizes=self.batch_sizes,
                trust=self.trust,
                settings=self.settings,
                known=known,
                keep=keep,
                hear_graph=self.hear_graph,
                progress=advance,
            )
            after = state_of(device)
        advance(1.0, "done")
        state = {"state_before": before, "state_after": after} if before or after else {}
        environment = {**found.environment, "slices_measured_at_once": beside, **state}
        return replace(found, environment=environment)


def state_of(device: Device) -> str:
    """Clock, temperature and throttling of a device's GPU in words; empty where it tells none."""
    if device.kind == "cpu":
        return ""
    try:
        with open_nvml() as nvml:
            state = gpu_state(nvml, device.physical)
    except NvmlFault:
        return ""
    return state.words() if state else ""


@dataclass(frozen=True, slots=True)
class SlicesToMake:
    """MIG slices to make on a GPU for a measurement, one after the other; `consent` is the user's own word."""

    gpu_index: int
    profiles: tuple[str, ...]
    consent: bool


def journal_of(store: Store) -> Path:
    """Where a change of MIG slices that is under way is written down."""
    return store.root / "mig-journal.json"


def restore_slices(store: Store) -> str | None:
    """Undo a change of MIG slices that a kill cut off; what was done in a sentence, None for nothing."""
    if not journal_of(store).exists():
        return None
    try:
        with open_nvml() as nvml:
            return restore_from_journal(nvml, journal_of(store))
    except NvmlFault as fault:
        raise InputFault(
            "MIG slices",
            fault.words,
            "the driver answers, so that a measurement that was cut off can be undone",
            f"{journal_of(store)} says what stood before.",
        ) from fault


def _keep_nothing(point: KeptPoint) -> None:
    """Without a store a point lives in the profile alone."""


def profile_job(workspace: Workspace, parameters: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Profile `source` (or each of `sources`) on `device` into the workspace; what fails leaves the others.

    `again_since` (Unix seconds) measures anew what was measured earlier. Raises InputFault naming the models
    that could not be profiled.
    """
    sources = tuple(map(str, parameters.get("sources") or (parameters["source"],)))
    faults: list[str] = []
    rows = 0
    for number, name in enumerate(sources):

        def part(share: float, text: str, number: int = number, name: str = name) -> None:
            shown = text if len(sources) == 1 else f"{name} · {text}"
            progress((number + share) / len(sources), shown)

        own = parameters | parameters.get("uploads", {}).get(name, {}) | {"source": name}
        try:
            rows += _profile_into(workspace, own, part)
        except InputFault as fault:
            if len(sources) == 1:
                raise
            faults.append(f"{name}: {fault}")
    if faults:
        raise InputFault(
            "models",
            f"{len(faults)} of {len(sources)}",
            "every model can be profiled",
            f"The others are stored. {' '.join(faults)}",
        )
    return {"profile": sources[-1], "rows": rows}


def _profile_into(workspace: Workspace, parameters: dict[str, Any], progress: Progress) -> int:
    """Profile one source into the workspace; how many rows it has."""
    name = str(parameters["source"])
    with local_source(workspace, parameters) as (source, trust):
        known = not parameters.get("trace_again", False)
        traced = known and any(found.name == name for found in workspace.artifacts("graph"))
        _, result = profile(
            source,
            graph=workspace.get("graph", name) if traced else None,
            device=str(parameters.get("device", "auto")),
            batch_sizes=tuple(parameters.get("batch_sizes", DEFAULT_BATCH_SIZES)),
            trust=trust,
            settings=settings_of(parameters),
            store=workspace.store,
            since=float(parameters.get("again_since", 0.0)),
            at_once=bool(parameters.get("at_once", False)),
            make_slices=slices_of(parameters),
            hear_graph=lambda graph: workspace.put("graph", name, graph),
            progress=progress,
        )
    with _one_writer(workspace):
        stored = any(found.name == name for found in workspace.artifacts("profile"))
        if stored:
            # Two jobs may have profiled this model on two devices at the same time.
            result = _joined(workspace.get("profile", name), result)
        workspace.put("profile", name, replace(result, source=name))
    return len(result.rows)


def _joined(older: Profile, newer: Profile) -> Profile:
    """The newer profile, with what only the older one has measured of the same architecture."""
    from torchsplit_core.profiling.fill import fill_slices
    from torchsplit_core.profiling.merge import join

    return fill_slices(join(older, newer))


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a profile job: model × device × batch size. `message` says why one failed.

    `kept` is when it was measured (Unix seconds), None for one that is still to do.
    """

    source: str
    device: str
    batch_size: int
    state: Literal["measured", "failed", "open"]
    throughput_rps: float | None = None
    message: str = ""
    kept: float | None = None


def cells(workspace: Workspace, parameters: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Every point a profile job with these parameters is about, and what is known of it now.

    Points that are known before the job starts are those it would take over. Raises InputFault for a device
    that is not here (any more).
    """
    from torchsplit_core.measurements import PointStore, place_of

    graphs = {found.name: found for found in workspace.artifacts("graph")}
    settings = settings_of(parameters)
    since = float(parameters.get("again_since", 0.0))
    found: list[Cell] = []
    for name in tuple(map(str, parameters.get("sources") or (parameters["source"],))):
        identity = _identity(workspace, graphs[name]) if name in graphs else None
        device_text = str(parameters.get("device", "auto"))
        for device in choose_devices(device_text) if device_text else ():
            points = PointStore(workspace.store, place_of(device, settings), since)
            known = points.known(identity) if identity else ()
            for batch in sorted(set(parameters.get("batch_sizes", DEFAULT_BATCH_SIZES))):
                found.append(_cell(name, device, batch, known))
    return tuple(found)


def _identity(workspace: Workspace, graph: Artifact) -> str:
    """The architecture hash of a stored graph, read once: a page asks every second."""
    key = (str(workspace.store.root), graph.sha256)
    if key not in _IDENTITIES:
        _IDENTITIES[key] = str(workspace.get("graph", graph.name).architecture_hash)
    return _IDENTITIES[key]


def _cell(name: str, device: Device, batch: int, known: Sequence[KeptPoint]) -> Cell:
    for point in known:
        if point.batch_size == batch and point.kind == "batch":
            rate = 1000 * batch / point.content["latency"]["p50"]["value"]
            return Cell(name, device.id, batch, "measured", rate, kept=point.kept)
        if point.batch_size == batch and point.kind == "failure" and point.content["kind"] == "batch":
            return Cell(name, device.id, batch, "failed", message=point.content["message"], kept=point.kept)
    return Cell(name, device.id, batch, "open")


def settings_of(parameters: Mapping[str, Any]) -> Settings:
    """The settings among a job's parameters."""
    limit = parameters.get("point_limit_s")
    return Settings(
        point_budget_s=float(parameters.get("point_budget_s", 2.0)),
        point_limit_s=None if limit is None else float(limit),
        cuda_graphs=bool(parameters.get("cuda_graphs", False)),
    )


def slices_of(parameters: Mapping[str, Any]) -> SlicesToMake | None:
    """The slices a job is to make: `make_slices` as {"gpu_index", "profiles", "consent"}; None for none."""
    wanted = parameters.get("make_slices")
    if not wanted:
        return None
    return SlicesToMake(
        int(wanted["gpu_index"]), tuple(map(str, wanted["profiles"])), wanted.get("consent") is True
    )


@contextlib.contextmanager
def _one_writer(workspace: Workspace) -> Iterator[None]:
    """One at a time reads a profile, joins its own and writes it back."""
    with (workspace.store.root / "profiles.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def local_source(workspace: Workspace, parameters: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The source as a path or sample name; an upload is laid out in a temporary folder for the time of the job."""
    source = str(parameters["source"])
    trust = bool(parameters.get("trust", False))
    upload = parameters.get("upload")
    if not upload:
        if not source.startswith("sample:"):
            raise InputFault("source", source, "a page traces samples and uploads", "Upload the file first.")
        yield source, trust
        return
    # Its own name, for messages, but as a name alone: never a path.
    name = re.sub(r"[^\w.-]", "_", str(upload))[-80:].lstrip(".")
    suffix = Path(name).suffix
    with tempfile.TemporaryDirectory(prefix="torchsplit-") as folder:
        path = Path(folder) / name
        path.write_bytes(workspace.get_bytes("upload", str(upload)))
        tail = source.rpartition(":")[2]
        yield (f"{path}:{tail}" if suffix == ".py" else str(path)), trust

"""Profiles models of a workspace as a job, and reports the state of each of its points."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchsplit_core.files import read_text
from torchsplit_core.graph.architecture import former_architecture_hash
from torchsplit_core.hardware import choose_devices
from torchsplit_core.jobs.job_kinds import ProfileParameters
from torchsplit_core.jobs.trace import local_source
from torchsplit_core.profiling.points import MeasuredPoint, MeasurementSettings
from torchsplit_core.values import Device, InputFault, Profile, Progress
from torchsplit_core.workflow.profiling import profile
from torchsplit_core.workspace import BlobStore
from torchsplit_core.workspace.named_results import exists, sha256_of

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


def profile_job(workspace: Workspace, parameters: ProfileParameters, progress: Progress) -> dict[str, Any]:
    """Profile each source into the workspace; a failed source does not stop the others.

    Raises InputFault naming the models that could not be profiled.
    """
    sources = parameters.sources
    faults: list[str] = []
    rows = 0
    for number, name in enumerate(sources):

        def part(share: float, text: str, number: int = number, name: str = name) -> None:
            shown = text if len(sources) == 1 else f"{name} · {text}"
            progress((number + share) / len(sources), shown)

        try:
            rows += _profile_source(workspace, name, parameters, part)
        except InputFault as fault:
            if len(sources) == 1:
                raise
            faults.append(f"{name}: {fault}")
    if faults:
        raise InputFault(
            "models",
            f"{len(faults)} of {len(sources)} cannot be profiled: {' '.join(faults)}",
            "Mend them and profile them again; the others are stored.",
        )
    return {"profile": sources[-1], "rows": rows}


def _profile_source(
    workspace: Workspace, name: str, parameters: ProfileParameters, progress: Progress
) -> int:
    """Profile one source into the workspace. Returns the number of its rows."""
    with local_source(workspace, name, parameters.uploads.get(name)) as (source, trust):
        traced = not parameters.trace_again and exists(workspace, "graph", name)
        _, result = profile(
            source,
            graph=workspace.get("graph", name) if traced else None,
            device=parameters.device,
            batch_sizes=parameters.batch_sizes,
            trust=trust,
            settings=settings_of(parameters),
            store=workspace.store,
            since=parameters.again_since,
            at_once=parameters.at_once,
            make_slices=parameters.make_slices,
            on_graph=lambda graph: workspace.put("graph", name, graph),
            progress=progress,
        )
    with _profile_lock(workspace):
        if exists(workspace, "profile", name):
            # Two jobs may have profiled this model on two devices at the same time.
            result = _merge_profiles(workspace.get("profile", name), result)
        workspace.put("profile", name, replace(result, source=name))
    return len(result.rows)


def _merge_profiles(older: Profile, newer: Profile) -> Profile:
    """The newer profile, with the rows of the same architecture that only the older one has measured."""
    from torchsplit_core.profiling.interpolation import interpolate_slices
    from torchsplit_core.profiling.merge import update_profile

    merged = update_profile(older, newer)
    more_rows = any(row.basis != "estimated" and row not in newer.rows for row in merged.rows)
    more_failures = any(failure not in newer.failures for failure in merged.failures)
    return interpolate_slices(merged) if more_rows or more_failures else merged


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """One point of a profile job: model × device × batch size. `message` says why it failed.

    `kept` is when it was measured (Unix seconds), None if it is still to measure. `old`: a figure is stored under
    the architecture hash of the previous version and is never reused.
    """

    source: str
    device: str
    batch_size: int
    state: Literal["measured", "failed", "open"]
    throughput_rps: float | None = None
    message: str = ""
    kept: float | None = None
    old: bool = False


def profile_points(workspace: Workspace, parameters: ProfileParameters) -> tuple[ProfilePoint, ...]:
    """Every point that a profile job with these parameters covers, with its current state.

    Without batch sizes only the stored points, since only the model's client says which sizes it offers. The job
    reuses points that are stored before it starts. Raises InputFault for a device that is not (or no longer) here.
    """
    from torchsplit_core.workspace.measured_points import PointStore, old_batch_sizes, place_of

    settings = settings_of(parameters)
    result: list[ProfilePoint] = []
    for name in parameters.sources:
        graph = sha256_of(workspace, "graph", name)
        identity, former = _identities(workspace.store.root, graph, name) if graph else ("", "")
        for device in choose_devices(parameters.device) if parameters.device else ():
            device_address = place_of(device, settings)
            points = PointStore(workspace.store, device_address, parameters.again_since)
            known = points.load(identity) if identity else ()
            old = old_batch_sizes(PointStore(workspace.store, device_address), former) if former else ()
            sizes = parameters.batch_sizes or [point.batch_size for point in known if point.kind != "nodes"]
            for batch in sorted(set(sizes)):
                result.append(replace(_point_state(name, device, batch, known), old=batch in old))
    return tuple(result)


@lru_cache(maxsize=256)
def _identities(root: Path, sha256: str, name: str) -> tuple[str, str]:
    """The architecture hashes of a stored graph, of this version and of the previous one. Cached, for a page asks
    every second. A graph of the previous version has no hash of this one: it is traced again before it is measured."""
    text = BlobStore(root).get(sha256, "workspace graph", name).decode()
    graph = read_text(text, origin=f"graph {name}")[1]
    former = former_architecture_hash(graph)
    return ("" if graph.architecture_hash == former else graph.architecture_hash), former


def _point_state(name: str, device: Device, batch: int, known: Sequence[MeasuredPoint]) -> ProfilePoint:
    for point in known:
        if point.batch_size == batch and point.kind == "batch":
            rate = 1000 * batch / point.content["latency"]["p50"]["value"]
            return ProfilePoint(name, device.id, batch, "measured", rate, kept=point.stored_at)
        if point.batch_size == batch and point.kind == "failure" and point.content["kind"] == "batch":
            return ProfilePoint(
                name, device.id, batch, "failed", message=point.content["message"], kept=point.stored_at
            )
    return ProfilePoint(name, device.id, batch, "open")


def settings_of(parameters: ProfileParameters) -> MeasurementSettings:
    """The measurement settings of a job's parameters."""
    return MeasurementSettings(
        point_budget_s=parameters.point_budget_s,
        point_limit_s=parameters.point_limit_s,
        cuda_graphs=parameters.cuda_graphs,
    )


@contextlib.contextmanager
def _profile_lock(workspace: Workspace) -> Iterator[None]:
    """Only one job at a time reads a profile, merges its rows and writes it back."""
    with workspace.store.lock_file("profiles.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

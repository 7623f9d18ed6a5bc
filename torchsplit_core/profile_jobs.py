"""Profiling as jobs of a workspace: models measured into it, and how far each point of such a job is."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchsplit_core.files import read_text
from torchsplit_core.hardware import choose_devices
from torchsplit_core.isolation import private_room
from torchsplit_core.isolation.execution import is_trusted, refuse_execution
from torchsplit_core.profile_run import DEFAULT_BATCH_SIZES, SlicesToMake, profile
from torchsplit_core.profiling.points import KeptPoint, Settings
from torchsplit_core.values import Device, InputFault, Profile, Progress
from torchsplit_core.workspace import Blobs

if TYPE_CHECKING:
    from torchsplit_core.storage import Workspace


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

    found = join(older, newer)
    more_rows = any(row.basis != "estimated" and row not in newer.rows for row in found.rows)
    more_failures = any(failure not in newer.failures for failure in found.failures)
    return fill_slices(found) if more_rows or more_failures else found


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
        identity = _identity(workspace.store.root, graphs[name].sha256, name) if name in graphs else None
        device_text = str(parameters.get("device", "auto"))
        for device in choose_devices(device_text) if device_text else ():
            points = PointStore(workspace.store, place_of(device, settings), since)
            known = points.known(identity) if identity else ()
            for batch in sorted(set(parameters.get("batch_sizes", DEFAULT_BATCH_SIZES))):
                found.append(_cell(name, device, batch, known))
    return tuple(found)


@lru_cache(maxsize=256)
def _identity(root: Path, digest: str, name: str) -> str:
    """The architecture hash of a stored graph. Read once, for a page asks every second."""
    text = Blobs(root).get(digest, "workspace graph", name).decode()
    return str(read_text(text, origin=f"graph {name}")[1].architecture_hash)


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
    with workspace.store.lock_file("profiles.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def local_source(workspace: Workspace, parameters: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The source as a path or sample name, and whether it is trusted; an upload is laid out for the time of the job.

    Raises InputFault for an upload that is gone, for a Python file that is not trusted (to trace it is to execute
    it), and for a file whose content is another than the one trusted.
    """
    source = str(parameters["source"])
    upload = parameters.get("upload")
    if not upload:
        if not source.startswith("sample:"):
            raise InputFault("source", source, "a page traces samples and uploads", "Upload the file first.")
        yield source, False
        return
    content = workspace.get_bytes("upload", str(upload))
    trust = is_trusted(dict(parameters), str(upload), hashlib.sha256(content).hexdigest())
    # Its own name, for messages, but as a name alone: never a path.
    name = re.sub(r"[^\w.-]", "_", str(upload))[-80:].lstrip(".")
    suffix = Path(name).suffix
    if suffix == ".py" and not trust:
        refuse_execution(str(upload))
        raise InputFault(
            "upload",
            str(upload),
            "a .py file is executed only when it is trusted",
            "Tick the box, or upload a .pt2.",
        )
    with private_room() as folder:
        path = folder / name
        path.write_bytes(content)
        tail = source.rpartition(":")[2]
        yield (f"{path}:{tail}" if suffix == ".py" else str(path)), trust

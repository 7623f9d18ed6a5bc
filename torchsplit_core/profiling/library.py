"""The measured A100 library that ships with the product, and the serving mixes made from it.

Source: MunQ-Lee/ParvaGPU_SC24 (ParvaGPU, SC'24; MIT, see data/NOTICE.md): eleven models on the MIG slices of one
A100-80GB. The throughput is that of the slice, summed over its processes. Needs no torch.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from torchsplit_core.hardware import gpu_type
from torchsplit_core.profiling.memory import CUDA_CONTEXT_BYTES
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    InternalFault,
    MemoryParts,
    Objective,
    ObjectiveKind,
    PlanModel,
    PlanRequest,
    Point,
    Profile,
    ProfileRow,
    Stage,
    Variant,
)
from torchsplit_core.values.errors import quoted, suggestion
from torchsplit_core.values.units import GIB

LIBRARY_GPU = "A100-80GB"
"""The GPU type, by its catalogue name, on which the library was measured."""

PROFILE_OF_COMPUTE_SLICES = {1: "1g.10gb", 2: "2g.20gb", 3: "3g.40gb", 4: "4g.40gb", 7: "7g.80gb"}
"""The plain MIG profile of an A100-80GB with that many compute slices (NVIDIA MIG User Guide)."""

LATENCY_SHARE_OF_SLO = 0.45
"""Share of the end-to-end objective that one batch may take: the rest is for filling the batch.

ParvaGPU's rule: it accepts a point only if latency < 0.45 · SLO.
"""

MAX_PROCESSES_PER_SLICE = 3
"""The most processes that ParvaGPU's planner puts on a slice."""


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measurement: throughput of the slice over all its processes, latency of one batch."""

    model: str
    compute_slices: int
    batch_size: int
    processes: int
    throughput_rps: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class MixModel:
    """A model of a serving mix: requests/s to serve and the end-to-end latency objective."""

    model: str
    rate_rps: float
    slo_ms: float


@dataclass(frozen=True, slots=True)
class ServingMix:
    """A published mix, and how many A100-80GB the published planner needed for it."""

    name: str
    models: tuple[MixModel, ...]
    published_gpus: int


def _read(name: str) -> str:
    return (resources.files("torchsplit_core.profiling") / "data" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def measured_library() -> tuple[MeasuredRow, ...]:
    """Every shipped measurement, in the order of the file (1,747 rows)."""
    return tuple(
        MeasuredRow(
            row["model"],
            int(row["compute_slices"]),
            int(row["batch_size"]),
            int(row["processes"]),
            float(row["throughput_rps"]),
            float(row["latency_ms"]),
        )
        for row in csv.DictReader(_read("measured_profiles_a100_80gb.csv").splitlines())
    )


@lru_cache(maxsize=1)
def _memory_table() -> dict[str, tuple[int, int, int]]:
    """Bytes of weights, and of everything else in use at batch 1 and at batch 128, by model.

    Written by `python -m tools.write_library_memory`.
    """
    return {
        row["model"]: (
            int(row["weight_bytes"]), int(row["working_bytes_at_1"]), int(row["working_bytes_at_128"])
        )
        for row in csv.DictReader(_read("library_memory.csv").splitlines())
    }  # fmt: skip


def library_memory(row: MeasuredRow) -> MemoryParts:
    """The estimated memory in GiB of all processes of a measured row together.

    Each process has its context, its weights and further memory linear in the batch. The row ran on its slice, so the
    total is at most the slice's memory: a larger one is scaled down in all its parts.
    """
    weights, at_1, at_128 = _memory_table()[row.model]
    working = at_1 + (row.batch_size - 1) * (at_128 - at_1) / 127
    size = gpu_type(LIBRARY_GPU).profile(PROFILE_OF_COMPUTE_SLICES[row.compute_slices]).memory_gib
    assert size is not None  # every profile of this GPU has a sourced size
    total = row.processes * (weights + working + CUDA_CONTEXT_BYTES) / GIB
    scale = row.processes / GIB * min(1.0, size / total)
    return MemoryParts(
        weights=weights * scale,
        activations=working * scale,
        transient=0.0,
        context=CUDA_CONTEXT_BYTES * scale,
        basis="estimated",
    )


@lru_cache(maxsize=1)
def library_profiles() -> tuple[Profile, ...]:
    """One profile a model, sorted by name; source `library:NAME`, no architecture hash.

    Intervals were not published: they are None, never 0. Neither was memory: it is estimated (`library_memory`).
    """
    by_model: dict[str, list[ProfileRow]] = {}
    for row in measured_library():
        memory = library_memory(row)
        by_model.setdefault(row.model, []).append(
            ProfileRow(
                stage="whole",
                gpu_type=LIBRARY_GPU,
                profile=PROFILE_OF_COMPUTE_SLICES[row.compute_slices],
                batch_size=row.batch_size,
                processes=row.processes,
                throughput_rps=row.throughput_rps,
                latency_ms=row.latency_ms,
                low_rps=None,
                high_rps=None,
                memory_gib=memory.weights + memory.activations + memory.transient + memory.context,
                basis="measured",
                memory_parts_gib=memory,
            )
        )
    environment = {
        "origin": "MunQ-Lee/ParvaGPU_SC24 (SC'24), MIT, Copyright (c) 2024 sslab6943",
        "device": LIBRARY_GPU,
        "throughput": "of the slice, summed over its processes",
        "memory": "estimated from the models' published definitions, never above the slice they ran on",
    }
    return tuple(
        Profile(source=f"library:{name}", architecture_hash="", environment=environment, rows=tuple(rows))
        for name, rows in sorted(by_model.items())
    )


def library_profile(name: str) -> Profile:
    """The library's profile of one model. Raises InputFault for an unknown name."""
    for profile in library_profiles():
        if profile.source == f"library:{name}":
            return profile
    known = [profile.source.removeprefix("library:") for profile in library_profiles()]
    raise InputFault("", f"unknown library model {quoted(name)}", suggestion(name, known, "library models"))


@lru_cache(maxsize=1)
def serving_mixes() -> tuple[ServingMix, ...]:
    """The published serving mixes, sorted by name."""
    document = json.loads(_read("serving_mixes_a100_80gb.json"))
    published = document["gpus_used_by_published_plan"]
    return tuple(
        ServingMix(
            name,
            tuple(
                MixModel(entry["model"], float(entry["rate_rps"]), float(entry["slo_ms"]))
                for entry in entries
            ),
            int(published[name]),
        )
        for name, entries in sorted(document["scenarios"].items())
    )


def mix_request(
    name: str,
    gpus: int | None = None,
    objective: ObjectiveKind = "leximin",
) -> PlanRequest:
    """A serving mix as a plan request on A100-80GB GPUs.

    demand = the mix's rate in requests/s, latency limit = 0.45 · SLO, points with at most three processes. `gpus` None:
    as many as the published planner used. The rate is a minimum only under `min_gpus`: the other objectives say how
    much of it a fleet of any size can serve. Raises InputFault for an unknown mix or a fleet of no GPUs.
    """
    mixes = {mix.name: mix for mix in serving_mixes()}
    if name not in mixes:
        raise InputFault("", f"unknown serving mix {quoted(name)}", suggestion(name, mixes, "serving mixes"))
    count = mixes[name].published_gpus if gpus is None else gpus
    if count < 1:
        raise InputFault("gpus", f"is {quoted(gpus)}, below the least value 1", "Give at least one GPU.")
    models = tuple(_mix_model(entry, hard=objective == "min_gpus") for entry in mixes[name].models)
    return PlanRequest(
        gpus=(FleetEntry(type=LIBRARY_GPU, count=count),), models=models, objective=Objective(kind=objective)
    )


def _mix_model(entry: MixModel, *, hard: bool) -> PlanModel:
    points = []
    for row in library_profile(entry.model).rows:
        if row.processes > MAX_PROCESSES_PER_SLICE:
            continue
        if row.profile is None:
            raise InternalFault(f"library row of {entry.model} without a slice")
        points.append(
            Point(
                gpu_type=row.gpu_type,
                profile=row.profile,
                batch_size=row.batch_size,
                throughput_rps=row.throughput_rps,
                latency_ms=row.latency_ms,
                processes=row.processes,
                memory_gib=row.memory_gib,
                basis="measured",
            )
        )
    return PlanModel(
        name=entry.model,
        variants=(Variant("whole", (Stage("whole", tuple(points)),)),),
        demand_rps=entry.rate_rps,
        min_throughput_rps=entry.rate_rps if hard else None,
        max_latency_ms=LATENCY_SHARE_OF_SLO * entry.slo_ms,
    )

"""Estimates for GPU types without measurements: from a model's graph, or from its figures on other types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchsplit_core.values import (
    CPU,
    WHOLE_GPU,
    InputFault,
    PlanRequest,
    Point,
    Profile,
    ProfileRow,
    Stage,
)
from torchsplit_core.workflow.profiling import ESTIMATED_BATCH_SIZES

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph
    from torchsplit_core.profiling.transfer import Precision, TransferResult


def with_estimates(profile: Profile, graph: TorchGraph, gpu_types: Sequence[str]) -> Profile:
    """The profile with rows (basis estimated, each with its interval) for those GPU types that it lacks.

    Uses the roofline of `estimate_rows`; measured rows stay unchanged. Raises InputFault if the graph is of another
    architecture, and for a GPU type whose slices cannot be estimated.
    """
    from torchsplit_core.profiling.roofline import estimate_rows

    if graph.architecture_hash != profile.architecture_hash:
        raise InputFault(
            profile.source,
            "the profile is of another architecture than the graph, which was traced anew since",
            "Profile the model again.",
        )
    known = {row.gpu_type for row in profile.rows}
    missing = [name for name in gpu_types if name not in known]
    if not missing:
        return profile
    batches = sorted({*ESTIMATED_BATCH_SIZES, *(row.batch_size for row in profile.rows)})
    return replace(profile, rows=(*profile.rows, *estimate_rows(graph, missing, batches)))


def estimated_rows(
    profiles: Sequence[Profile], to: Sequence[str], precision: Precision = "fp32"
) -> tuple[tuple[tuple[ProfileRow, ...], ...], tuple[str, ...]]:
    """For each profile, rows of the types `to`, from its rows of other types (`profiling.transfer`), and notes.

    Raises InputFault for a type that cannot be estimated, for profiles that already have rows of all types `to`, and
    if no row is of a type with published peaks.
    """
    from torchsplit_core.profiling.transfer import transfer

    transfers = [transfer((*profile.rows, *profile.failures), to, precision) for profile in profiles]
    rows = [row for profile in profiles for row in profile.rows]
    notes = _check_transfers(transfers, rows, to)
    return tuple(transferred.rows for transferred in transfers), notes


def with_estimated_points(
    request: PlanRequest, to: Sequence[str], precision: Precision = "fp32"
) -> tuple[PlanRequest, tuple[str, ...]]:
    """The request with predicted points (basis estimated, with intervals) of the types `to` in every stage without
    them, and notes. Raises InputFault as `estimated_rows` does.
    """
    from torchsplit_core.planning.request.build import points_of
    from torchsplit_core.planning.request.edit import with_stages
    from torchsplit_core.profiling.transfer import transfer

    transfers: dict[tuple[str, str, str], TransferResult] = {}
    rows: list[ProfileRow] = []
    for model in request.models:
        for variant in model.variants:
            for stage in variant.stages:
                stage_rows = [_row(stage, point) for point in stage.points]
                transfers[model.name, variant.name, stage.name] = transfer(stage_rows, to, precision)
                rows += stage_rows
    notes = _check_transfers(list(transfers.values()), rows, to)
    return with_stages(
        request,
        lambda model, variant, stage: replace(
            stage,
            points=(*stage.points, *points_of(transfers[model.name, variant.name, stage.name].rows)),
        ),
    ), notes


def _check_transfers(
    transfers: Sequence[TransferResult], rows: Sequence[ProfileRow], to: Sequence[str]
) -> tuple[str, ...]:
    """Notes of the transfers, without duplicates. Raises InputFault if they gave no rows."""
    from torchsplit_core.hardware import peak_names

    notes = tuple(dict.fromkeys(note for transferred in transfers for note in transferred.notes))
    if small := ", ".join(dict.fromkeys(name for transferred in transfers for name in transferred.too_small)):
        notes += (f"{small}: points left out that need more memory, or were not seen to run in so little",)
    if any(transferred.rows for transferred in transfers):
        return notes
    # Where rows are measured, the estimated ones are no basis.
    measured = [row for row in rows if row.basis != "estimated"]
    kind = "measured row" if 0 < len(measured) < len(rows) else "row"
    types = tuple(dict.fromkeys(row.gpu_type for row in measured or rows))
    type_names = ", ".join(types) or "none"
    if not set(types) & set(peak_names()):
        raise InputFault(
            "rows",
            f"no {kind} is of a GPU type with published peaks (GPU types of the {kind}s: {type_names})",
            f"Measure one model on one of {', '.join(peak_names())}.",
        )
    raise InputFault(
        "--to",
        ": ".join((f"there is nothing to estimate for {', '.join(to)}", *filter(None, ["; ".join(notes)]))),
        f"Name another GPU type than {type_names}, or TYPE:whole for a GPU left whole.",
    )


def _row(stage: Stage, point: Point) -> ProfileRow:
    return ProfileRow(
        stage=stage.name,
        gpu_type=point.gpu_type,
        profile=None if point.profile == WHOLE_GPU else point.profile,
        batch_size=point.batch_size,
        processes=point.processes,
        throughput_rps=point.throughput_rps,
        latency_ms=point.latency_ms,
        low_rps=point.low_rps,
        high_rps=point.high_rps,
        memory_gib=None if point.gpu_type == CPU else point.memory_gib,
        basis=point.basis,
    )

"""Which demands a plan by hand breaks: every one, where it is broken, and what would mend it.

The rules and tolerances are those of verify_models.py, told slice by slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.expand import transfer_ms
from torchsplit_core.planning.hand_points import by_model
from torchsplit_core.planning.hand_values import HandFault, HandSeat, place
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import PlanModel, PlannedModel, PlanRequest


def demand_faults(
    request: PlanRequest, seats: Sequence[HandSeat], models: Sequence[PlannedModel]
) -> Iterator[HandFault]:
    """Faults of seats that all have a point; `models` is what these give."""
    yield from _memory(request, seats)
    for model, mine in by_model(request, seats):
        yield from _stages(model, mine)
        if model.max_latency_ms is not None:
            yield from _latency(request, model, mine, model.max_latency_ms)
    for model, got in zip(request.models, models, strict=True):
        least = model.min_throughput_rps
        if least is not None and got.throughput_rps < least * (1 - TOLERANCE):
            yield HandFault(
                None,
                None,
                model.name,
                f"{got.throughput_rps:.3g} requests/s",
                f"it must have {least:.3g} requests/s",
                "Give it more or larger slices, or lower its minimum.",
            )
    yield from _together(request, seats)


def _memory(request: PlanRequest, seats: Sequence[HandSeat]) -> Iterator[HandFault]:
    held: dict[tuple[str, str, int, str], float] = {}
    for seat in seats:
        assert seat.point is not None
        key = (seat.gpu.id, seat.profile, seat.start, seat.gpu.type)
        held[key] = held.get(key, 0.0) + (seat.point.memory_gib or 0.0)
    for (gpu, profile, start, kind), memory in held.items():
        size = gpu_type(kind).profile(profile).memory_gib
        limited = request.objective.memory_violation_penalty is None
        if limited and size is not None and memory > size * (1 + TOLERANCE):
            yield HandFault(
                gpu,
                place(profile, start),
                None,
                f"{memory:.3g} GiB",
                f"its tenants share {size:.3g} GiB",
                "Move a tenant elsewhere, or choose a smaller batch.",
            )


def _stages(model: PlanModel, seats: Sequence[HandSeat]) -> Iterator[HandFault]:
    variant = seats[0].variant
    assert variant is not None
    there = {seat.stage.name for seat in seats if seat.stage is not None}
    for stage in variant.stages:
        if stage.name not in there:
            yield HandFault(
                None,
                None,
                model.name,
                f"stage {stage.name} has no instance",
                f"variant {variant.name} runs with all its stages",
                "Put the stage on a slice, or take the model away altogether.",
            )


def _latency(
    request: PlanRequest, model: PlanModel, seats: Sequence[HandSeat], limit: float
) -> Iterator[HandFault]:
    """A broken limit at the tenants that make their stage as slow as it is."""
    variant = seats[0].variant
    assert variant is not None
    transfer = transfer_ms(variant.cut_bytes, request.link_gb_per_s)
    times: dict[str, list[tuple[float, float, HandSeat]]] = {}
    for seat in seats:
        assert seat.point is not None and seat.stage is not None
        point = seat.point.latency_ms
        times.setdefault(seat.stage.name, []).append((point / seat.share, point, seat))
    slowest = {name: max(slow for slow, _, _ in mine) for name, mine in times.items()}
    longest = sum(max(point for _, point, _ in mine) for mine in times.values())
    least = min(seat.share for seat in seats)
    total = sum(slowest.values()) + transfer
    small = longest > 0 and least * (limit - transfer) < longest * (1 - TOLERANCE) - TOLERANCE * limit
    if total > limit * (1 + TOLERANCE):
        for name, mine in times.items():
            for slow, _, seat in mine:
                if slow == slowest[name]:
                    yield seat.fault(
                        f"{slow:.3g} ms of {total:.3g} ms in all",
                        f"the limit is {limit:.3g} ms",
                        "Give it a larger slice, a smaller batch or a larger share, or raise the limit.",
                    )
    elif small:
        for seat in seats:
            if seat.share == least:
                yield seat.fault(
                    f"share {least:.3g}",
                    f"a limit of {limit:.3g} ms needs {longest / (limit - transfer):.3g}",
                    "Give it a larger share, or its other slices a smaller batch.",
                )


def _together(request: PlanRequest, seats: Sequence[HandSeat]) -> Iterator[HandFault]:
    here: dict[str, set[str]] = {}
    for seat in seats:
        here.setdefault(seat.gpu.id, set()).add(seat.asked.model)
    for pair in request.colocations:
        for gpu, names in here.items():
            absent = [name for name in pair.models if name not in names]
            if pair.mode == "hard" and 0 < len(absent) < len(pair.models):
                present = [name for name in pair.models if name in names]
                yield HandFault(
                    gpu,
                    None,
                    " and ".join(present),
                    f"without {' and '.join(absent)}",
                    f"{', '.join(pair.models)} stand on the same GPUs",
                    f"Put {' and '.join(absent)} on {gpu} too, or take {' and '.join(present)} away.",
                )

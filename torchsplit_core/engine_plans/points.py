"""The engines of a request's LLMs as points: one variant `whole` of one stage, which the planner takes as any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from torchsplit_core.engine_plans.engine_figures import (
    EnginePlace,
    NoEngine,
    closed_form_rate,
    engine_requests,
    estimated_point,
    measured_only,
    quick_enough,
    steps_of_rate,
)
from torchsplit_core.hardware import gpu_type, plain_profiles, profile_cores
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import (
    CPU,
    WHOLE_GPU,
    Conflict,
    Demand,
    EnginePoint,
    FleetEntry,
    LlmModel,
    LlmPoint,
    PlanModel,
    PlanRequest,
    Progress,
    Stage,
    Variant,
    ignore_progress,
    point_type,
)

MOST_LISTED = 4
"""Places named in a note."""
WHOLE = "whole"
"""Name of the variant and the stage of an LLM."""
CLOSED_FORM_ERROR = 1.3
"""What a closed form may be too low by, times: a group of GPUs that by so much is no better than two of half its size
is left out, since these can stand in its place."""


@dataclass(frozen=True, slots=True)
class LlmEngines:
    """The engines that an LLM may have on a fleet, and why it has none on other places."""

    points: tuple[EnginePoint, ...]
    missing: tuple[NoEngine, ...]


def has_llm(request: PlanRequest) -> bool:
    """Whether a model of the request is an LLM."""
    return any(model.llm is not None for model in request.models)


def with_engine_points(request: PlanRequest, progress: Progress = ignore_progress) -> PlanRequest:
    """The request whose LLMs have their engines as points; the same request without LLMs.

    Estimated figures are remembered. Raises InputFault for an invalid request.
    """
    if not has_llm(request):
        return request
    validate(request)
    models: list[PlanModel] = []
    for number, model in enumerate(request.models):
        if model.llm is not None:
            progress(number / len(request.models), f"simulating engines of {model.name}")
            points = llm_engines(request, model.llm).points
            model = replace(model, variants=(Variant(WHOLE, (Stage(WHOLE, points),)),))
        models.append(model)
    return replace(request, models=tuple(models))


def llm_engines(
    request: PlanRequest, llm: LlmModel, known: Mapping[EnginePlace, EnginePoint] = MappingProxyType({})
) -> LlmEngines:
    """The engines of one LLM on the places that the request's fleet offers.

    Points that keep the limits go before estimates; `known` estimates are not simulated anew.
    """
    counted = {
        EnginePlace(point.gpu_type, point.profile, point.tensor_parallel): point
        for point in llm.points
        if _keeps_limits(llm, point)
    }
    points: list[EnginePoint] = []
    missing: list[NoEngine] = []
    rates: dict[EnginePlace, float] = {}
    for place in (
        *engine_places(list_gpus(request.gpus), llm.tensor_parallel),
        *core_places(request.gpus, llm.points),
    ):
        measured = counted.get(place)
        if measured is not None:
            points.append(_measured_point(llm, place, measured, request.seed))
        elif place in known:
            points.append(known[place])
        elif point_type(place.gpu_type) == CPU:
            missing.append(NoEngine(place, _why_no_cores(place)))
            continue
        elif llm.config is not None and not _is_dominated(llm, place, rates, request.seed):
            point = estimated_point(llm.config, llm.engine, engine_requests(llm, request.seed), place)
            if isinstance(point, NoEngine):
                missing.append(point)
                continue
            points.append(point)
        else:
            continue
        rates[place] = points[-1].throughput_rps
    return LlmEngines(_without_full_slices(request, points), tuple(missing))


def _without_full_slices(request: PlanRequest, points: Sequence[EnginePoint]) -> tuple[EnginePoint, ...]:
    """Without slices of all of a GPU where every GPU of the type may be without MIG, and then gives as much."""
    gpus = list_gpus(request.gpus)
    whole = {
        point.gpu_type: point.throughput_rps
        for point in points
        if point.profile == WHOLE_GPU and point.tensor_parallel == 1
    }

    def is_needless(point: EnginePoint) -> bool:
        if point.gpu_type == CPU:
            return False
        kind = gpu_type(point.gpu_type)
        is_full = kind.divided == "mig" and kind.profile(point.profile).memory_slices == kind.memory_slices
        all_whole = all(gpu.can_be_whole for gpu in gpus if gpu.type == point.gpu_type)
        rate = whole.get(point.gpu_type, 0.0)
        return point.profile != WHOLE_GPU and is_full and all_whole and rate >= point.throughput_rps

    return tuple(point for point in points if not is_needless(point))


def engine_places(gpus: Sequence[FleetGpu], sizes: Sequence[int]) -> tuple[EnginePlace, ...]:
    """Where a fleet has room for an engine of one of these numbers of GPUs: slices, GPUs, then groups, small first."""
    places: dict[EnginePlace, None] = {}
    for gpu in gpus:
        kind = gpu_type(gpu.type)
        if 1 in sizes and not gpu.whole and kind.divided == "mig":
            names = {profile.name for profile in plain_profiles(kind)}
            if gpu.layouts is not None:
                names = {name for layout in gpu.layouts for name in layout}
            for profile in kind.profiles:
                if profile.name in names:
                    places[EnginePlace(gpu.type, profile.name)] = None
    together = Counter((gpu.type, gpu.node) for gpu in gpus if gpu.can_be_whole)
    for size in sorted(set(sizes)):
        for kind_name, _ in (key for key, count in together.items() if count >= size):
            places[EnginePlace(kind_name, WHOLE_GPU, size)] = None
    return tuple(places)


def core_places(entries: Sequence[FleetEntry], points: Sequence[LlmPoint]) -> tuple[EnginePlace, ...]:
    """Where a fleet's hosts have room for an engine: the numbers of cores that points are of, since nothing estimates
    an engine on cores; a host that none fits as a whole."""
    cores = {point.profile: profile_cores(point.profile) for point in points if point.gpu_type == CPU}
    places: dict[EnginePlace, None] = {}
    for entry in entries:
        kind = gpu_type(entry.type)
        if kind.divided != "cores":
            continue
        offered = None if entry.layouts is None else {name for layout in entry.layouts for name in layout}
        fitting = [
            EnginePlace(CPU, profile)
            for profile, count in cores.items()
            if count is not None and count <= kind.memory_slices and (offered is None or profile in offered)
        ]
        places |= dict.fromkeys(fitting or [EnginePlace(entry.type, WHOLE_GPU)])
    return tuple(places)


def _why_no_cores(place: EnginePlace) -> str:
    if place.profile:
        return "its point breaks a limit"
    return (
        "engines on cores are not estimated, and no point of it fits (torchsplit profile-llm measures them)"
    )


def engine_notes(request: PlanRequest) -> tuple[str, ...]:
    """For each LLM that has no engine on any place of the fleet why, a sentence each reason."""
    notes = []
    for model in request.models:
        if model.llm is None:
            continue
        engines = llm_engines(request, model.llm)
        by_reason: dict[str, list[str]] = {}
        for missing in () if engines.points else engines.missing:
            by_reason.setdefault(missing.reason, []).append(missing.place.words)
        notes += [f"{model.name}: no engine on {_listed(where)}: {why}." for why, where in by_reason.items()]
    return tuple(notes)


def _listed(places: Sequence[str]) -> str:
    more = len(places) - MOST_LISTED
    return f"{', '.join(places[:MOST_LISTED])}{f' and {more} other places' if more > 0 else ''}"


def unreachable_limits(request: PlanRequest) -> tuple[Conflict, ...]:
    """A conflict for each LLM of which every engine that fits breaks a limit with a request alone, if it has a minimum
    or no other model has a point. It names the least limit that works.
    """
    conflicts = []
    has_points = any(model.points for model in with_engine_points(request).models)
    for model in request.models:
        if model.llm is None or (has_points and not model.min_throughput_rps):
            continue
        engines = llm_engines(request, model.llm)
        alone = [item for item in engines.missing if item.alone_ms is not None]
        if engines.points or not alone:
            continue
        llm = model.llm
        quickest = min(alone, key=lambda item: _excess(llm, item))
        assert quickest.alone_ms is not None
        for name, limit, least in zip(
            ("max_ttft_ms", "max_tpot_ms"), (llm.max_ttft_ms, llm.max_tpot_ms), quickest.alone_ms, strict=True
        ):
            if limit is not None and least is not None and least > limit:
                demand: Demand = Demand(name, model.name)  # type: ignore[arg-type]
                message = (
                    f"{model.name}: {name} {limit:g} is below the {least:.4g} ms that a request alone takes on the "
                    f"quickest engine of this fleet, {quickest.place.words}"
                )
                conflicts.append(Conflict((demand,), message))
    return tuple(conflicts)


def _excess(llm: LlmModel, missing: NoEngine) -> float:
    assert missing.alone_ms is not None
    ttft, tpot = missing.alone_ms
    return max(
        ttft / llm.max_ttft_ms if llm.max_ttft_ms else 0.0,
        (tpot or 0.0) / llm.max_tpot_ms if llm.max_tpot_ms else 0.0,
    )


def _keeps_limits(llm: LlmModel, point: LlmPoint) -> bool:
    return all(
        limit is None or (figure is not None and figure <= limit)
        for limit, figure in ((llm.max_ttft_ms, point.ttft_ms), (llm.max_tpot_ms, point.tpot_ms))
    )


def _measured_point(llm: LlmModel, place: EnginePlace, point: LlmPoint, seed: int) -> EnginePoint:
    """The point, with an engine whose steps give its rate where the LLM has a config: measured ones, else of its sizes
    where it fits by them. No step of an engine on cores is estimated.
    """
    engine = measured_only(llm, place)
    if point.engine is not None:
        # Without a config the points stand for the simulation.
        engine = point.engine if llm.config is not None else replace(point.engine, step=None)
        if engine.step is not None and point.throughput_rps:
            engine = quick_enough(engine, engine_requests(llm, seed), point.throughput_rps)
    elif llm.config is not None and point.throughput_rps and place.gpu_type != CPU:
        requests = engine_requests(llm, seed)
        estimate = estimated_point(llm.config, llm.engine, requests, place)
        if isinstance(estimate, EnginePoint):
            engine = steps_of_rate(estimate, requests, point.throughput_rps)
    return EnginePoint(
        place.gpu_type, place.profile, engine.max_num_seqs, point.throughput_rps, point.ttft_ms or 0.0,
        basis=point.basis, engine=engine, ttft_ms=point.ttft_ms, tpot_ms=point.tpot_ms,
    )  # fmt: skip


def _is_dominated(llm: LlmModel, place: EnginePlace, rates: dict[EnginePlace, float], seed: int) -> bool:
    """Whether two engines on half the GPUs each surely give as much."""
    half = rates.get(replace(place, tensor_parallel=place.tensor_parallel // 2))
    if place.tensor_parallel == 1 or half is None or llm.config is None:
        return False
    rate = closed_form_rate(llm.config, llm.engine, engine_requests(llm, seed), place)
    return rate * CLOSED_FORM_ERROR <= 2 * half

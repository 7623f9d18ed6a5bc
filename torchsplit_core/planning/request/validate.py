"""Validation of a plan request before anything is computed; every breach is an InputFault."""

from __future__ import annotations

from collections.abc import Iterable

from torchsplit_core.hardware import MOST_CORES, gpu_type, place_layout, profile_cores
from torchsplit_core.hardware.host_state.validity import check_state
from torchsplit_core.planning.request.colocation_index import flows_of, members_of
from torchsplit_core.planning.request.demand_windows import check_demand_over_day, check_samples
from torchsplit_core.planning.request.fleet import is_unpartitioned, list_gpus
from torchsplit_core.planning.request.llm import check_llm, check_llm_plans
from torchsplit_core.planning.request.objective import GOALS, goal_of, has_no_minimum
from torchsplit_core.values import (
    CPU,
    WHOLE_GPU,
    FleetEntry,
    GpuType,
    InputFault,
    PlanModel,
    PlanRequest,
    Point,
    Variant,
    profile_words,
)
from torchsplit_core.values.errors import quoted, suggestion
from torchsplit_core.values.limits import MOST_TIER, check_name, check_number, check_whole
from torchsplit_core.values.plan.front import FrontCosts
from torchsplit_core.values.plan.prices import price_date

MAX_GPUS = 4096
"""Largest fleet of a plan."""


def validate(request: PlanRequest) -> None:
    """Raise InputFault for the first thing wrong with the request."""
    if not request.gpus:
        raise InputFault("gpus", "is empty", "Add a GPU, for example 1xA100-80GB.")
    if not request.models:
        raise InputFault("models", "is empty", "Add a model with its points.")
    _check_choice("objective.kind", request.objective.kind, tuple(GOALS))
    _check_choice("sharing", request.sharing, ("exclusive", "fractional"))
    _check_choice("objective.survives", request.objective.survives, (0, 1))
    check_number("objective.separation_weight", request.objective.separation_weight)
    if request.objective.memory_violation_penalty is not None:
        check_number("objective.memory_violation_penalty", request.objective.memory_violation_penalty)
    if request.link_gb_per_s is not None:
        check_number("link_gb_per_s", request.link_gb_per_s, positive=True)
    if request.network_gb_per_s is not None:
        check_number("network_gb_per_s", request.network_gb_per_s, positive=True)
    if request.front is not None:
        _check_frontend(request.front)
    _check_choice("solver.plan_at", request.solver.plan_at, ("nominal", "low"))
    check_number("solver.time_limit_s", request.solver.time_limit_s, positive=True)
    if request.max_tenants_per_slice is not None:
        check_whole("max_tenants_per_slice", request.max_tenants_per_slice, least=1)
    _check_fleet(request.gpus)
    _check_unique("models", "model", [model.name for model in request.models])
    for model in request.models:
        _check_model(model)
    check_demand_over_day(request.models)
    _check_choice("plan_demand_at", request.plan_demand_at, ("mean", "p95"))
    check_samples(request)
    _check_tiers(request)
    _check_colocations(request)
    _check_current(request)
    check_llm_plans(request)


def check_minima(request: PlanRequest) -> None:
    """Raise InputFault if the objective is min_gpus and no model has a minimum.

    Separate from `validate`: a request that is being built or derived may have none yet.
    """
    if has_no_minimum(request):
        raise InputFault(
            request.objective.kind,
            "no model has a minimum, so the fewest GPUs is none",
            "Give a model a minimum (min_throughput_rps), or take the demands as minima (--demands-as-minima).",
        )


def _check_current(request: PlanRequest) -> None:
    most = request.objective.max_touched_gpus
    if most is not None:
        check_whole("objective.max_touched_gpus", most, least=0)
        if request.current is None:
            raise InputFault(
                "objective.max_touched_gpus",
                f"is {most}, and the request has no current state to count changes from",
                "Add current, a host state (torchsplit plan --current STATE).",
            )
    if request.current is None:
        return
    check_state(request.current, "current")
    fleet = {gpu.id: gpu.type for gpu in list_gpus(request.gpus)}
    for gpu in request.current.gpus:
        if gpu.id not in fleet:
            raise InputFault(
                "current",
                f"has the GPU {quoted(gpu.id)}, which is not in the fleet",
                f"{suggestion(gpu.id, fleet, 'GPUs')} torchsplit request --current STATE takes the fleet from it.",
            )
        if gpu.type != fleet[gpu.id]:
            raise InputFault(
                f"current: {gpu.id}",
                f"is {quoted(gpu.type)}, and the fleet has it as {quoted(fleet[gpu.id])}",
                "Give both the same type.",
            )


def _check_frontend(front: FrontCosts) -> None:
    check_number("front.ms_per_request", front.ms_per_request, positive=True)
    for name in ("ms_per_batch", "ms_per_mb", "hand_over_ms", "generator_ms"):
        check_number(f"front.{name}", getattr(front, name))
    if front.cores is not None:
        check_whole("front.cores", front.cores, least=1)


def _check_fleet(entries: Iterable[FleetEntry]) -> None:
    ids: list[str] = []
    total = 0
    for index, entry in enumerate(entries):
        where = f"gpus[{index}]"
        gpu = _known_gpu_type(f"{where}.type", entry.type)
        check_whole(f"{where}.count", entry.count, least=1)
        if entry.cost is not None:
            check_number(f"{where}.cost", entry.cost)
        if entry.cost_date is not None:
            price_date(entry.cost_date, f"{where}.cost_date")
            if entry.cost is None:
                raise InputFault(
                    f"{where}.cost_date",
                    f"is {entry.cost_date}, and there is no cost",
                    "Give the cost, or leave the date out.",
                )
        if entry.node is not None:
            check_name(f"{where}.node", entry.node)
        total += entry.count
        _check_choice(f"{where}.mig", entry.mig, (True, False, "either"))
        if entry.id is not None:
            if not isinstance(entry.id, str) or not entry.id:
                raise InputFault(
                    f"{where}.id", f"is {quoted(entry.id)}, not a name", "Name the GPU, or leave the id out."
                )
            if entry.count != 1:
                raise InputFault(
                    f"{where}.count",
                    f"is {entry.count}, but the id {quoted(entry.id)} is that of one GPU",
                    "Leave the id out to repeat the GPU.",
                )
            check_name(f"{where}.id", entry.id)
            ids.append(entry.id)
        if entry.layouts is None:
            continue
        if is_unpartitioned(entry):
            raise InputFault(
                f"{where}.layouts",
                f"offers layouts, but {gpu.name} {'has no MIG' if entry.mig else 'is left whole (mig: false)'}",
                "Leave layouts out." if entry.mig else "Leave layouts out, or let MIG cut the GPU.",
            )
        if not entry.layouts:
            raise InputFault(
                f"{where}.layouts", "is empty, so the GPU has no layout", "Use null for every legal layout."
            )
        for layout in entry.layouts:
            unplaced = [
                profile.name
                for profile in gpu.profiles
                if profile.name in layout and not profile.placement_starts
            ]
            if unplaced:
                raise InputFault(
                    f"{where}.layouts",
                    f"offers {', '.join(unplaced)}, whose starts on {gpu.name} are not published",
                    'Leave the GPU whole: "mig": false.',
                )
            if WHOLE_GPU in layout or place_layout(gpu, layout) is None:
                raise InputFault(
                    f"{where}.layouts",
                    f"offers {' + '.join(map(profile_words, layout))}, which does not fit on one {gpu.name}",
                    "Drop an instance, or use null for every legal layout.",
                )
    if total > MAX_GPUS:
        raise InputFault(
            "gpus", f"has {total} GPUs, at most {MAX_GPUS} are planned", "Split the fleet into several plans."
        )
    _check_unique("gpus", "id", ids)
    _check_memory_of_cores(entries)


def _known_gpu_type(where: str, name: str) -> GpuType:
    try:
        return gpu_type(name)
    except InputFault as fault:
        raise fault.within(where) from None


def _check_memory_of_cores(entries: Iterable[FleetEntry]) -> None:
    """Points are on a number of cores of any host, so what fits one host must fit all."""
    hosts = {entry.type: gpu_type(entry.type) for entry in entries if entry.type.startswith(f"{CPU}-")}
    sizes = {name: kind.profiles[0].memory_gib for name, kind in hosts.items()}
    distinct = {None if size is None else round(size, 6) for size in sizes.values()}
    if len(distinct) > 1:
        raise InputFault(
            "gpus",
            f"{', '.join(sizes)} have different memory per core, and points do not tell hosts apart",
            f"Plan the hosts apart, or leave their memory out: {CPU}-Nc.",
        )


def _check_model(model: PlanModel) -> None:
    if not isinstance(model.name, str) or not model.name:
        raise InputFault("models", f"has a model with the name {quoted(model.name)}", "Give it a name.")
    check_name("models", model.name)
    where = f"model {model.name}"
    check_number(f"{where}, weight", model.weight, positive=True)
    check_number(f"{where}, demand_rps", model.demand_rps, positive=True)
    if model.min_throughput_rps is not None:
        check_number(f"{where}, min_throughput_rps", model.min_throughput_rps)
    if model.max_latency_ms is not None:
        check_number(f"{where}, max_latency_ms", model.max_latency_ms, positive=True)
    if model.max_response_ms is not None:
        check_number(f"{where}, max_response_ms", model.max_response_ms, positive=True)
    check_number(f"{where}, response_percentile", model.response_percentile, positive=True)
    if model.response_percentile >= 100:
        raise InputFault(
            f"{where}, response_percentile",
            f"is {model.response_percentile:g}, and no limit holds for the longest of ever more responses",
            "Give less than 100, for example 99.9.",
        )
    if model.bytes_per_request is not None:
        check_number(f"{where}, bytes_per_request", model.bytes_per_request)
    check_whole(f"{where}, tier", model.tier, most=MOST_TIER)
    if model.llm is not None:
        check_llm(where, model)
    elif not model.variants:
        raise InputFault(where, "has no variant", "Add the variant that runs it whole.")
    names = [item.name for item in model.variants]
    _check_unique(where, "variant", names)
    if model.variants and not model.allowed_variants:
        raise InputFault(
            where, f"no variant of {', '.join(names)} is allowed", "Allow one, or leave the model out."
        )
    for variant in model.variants:
        check_name(f"{where}, variant", variant.name)
        _check_variant(f"{where}, variant {variant.name}", variant)


def _check_tiers(request: PlanRequest) -> None:
    """Tiers that differ need an objective that uses them."""
    tiers = sorted({model.tier for model in request.models})
    if len(tiers) > 1 and not goal_of(request).fair:
        raise InputFault(
            "objective.kind",
            f"is {request.objective.kind}, which knows no tiers, and models have the tiers "
            f"{', '.join(map(str, tiers))}",
            "Plan with leximin, or give all models the same tier.",
        )


def _check_variant(where: str, variant: Variant) -> None:
    if not variant.stages:
        raise InputFault(where, "has no stage", "Add its stages.")
    _check_unique(where, "stage", [item.name for item in variant.stages])
    if len(variant.cut_bytes) != len(variant.stages) - 1:
        raise InputFault(
            f"{where}, cut_bytes",
            f"has {len(variant.cut_bytes)} figures for the {len(variant.stages) - 1} cuts "
            f"between {len(variant.stages)} stages",
            "Give one figure for each pair of neighbouring stages.",
        )
    if len(variant.cut_bytes_per_request) not in (0, len(variant.cut_bytes)):
        raise InputFault(
            f"{where}, cut_bytes_per_request",
            f"has {len(variant.cut_bytes_per_request)} figures for {len(variant.cut_bytes)} cuts",
            "Give one figure for each cut, or none at all.",
        )
    for figure in variant.cut_bytes:
        check_number(f"{where}, cut_bytes", figure)
    for figure in variant.cut_bytes_per_request:
        check_number(f"{where}, cut_bytes_per_request", figure)
    for stage in variant.stages:
        check_name(f"{where}, stage", stage.name)
        seen: set[tuple[str, str, int, int, int]] = set()
        for point in stage.points:
            location = f"{where}, stage {stage.name}, point {point.gpu_type} {profile_words(point.profile)}"
            _check_point(location, point)
            key = (
                point.gpu_type,
                point.profile,
                point.batch_size,
                point.processes,
                point.tensor_parallel,
            )
            if key in seen:
                raise InputFault(
                    location,
                    f"stands twice with batch size {point.batch_size} and {point.processes} processes",
                    "Drop one of the two.",
                )
            seen.add(key)


def _check_point(where: str, point: Point) -> None:
    _check_slice(where, point)
    check_whole(f"{where}, batch_size", point.batch_size, least=1)
    check_whole(f"{where}, processes", point.processes, least=1)
    check_number(f"{where}, throughput_rps", point.throughput_rps)
    check_number(f"{where}, latency_ms", point.latency_ms)
    if point.memory_gib is not None:
        check_number(f"{where}, memory_gib", point.memory_gib)
    for name, figure in (("low_rps", point.low_rps), ("high_rps", point.high_rps)):
        if figure is not None:
            check_number(f"{where}, {name}", figure)
    low = point.throughput_rps if point.low_rps is None else point.low_rps
    high = point.throughput_rps if point.high_rps is None else point.high_rps
    if not low <= point.throughput_rps <= high:
        raise InputFault(
            where,
            f"throughput_rps {point.throughput_rps:g} is outside its interval, {low:g} to {high:g}",
            "Correct the interval, or leave it out.",
        )


def _check_slice(where: str, point: Point) -> None:
    """Whether some fleet can have the slice of a point."""
    if point.gpu_type == CPU:
        if profile_cores(point.profile) is None:
            raise InputFault(
                where,
                f"{quoted(profile_words(point.profile))} is not a number of cores, 1c to {MOST_CORES}c",
                "Measure it with profile --device cpu:4c.",
            )
        return
    gpu = _known_gpu_type(where, point.gpu_type)
    if gpu.divided == "cores":
        raise InputFault(
            where,
            f"has the gpu_type {quoted(point.gpu_type)}, which is a host",
            f"Write {CPU} for points of cores.",
        )
    known = [profile.name for profile in gpu.profiles]
    if point.profile != WHOLE_GPU and point.profile not in known:
        remedy = suggestion(point.profile, known, "profiles") if known else "Write null: it has no MIG."
        raise InputFault(where, f"unknown profile {quoted(point.profile)} of {gpu.name}", remedy)
    if point.profile == WHOLE_GPU and gpu.whole is None:
        raise InputFault(
            where,
            f"is of a whole {gpu.name}, which is not known with MIG off",
            suggestion("", known, "profiles"),
        )


def _check_colocations(request: PlanRequest) -> None:
    for index, item in enumerate(request.colocations):
        where = f"colocations[{index}]"
        _check_choice(f"{where}.mode", item.mode, ("hard", "soft", "routed"))
        check_number(f"{where}.bytes_per_request", item.bytes_per_request)
        members = members_of(request.models, item, where)
        if len(members) < 2 or len(set(members)) != len(members):
            raise InputFault(
                where,
                f"{quoted(list(item.models))} are not two or more different models, or stages of theirs",
                "Name at least two, each once.",
            )
    # The bytes of a routed one must be known.
    flows_of(request)


def _check_choice(where: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise InputFault(
            where, f"unknown value {quoted(value)}", suggestion(value, map(str, known), "values")
        )


def _check_unique(where: str, what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputFault(where, f"names the {what} {quoted(name)} twice", "Rename one.")
        seen.add(name)

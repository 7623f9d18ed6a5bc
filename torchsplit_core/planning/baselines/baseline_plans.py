"""The baselines: plans of the same request made without a solver, to compare a plan with.

All of them give whole slices to models (with fractional sharing too), never pay a memory penalty, run a model uncut
if it can run uncut, and are verified like every plan. They keep minima, caps, latency limits and hard co-locations,
and ignore soft ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from torchsplit_core.hardware import gpu_type, place_layout, plain_profiles
from torchsplit_core.planning.baselines.best_fit import best_fit
from torchsplit_core.planning.baselines.colocation_blocks import settle_variants
from torchsplit_core.planning.baselines.first_fit import first_fit
from torchsplit_core.planning.baselines.greedy import (
    ChosenVariant,
    GreedyPlacement,
    NoBaselinePlan,
    choose_variant,
    placement_order,
)
from torchsplit_core.planning.baselines.partial_layouts import LayoutGroup, PartialLayouts
from torchsplit_core.planning.outcome.assignment import build_planned_gpus
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.outcome.resilience import survives_failure
from torchsplit_core.planning.request.allowed_layouts import allowed_layouts
from torchsplit_core.planning.request.fleet import UNPARTITIONED, FleetGpu, list_gpus
from torchsplit_core.planning.request.objective import goal_of, leximin_values, objective_levels
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.values import (
    WHOLE_GPU,
    InputFault,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Progress,
    ignore_progress,
    point_type,
    profile_words,
)

MAX_COMBINATIONS = 36
"""Combinations of uniform layouts that are tried; above, each kind of GPU is settled in turn."""

BaselineName = Literal["whole_gpu", "uniform", "first_fit", "greedy"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """`outcome` None: the baseline gives no plan of this request, for `reason`."""

    name: BaselineName
    title: str
    about: str
    outcome: PlanOutcome | None
    reason: str = ""


BaselineBuilder = Callable[[PlanRequest, float], tuple[GreedyPlacement, str]]


def build_baselines(
    request: PlanRequest,
    plan: PlanOutcome | None = None,
    *,
    deadline: float = float("inf"),
    progress: Progress = ignore_progress,
) -> tuple[Baseline, ...]:
    """Whole GPUs, uniform slices, first fit and greedy best fit; each verified, and deterministic.

    `plan`, an outcome of the same request, lends its proven bound. A baseline that is not finished at `deadline`
    (time.perf_counter) says so. Raises InputFault if the request breaks a rule or `plan` answers another one.
    """
    validate(request)
    builders: tuple[tuple[BaselineName, str, BaselineBuilder], ...] = (
        ("whole_gpu", "One whole GPU per model", _whole_gpu),
        ("uniform", "Uniform static slices", _uniform),
        ("first_fit", "First fit", _first_fit),
        ("greedy", "Greedy best fit", _greedy),
    )
    results = []
    for number, (name, title, builder) in enumerate(builders):
        progress(number / len(builders), f"Baseline: {title.lower()}")
        begun = time.perf_counter()
        try:
            if begun > deadline:
                raise NoBaselinePlan("No time was left to work it out.")
            if request.objective.attainment is not None:
                raise NoBaselinePlan("It plans for minima, and a share of the demand samples is asked for.")
            greedy, about = builder(request, deadline)
            short = greedy.shortfalls()
            if short:
                raise NoBaselinePlan(f"It cannot keep every minimum: {'; '.join(short)}.")
            if not survives_failure(request, build_planned_gpus(request, greedy.partial.assignment())):
                raise NoBaselinePlan("It keeps every minimum, but not with any one GPU lost.")
        except NoBaselinePlan as reason:
            results.append(Baseline(name, title, _ABOUT[name], None, str(reason)))
            continue
        results.append(Baseline(name, title, about, _verified_outcome(request, greedy, plan, begun)))
    progress(1.0, "Baselines done")
    return tuple(results)


_ABOUT: dict[BaselineName, str] = {
    "whole_gpu": "Every model has a whole GPU of its own; left-over GPUs go to the worst-served model, one by one.",
    "uniform": "All GPUs of a type are cut into the same equal slices; slices go to the worst-served model, one by"
    " one. Of all such layouts the best one.",
    "first_fit": "One model after the other takes the smallest slice that carries the rest of its demand, on the first"
    " GPU with room; what is left over stays free.",
    "greedy": "Every model gets the slice size with the most requests/s per compute slice, as often as its demand"
    " needs, the largest slices placed first; what is left goes to the worst-served models (after ParvaGPU, SC'24).",
}


def _verified_outcome(
    request: PlanRequest, greedy: GreedyPlacement, plan: PlanOutcome | None, begun: float
) -> PlanOutcome:
    gpus = build_planned_gpus(request, greedy.partial.assignment())
    statistics = PlanStatistics(time.perf_counter() - begun, 0.0, 0.0, "none")
    outcome = unproven_outcome(request, gpus, statistics, plan)
    verify_begun = time.perf_counter()
    verify(request, outcome)
    return replace(outcome, statistics=replace(statistics, verify_s=time.perf_counter() - verify_begun))


def _gpu_classes(request: PlanRequest) -> list[tuple[FleetGpu, tuple[str, ...]]]:
    """Equal GPUs (type, options, cost) with their ids; under an objective of cost the cheapest first."""
    by_gpu: dict[FleetGpu, list[str]] = {}
    for gpu in list_gpus(request.gpus):
        price = gpu.cost if goal_of(request).by_cost else None
        by_gpu.setdefault(replace(gpu, id="", price=price), []).append(gpu.id)
    return sorted(((gpu, tuple(ids)) for gpu, ids in by_gpu.items()), key=lambda item: item[0].cost)


def _empty_placement(
    request: PlanRequest, groups: Sequence[LayoutGroup], *, by_density: bool
) -> GreedyPlacement:
    partial = PartialLayouts(groups)
    by_density = by_density or goal_of(request).by_cost

    def choose(model: PlanModel) -> ChosenVariant | None:
        return choose_variant(request, partial, model, by_density=by_density)

    def choose_again(model: int, number: int) -> ChosenVariant | None:
        spec = request.models[model]
        others = (replace(v, allowed=v.allowed and n == number) for n, v in enumerate(spec.variants))
        return choose(replace(spec, variants=tuple(others)))

    variants = settle_variants(
        request, list(map(choose, request.models)), lambda choice: choice.variant, choose_again
    )
    return GreedyPlacement(request, partial, variants)


def _is_allowed(gpu: FleetGpu, layout: tuple[str, ...]) -> bool:
    if gpu.layouts is not None:
        return layout in gpu.layouts
    plain = {profile.name for profile in plain_profiles(gpu_type(gpu.type))}
    return plain.issuperset(layout)


def _whole_gpu(request: PlanRequest, deadline: float) -> tuple[GreedyPlacement, str]:
    """One whole GPU for every stage of every model, in the order of `need`; further GPUs go to the worst served."""
    groups = []
    for gpu, ids in _gpu_classes(request):
        if gpu.whole:
            groups.append(LayoutGroup(gpu.type, ids, UNPARTITIONED, gpu.cost, True))
            continue
        kind = gpu_type(gpu.type)
        largest = max(kind.profiles, key=lambda profile: (profile.compute_slices, profile.memory_slices))
        full_gpu = next(
            (
                profile.name
                for profile in kind.profiles
                if profile.compute_slices == largest.compute_slices and _is_allowed(gpu, (profile.name,))
            ),
            None,
        )
        if full_gpu is not None:
            groups.append(LayoutGroup(gpu.type, ids, ((full_gpu,),), gpu.cost, True))
    if not groups:
        raise NoBaselinePlan("No GPU of the fleet may be one whole slice.")
    greedy = _empty_placement(request, groups, by_density=False)
    if not any(greedy.chosen):
        raise NoBaselinePlan("No model can run on a whole GPU within its limits.")
    models = [m for m in range(len(request.models)) if greedy.is_to_be_served(m)]
    for model in models:
        if greedy.blocks.is_bound(model):
            partners = sorted(greedy.blocks.partners[model])
            names = " and ".join(request.models[m].name for m in partners)
            names = names if len(partners) > 1 else f"Stages of {names}"
            raise NoBaselinePlan(f"{names} must stand on the same GPUs, and a whole GPU is one slice.")
    instances = sum(len(greedy.rates[model]) for model in models)
    if instances > len(greedy.partial.names):
        gpu_count = len(greedy.partial.names)
        gpus = f"{gpu_count} GPU{'' if gpu_count == 1 else 's'} that may be one"
        if instances == len(models):
            raise NoBaselinePlan(f"{instances} models need a whole GPU each, and the fleet has {gpus}.")
        raise NoBaselinePlan(f"{instances} stages of models need a whole GPU each, and the fleet has {gpus}.")

    def order(model: int) -> tuple[float, ...]:
        running = greedy.chosen[model]
        assert running is not None
        return placement_order(request.models[model], running)

    for model in sorted(models, key=order):
        if not greedy.add_instance(model):
            raise NoBaselinePlan(f"No whole GPU is left on which {request.models[model].name} can run.")
    greedy.serve_worst_first()
    return greedy, _ABOUT["whole_gpu"]


def _uniform(request: PlanRequest, deadline: float) -> tuple[GreedyPlacement, str]:
    """The best of the layouts of equal slices, each filled worst served first."""
    kinds = _gpu_classes(request)
    choices = [_uniform_layouts(request, gpu) for gpu, _ in kinds]
    if not any(choices):
        raise NoBaselinePlan("No GPU of the fleet may have equal slices that a model can use.")
    choices = [gpu_layouts or [()] for gpu_layouts in choices]
    best: tuple[tuple[float, ...], GreedyPlacement, tuple[tuple[str, ...], ...]] | None = None

    def attempt(layouts: tuple[tuple[str, ...], ...]) -> None:
        nonlocal best
        if time.perf_counter() > deadline:
            raise NoBaselinePlan("No time was left to try every uniform layout.")
        greedy = _empty_placement(
            request,
            [
                LayoutGroup(gpu.type, ids, (layout,), gpu.cost, True)
                for (gpu, ids), layout in zip(kinds, layouts, strict=True)
            ],
            by_density=False,
        )
        greedy.serve_worst_first()
        rank = _placement_rank(request, greedy)
        if best is None or rank > best[0]:
            best = rank, greedy, layouts

    combinations = 1
    for gpu_layouts in choices:
        combinations *= len(gpu_layouts)
    if combinations <= MAX_COMBINATIONS:
        for layouts in product(*choices):
            attempt(layouts)
    else:
        attempt(tuple(gpu_layouts[0] for gpu_layouts in choices))
        for index, gpu_layouts in enumerate(choices):
            for layout in gpu_layouts[1:]:
                assert best is not None
                attempt((*best[2][:index], layout, *best[2][index + 1 :]))
    assert best is not None
    partial = best[1].partial
    used = {partial.group_of[gpu] for gpu in range(len(partial.names)) if partial.instances[gpu]}
    parts = dict.fromkeys(
        f"{gpu.type} {len(layout)} × {profile_words(layout[0])}"
        for g, ((gpu, _), layout) in enumerate(zip(kinds, best[2], strict=True))
        if g in used
    )
    return best[1], _ABOUT["uniform"] + (f" Here: {', '.join(parts)}." if parts else "")


def _uniform_layouts(request: PlanRequest, gpu: FleetGpu) -> list[tuple[str, ...]]:
    """As many equal slices as fit, for every allowed profile on which a model has a point."""
    kind = gpu_type(gpu.type)
    used = {
        point.profile
        for model in request.models
        for point in model.allowed_points
        if point.gpu_type == point_type(gpu.type) and point.tensor_parallel == 1
    }
    layouts = list(UNPARTITIONED) if gpu.can_be_whole and WHOLE_GPU in used else []
    if gpu.whole:
        return layouts
    for profile in kind.profiles:
        if profile.name not in used:
            continue
        full = next(
            names
            for count in range(profile.max_instances, 0, -1)
            if place_layout(kind, names := (profile.name,) * count) is not None
        )
        if gpu.layouts is None and _is_allowed(gpu, full):
            layouts.append(full)
        elif gpu.layouts is not None:
            layouts += [layout for layout in gpu.layouts if set(layout) == {profile.name}]
    return layouts


def _first_fit(request: PlanRequest, deadline: float) -> tuple[GreedyPlacement, str]:
    greedy = _empty_placement(request, _layout_groups(request), by_density=False)
    return first_fit(request, greedy), _ABOUT["first_fit"]


def _greedy(request: PlanRequest, deadline: float) -> tuple[GreedyPlacement, str]:
    groups = _layout_groups(request)

    def start() -> GreedyPlacement:
        return _empty_placement(request, groups, by_density=True)

    return best_fit(request, start, deadline), _ABOUT["greedy"]


def _layout_groups(request: PlanRequest) -> list[LayoutGroup]:
    """The fleet's GPUs with all their allowed layouts. Raises NoBaselinePlan for a type with too many."""
    groups = []
    for gpu, ids in _gpu_classes(request):
        try:
            layouts = allowed_layouts(request, gpu)
        except InputFault as fault:
            # The planner needs no list of all layouts: most of them are dominated.
            raise NoBaselinePlan(f"{gpu.type}: {fault.problem}.") from fault
        groups.append(LayoutGroup(gpu.type, ids, layouts, gpu.cost, gpu.layouts is not None))
    return groups


def _placement_rank(request: PlanRequest, greedy: GreedyPlacement) -> tuple[float, ...]:
    """Larger is better: fewest minima missed, then the objective (penalties of soft co-locations apart)."""
    short = -float(len(greedy.shortfalls()))
    goal, partial = goal_of(request), greedy.partial
    rates = [greedy.rate(number) for number in range(len(request.models))]
    if goal.fair:
        # Levels that the objective ignores count too: of equally fair plans, take the one that serves more.
        return (short, *leximin_values(request, rates))
    used = [gpu for gpu in range(len(partial.names)) if partial.instances[gpu]]
    cost = sum(partial.groups[partial.group_of[gpu]].cost for gpu in used)
    (value,) = objective_levels(request, rates, cost, penalty=0.0)
    return (short, -value if goal.minimised else value)

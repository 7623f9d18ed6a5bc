"""The cases of a model: every way to run a variant with transfers of known duration.

A transfer takes as long as with the largest batch in use at its two stages, and a link is faster inside a node than
between nodes. So a variant whose batches and nodes matter becomes several cases: a case limits the batches around each
cut, with all instances on one node or anywhere. Each has one transfer time, and a model runs one case. A case that
another contains is left out; everything else dropped here breaks a limit in every plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from torchsplit_core.planning.problem.dominance import pareto_points
from torchsplit_core.planning.problem.effective_rate import EffectivePoint, effective_point
from torchsplit_core.planning.problem.transfers import bytes_per_request, link_between, transfer_ms
from torchsplit_core.planning.request.coverage import has_figures
from torchsplit_core.values import PlanModel, PlanRequest, Point, Variant

LATENCY_SLACK = 1e-9
"""Relative slack of latency limits, for sums of decimals that meet a limit exactly."""

MAX_CAPS = 512
"""Combinations of largest batches by cut that are distinguished; above, one batch size caps all cuts."""

Capacity = Mapping[tuple[str, str], float]
"""GiB by (GPU type, profile)."""


@dataclass(frozen=True, slots=True)
class VariantCase:
    """A way to run a variant: the latency budget left for its stages, and where it may run.

    `has_latency_levels`: its points can together break the limit, so their latencies must be constrained jointly.
    `anywhere`: its instances may run on every node; else only on `node`.
    """

    model: int
    variant: int
    stages: int
    budget_ms: float | None
    has_latency_levels: bool
    node: str | None = None
    anywhere: bool = True

    def allows_node(self, node: str | None) -> bool:
        """Whether instances may run on this node."""
        return self.anywhere or self.node == node


@dataclass(frozen=True, slots=True)
class CasePoints:
    """A case with the undominated points of its stages."""

    case: VariantCase
    stages: tuple[tuple[EffectivePoint, ...], ...]


@dataclass(frozen=True, slots=True)
class CaseSet:
    """The cases of a model, notes on what was left out, and whether these are all cases."""

    cases: tuple[CasePoints, ...]
    notes: tuple[str, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class _LinkScope:
    """Where the instances of a variant run, and the link that they then share."""

    link_gb_per_s: float | None
    node: str | None = None
    anywhere: bool = True


def admissible_cases(
    request: PlanRequest,
    index: int,
    capacity: Capacity,
    nodes: Sequence[str | None],
    *,
    elastic: bool,
    in_use: frozenset[Point] = frozenset(),
) -> CaseSet:
    """The cases of a model on a fleet's `nodes`. `elastic`: limits may grow, so no point is dropped for one; points
    `in_use` are not dropped for better ones."""
    model = request.models[index]
    cases: list[CasePoints] = []
    offered, too_large, exact = 0, 0, True
    for number, variant in model.allowed_variants:
        fitting, left_out = _fitting_points(request, variant, capacity)
        too_large += left_out
        offered += left_out + sum(map(len, fitting))
        if not all(fitting):
            continue
        variant_cases: list[CasePoints] = []
        for scope in _link_scopes(request, variant, nodes):
            caps, complete = _batch_caps(model, variant, fitting, scope)
            exact = exact and complete
            for batch_caps in caps:
                case = _build_case(request, index, number, fitting, batch_caps, scope, elastic=elastic)
                if case is not None and not any(_dominates(other, case) for other in variant_cases):
                    variant_cases.append(case)
        cases += [_prune(request, case, capacity, in_use) for case in variant_cases]
    notes = list(_excluded_notes(model, too_large, exact))
    # `coverage` reports models without any figures for the fleet.
    if not cases and has_figures(request, model):
        notes.append(_inadmissible_note(model, offered, too_large))
    return CaseSet(tuple(cases), tuple(notes), exact)


def _inadmissible_note(model: PlanModel, offered: int, too_large: int) -> str:
    """Why none of its points on the fleet's GPU types can run: `offered` are on slices of its layouts."""
    why = "can run on this fleet within its limits"
    if not offered:
        why = "is of a slice that the fleet's layouts offer"
    elif too_large == offered:
        why = "fits the memory of its slice"
    return f"{model.name}: no point of it {why}, so its throughput is 0."


def _excluded_notes(model: PlanModel, too_large: int, exact: bool) -> Iterator[str]:
    if too_large:
        plural = "s need" if too_large > 1 else " needs"
        yield f"{model.name}: {too_large} point{plural} more memory than the slice has and stay out."
    if not exact:
        yield (
            f"{model.name}: more than {MAX_CAPS} combinations of batch sizes around its cuts; only those with "
            "one largest batch for all cuts were searched, so the plan is not proven."
        )


def _fitting_points(
    request: PlanRequest, variant: Variant, capacity: Capacity
) -> tuple[list[list[Point]], int]:
    """By stage the points on the fleet's slices that fit their memory, and how many did not fit."""
    soft = request.objective.memory_violation_penalty is not None
    fitting, too_large = [], 0
    for stage in variant.stages:
        on_fleet = [point for point in stage.points if (point.gpu_type, point.profile) in capacity]
        within_memory = [
            point
            for point in on_fleet
            if soft or (point.memory_gib or 0.0) <= capacity[point.gpu_type, point.profile] + 1e-9
        ]
        too_large += len(on_fleet) - len(within_memory)
        fitting.append(within_memory)
    return fitting, too_large


def _link_scopes(request: PlanRequest, variant: Variant, nodes: Sequence[str | None]) -> list[_LinkScope]:
    """Anywhere first, then each node alone if its link is faster."""
    inside, across = link_between(request, nodes[:1]), link_between(request, nodes)
    carries = any(variant.cut_bytes) or any(variant.cut_bytes_per_request)
    if inside == across or not carries:
        return [_LinkScope(inside)]
    return [_LinkScope(across), *(_LinkScope(inside, node, False) for node in nodes)]


def _batch_caps(
    model: PlanModel, variant: Variant, fitting: Sequence[Sequence[Point]], scope: _LinkScope
) -> tuple[list[tuple[float, ...]], bool]:
    """Largest batches by cut, the largest first, and whether these are all combinations that matter."""
    free = (float("inf"),) * (len(fitting) - 1)
    if model.max_latency_ms is None or scope.link_gb_per_s is None:
        return [free], True
    sizes: list[list[float]] = []
    for cut in range(len(free)):
        if not bytes_per_request(variant, cut):
            sizes.append([float("inf")])
            continue
        sides = [{float(point.batch_size) for point in fitting[stage]} for stage in (cut, cut + 1)]
        least = max(map(min, sides))
        sizes.append(sorted((size for size in sides[0] | sides[1] if size >= least), reverse=True))
    count = 1
    for cut_sizes in sizes:
        count *= len(cut_sizes)
    if count <= MAX_CAPS:
        return list(product(*sizes)), True
    common = sorted({size for cut_sizes in sizes for size in cut_sizes if size < float("inf")}, reverse=True)
    return [tuple(min(size, cut_sizes[0]) for cut_sizes in sizes) for size in common], False


def _build_case(
    request: PlanRequest,
    index: int,
    number: int,
    fitting: Sequence[Sequence[Point]],
    caps: Sequence[float],
    scope: _LinkScope,
    *,
    elastic: bool,
) -> CasePoints | None:
    """The case with these caps on this scope; None if no points of it keep the limit."""
    model = request.models[index]
    variant = model.variants[number]
    around = (float("inf"), *caps, float("inf"))
    stages = [
        [point for point in points if point.batch_size <= min(around[stage], around[stage + 1])]
        for stage, points in enumerate(fitting)
    ]
    budget: float | None = None
    has_latency_levels = False
    if not all(stages):
        return None
    if model.max_latency_ms is not None:
        spent = transfer_ms(variant, caps, scope.link_gb_per_s)
        budget = model.max_latency_ms * (1 + LATENCY_SLACK) - spent
        if not elastic and not _drop_too_slow(stages, budget):
            return None
        longest = sum(max(point.latency_ms for point in points) for points in stages)
        # With sharing, a shorter latency also allows a smaller share: the limit always counts.
        has_latency_levels = elastic or longest > budget or request.sharing == "fractional"
    effective_points = tuple(
        tuple(effective_point(request, variant, stage, point, scope.link_gb_per_s) for point in points)
        for stage, points in enumerate(stages)
    )
    case = VariantCase(index, number, len(stages), budget, has_latency_levels, scope.node, scope.anywhere)
    return CasePoints(case, effective_points)


def _drop_too_slow(stages: list[list[Point]], budget: float) -> bool:
    """Drop points that break the budget even with the quickest points of the other stages."""
    quickest = [min(point.latency_ms for point in points) for points in stages]
    total = sum(quickest)
    for number, points in enumerate(stages):
        others = total - quickest[number]
        points[:] = [point for point in points if point.latency_ms + others <= budget]
    return all(stages)


def _dominates(wide: CasePoints, narrow: CasePoints) -> bool:
    """Whether the wide case allows everything that the narrow one does, at no lower throughputs."""
    if not wide.case.anywhere and wide.case.node != narrow.case.node:
        return False
    # Both have budgets or neither has: they are of one model.
    if wide.case.has_latency_levels and (narrow.case.budget_ms or 0.0) > (wide.case.budget_ms or 0.0):
        return False
    for wide_points, narrow_points in zip(wide.stages, narrow.stages, strict=True):
        wide_by_point = {id(effective.point): effective for effective in wide_points}
        for effective in narrow_points:
            same = wide_by_point.get(id(effective.point))
            if same is None or same.rate_rps < effective.rate_rps or same.cap_rps < effective.cap_rps:
                return False
    return True


def _prune(
    request: PlanRequest, case_points: CasePoints, capacity: Capacity, in_use: frozenset[Point]
) -> CasePoints:
    """Without the points that another point of the same profile matches or beats, but with those in use."""
    stages = []
    for points in case_points.stages:
        undominated = pareto_points(points, request, capacity, by_latency=case_points.case.has_latency_levels)
        left = {id(effective) for effective in undominated}
        stages.append(
            (*undominated, *(item for item in points if item.point in in_use and id(item) not in left))
        )
    return CasePoints(case_points.case, tuple(stages))

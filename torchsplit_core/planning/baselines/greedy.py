"""Greedy step of the baselines: instances are added one at a time on partial layouts, for the worst served model.

Every intermediate state is a plan: a model starts with all stages of its variant at once, and models of a hard
co-location start, and extend to another GPU, only together (see colocation_blocks). Models below their
`min_throughput_rps` are served before all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.baselines.colocation_blocks import build_blocks
from torchsplit_core.planning.baselines.partial_layouts import PartialLayouts, PlacedInstance
from torchsplit_core.planning.problem.effective_rate import effective_point
from torchsplit_core.planning.problem.latency_cases import LATENCY_SLACK
from torchsplit_core.planning.problem.latency_split import split_limit
from torchsplit_core.planning.problem.transfers import link_between, transfer_ms
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import goal_of, normalised, service_priority, unit_rps
from torchsplit_core.values import PlanModel, PlanRequest, Point, Variant, point_type

RATE_SLACK = 1e-9
"""Relative slack when a rate is compared with what a model needs."""


class NoBaselinePlan(Exception):
    """A baseline gives no plan of the request; carries the reason."""


@dataclass(frozen=True, slots=True)
class SliceOption:
    """The best point of a stage on the slices of one profile of a group. `rate_rps` is limited by the link.

    `cost`: the slice's share of the compute slices, times the cost of the GPU if the objective pays for GPUs.
    """

    group: int
    profile: str
    point: Point
    cost: float
    rate_rps: float

    @property
    def density(self) -> float:
        """Requests/s per cost; slices of GPUs without cost come first."""
        return self.rate_rps / self.cost if self.cost else self.rate_rps * 1e9


@dataclass(frozen=True, slots=True)
class ChosenVariant:
    """The variant by which a model runs, with the options of every stage in order of preference."""

    variant: int
    stages: tuple[tuple[SliceOption, ...], ...]


def choose_variant(
    request: PlanRequest, partial: PartialLayouts, model: PlanModel, *, by_density: bool
) -> ChosenVariant | None:
    """How the model runs: uncut if it can; of variants with equally many stages, by the highest density.

    Only points that fit the memory of their slice. Links are assumed to be between any of the fleet's nodes, and
    transfers to take as long as with one largest batch for all stages; each size is tried. The latency limit is split
    so that the least density of a stage is largest; on each slice the point with the most requests/s within its part
    counts. Options are sorted by throughput, or `by_density`.
    """
    best: tuple[tuple[int, float], ChosenVariant] | None = None
    link = link_between(request, {gpu.node for gpu in list_gpus(request.gpus)})
    for number, variant in model.allowed_variants:
        options = [
            _slice_options(request, partial, variant, stage, link) for stage in range(len(variant.stages))
        ]
        for stages in _options_within_limit(model, variant, options, link, by_density=by_density):
            density = min(max(option.density for option in stage_options) for stage_options in stages)
            if best is None or (len(stages), -density) < best[0]:
                best = (len(stages), -density), ChosenVariant(number, stages)
    return None if best is None else best[1]


def _options_within_limit(
    model: PlanModel,
    variant: Variant,
    options: Sequence[Sequence[SliceOption]],
    link: float | None,
    *,
    by_density: bool,
) -> Iterator[tuple[tuple[SliceOption, ...], ...]]:
    """For each limit of the batch size, the best options of every stage within the latency limit."""
    if not all(options):
        return
    if model.max_latency_ms is None:
        yield tuple(_best_per_slice(stage_options, by_density=by_density) for stage_options in options)
        return
    free = link is None or not any(variant.cut_bytes_per_request)
    largest = max(option.point.batch_size for stage_options in options for option in stage_options)
    caps = (
        {largest}
        if free
        else {option.point.batch_size for stage_options in options for option in stage_options}
    )
    for cap in sorted(caps):
        capped = [
            [option for option in stage_options if option.point.batch_size <= cap]
            for stage_options in options
        ]
        if not all(capped):
            continue
        budget = model.max_latency_ms * (1 + LATENCY_SLACK)
        budget -= transfer_ms(variant, [cap] * len(variant.cut_bytes), link)
        limits = split_limit(
            budget, [[(o.point.latency_ms, o.density) for o in stage_options] for stage_options in capped]
        )
        if limits is not None:
            yield tuple(
                _best_per_slice(
                    [o for o in stage_options if o.point.latency_ms <= limit], by_density=by_density
                )
                for stage_options, limit in zip(capped, limits, strict=True)
            )


def _slice_options(
    request: PlanRequest, partial: PartialLayouts, variant: Variant, stage: int, link: float | None
) -> list[SliceOption]:
    options = []
    for g, group in enumerate(partial.groups):
        gpu = gpu_type(group.type)
        profiles = {name for layout in group.layouts for name in layout}
        for point in variant.stages[stage].points:
            if (
                point.gpu_type != point_type(group.type)
                or point.profile not in profiles
                or point.throughput_rps <= 0
                or point.tensor_parallel > 1
            ):
                continue
            profile = gpu.profile(point.profile)
            if profile.memory_gib is not None and (point.memory_gib or 0.0) > profile.memory_gib:
                continue
            cost = profile.compute_slices / gpu.compute_slices
            if goal_of(request).by_cost:
                cost *= group.cost
            effective = effective_point(request, variant, stage, point, link)
            options.append(
                SliceOption(g, point.profile, point, cost, min(effective.rate_rps, effective.cap_rps))
            )
    return options


def _best_per_slice(options: Sequence[SliceOption], *, by_density: bool) -> tuple[SliceOption, ...]:
    best: dict[tuple[int, str], SliceOption] = {}
    for option in sorted(options, key=lambda o: (-o.rate_rps, o.point.latency_ms)):
        best.setdefault((option.group, option.profile), option)
    rank = {key: number for number, key in enumerate(best)}
    order = sorted(
        best,
        key=lambda key: (
            -best[key].density if by_density else 0.0,
            best[key].cost if by_density else 0.0,
            rank[key],
        ),
    )
    return tuple(best[key] for key in order)


class GreedyPlacement:
    """Partial layouts during greedy placement."""

    def __init__(
        self, request: PlanRequest, partial: PartialLayouts, chosen: Sequence[ChosenVariant | None]
    ) -> None:
        self.request, self.partial, self.chosen = request, partial, tuple(chosen)
        self.blocks = build_blocks(
            request, [variant_choice.variant if variant_choice else None for variant_choice in chosen]
        )
        self.host_gpus: dict[frozenset[int], list[int]] = {}
        self.rates: list[list[float]] = [
            [0.0] * (len(variant_choice.stages) if variant_choice else 1) for variant_choice in chosen
        ]

    def rate(self, model: int) -> float:
        """Current requests/s of the model."""
        return min(self.rates[model])

    def is_to_be_served(self, model: int) -> bool:
        """Whether it is served at all: under a cost only models with a minimum and their co-located models."""
        partners = self.blocks.partners[model]
        if any(self.chosen[partner] is None for partner in partners):
            return False
        if not goal_of(self.request).by_cost:
            return True
        return any(self.request.models[partner].min_throughput_rps for partner in partners)

    def add_instance(self, model: int) -> bool:
        """Add an instance of its slowest stage, or of every stage at the start; False without room."""
        if self.blocks.is_bound(model):
            return self._add_colocated(model, self.blocks.partners[model])
        chosen = self.chosen[model]
        assert chosen is not None
        if self.rate(model) > 0:
            return self._place_anywhere(model, self._slowest(model)) is not None
        placed: list[int] = []
        for stage in range(len(chosen.stages)):
            gpu = self._place_anywhere(model, stage)
            if gpu is None:
                for done in reversed(placed):
                    self.partial.undo(done)
                self.rates[model] = [0.0] * len(chosen.stages)
                return False
            placed.append(gpu)
        return True

    def place(self, model: int, stage: int, option: SliceOption, gpu: int) -> None:
        """Place an instance on a GPU that has room for it."""
        chosen = self.chosen[model]
        assert chosen is not None
        self.partial.place(gpu, option.profile, PlacedInstance(model, chosen.variant, stage, option.point))
        self.rates[model][stage] += option.rate_rps

    def serve_worst_first(self) -> None:
        """Serve the worst served model repeatedly, until no model can or needs to be served more."""
        queue = [(key, model) for model in self._models() if (key := self._priority(model)) is not None]
        heapq.heapify(queue)
        while queue:
            key, model = heapq.heappop(queue)
            now = self._priority(model)
            if now is not None and now > key:
                # A co-located model was served with another, or its best slices are taken.
                heapq.heappush(queue, (now, model))
            elif now is not None and self.add_instance(model):
                after = self._priority(model)
                if after is not None:
                    heapq.heappush(queue, (after, model))

    def shortfalls(self) -> tuple[str, ...]:
        """Every missed minimum, in words."""
        sentences = []
        for number, spec in enumerate(self.request.models):
            least, rate = spec.min_throughput_rps or 0.0, self.rate(number)
            if rate < least * (1 - RATE_SLACK):
                sentences.append(f"{spec.name} gets {rate:.3g} of the {least:.3g} requests/s it must have")
        return tuple(sentences)

    def _models(self) -> list[int]:
        return [model for model in range(len(self.chosen)) if self.is_to_be_served(model)]

    def _priority(self, model: int) -> tuple[float, ...] | None:
        """Smallest first: below the minimum, then by objective; None if more throughput counts for nothing."""
        spec, rate, chosen = self.request.models[model], self.rate(model), self.chosen[model]
        assert chosen is not None
        rank = placement_order(spec, chosen)
        least = spec.min_throughput_rps or 0.0
        if rate < least * (1 - RATE_SLACK):
            return (0.0, rate / least, *rank)
        goal = goal_of(self.request)
        if goal.by_cost or (spec.cap_at_demand and rate >= spec.demand_rps):
            return None
        if goal.fair:
            return (1.0, *service_priority(spec, normalised(spec, rate)), *rank)
        option = self._next_option(model)
        if option is None:
            return None
        gain = option.rate_rps / len(chosen.stages)
        if spec.cap_at_demand:
            gain = min(gain, spec.demand_rps - rate)
        return (1.0, -goal.gain(spec) * gain / option.cost, *rank)

    def _slowest(self, model: int) -> int:
        return min(range(len(self.rates[model])), key=lambda stage: self.rates[model][stage])

    def _next_option(self, model: int) -> SliceOption | None:
        chosen = self.chosen[model]
        assert chosen is not None
        options = chosen.stages[self._slowest(model)]
        return next(
            (o for o in options if self.partial.first_with_room(o.group, o.profile) is not None), None
        )

    def _place_anywhere(self, model: int, stage: int) -> int | None:
        """Place an instance by the most preferred option with room; returns its GPU, None without room."""
        chosen = self.chosen[model]
        assert chosen is not None
        for option in chosen.stages[stage]:
            gpu = self.partial.first_with_room(option.group, option.profile)
            if gpu is not None:
                self.place(model, stage, option, gpu)
                return gpu
        return None

    def _add_colocated(self, model: int, block: frozenset[int]) -> bool:
        host_gpus = self.host_gpus.setdefault(block, [])
        all_instances = [(m, stage) for m in sorted(block) for stage in range(len(self.rates[m]))]
        if not host_gpus:
            return self._open_gpu(block, all_instances)
        chosen = self.chosen[model]
        assert chosen is not None
        stage = self._slowest(model)
        for option in chosen.stages[stage]:
            for gpu in host_gpus:
                growth = self.partial.extensions[self.partial.group_of[gpu]]
                if self.partial.group_of[gpu] == option.group and growth.extend(
                    self.partial.states[gpu], option.profile
                ):
                    self.place(model, stage, option, gpu)
                    return True
        further = (
            all_instances
            if self.blocks.whole_variant[model]
            else [(m, self._slowest(m)) for m in sorted(block)]
        )
        return self._open_gpu(block, further)

    def _open_gpu(self, block: frozenset[int], instances: Sequence[tuple[int, int]]) -> bool:
        """Take another GPU for the block, with these (model, stage) on it; False if no GPU has room for all."""
        for g in range(len(self.partial.groups)):
            options: list[Mapping[str, SliceOption]] = []
            for model, stage in instances:
                chosen = self.chosen[model]
                assert chosen is not None
                options.append(
                    {option.profile: option for option in chosen.stages[stage] if option.group == g}
                )
            needs = tuple(tuple(by_profile) for by_profile in options)
            heads = sorted((gpu, state) for state, gpu in self.partial.first_by_state(g))
            for gpu, state in heads:
                profiles = self.partial.extensions[g].fit_all(state, needs)
                if profiles is not None:
                    for (model, stage), profile, by_profile in zip(instances, profiles, options, strict=True):
                        self.place(model, stage, by_profile[profile], gpu)
                    self.host_gpus[block].append(gpu)
                    return True
        return False


def placement_order(spec: PlanModel, chosen: ChosenVariant) -> tuple[float, ...]:
    """Sort key of equally served models: fewest kinds of slices, most memory, most demand for its speed."""
    kinds = min(len(stage) for stage in chosen.stages)
    memory = max((option.point.memory_gib or 0.0) for stage in chosen.stages for option in stage)
    fastest = min(max(option.rate_rps for option in stage) for stage in chosen.stages)
    return (float(kinds), -memory, -unit_rps(spec) / fastest)

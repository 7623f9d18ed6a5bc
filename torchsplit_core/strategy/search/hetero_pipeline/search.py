"""The best pipeline across unlike entries whose stages share their choices, by sets of entries, with a global bound."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from torchsplit_core.strategy.search.hetero_pipeline.layer_assignment import LayerAssignment, Stage, room_of
from torchsplit_core.strategy.search.hetero_pipeline.stage_configs import StageConfig, StageConfigs, StageRole
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch
from torchsplit_core.strategy.search.space import divisors
from torchsplit_core.values.training import ParallelConfig

INFINITE = float("inf")
EQUAL = 1e-9
"""A bound within this relative distance of the best proves it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The stages of one entry, which is given by its position in the fleet, in pipeline order."""

    entry: int
    config: StageConfig
    layers: tuple[int, ...]
    roles: tuple[StageRole, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline and its step; `sequences` make a micro-batch."""

    sequences: int
    micro_batches: int
    segments: tuple[Segment, ...]
    longest_s: float
    sum_s: float
    after_s: float
    fixed_s: float

    @property
    def entries(self) -> tuple[int, ...]:
        """Positions in the fleet, in the order of the model."""
        return tuple(segment.entry for segment in self.segments)

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return (self.micro_batches - 1) * self.longest_s + self.sum_s + self.after_s + self.fixed_s


@dataclass(frozen=True, slots=True)
class _Task:
    """A set of entries with the common choices of their stages, and a bound on its steps.

    The order of the entries suits memory: the first stages keep the most micro-batches.
    """

    bound_s: float
    sequences: int
    configs: dict[int, StageConfig]


class HeteroPipelineSearch:
    """The search over sets of two entries or more, their orders, common choices, micro-batches and layers."""

    def __init__(self, searches: Sequence[HomogeneousSearch]) -> None:
        self.searches = searches
        space = searches[0].space
        self.layers, self.batch, self.fixed_s = (
            space.model.layers,
            space.job.global_batch,
            searches[0].c.fixed_s,
        )
        self.best: Pipeline | None = None
        self.bound_s = INFINITE
        """No unexplored pipeline takes less."""
        self.solved = 0

    @property
    def least_s(self) -> float:
        """Seconds of the best pipeline."""
        return self.best.seconds if self.best else INFINITE

    def run(self, deadline: float, known_s: float = INFINITE) -> None:
        """Search until nothing can beat the best and the step known from elsewhere, or time is up.

        While no step is known the deadline does not apply: infeasibility needs a proof.
        """
        self.bound_s = INFINITE
        tasks = sorted(self._tasks(), key=lambda task: task.bound_s)
        # Many entries have so many orders that the first sets would take all the time: get a good step first.
        first = (time.monotonic() + deadline) / 2.0
        for task in tasks:
            least = min(known_s, self.least_s)
            if task.bound_s >= least * (1.0 - EQUAL) or time.monotonic() >= first:
                break
            self._solve(task, tuple(task.configs), least)
        for task in tasks:
            if task.bound_s >= min(known_s, self.least_s) * (1.0 - EQUAL):
                return
            for order in _orders(task.configs):
                least = min(known_s, self.least_s)
                if least < INFINITE and time.monotonic() >= deadline:
                    self.bound_s = task.bound_s
                    return
                self._solve(task, order, least)

    def _tasks(self) -> Iterator[_Task]:
        for sequences in divisors(self.batch):
            by_choices: dict[ParallelConfig, dict[int, StageConfig]] = {}
            for place, search in enumerate(self.searches):
                for config in StageConfigs(search, sequences).all():
                    common = replace(config.choices, pipeline=1)
                    by_choices.setdefault(common, {})[place] = config
            for configs in by_choices.values():
                # A stage that keeps one micro-batch and no embedding holds the most layers.
                room = {
                    place: room_of(config, StageRole(1), self.layers) for place, config in configs.items()
                }
                able = sorted((place for place in configs if room[place]), key=lambda place: -room[place])
                for count in range(2, len(able) + 1):
                    for places in combinations(able, count):
                        members = {place: configs[place] for place in places}
                        stages = {place: config.choices.pipeline for place, config in members.items()}
                        held = sum(room[place] * stages[place] for place in places)
                        if sum(stages.values()) <= self.layers <= held:
                            yield _Task(self._bound(members), sequences, members)

    def _bound(self, configs: dict[int, StageConfig]) -> float:
        """Lower bound: all stages equally busy, and no layer faster than in the fastest stage."""
        m = next(iter(configs.values())).m
        rate = sum(config.choices.pipeline / config.layer_s for config in configs.values())
        longest = self.layers / rate
        alone = self.layers * min(config.layer_s for config in configs.values())
        return (m - 1) * longest + max(alone, longest) + self.fixed_s

    def _solve(self, task: _Task, order: tuple[int, ...], known_s: float) -> None:
        self.solved += 1
        segments = place_stages([(place, task.configs[place]) for place in order])
        stages: list[Stage] = [(segment.config, role) for segment in segments for role in segment.roles]
        layers = LayerAssignment(stages, self.layers, self.fixed_s).best(known_s)
        if layers is not None:
            pipeline = pipeline_of(segments, layers, task.sequences, self.fixed_s)
            if pipeline.seconds < self.least_s:
                self.best = pipeline


def _orders(configs: dict[int, StageConfig]) -> Iterator[tuple[int, ...]]:
    """Every order of the entries, but only one of those that differ by the position of equal entries."""
    known = set()
    for order in permutations(configs):
        machines = (configs[place].search.machine for place in order)
        kinds = tuple(replace(machine, fleet=0) for machine in machines)
        if kinds not in known:
            known.add(kinds)
            yield order


def place_stages(entries: Sequence[tuple[int, StageConfig]]) -> tuple[Segment, ...]:
    """The stages of these entries in their order, without layers."""
    count, number, segments = sum(config.choices.pipeline for _, config in entries), 0, []
    for place, config in entries:
        inside = config.choices.pipeline
        roles = []
        for stage in range(inside):
            far = (stage == 0 and number > 0) or (stage == inside - 1 and number < count - 1)
            roles.append(StageRole(count - number, number == 0, number == count - 1, far))
            number += 1
        segments.append(Segment(place, config, (), tuple(roles)))
    return tuple(segments)


def pipeline_of(
    segments: tuple[Segment, ...], layers: tuple[int, ...], sequences: int, fixed_s: float
) -> Pipeline:
    """The step of stages with given layers, each estimated separately."""
    filled, before = [], 0
    for segment in segments:
        filled.append(replace(segment, layers=layers[before : before + len(segment.roles)]))
        before += len(segment.roles)
    stages = [
        (segment.config, count, role)
        for segment in filled
        for count, role in zip(segment.layers, segment.roles, strict=True)
    ]
    times = [config.stage_s(count, role) for config, count, role in stages]
    after = max(sum(config.after_s(count, role)) for config, count, role in stages)
    m = stages[0][0].m
    return Pipeline(sequences, m, tuple(filled), max(times), sum(times), after, fixed_s)

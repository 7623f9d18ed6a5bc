"""The best choices for equal devices: computes the memory of all that divide, and rules slow ones out by bounds.

A choice's memory is the sum of its shape's activations and its storage's states, so fitting choices are counted without
looking at each. A shape's seconds without data-parallel exchanges and the optimizer bound all choices of that shape,
however they store states. The search takes shapes by that bound and ends when it exceeds the k-th best.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from torchsplit_core.strategy.cost_model.constants import constants
from torchsplit_core.strategy.cost_model.estimate import USABLE, estimate
from torchsplit_core.strategy.cost_model.kernels import Kernels
from torchsplit_core.strategy.cost_model.layers import LayerModel, LayerTime
from torchsplit_core.strategy.cost_model.memory import activation_bytes, layers_on, state_bytes
from torchsplit_core.strategy.cost_model.network import Network
from torchsplit_core.strategy.search.machines import Machine
from torchsplit_core.strategy.search.software import SOFTWARE, software_of
from torchsplit_core.strategy.search.space import RECOMPUTES, SearchSpace
from torchsplit_core.strategy.supported import OFFLOADS, SHARDS
from torchsplit_core.values.training import Offload, ParallelConfig, Shard, StepEstimate, TrainingSoftware
from torchsplit_core.values.units import GIB

ROUNDING = 1e-9
"""Relative reduction of a bound: sums in another order differ in their last digits."""
EQUAL = 1e-8
"""Seconds with a smaller relative difference may have equal rank."""

MOST_NODES_TRIED = 512
"""Fleets tried in search of the smallest sufficient one."""


@dataclass(slots=True)
class RefusedChoices:
    """Choices refused for one reason, and of them the one that lacks the fewest bytes."""

    count: int = 0
    closest: ParallelConfig | None = None
    missing_bytes: float = 0.0
    fastest_s: float = 0.0
    """Seconds of a step of `closest` if it fits but cannot be run."""

    def add(self, count: int, closest: ParallelConfig | None = None, missing_bytes: float = 0.0) -> None:
        """Count `count` more refused choices."""
        self.count += count
        if closest is not None and (self.closest is None or missing_bytes < self.missing_bytes):
            self.closest, self.missing_bytes = closest, missing_bytes

    def note_fastest(self, choices: ParallelConfig, step: StepEstimate) -> None:
        """Note a choice that fits but cannot be run."""
        if step.fits and (self.closest is None or step.seconds < self.fastest_s):
            self.closest, self.fastest_s = choices, step.seconds


@dataclass(slots=True)
class SearchResult:
    """The best choices with their estimates; how many choices were counted, and how many fully estimated."""

    best: list[tuple[ParallelConfig, StepEstimate]] = field(default_factory=list)
    considered: int = 0
    estimated: int = 0
    refused: dict[str, RefusedChoices] = field(default_factory=dict)


MEMORY = "memory"
"""The reason of choices that divide but do not fit."""
HOST_MEMORY = "host memory"
"""The reason of choices whose offloaded states do not fit on the hosts."""
NOT_RUN = "does not run yet"
"""The reason of choices that no runner supports, whether they fit or not."""
Storage = tuple[float, Shard, Offload]
"""Bytes of states, and how they are stored."""


@dataclass(frozen=True, slots=True)
class Storages:
    """Ways to store the states: those that the hosts have room for, in order of bytes, and the others.

    `not_run`: those that no runner supports yet and that the hosts have room for; `not_run_count` includes the others.
    """

    possible: tuple[Storage, ...]
    others: tuple[Storage, ...]
    """Their bytes are those that the host lacks for a device."""
    not_run: tuple[Storage, ...]
    not_run_count: int


class HomogeneousSearch:
    """A search over one machine's devices."""

    def __init__(self, machine: Machine, space: SearchSpace) -> None:
        self.machine, self.space, self.c = machine, space, constants()
        self.kernels = Kernels(machine.device, space.job.precision, SOFTWARE.attention, self.c)
        self.network = Network(machine.cluster, self.c)
        self.usable_bytes = USABLE * machine.device.memory_bytes - self.c.reserve_gib * GIB
        self._layers: dict[tuple[object, ...], tuple[float, float]] = {}
        self.times: dict[ParallelConfig, tuple[LayerTime, LayerTime]] = {}
        """Times of a layer and of the logits, by part, for callers that look them up by shape."""

    def best(self, devices: int, top_k: int) -> SearchResult:
        """The `top_k` fastest choices that fit, fastest first."""
        result = SearchResult()
        fitting: list[tuple[float, ParallelConfig, tuple[Storage, ...]]] = []
        not_run: list[tuple[float, ParallelConfig, tuple[Storage, ...]]] = []
        for layout, broken in self.space.layouts(devices):
            if broken:
                result.considered += 1
                result.refused.setdefault(broken, RefusedChoices()).add(1)
                continue
            self._collect_fitting(layout, result, fitting, not_run)
        result.best = self._rank(fitting, result, top_k)
        if refused := result.refused.get(NOT_RUN):
            for choices, step in self._rank(not_run, result, 1):
                refused.note_fastest(choices, step)
        return result

    def _collect_fitting(
        self,
        layout: ParallelConfig,
        result: SearchResult,
        fitting: list[tuple[float, ParallelConfig, tuple[Storage, ...]]],
        not_run: list[tuple[float, ParallelConfig, tuple[Storage, ...]]],
    ) -> None:
        """Collect every shape of a layout with its fitting storages and bound, and those that cannot be run."""
        known: dict[tuple[int, int, bool], Storages] = {}
        for shape in self.space.shapes(layout):
            key = (shape.expert, shape.interleave, shape.sequence_parallel)
            every = known.get(key)
            if every is None:
                every = known[key] = self._storages(shape)
            storages = every.possible
            result.considered += len(storages) + len(every.others) + every.not_run_count
            if every.others:
                size, shard, offload = every.others[0]
                refused_choices = replace(shape, shard=shard, offload=offload)
                result.refused.setdefault(HOST_MEMORY, RefusedChoices()).add(
                    len(every.others), refused_choices, size
                )
            left = self.usable_bytes - self._activations(shape)
            fits = bisect_right(storages, left, key=lambda storage: storage[0])
            if fits < len(storages):
                size, shard, offload = storages[fits]
                refused_choices = replace(shape, shard=shard, offload=offload)
                refused = result.refused.setdefault(MEMORY, RefusedChoices())
                refused.add(len(storages) - fits, refused_choices, size - left)
            if fits:
                fitting.append((self.bound(shape), shape, storages[:fits]))
            if every.not_run_count:
                result.refused.setdefault(NOT_RUN, RefusedChoices()).add(every.not_run_count)
                fits = bisect_right(every.not_run, left, key=lambda storage: storage[0])
                if fits:
                    not_run.append((self.bound(shape), shape, every.not_run[:fits]))

    def _rank(
        self,
        fitting: list[tuple[float, ParallelConfig, tuple[Storage, ...]]],
        result: SearchResult,
        top_k: int,
    ) -> list[tuple[ParallelConfig, StepEstimate]]:
        """The fastest of these, fastest first; `result` counts the estimated ones."""
        ranked: list[tuple[tuple[object, ...], ParallelConfig, StepEstimate]] = []
        for bound, shape, storages in sorted(fitting, key=lambda item: item[0]):
            if len(ranked) == top_k and bound > ranked[-1][2].seconds * (1.0 + EQUAL):
                break
            for _, shard, offload in storages:
                choices = replace(shape, shard=shard, offload=offload)
                result.estimated += 1
                step = self.estimate(choices)
                insort(ranked, (rank(choices, step), choices, step), key=lambda item: item[0])
                del ranked[top_k:]
        return [(choices, step) for _, choices, step in ranked]

    def estimate(self, choices: ParallelConfig) -> StepEstimate:
        """The step of a choice."""
        machine, space = self.machine, self.space
        return estimate(
            space.model, machine.device, machine.cluster, choices, space.job, self.software(choices)
        )

    def software(self, choices: ParallelConfig) -> TrainingSoftware:
        """What a choice is estimated for."""
        return software_of(choices, self.space.model.experts, host=self.machine.host)

    def bound(self, shape: ParallelConfig) -> float:
        """Lower bound on the seconds of all choices of that shape: its layers, its bubble, the constant."""
        layer, logits = self._layer(shape)
        p, v = shape.pipeline, shape.interleave
        m = self.space.job.global_batch // (shape.data * shape.micro_batch)
        every = self.space.model.layers * layer + logits
        busy = m * every
        if p > 1:
            longest = layers_on(self.space.model, shape) * layer + logits
            busy = m * longest + (every - longest) / v
        return (busy + self.c.fixed_s) * (1.0 - ROUNDING)

    def fits(self, devices: int) -> bool:
        """Whether any choice for `devices` devices fits."""
        return self.closest_infeasible(devices)[1] <= 0

    def closest_infeasible(self, devices: int) -> tuple[ParallelConfig | None, float]:
        """The choice for `devices` that needs the least, and the bytes it lacks (infinite: none divides)."""
        best: ParallelConfig | None = None
        least = float("inf")
        for layout, broken in self.space.layouts(devices):
            if broken:
                continue
            known: dict[tuple[int, int, bool], Storages] = {}
            for shape in self._smallest(layout):
                key = (shape.expert, shape.interleave, shape.sequence_parallel)
                if key not in known:
                    known[key] = self._storages(shape)
                storages = known[key].possible
                if not storages:
                    continue
                missing = storages[0][0] + self._activations(shape) - self.usable_bytes
                if missing < least:
                    best = replace(shape, shard=storages[0][1], offload=storages[0][2])
                    least = missing
            if least <= 0:
                break
        return best, least

    def smallest_fleet(self) -> int:
        """Nodes of the smallest larger fleet that can use every device; 0: none among those tried."""
        per_node = self.machine.cluster.gpus_per_node
        nodes = self.machine.devices // per_node
        tried = range(nodes + 1, nodes + MOST_NODES_TRIED + 1)
        return next((count for count in tried if self.fits(count * per_node)), 0)

    def _smallest(self, layout: ParallelConfig) -> Iterator[ParallelConfig]:
        """Shapes of a layout, one of which needs least memory: in-flight micro-batches × their size never fall with it.

        A fixed number of chunks needs rounds of micro-batches, which only larger micro-batches may form.
        """
        fix = self.space.fix
        if fix.interleave is not None:
            return self.space.shapes(layout)
        sizes = self.space.micro_batches(layout)[:1]
        return (
            shape
            for size in sizes
            for shape in replace(self.space, fix=replace(fix, micro_batch=size, interleave=1)).shapes(layout)
        )

    def _storages(self, shape: ParallelConfig) -> Storages:
        model, job, per_node = self.space.model, self.space.job, self.machine.cluster.gpus_per_node
        running = self.space.runnable.storages(shape)
        possible: list[Storage] = []
        others: list[Storage] = []
        not_run: list[Storage] = []
        not_run_count = 0
        for shard, offload in self.space.estimated_storages(shape):
            stored = replace(shape, shard=shard, offload=offload)
            missing_bytes = self.host_bytes(stored) - self.machine.host_bytes
            runs = (shard, offload) in running
            not_run_count += not runs
            if missing_bytes > 0:
                if runs:
                    others.append((missing_bytes, shard, offload))
                continue
            size = sum(state_bytes(model, stored, job, SOFTWARE, per_node))
            (possible if runs else not_run).append((size, shard, offload))
        return Storages(tuple(sorted(possible)), tuple(sorted(others)), tuple(sorted(not_run)), not_run_count)

    def host_bytes(self, choices: ParallelConfig) -> float:
        """Bytes of a device's states that its host keeps."""
        if choices.offload == "none":
            return 0.0
        per_node = self.machine.cluster.gpus_per_node
        resident = replace(choices, offload="none")
        weights, gradients, optimizer, _ = state_bytes(
            self.space.model, resident, self.space.job, SOFTWARE, per_node
        )
        return optimizer if choices.offload == "optimizer" else weights + gradients + optimizer

    def _activations(self, shape: ParallelConfig) -> float:
        return activation_bytes(self.space.model, shape, self.space.job, SOFTWARE) * self.c.fragmentation

    def _layer(self, shape: ParallelConfig) -> tuple[float, float]:
        """Seconds of a layer and of the logits for a micro-batch, shared by shapes that differ only elsewhere."""
        key = (
            shape.tensor,
            shape.context,
            shape.expert,
            shape.micro_batch,
            shape.recompute,
            shape.sequence_parallel,
        )
        if key not in self._layers:
            model = LayerModel(
                self.space.model, shape, self.software(shape), self.kernels, self.network, self.c
            )
            self._layers[key] = model.time().total, model.logits().total
        return self._layers[key]


def rank(choices: ParallelConfig, step: StepEstimate) -> tuple[object, ...]:
    """The sort key of candidates: seconds to nine digits, then memory, then the plainer choice."""
    return (
        float(f"{step.seconds:.9g}"),
        step.memory.total,
        choices.tensor,
        choices.pipeline,
        choices.context,
        choices.expert,
        choices.interleave,
        -choices.micro_batch,
        RECOMPUTES.index(choices.recompute),
        SHARDS.index(choices.shard),
        OFFLOADS.index(choices.offload),
        choices.sequence_parallel,
    )

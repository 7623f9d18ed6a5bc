"""The configurations of an entry's devices as pipeline stages, and what a stage takes in each.

All devices of the entry take part, in equal groups: data × tensor × context of them are a stage, so a configuration
sets how many stages the entry has. A stage's seconds are affine in its layers, except for the gradient exchange, part
of which its last micro-batch hides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchsplit_core.strategy.cost_model.estimate import (
    exposed_s,
    grad_sync_s,
    optimizer_s,
    p2p_s,
    sharding_s,
)
from torchsplit_core.strategy.cost_model.layers import LayerModel, LayerTime
from torchsplit_core.strategy.cost_model.memory import layer_weights, logit_bytes, saved_bytes, stored_bytes
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch
from torchsplit_core.strategy.search.software import SOFTWARE
from torchsplit_core.strategy.search.space import divisors
from torchsplit_core.values.training import ParallelConfig, StepMemory
from torchsplit_core.values.units import GIB

STAGES = 2
"""Number of stages in a step's formulas: more than one, however many of them are this entry's."""


@dataclass(frozen=True, slots=True)
class StageRole:
    """A stage's position. `in_flight`: micro-batches whose activations it keeps; `far`: next to another entry's."""

    in_flight: int
    first: bool = False
    last: bool = False
    far: bool = False


class StageConfig:
    """An entry's configuration: seconds and bytes of a stage by its layers. `choices.pipeline`: the entry's stages."""

    def __init__(
        self, search: HomogeneousSearch, choices: ParallelConfig, layer: LayerTime, logits: LayerTime, m: int
    ) -> None:
        self.search, self.choices, self.m = search, choices, m
        self.layer, self.logits = layer, logits
        space, c = search.space, search.c
        self.layer_weights, self.layer_weights_all_experts = (
            layer_weights(space.model, choices, all_experts=every) for every in (False, True)
        )
        self.ends = space.model.vocab * space.model.hidden
        self.staged_choices = replace(choices, pipeline=STAGES)
        self.layer_s, self.logits_s = layer.total, logits.total
        self.near_s, self.far_s = (
            p2p_s(space.model, self.staged_choices, search.network, search.kernels, afar=afar)
            for afar in (False, True)
        )
        self.sharding_s = sharding_s(
            space.model, self.staged_choices, space.job, SOFTWARE, search.network, layer, c, m
        )
        saved, working = saved_bytes(space.model, choices, SOFTWARE)
        self.kept, self.working = saved * c.fragmentation, working * c.fragmentation
        self.logit_bytes = logit_bytes(space.model, choices, SOFTWARE) * c.fragmentation

    def stage_s(self, layers: int, place: StageRole) -> float:
        """Seconds of a micro-batch, forward and backward, with the sends of the stage."""
        return self._busy_s(layers, place) + (self.far_s if place.far else self.near_s)

    def _busy_s(self, layers: int, place: StageRole) -> float:
        return layers * self.layer_s + (self.logits_s if place.last else 0.0)

    def after_s(self, layers: int, place: StageRole) -> tuple[float, float]:
        """Seconds once a step: the gradient exchange with the cost of sharding, and the optimizer."""
        search = self.search
        taken = self.exchange_s(layers, place.first or place.last)
        sent = exposed_s(taken, SOFTWARE, search.c, self._busy_s(layers, place))
        return sent + self.m * layers * self.sharding_s, self.optimizer_s(layers, place.first or place.last)

    def exchange_s(self, layers: int, end: bool) -> float:
        """The gradient exchange before any of it is hidden."""
        search = self.search
        weights = self.weights(layers, end)
        return grad_sync_s(weights, self.staged_choices, search.space.job, SOFTWARE, search.network, self.m)

    def optimizer_s(self, layers: int, end: bool) -> float:
        """The update of the weights."""
        search = self.search
        weights = self.weights(layers, end, all_experts=self.choices.shard != "none")
        return optimizer_s(
            weights, self.staged_choices, search.kernels, search.machine.cluster, search.c, self.m
        )

    def weights(self, layers: int, end: bool, *, all_experts: bool = False) -> float:
        """Weights on a device of a stage before sharding; either end of the pipeline includes the embedding."""
        layer = self.layer_weights_all_experts if all_experts else self.layer_weights
        return (layers * layer + (self.ends if end else 0)) / self.choices.tensor

    def states(
        self, layers: int, end: bool, choices: ParallelConfig | None = None
    ) -> tuple[float, float, float, float]:
        """Bytes of weights, gradients, optimizer states and gathered layers on a device."""
        space = self.search.space
        weights, whole = self.weights(layers, end), self.weights(layers, end, all_experts=True)
        per_node = self.search.machine.cluster.gpus_per_node
        return stored_bytes(
            weights, whole, space.model, choices or self.staged_choices, space.job, SOFTWARE, per_node
        )

    def memory(self, layers: int, place: StageRole) -> StepMemory:
        """The parts of a stage's peak on a device."""
        activations = self.kept * layers * min(self.m, place.in_flight) + self.working
        activations += self.logit_bytes if place.last else 0.0
        weights, gradients, optimizer, gathered = self.states(layers, place.first or place.last)
        return StepMemory(
            weights, gradients, optimizer, activations, gathered, self.search.c.reserve_gib * GIB
        )

    def host_bytes(self, layers: int, end: bool) -> float:
        """Bytes of a device's states that its host keeps."""
        offload = self.choices.offload
        if offload == "none":
            return 0.0
        weights, gradients, optimizer, _ = self.states(
            layers, end, replace(self.staged_choices, offload="none")
        )
        return optimizer if offload == "optimizer" else weights + gradients + optimizer


class StageConfigs:
    """Every configuration of one entry for micro-batches of `sequences` over all data-parallel devices."""

    def __init__(self, search: HomogeneousSearch, sequences: int) -> None:
        space = search.space
        self.m = space.job.global_batch // sequences
        self.search = search
        self.space = replace(space, job=replace(space.job, global_batch=sequences))
        self.devices = search.machine.devices

    def shapes(self) -> Iterator[ParallelConfig]:
        """Layouts with their shapes, states unsharded."""
        fix = self.space.fix
        if fix.interleave not in (None, 1):
            return
        for layout in self._layouts():
            if self.space.broken_rule(layout):
                continue
            each = self.space.job.global_batch // layout.data
            if fix.micro_batch in (None, each):
                only = replace(self.space, fix=replace(fix, micro_batch=each, interleave=1))
                yield from only.shapes(layout)

    def _layouts(self) -> Iterator[ParallelConfig]:
        fix = self.space.fix
        for tensor in divisors(self.devices):
            for context in divisors(self.devices // tensor):
                for data in divisors(self.devices // tensor // context):
                    pipeline = self.devices // tensor // context // data
                    layout = ParallelConfig(data, tensor, pipeline, context)
                    names = ("tensor", "context", "data", "pipeline")
                    if all(getattr(fix, name) in (None, getattr(layout, name)) for name in names):
                        yield layout

    def all(self) -> Iterator[StageConfig]:
        """Every shape with every way to store its states."""
        for shape in self.shapes():
            layer, logits = self._time(shape)
            for shard, offload in self.space.storages(replace(shape, pipeline=STAGES)):
                yield StageConfig(
                    self.search, replace(shape, shard=shard, offload=offload), layer, logits, self.m
                )

    def _time(self, shape: ParallelConfig) -> tuple[LayerTime, LayerTime]:
        key = replace(shape, data=1, pipeline=1)
        search = self.search
        if key not in search.times:
            software = search.software(key)
            model = LayerModel(self.space.model, key, software, search.kernels, search.network, search.c)
            search.times[key] = model.time(), model.logits()
        return search.times[key]

"""One training step of a traced model: its seconds by part and the memory of the fullest device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torchsplit_core.strategy.cost_model.constants import Constants, constants
from torchsplit_core.strategy.cost_model.estimate import USABLE
from torchsplit_core.strategy.cost_model.interval import Offset
from torchsplit_core.strategy.cost_model.kernels import HostKernels, Kernels
from torchsplit_core.strategy.cost_model.layers import exposed_host
from torchsplit_core.strategy.cost_model.network import HostNetwork, Network
from torchsplit_core.strategy.graph_model.costs import Width
from torchsplit_core.strategy.graph_model.memory import STATE_BYTES, shards, stage_memory
from torchsplit_core.strategy.graph_model.model import GraphCostModel, PartCosts
from torchsplit_core.strategy.graph_model.stage_partition import partition_evenly
from torchsplit_core.strategy.search.machines import Machine
from torchsplit_core.values.training import (
    SHARDED,
    ParallelConfig,
    StepEstimate,
    StepMemory,
    StepParts,
    TrainingJob,
)

AGREEMENTS = 3.0
"""Small exchanges in each step of a run: the ranks' reports, the loss, and the first bucket of gradients."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """Seconds of a part for one micro-batch, forward, backward and recomputation together."""

    device: float
    host: float


@dataclass
class GraphStepModel:
    """Steps of a model on a machine. `factor`: measured over estimated device seconds, by batch.

    `sample_s`: seconds in which a process fetches a data sample, if measured.
    """

    model: GraphCostModel
    machine: Machine
    job: TrainingJob
    offset: Offset
    factors: tuple[tuple[int, float], ...] = ()
    sample_s: float = 0.0
    _figures: dict[tuple[int, Width], tuple[PartCosts, ...]] = field(default_factory=dict)
    _stages: dict[tuple[object, ...], tuple[range, ...]] = field(default_factory=dict)

    @cached_property
    def c(self) -> Constants:
        """The fitted constants."""
        return constants()

    @cached_property
    def kernels(self) -> Kernels:
        """The machine's speeds."""
        if self.machine.rates:
            return HostKernels(self.machine.rates)
        return Kernels(self.machine.device, self.job.precision, "flash", self.c)

    @cached_property
    def network(self) -> Network | HostNetwork:
        """The machine's links."""
        if self.machine.rates:
            return HostNetwork(self.machine.rates)
        return Network(self.machine.cluster, self.c)

    def width(self, choices: ParallelConfig) -> Width:
        """The width of floating-point values under these choices."""
        if self.job.precision in ("fp32", "tf32"):
            return "whole"
        return "half" if choices.shard in SHARDED else "autocast"

    def figures(self, choices: ParallelConfig) -> tuple[PartCosts, ...]:
        """The costs of the parts for a micro-batch."""
        key = choices.micro_batch, self.width(choices)
        if key not in self._figures:
            self._figures[key] = self.model.figures(*key, self.kernels, host_only=self.machine.host)
        return self._figures[key]

    def stages(self, choices: ParallelConfig) -> tuple[range, ...]:
        """Parts of each stage: the cut of the chain with the shortest longest stage."""
        if choices.pipeline == 1:
            return (range(self.model.parts),)
        key = choices.pipeline, choices.micro_batch, choices.recompute, self.width(choices)
        if key not in self._stages:
            loads = [self.seconds([self._load(part, choices)]) for part in self.figures(choices)]
            self._stages[key] = partition_evenly(loads, choices.pipeline)
        return self._stages[key]

    def estimate(self, choices: ParallelConfig) -> StepEstimate:
        """The step of a choice."""
        m = self.job.global_batch // (choices.data * choices.micro_batch)
        parts = self._parts(choices, m)
        memory = max(self._memories(choices, m), key=lambda stage: stage.total)
        seconds = parts.total * self.offset.factor
        return StepEstimate(
            seconds=seconds,
            low_s=seconds * self.offset.low,
            high_s=seconds * self.offset.high,
            parts_s=parts,
            memory=memory,
            micro_batches=m,
            fits=memory.total <= USABLE * self.machine.device.memory_bytes,
        )

    def seconds(self, loads: Sequence[StageLoad]) -> float:
        """Seconds of device and host together: a GPU works while its host starts kernels, a processor does both."""
        device, host = sum(load.device for load in loads), sum(load.host for load in loads)
        return device + (host if self.machine.host else exposed_host(device, host))

    def _memories(self, choices: ParallelConfig, m: int) -> list[StepMemory]:
        figures, p = self.figures(choices), choices.pipeline
        return [
            stage_memory(
                self.model,
                figures,
                parts,
                choices,
                self.job,
                min(m, p - place),
                m,
                self.machine.cluster.gpus_per_node,
                self.c,
                host=self.machine.host,
            )
            for place, parts in enumerate(self.stages(choices))
        ]

    def _load(self, part: PartCosts, choices: ParallelConfig) -> StageLoad:
        recompute, recompute_host = 0.0, 0.0
        if choices.recompute == "full":
            recompute, recompute_host = part.recompute, part.recompute_host
        elif choices.recompute == "selective":
            recompute, recompute_host = part.recompute_rest, part.recompute_host
        factor = self._factor(choices.micro_batch)
        return StageLoad(
            factor * (part.forward + part.backward + recompute), factor * (part.host + recompute_host)
        )

    def _factor(self, batch: int) -> float:
        """Measured over estimated seconds at the nearest measured batch."""
        if not self.factors:
            return 1.0
        return min(self.factors, key=lambda factor: (abs(factor[0] - batch), factor[0]))[1]

    def _parts(self, choices: ParallelConfig, m: int) -> StepParts:
        figures, p = self.figures(choices), choices.pipeline
        loads = [[self._load(figures[place], choices) for place in parts] for parts in self.stages(choices)]
        taken = [self.seconds(stage) for stage in loads]
        every, longest = sum(taken), max(taken)
        device = sum(load.device for stage in loads for load in stage)
        weights = max(sum(self.model.parameters[place] for place in parts) for parts in self.stages(choices))
        return StepParts(
            compute=m * device / p,
            attention=0.0,
            memory_bound=0.0,
            host=m * (every - device) / p,
            tensor_communication=0.0,
            context_communication=0.0,
            sharding_communication=self._sharding(choices, weights, longest, m),
            pipeline_communication=self._p2p(choices, m),
            pipeline_bubble=max(0.0, m * longest + every - longest - m * every / p),
            data_communication=self._data(choices, weights, longest),
            optimizer=self._optimizer(choices, weights, m),
            fixed=self._fixed(choices, m),
        )

    def _fixed(self, choices: ParallelConfig, m: int) -> float:
        """Seconds of a step beside its model: on a measured host, fetching samples and small exchanges."""
        rates = self.machine.rates
        if rates is None:
            return 0.0 if self.machine.host else self.c.fixed_s
        agreement = AGREEMENTS * rates.exchange_s if choices.devices > 1 else 0.0
        return self.sample_s * choices.micro_batch * m + agreement

    def _p2p(self, choices: ParallelConfig, m: int) -> float:
        if choices.pipeline == 1:
            return 0.0
        figures = self.figures(choices)
        handed = max(figures[parts[-1]].sent for parts in self.stages(choices)[:-1])
        return 2.0 * self.network.send(handed, choices.data) * (m + choices.pipeline - 1)

    def _sharding(self, choices: ParallelConfig, weights: float, longest: float, m: int) -> float:
        """What gathering weights and scattering gradients adds to a step's compute, as in `cost_model.estimate`."""
        if choices.shard not in SHARDED or choices.data == 1:
            return 0.0
        group = shards(choices, self.machine.cluster.gpus_per_node)
        width = 2.0 if self.job.precision in ("bf16", "fp16") else STATE_BYTES
        gather = self.network.gather(width * weights, group, 1)
        scatter = self.network.gather(STATE_BYTES * weights, group, 1)
        scatter += self.network.reduce(STATE_BYTES * weights / group, choices.data // group, group)
        passes = 1.0 if choices.shard == "zero2" else 2.0
        if choices.pipeline > 1:
            sent = (gather + scatter) / m
        else:
            sent = passes * gather + scatter
        both = max(longest, sent) + self.c.sharding_exposed * min(longest, sent)
        return m * (both - longest)

    def _data(self, choices: ParallelConfig, weights: float, micro_batch_s: float) -> float:
        """Gradients summed over copies, less what the last backward pass hides; zero1 sends the weights back."""
        if choices.shard in SHARDED or choices.data == 1:
            return 0.0
        taken = self.network.reduce(STATE_BYTES * weights, choices.data, 1)
        # Gloo exchanges run on the cores that compute.
        exposed = 1.0 if self.machine.rates else self.c.data_exposed
        hidden = min((1.0 - exposed) * taken, 0.6 * micro_batch_s)
        weights_gather_s = (
            self.network.gather(STATE_BYTES * weights, choices.data, 1) if choices.shard == "zero1" else 0.0
        )
        return taken - hidden + weights_gather_s

    def _optimizer(self, choices: ParallelConfig, weights: float, m: int) -> float:
        """Weights, gradients and moments through memory, or if offloaded over the link to the host."""
        if choices.shard != "none":
            weights /= shards(choices, self.machine.cluster.gpus_per_node)
        moments = 2 if self.job.optimizer == "adamw" else 1
        # Each is read and written, except the gradient, which is only read.
        size = STATE_BYTES * (2 * (1 + moments) + 1) * weights
        if choices.offload == "none":
            started = (
                self.machine.rates.optimizer_s * self.model.weight_tensors if self.machine.rates else 0.0
            )
            return self.kernels.moved(size) + started
        # Gradients go to the host, weights come back for both passes of every micro-batch.
        crossing = STATE_BYTES * weights * (1 + 2 * m)
        return (size + crossing) / self.machine.cluster.host_bytes_per_s

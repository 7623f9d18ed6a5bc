"""One training step: its seconds by part and the memory of the fullest device, from sizes alone."""

from __future__ import annotations

from torchsplit_core.strategy.cost_model.constants import Constants, constants
from torchsplit_core.strategy.cost_model.interval import Offset, unseen
from torchsplit_core.strategy.cost_model.kernels import Kernels
from torchsplit_core.strategy.cost_model.layers import LayerModel, LayerTime
from torchsplit_core.strategy.cost_model.memory import device_parameters, layers_on, step_memory
from torchsplit_core.strategy.cost_model.network import Network
from torchsplit_core.values.errors import InputFault
from torchsplit_core.values.training import (
    ParallelConfig,
    StepEstimate,
    StepParts,
    TrainingCluster,
    TrainingDevice,
    TrainingJob,
    TrainingSoftware,
    Transformer,
)

USABLE = 0.98
"""Share of a device's memory; driver and communication library take the rest (nvidia-smi lists 79.25 GiB of 80)."""
HIDING = 0.6
"""Share of a micro-batch's forward and backward pass in which gradients are ready to be sent."""
GENERIC = TrainingSoftware("generic", attention="flash", compiled=True, fused_layers=True)
"""Current software: fused attention, compiled layers, gradients sent during the backward pass."""


def estimate(
    model: Transformer,
    device: TrainingDevice,
    cluster: TrainingCluster,
    choices: ParallelConfig,
    job: TrainingJob,
    software: TrainingSoftware = GENERIC,
    fitted: Constants | None = None,
    offset: Offset | None = None,
) -> StepEstimate:
    """A step's seconds with their interval, its parts and its memory.

    `fitted` replaces the product's constants, for fits. `offset` corrects the estimate by the user's measured rows of
    this framework and cluster (`calibrated`); the parts stay uncorrected. Raises InputFault if the choices do not
    divide the model, the batch or one another.
    """
    micro_batches = check(model, choices, job)
    c = fitted or constants()
    parts = step_parts(model, device, cluster, choices, job, software, c, micro_batches)
    memory = step_memory(model, choices, job, software, c, cluster.gpus_per_node)
    seconds = parts.total
    known = offset or unseen()
    seconds *= known.factor
    return StepEstimate(
        seconds=seconds,
        low_s=seconds * known.low,
        high_s=seconds * known.high,
        parts_s=parts,
        memory=memory,
        micro_batches=micro_batches,
        fits=memory.total <= USABLE * device.memory_bytes,
    )


def check(model: Transformer, choices: ParallelConfig, job: TrainingJob) -> int:
    """Micro-batches of a pipeline in a step. Raises InputFault if something does not divide."""
    _divides("choices.tensor", choices.tensor, model.heads, "the heads")
    _divides("choices.expert", choices.expert, model.experts, "the experts")
    _divides("choices.expert", choices.expert, choices.data * choices.context, "the data-parallel devices")
    if choices.pipeline * choices.interleave > model.layers:
        raise InputFault(
            "choices.pipeline",
            f"makes {choices.pipeline * choices.interleave} chunks of {model.layers} layers",
            "Choose fewer stages or less interleaving.",
        )
    together = choices.data * choices.micro_batch
    _divides(
        "job.global_batch", together, job.global_batch, "the sequences of a step (data × micro_batch does)"
    )
    return job.global_batch // together


def _divides(where: str, value: int, whole: int, words: str) -> None:
    if value < 1 or whole % value:
        raise InputFault(where, f"is {value}, which does not divide {words}, {whole}", "Choose a divisor.")


def step_parts(
    model: Transformer,
    device: TrainingDevice,
    cluster: TrainingCluster,
    choices: ParallelConfig,
    job: TrainingJob,
    software: TrainingSoftware,
    c: Constants,
    m: int,
) -> StepParts:
    """The seconds of a step of `m` micro-batches.

    Pipeline: m · t_max + (Σ stages − t_max) / v for v chunks a stage; the last stage computes the logits. The
    excess over m times the mean stage is the bubble.
    """
    kernels = Kernels(device, job.precision, software.attention, c)
    network = Network(cluster, c)
    layers = LayerModel(model, choices, software, kernels, network, c)
    layer, logits = layers.time(), layers.logits()
    p, v = choices.pipeline, choices.interleave
    on_stage = layers_on(model, choices)
    sharding = m * model.layers / p * sharding_s(model, choices, job, software, network, layer, c, m)
    stage = on_stage * layer.total
    longest = stage + logits.total if p > 1 else model.layers * layer.total + logits.total
    every = model.layers * layer.total + logits.total
    p2p = p2p_s(model, choices, network, kernels) if p > 1 else 0.0
    if software.tensor_overlap and v > 1:
        p2p *= c.tensor_exposed
    busy = m * every / p
    bubble = m * longest + (every - longest) / v - busy if p > 1 else 0.0
    share = m / p

    def part(of_layer: float, of_logits: float) -> float:
        return share * (model.layers * of_layer + of_logits)

    return StepParts(
        compute=part(layer.compute, logits.compute),
        attention=part(layer.attention, 0.0),
        memory_bound=part(layer.memory_bound, logits.memory_bound),
        host=part(layer.host, 0.0),
        tensor_communication=part(layer.tensor, 0.0),
        context_communication=part(layer.context, 0.0),
        sharding_communication=sharding,
        pipeline_communication=p2p * (m + (p - 1) / v),
        pipeline_bubble=bubble,
        data_communication=_data(model, choices, job, software, network, c, every / p, m),
        optimizer=_optimizer(model, choices, kernels, cluster, c, m),
        fixed=c.fixed_s,
    )


def sharding_s(
    model: Transformer,
    choices: ParallelConfig,
    job: TrainingJob,
    software: TrainingSoftware,
    network: Network,
    layer: LayerTime,
    c: Constants,
    m: int,
) -> float:
    """FSDP: gathers a layer's weights before each pass and scatters its gradients after, for every micro-batch.

    A layer takes the longer of compute and communication plus a share of the shorter: the overlap is not free. Returns
    the excess over the compute, for one layer and micro-batch.
    """
    if choices.shard not in ("fsdp", "hsdp"):
        return 0.0
    size = model.layer_parameters / choices.tensor
    group, stride = choices.data * choices.context, choices.tensor
    replicas = 1
    if choices.shard == "hsdp":
        replicas, group = max(1, group * stride // network.per_node), min(group, network.per_node // stride)
    weights = network.gather(2.0 * size, group, stride)
    if job.precision in ("fp32", "tf32"):
        weights *= 2.0
    scatter = network.gather(software.gradient_bytes * size, group, stride)
    scatter += network.reduce(software.gradient_bytes * size / max(1, group), replicas, stride * group) / m
    # Pipeline stages keep their weights gathered through the step, and their gradients until its end.
    gathers = 2.0 if choices.pipeline == 1 else 1.0 / m
    scatters = 1.0 if choices.pipeline == 1 else 1.0 / m
    sent = gathers * weights + scatters * scatter
    both = max(layer.total, sent) + c.sharding_exposed * min(layer.total, sent)
    return both - layer.total


def p2p_s(
    model: Transformer, choices: ParallelConfig, network: Network, kernels: Kernels, *, afar: bool = False
) -> float:
    """Seconds of sending a micro-batch between stages, both ways, in each chunk. `afar`: to another node."""
    size = kernels.width * choices.micro_batch * model.sequence / choices.context * model.hidden
    size /= choices.tensor
    stride = choices.tensor * choices.context * choices.data
    if afar:
        stride = max(stride, network.per_node)
    return 2.0 * choices.interleave * network.send(size, stride)


def _data(
    model: Transformer,
    choices: ParallelConfig,
    job: TrainingJob,
    software: TrainingSoftware,
    network: Network,
    c: Constants,
    micro_batch_s: float,
    m: int,
) -> float:
    """Gradient reduction over the data-parallel devices, less what the last micro-batch's backward pass hides.

    zero2 has no room to sum the gradients of several micro-batches: each of the m scatters its own.
    """
    weights = device_parameters(model, choices)
    taken = grad_sync_s(weights, choices, job, software, network, m)
    return exposed_s(taken, software, c, micro_batch_s)


def grad_sync_s(
    weights: float,
    choices: ParallelConfig,
    job: TrainingJob,
    software: TrainingSoftware,
    network: Network,
    m: int,
) -> float:
    """Seconds of summing the gradients of a device's `weights` weights over the data-parallel devices."""
    if choices.shard in ("fsdp", "hsdp"):
        return 0.0
    group, stride = choices.data * choices.context, choices.tensor
    width = 4 if job.precision in ("fp32", "tf32") else software.gradient_bytes
    if choices.shard == "none":
        return network.reduce(width * weights, group, stride)
    scatters = m if choices.shard == "zero2" else 1
    return scatters * network.gather(width * weights, group, stride) + network.gather(
        2.0 * weights, group, stride
    )


def exposed_s(taken: float, software: TrainingSoftware, c: Constants, micro_batch_s: float) -> float:
    """The part of an exchange that the last micro-batch's backward pass does not hide."""
    if not software.data_overlap:
        return taken
    hidden = min((1.0 - c.data_exposed) * taken, HIDING * micro_batch_s)
    return taken - hidden


def _optimizer(
    model: Transformer,
    choices: ParallelConfig,
    kernels: Kernels,
    cluster: TrainingCluster,
    c: Constants,
    m: int,
) -> float:
    """The optimizer moves master weights, moments and gradients through memory.

    If offloaded, the host updates in its own memory, assumed as fast per device as the device's link; gradients go
    there and weights come back. Offloaded parameters are sent again for both passes of every micro-batch.
    """
    weights = device_parameters(model, choices, all_experts=choices.shard != "none")
    return optimizer_s(weights, choices, kernels, cluster, c, m)


def optimizer_s(
    weights: float, choices: ParallelConfig, kernels: Kernels, cluster: TrainingCluster, c: Constants, m: int
) -> float:
    """Optimizer seconds for a device's `weights` weights, counted before sharding."""
    if choices.shard != "none":
        group = choices.data * choices.context
        if choices.shard == "hsdp":
            group = min(group, max(1, cluster.gpus_per_node // choices.tensor))
        weights /= group
    if choices.offload == "none":
        return kernels.moved(c.optimizer_bytes * weights)
    crossing = c.optimizer_bytes + 4.0
    if choices.offload == "parameters":
        crossing += 2.0 * kernels.width * m
    return crossing * weights / cluster.host_bytes_per_s

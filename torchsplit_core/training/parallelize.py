"""Divide a model and its optimizer over the processes of a run with PyTorch's own engines."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
)

from torchsplit_core.training.division.experts import EXPERT, divide_experts, planned_experts
from torchsplit_core.training.division.tensor import (
    DividedZeroOptimizer,
    apply_tensor_parallel,
    local_tensor,
)
from torchsplit_core.values import InputFault
from torchsplit_core.values.training import SHARDED, ParallelConfig, Precision, Recompute

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Numbers' formats in which a forward pass computes what may be in half precision."""
MATMULS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
"""Matrix products; selective recomputation saves every second one."""
# When a layer runs again, fully_shard adds profiler marks for the weights that it gathers inside the layer.
SAC_IGNORED_OPS |= {
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
}


def mesh_of(choices: ParallelConfig, device: str) -> DeviceMesh:
    """The mesh of the ranks: data × tensor, with neighbours in tensor groups.

    `data` includes the ranks of a context group, as neighbours: they hold weights and gradients as copies do. If
    experts are divided, `data` is copies × the ranks that share the experts.

    In a pipeline each stage has such a mesh of its own, of consecutive ranks.
    """
    copies = choices.data * choices.context
    dims = {"pipeline": choices.pipeline} if choices.pipeline > 1 else {}
    if choices.expert > 1:
        dims |= {"copy": copies // choices.expert, EXPERT: choices.expert}
    else:
        dims |= {"data": copies}
    dims |= {"tensor": choices.tensor}
    mesh = init_device_mesh(device, (*dims.values(),), mesh_dim_names=(*dims,))
    if choices.expert > 1:
        mesh["copy", EXPERT]._flatten("data")
    return mesh


def _sharding_mesh(mesh: DeviceMesh, choices: ParallelConfig) -> DeviceMesh:
    """The data ranks, over which weights are sharded; for hsdp replicas × shards.

    A replica is a node; on one node it is half of the ranks if they can be halved.
    """
    data = mesh["data"]
    if choices.shard != "hsdp":
        return data
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size())) // choices.tensor
    return data._unflatten(0, replicas_and_shards(data.size(), per_node), ("replica", "shard"))


def replicas_and_shards(copies: int, per_node: int) -> tuple[int, int]:
    """How hsdp divides the copies, so many of them on each node."""
    inside = per_node if per_node < copies else copies // 2
    inside = inside if inside and copies % inside == 0 else copies
    return copies // inside, inside


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated layers: the members of module lists, otherwise the model's own children that have weights."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inner = {id(nested) for outer in lists for member in outer for nested in member.modules()}
    blocks = [member for modules in lists if id(modules) not in inner for member in modules]
    if not blocks:
        blocks = [child for child in model.children() if any(True for _ in child.parameters())]
    return blocks


def apply_recompute(model: nn.Module, mode: Recompute) -> None:
    """Recompute the repeated layers in the backward pass: entirely, or all but every second matrix product."""
    if mode == "none":
        return
    chosen = {id(block) for block in blocks_of(model)}

    def wrap(module: nn.Module) -> nn.Module:
        if mode == "full":
            return checkpoint_wrapper(module, preserve_rng_state=True)
        return checkpoint_wrapper(module, context_fn=_selective_contexts, preserve_rng_state=True)

    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=wrap, check_fn=lambda module: id(module) in chosen
    )


def _selective_contexts() -> Any:
    seen = {True: 0, False: 0}

    def policy(context: Any, operation: Any, *given: Any, **named: Any) -> CheckpointPolicy:
        if operation in MATMULS:
            seen[context.is_recompute] += 1
            return (
                CheckpointPolicy.MUST_SAVE
                if seen[context.is_recompute] % 2
                else CheckpointPolicy.PREFER_RECOMPUTE
            )
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def apply_activation_offload(model: nn.Module, device: str) -> None:
    """Keep on the host what the forward pass saves for the backward pass, and bring it back there."""
    forward = model.forward

    def offloaded(*given: Any, **named: Any) -> Any:
        with torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda"):
            return forward(*given, **named)

    model.forward = offloaded


def apply_autocast(model: nn.Module, device: str, precision: Precision) -> None:
    """Run the model under autocast to bf16 or fp16 and return its results in fp32; other precisions do nothing."""
    if precision not in AUTOCAST:
        return
    forward = torch.autocast(device, AUTOCAST[precision])(model.forward)

    def half(*given: Any, **named: Any) -> Any:
        return pytree.tree_map(
            lambda leaf: (
                leaf.float() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
            ),
            forward(*given, **named),
        )

    model.forward = half


def apply_fsdp(
    model: nn.Module,
    mesh: DeviceMesh,
    choices: ParallelConfig,
    precision: Precision,
    experts: Sequence[nn.Module] = (),
) -> nn.Module:
    """Shard the weights over the data ranks (FSDP2); each repeated layer is gathered by itself.

    `experts`: modules whose experts are divided; their weights are sharded over the ranks that hold the same experts.
    """
    inner = _sharding_mesh(mesh, choices)
    # Micro-batches of a pipeline overlap: weights stay gathered from the first to the last.
    reshard = choices.shard != "zero2" and choices.pipeline == 1
    settings: dict[str, Any] = {"mesh": inner, "reshard_after_forward": reshard}
    inside, whole = MixedPrecisionPolicy(), MixedPrecisionPolicy()
    if precision == "bf16":
        inside = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        whole = replace(inside, output_dtype=torch.float32)
    if choices.offload == "parameters":
        settings["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.accelerator.is_available())
    for module in experts:
        fully_shard(module, mp_policy=inside, **{**settings, "mesh": mesh["copy"]})
        # Their gradients already include the rows of all ranks. Gloo has no sum with a factor in it.
        module.set_gradient_divide_factor(float(inner.size()))
        # Where there is one copy there is no sum, and torch would divide twice.
        module.set_force_sum_reduction_for_comms(mesh["copy"].size() > 1)
    for block in blocks_of(model):
        fully_shard(block, mp_policy=inside, **settings)
    return fully_shard(model, mp_policy=whole, **settings)


def apply_ddp(model: nn.Module, mesh: DeviceMesh, *, unused_weights: bool) -> nn.Module:
    """Keep the whole model on every data rank and average its gradients (DDP); a rank alone needs nothing."""
    if mesh["data"].size() == 1 and not unused_weights:
        return model
    return DistributedDataParallel(
        model, process_group=mesh["data"].get_group(), find_unused_parameters=unused_weights
    )


def parallelize(
    model: nn.Module,
    mesh: DeviceMesh,
    choices: ParallelConfig,
    precision: Precision,
    *,
    tensor_plan: Mapping[str, str] | None,
    expert_plan: Sequence[str] | None,
    unused_weights: bool,
) -> nn.Module:
    """The model, divided as the choices say. Raises InputFault for choices that do not suit the model."""
    sharded = choices.shard in SHARDED
    dtensors = choices.expert > 1 or choices.tensor > 1
    if unused_weights and (sharded or (dtensors and choices.data * choices.context > 1)):
        name = "shard" if sharded else "tensor" if choices.tensor > 1 else "expert"
        raise InputFault(
            f"the strategy's {name}",
            f"is {getattr(choices, name)}, which needs every weight in every step, but this model may leave some out",
            "Fix shard to none or zero1." if sharded else "Fix tensor and expert to 1.",
        )
    if choices.tensor > 1:
        apply_tensor_parallel(model, mesh["tensor"], tensor_plan, choices)
    experts: list[nn.Module] = []
    if choices.expert > 1:
        experts = [*planned_experts(model, expert_plan, choices.expert).values()]
        for module in experts:
            divide_experts(module, mesh[EXPERT])
    apply_recompute(model, choices.recompute)
    if sharded:
        return apply_fsdp(model, mesh, choices, precision, experts)
    if dtensors:
        return model
    return apply_ddp(model, mesh, unused_weights=unused_weights)


def rebuild_optimizer(
    optimizer: torch.optim.Optimizer,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    choices: ParallelConfig,
    mesh: DeviceMesh,
) -> torch.optim.Optimizer:
    """The fresh optimizer over the divided weights: those of `before` become those of `after`, matched by name.

    Weights of other stages are left out. zero1 returns a new optimizer, which holds each weight's state on one rank.
    Raises InputFault if the optimizer has been stepped or has weights that are not the model's.
    """
    if optimizer.state:
        raise InputFault(
            "the optimizer",
            "has state already, so it is not a fresh one",
            "Make a new one: a run restores its state from its own checkpoints.",
        )
    names = {id(weight): name for name, weight in before.items()}
    for group in optimizer.param_groups:
        if not all(id(weight) in names for weight in group["params"]):
            raise InputFault(
                "the optimizer", "has weights that are not the model's", "Make it of the model's parameters."
            )
        parameter_names = (names[id(weight)] for weight in group["params"])
        group["params"] = [after[name] for name in parameter_names if name in after]
        if choices.tensor > 1 or choices.expert > 1:
            # The weights lie on several meshes, which one fused operation does not accept.
            group["foreach"] = False
    if choices.shard != "zero1":
        return optimizer
    accepted = inspect.signature(type(optimizer)).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    groups = [
        {name: value for name, value in group.items() if name in ("params", *defaults)}
        for group in optimizer.param_groups
    ]
    return DividedZeroOptimizer(groups, type(optimizer), mesh, **defaults)


def local_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """This rank's optimizer: under zero1 that of its part of the weights, otherwise the whole."""
    return optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer


def data_rank(choices: ParallelConfig, rank: int) -> int:
    """The data-parallel rank whose samples this rank has, in the order of `mesh_of`."""
    return rank // (choices.tensor * choices.context) % choices.data


def gradient_norms(model: nn.Module) -> torch.Tensor:
    """The 2-norm of each gradient of this rank's part."""
    grads = [local_tensor(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    return torch.stack(torch._foreach_norm(grads)) if grads else torch.zeros(1)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch's tensors on the device."""
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to(device), batch)

"""Expert parallelism: ranks divide a layer's experts; its rows are sent to them and the results come back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn.utils.stateless import _reparametrize_module

from torchsplit_core.values import InputFault, quoted

EXPERT = "expert"
"""The mesh dimension whose ranks divide the experts among them."""
WHERE = "the client's expert_plan"


def apply_expert_parallel(model: nn.Module, mesh: DeviceMesh, plan: Sequence[str] | None) -> list[nn.Module]:
    """Divide the experts of the modules that the plan names (`values.TrainClient`) over a mesh; returns these modules.

    Raises InputFault if there is no plan, it names no module, or the ranks do not divide the experts.
    """
    if not plan:
        raise InputFault(
            "the strategy's expert",
            f"is {mesh.size()}, but the client has no expert_plan, which says what modules hold its experts",
            "Give it one, for example ('layers.*.experts',), or fix expert to 1.",
        )
    divided: list[nn.Module] = []
    for name in plan:
        style, before = _DividedExperts(divided), len(divided)
        parallelize_module(model, mesh, {name: style})
        if len(divided) == before:
            raise InputFault(WHERE, f"has {quoted(name)}, which is no module", "Name modules of the model.")
    return divided


def holds_experts(parameter: Tensor) -> bool:
    """Whether the weight belongs to divided experts, of which this rank holds some."""
    return isinstance(parameter, DTensor) and EXPERT in (parameter.device_mesh.mesh_dim_names or ())


class _DividedExperts(ParallelStyle):  # type: ignore[misc]
    """Shards a module's weights along the experts, dimension 0, and exchanges its rows between all ranks."""

    def __init__(self, divided: list[nn.Module]) -> None:
        super().__init__()
        self.divided = divided

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        ranks = device_mesh.size()
        for name, parameter in list(module.named_parameters()):
            if parameter.dim() == 0 or parameter.shape[0] % ranks:
                raise InputFault(
                    WHERE,
                    f"names a module whose weight {name} has the shape {tuple(parameter.shape)}, "
                    f"which {ranks} ranks do not divide by experts",
                    f"Have all experts in one weight, in dimension 0, as many as a multiple of {ranks}.",
                )
            holder, _, leaf = name.rpartition(".")
            part = nn.Parameter(
                distribute_tensor(parameter.detach(), device_mesh, [Shard(0)]), parameter.requires_grad
            )
            module.get_submodule(holder).register_parameter(leaf, part)
        forward = module.forward

        def local_forward(rows: Tensor, counts: Tensor) -> Tensor:
            weights = {name: parameter.to_local() for name, parameter in module.named_parameters()}
            with _reparametrize_module(module, weights):
                result: Tensor = forward(rows, counts)
            return result

        def exchanged_forward(rows: Tensor, counts: Tensor) -> Tensor:
            group = device_mesh.get_group()
            leaving = counts.unflatten(0, (ranks, -1)).contiguous()
            arriving = torch.empty_like(leaving)
            dist.all_to_all_single(arriving, leaving, group=group)
            sent, received = leaving.sum(1).tolist(), arriving.sum(1).tolist()
            rows = all_to_all_single_autograd(rows.contiguous(), received, sent, group)
            # Rows arrive ordered by rank, then by expert.
            numbers = torch.arange(arriving.shape[1], device=rows.device).repeat(ranks)
            by_expert = numbers.repeat_interleave(arriving.flatten()).argsort(stable=True)
            results = local_forward(rows[by_expert], arriving.sum(0))[by_expert.argsort()]
            returned: Tensor = all_to_all_single_autograd(results, sent, received, group)
            return returned

        module.forward = exchanged_forward
        self.divided.append(module)
        return module

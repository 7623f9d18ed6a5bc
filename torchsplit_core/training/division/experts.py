"""Expert parallelism: ranks divide a layer's experts; its rows are sent to them and the results come back.

How many rows an expert has depends on data, and a trace has no such sizes. So in the trace of a pipeline an operator
stands for the modules that hold experts, and its stages have the modules themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.fx import GraphModule
from torch.nn.utils.stateless import _reparametrize_module

from torchsplit_core.graph.expert_modules import planned_names
from torchsplit_core.values import InputFault, quoted

EXPERT = "expert"
"""The mesh dimension whose ranks divide the experts among them."""
WHERE = "the client's expert_plan"


def planned_experts(model: nn.Module, plan: Sequence[str] | None, ranks: int) -> dict[str, nn.Module]:
    """The modules that the plan names (`values.TrainClient`), by their names in the model.

    Raises InputFault if there is no plan for `ranks` that would divide them, or it names no module.
    """
    if not plan and ranks > 1:
        raise InputFault(
            "the strategy's expert",
            f"is {ranks}, but the client has no expert_plan, which says what modules hold its experts",
            "Give it one, for example ('layers.*.experts',), or fix expert to 1.",
        )
    modules, planned = dict(model.named_modules()), dict[str, nn.Module]()
    for pattern in plan or ():
        names = planned_names(pattern, modules)
        if not names:
            raise InputFault(
                WHERE, f"has {quoted(pattern)}, which is no module", "Name modules of the model."
            )
        planned |= {name: modules[name] for name in names}
    return planned


@torch.library.custom_op("torchsplit::experts", mutates_args=())  # type: ignore[untyped-decorator]
def experts(rows: Tensor, counts: Tensor, weights: Sequence[Tensor], module: str) -> Tensor:
    """Stands in a trace for the module of that name; its result is one of the right sizes."""
    return rows.clone()


@experts.register_fake  # type: ignore[untyped-decorator]
def _(rows: Tensor, counts: Tensor, weights: Sequence[Tensor], module: str) -> Tensor:
    return torch.empty_like(rows)


def trace_as_operators(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Have an operator stand for these modules in a trace; returns the modules as they were, with the same weights."""
    plain = {}
    for name, module in modules.items():
        state = (*module.parameters(), *module.buffers())
        plain[name] = deepcopy(module, {id(tensor): tensor for tensor in state})
        plain[name].register_forward_hook(_check_rows)
        module.forward = _operator_forward(name, module)
    return plain


def _check_rows(module: nn.Module, given: tuple[Tensor, Tensor], result: Tensor) -> None:
    """Raises InputFault for a result of other sizes than its operator's in the trace."""
    rows, _ = given
    if result.shape != rows.shape:
        raise InputFault(
            WHERE,
            f"names a {type(module).__name__} that returns {tuple(result.shape)} for rows of {tuple(rows.shape)}",
            "Have it return rows of the same width, or fix pipeline to 1.",
        )


def _operator_forward(name: str, module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    def forward(rows: Tensor, counts: Tensor) -> Tensor:
        # Read here: a trace replaces the module's weights by others.
        result: Tensor = experts(rows, counts, (*module.parameters(), *module.buffers()), name)
        return result

    return forward


def restore_modules(program: GraphModule, modules: Mapping[str, nn.Module]) -> None:
    """Replace the operators of a traced part by the modules for which they stand."""
    graph = program.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.torchsplit.experts.default):
        rows, counts, _, name = node.args
        program.set_submodule(name, modules[name])
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.call_module(name, (rows, counts)))
        weights = node.all_input_nodes
        graph.erase_node(node)
        for weight in weights:
            if weight.op == "get_attr" and not weight.users:
                graph.erase_node(weight)
    program.recompile()


def holds_experts(parameter: Tensor) -> bool:
    """Whether the weight belongs to divided experts, of which this rank holds some."""
    return isinstance(parameter, DTensor) and EXPERT in (parameter.device_mesh.mesh_dim_names or ())


def divide_experts(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a module's weights along the experts, dimension 0, and exchange its rows between the ranks of the mesh.

    Raises InputFault if the ranks do not divide the experts.
    """
    ranks = mesh.size()
    for name, parameter in list(module.named_parameters()):
        if parameter.dim() == 0 or parameter.shape[0] % ranks:
            raise InputFault(
                WHERE,
                f"names a module whose weight {name} has the shape {tuple(parameter.shape)}, "
                f"which {ranks} ranks do not divide by experts",
                f"Have all experts in one weight, in dimension 0, as many as a multiple of {ranks}.",
            )
        holder, _, leaf = name.rpartition(".")
        part = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]), parameter.requires_grad)
        module.get_submodule(holder).register_parameter(leaf, part)
    forward = module.forward

    def local_forward(rows: Tensor, counts: Tensor) -> Tensor:
        weights = {name: parameter.to_local() for name, parameter in module.named_parameters()}
        with _reparametrize_module(module, weights):
            result: Tensor = forward(rows, counts)
        return result

    def exchanged_forward(rows: Tensor, counts: Tensor) -> Tensor:
        group = mesh.get_group()
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

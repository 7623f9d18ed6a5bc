"""The sections of a file that divide the work: processes, recomputation, sharding, precision, the optimizer."""

from __future__ import annotations

START = '''
NAMES = ("pipeline", "data", "tensor")

def start() -> tuple[torch.device, DeviceMesh]:
    """This process's device, and all of them as pipeline × data × tensor. One process alone divides nothing."""
    here = int(os.environ.get("LOCAL_RANK", 0))
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, here) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if kind == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    world = dist.get_world_size()
    stages, tensor = (PIPELINE, TENSOR) if world > 1 else (1, 1)
    data = world // (stages * tensor)
    if data * stages * tensor != world or GLOBAL_BATCH % data:
        least = stages * tensor
        sys.exit(f"{world} processes: needed is a multiple of {least} that divides {GLOBAL_BATCH} sequences")
    return device, init_device_mesh(kind, (stages, data, tensor), mesh_dim_names=NAMES)
'''

DATA_CHECK = """    data = world // (stages * tensor)
    if data * stages * tensor != world or GLOBAL_BATCH % data:
        least = stages * tensor
"""
CONTEXT_CHECK = """    data, context = world // (stages * tensor), CONTEXT if world > 1 else 1
    if data * stages * tensor != world or data % context or GLOBAL_BATCH % (data // context):
        least = stages * tensor * context
"""
RETURN = """    return device, init"""
CONTEXT_MESH = """    # The processes of a context are neighbours in data: of weights and gradients each has a copy.
    sizes, names = (stages, data // context, context, tensor), ("pipeline", "data", "context", "tensor")
    Attention.over = init_device_mesh(kind, sizes, mesh_dim_names=names)["context"]
"""
EXPERT_MESH = """    expert = EXPERT if world > 1 else 1
    if data % expert:
        sys.exit(f"{data} copies of the model: needed is a multiple of the {expert} that have its experts")
    sizes, names = (stages, data // expert, expert, tensor), ("pipeline", "copy", "expert", "tensor")
    Experts.over = init_device_mesh(kind, sizes, mesh_dim_names=names)["copy", "expert"]
"""


def start_text(*, context: bool, experts: bool) -> str:
    """How processes form groups. `context`: some share sequences; `experts`: the model is a mixture of experts."""
    text = START
    if context:
        text = text.replace(DATA_CHECK, CONTEXT_CHECK).replace(RETURN, CONTEXT_MESH + RETURN)
    return text.replace(RETURN, EXPERT_MESH + RETURN) if experts else text


RECOMPUTE_FULL = '''

def run_again(block: nn.Module) -> nn.Module:
    """Keeps the block's input alone and runs it again in the backward pass."""
    return checkpoint_wrapper(block)
'''
RECOMPUTE_SELECTIVE = '''
PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution.default,
)
ATTENTION = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)


def run_again(block: nn.Module) -> nn.Module:
    """Keeps {kept} and runs the rest again in the backward pass."""

    def contexts() -> Any:
        seen = [0, 0]  # products of the forward pass and of the one that runs again

        def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            keep = operation in ATTENTION
            if operation in PRODUCTS:
                seen[context.is_recompute] += 1
                keep = {every}
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return checkpoint_wrapper(block, context_fn=contexts)
'''

PROFILED = """
# Of experts, which are gathered inside a layer, fully_shard marks more for the profiler when the layer runs again.
torch.utils.checkpoint.SAC_IGNORED_OPS.update(
    {
        torch.ops.profiler._record_function_enter_new.default,
        torch.ops.profiler._record_function_exit._RecordFunction,
    }
)
"""
SHARD = '''

def shard(blocks: list[nn.Module], model: nn.Module, mesh: DeviceMesh) -> None:
    """{words}"""
{replicas}    policy = {policy}
{experts}    for module in [*blocks, model]:
        fully_shard(module, mesh=over, mp_policy=policy, reshard_after_forward={reshard}{offload})
'''
REPLICAS = """    data, node = mesh["data"].size(), int(os.environ.get("LOCAL_WORLD_SIZE", 1)) // mesh["tensor"].size()
    inside = max(1, min(data, node))
    over = mesh["data"]
    if inside < data and data % inside == 0:
        over = over._unflatten(0, (data // inside, inside), ("replicate", "shard"))
"""
SHARD_EXPERTS = """    for experts in [module for module in model.modules() if isinstance(module, Experts)]:
        fully_shard(
            experts, mesh=Experts.over["copy"], mp_policy=policy, reshard_after_forward={reshard}{offload}
        )
        # Its gradient has summed those of its tokens already.
        experts.set_gradient_divide_factor(float(mesh["data"].size()))
        experts.set_force_sum_reduction_for_comms(Experts.over["copy"].size() > 1)
"""
ONE_GROUP = """    over = mesh["data"]
"""
AVERAGE = '''

def average_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """The mean over the copies of the model."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            dist.all_reduce(gradient, group=mesh["data"].get_group())
            gradient /= mesh["data"].size()
'''
ZERO_OF_TENSORS = '''

class TensorZeroOptimizer(ZeroRedundancyOptimizer):
    """Broadcasts this device's part of each weight that tensor parallelism has cut: torch's takes whole ones."""

    def _broadcast_params_from_rank(self, rank: int) -> list[dist.Work]:
        source, works = dist.get_global_rank(self.process_group, rank), []
        for weights in self._partition_parameters()[rank]:
            for weight in weights["params"]:
                part = weight.data.to_local() if isinstance(weight, DTensor) else weight.data
                works.append(dist.broadcast(part, source, self.process_group, async_op=True))
        return works
'''
EXPERT_WEIGHTS = '''

def expert_weights(models: list[nn.Module]) -> list[nn.Parameter]:
    """The weights of this process's experts."""
    modules = [module for model in models for module in model.modules() if isinstance(module, Experts)]
    return [weight for module in modules for weight in module.parameters()]
'''
AVERAGE_EXPERTS = '''

def average_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """The mean over the copies of the model; an expert's gradient has summed those of its tokens already."""
    divided = {id(weight) for weight in expert_weights([model])}
    for parameter in model.parameters():
        if parameter.grad is not None:
            over = Experts.over["copy"] if id(parameter) in divided else mesh["data"]
            dist.all_reduce(parameter.grad, group=over.get_group())
            parameter.grad /= mesh["data"].size()
'''
ZERO_OF_EXPERTS = '''

class ExpertZeroOptimizer:
    """Divides the states of each weight over the processes that have it: of an expert over its copies."""

    def __init__(self, models: list[nn.Module], kind: type, mesh: DeviceMesh, **settings: float) -> None:
        experts = expert_weights(models)
        divided = {id(weight) for weight in experts}
        others = [weight for model in models for weight in model.parameters() if id(weight) not in divided]
        self.parts = [
            ZeroRedundancyOptimizer(weights, kind, process_group=over.get_group(), **settings)
            for weights, over in ((others, mesh["data"]), (experts, Experts.over["copy"]))
        ]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)
'''
PLAIN_MAIN = """

def main(steps: int) -> None:
    device, mesh = start()
    data, place = mesh["data"].size(), mesh["data"].get_local_rank()
{groups}    own = GLOBAL_BATCH // data
    micro = MICRO_BATCH if own % MICRO_BATCH == 0 else own
{build}
{optimizer}
    for step in range(steps):
        total = torch.zeros((), device=device)
        for first in range(place * own, (place + 1) * own, micro):
            {unpack} = batch(first, first + micro, device)
{parts}            last = first + micro == (place + 1) * own
            with {contexts}:
                loss = loss_of({call}) * (micro / own)
                loss.backward()
            total += loss.detach()
{finish}        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(total, group=mesh["data"].get_group())
        if dist.get_rank() == 0:
            print(f"step {{step}} loss {{total.item() / {copies}:.6f}}", flush=True)
"""
PIPELINE_MAIN = """

def main(steps: int) -> None:
    device, mesh = start()
    data, place = mesh["data"].size(), mesh["data"].get_local_rank()
    stages, stage = mesh["pipeline"].size(), mesh["pipeline"].get_local_rank()
{groups}    own = GLOBAL_BATCH // data
    micro = MICRO_BATCH if own % MICRO_BATCH == 0 else own
    count = own // micro
{build}
{optimizer}
    for step in range(steps):
        {unpack} = batch(place * own, (place + 1) * own, device)
{parts}{leaves}        losses: list[Tensor] = []
        with {contexts}:
            given = ({given}) if stage == 0 else ()
            if stage == stages - 1:
                schedule.step(*given, target={target}, losses=losses{named})
            else:
                schedule.step(*given{named})
{finish}        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=device)
        # The last stages have the loss: summed over all, each counts once for every device of its tensor group.
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {{step}} loss {{total.item() / {copies} / mesh['tensor'].size():.6f}}", flush=True)
"""
CONTEXT_GROUPS = """    context = Attention.over.size()
    data, place = data // context, place // context
"""
PARTS = "tokens, target = part(tokens), part(target)\n"
END = """

if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=10)
    main(options.parse_args().steps)
    # After the model: freeing a gloo group that only DDP still holds can wait forever for the group's own thread.
    dist.destroy_process_group()
"""

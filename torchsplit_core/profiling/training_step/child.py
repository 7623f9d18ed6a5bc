"""The child's side: a training step of the model, run for real or on fake tensors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from torchsplit_core.model_source import (
    example_arguments,
    foreign_code,
    load_client,
    load_trainable,
    open_model,
)
from torchsplit_core.profiling.measuring.peak_memory import peak_of_run
from torchsplit_core.values import Progress

MOMENTUM = 0.9
TIMED_SAMPLES = 16


def measure(arguments: dict[str, Any], progress: Progress) -> dict[str, float]:
    """Seconds and peak of a step on this processor. Executes foreign code: only in a confined child."""
    progress(0.05, "building the model")
    client = load_client(arguments["source"], arguments["trust"])
    model = open_model(client)
    args, kwargs = example_arguments(client, arguments["batch"])
    optimizer = _optimizer(model, arguments["optimizer"])
    step = _step(model, optimizer, args, kwargs)
    step_times = []
    with foreign_code("model"):
        step()  # allocates the optimizer's states
        for index in range(arguments["steps"]):
            progress(0.1 + 0.7 * index / arguments["steps"], f"step {index + 1} of {arguments['steps']}")
            started = time.perf_counter()
            step()
            step_times.append(time.perf_counter() - started)
        progress(0.8, "recording the memory of a step")
        peak = peak_of_run(step)
    return {
        "seconds": statistics.median(step_times),
        "peak_bytes": peak + _resident_bytes(model, optimizer, args, kwargs),
    }


def time_samples(arguments: dict[str, Any], progress: Progress) -> dict[str, float]:
    """Seconds in which a sample of the data is fetched and put into a batch: the median. Executes foreign code."""
    client: Any = load_trainable(arguments["source"], arguments["trust"])
    if not hasattr(client, "get_dataset"):
        return {"seconds": 0.0}
    with foreign_code("get_dataset()"):
        data = client.get_dataset()
        times = []
        for index in range(TIMED_SAMPLES):
            started = time.perf_counter()
            default_collate([data[index % len(data)]])
            times.append(time.perf_counter() - started)
    return {"seconds": statistics.median(times)}


def track(arguments: dict[str, Any], progress: Progress) -> dict[str, int]:
    """The peak of a step by MemTracker, or FSDPMemTracker with the fake backend, in a confined child."""
    client = load_client(arguments["source"], arguments["trust"])
    progress(0.2, "building the model without allocating it")
    shards = arguments["shards"]
    # The mesh is made outside of the fake mode, because it makes tensors itself.
    mesh = _fake_mesh(shards) if shards > 1 else None
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = open_model(client)
        args, kwargs = example_arguments(client, arguments["batch"])
        _parallelize(model, mesh, arguments)
        optimizer = _optimizer(model, arguments["optimizer"])
        progress(0.6, "following a step")
        with foreign_code("model"):
            return {"peak_bytes": _tracked_peak(model, optimizer, args, kwargs, sharded=mesh is not None)}


def _optimizer(model: nn.Module, name: str) -> torch.optim.Optimizer:
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    if name == "adamw":
        return torch.optim.AdamW(trainable, lr=1e-5)
    return torch.optim.SGD(trainable, lr=1e-5, momentum=MOMENTUM)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Callable[[], None]:
    def step() -> None:
        loss_of(model(*args, **kwargs)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def loss_of(outputs: Any) -> Tensor:
    """The mean square of every floating-point output, summed: a loss that reaches all of the model."""
    leaves = [
        leaf
        for leaf in pytree.tree_leaves(outputs)
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.requires_grad
    ]
    total: Tensor = sum((leaf.float().square().mean() for leaf in leaves), torch.zeros(()))
    return total


def _resident_bytes(model: nn.Module, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> int:
    """Bytes before a step: weights, buffers, the optimizer's states, the inputs."""
    states = [dict(state) for state in optimizer.state.values()]
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs, states)) if isinstance(leaf, Tensor)]
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers(), *leaves])


def _fake_mesh(size: int) -> Any:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    return dist.device_mesh.init_device_mesh("cpu", (size,))


def _parallelize(model: nn.Module, mesh: Any, arguments: dict[str, Any]) -> None:
    """Checkpoints around the blocks, then the states sharded over the mesh, block by block."""
    from torch.distributed._composable import checkpoint
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    blocks = [model.get_submodule(name) for name in arguments["blocks"]]
    if arguments["recompute"]:
        for block in blocks:
            checkpoint(block)
    if mesh is None:
        return
    policy = MixedPrecisionPolicy()
    if arguments["half"]:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in [*blocks, model]:
        fully_shard(module, mesh=mesh, reshard_after_forward=arguments["reshard"], mp_policy=policy)


def _tracked_peak(
    model: nn.Module, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any, *, sharded: bool
) -> int:
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = FSDPMemTracker(model, optimizer) if sharded else MemTracker()
    if sharded:
        tracker.track_inputs((args, kwargs))
    else:
        tracker.track_external(model, optimizer, *(pytree.tree_leaves((args, kwargs))))
    step = _step(model, optimizer, args, kwargs)
    with tracker:
        step()
        # The first step has no moments yet; the second has the peak of every later one.
        tracker.reset_mod_stats()
        step()
    peaks = tracker.get_tracker_snapshot("peak")
    return max(int(parts["Total"]) for parts in peaks.values())

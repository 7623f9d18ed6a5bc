"""The measured peak memory of one run of a model, in parts, from torch's allocator, block by block.

One run under torch's profiler, which records every block that the allocator of the model's device gives and takes back.
So the peak is exact in requested bytes, and each block alive at the peak is attributed to the operation that requested
it:

- weights: the distinct storages of parameters and buffers;
- activations: the inputs, and blocks that outlive the operation that requested them;
- transient: blocks alive at the peak that are freed within the operation that requested them.

Not seen: memory outside torch's allocator (packed matrices of MKL, generated kernels, thread stacks, Python itself),
blocks requested by the model's own threads, rounding and caching of the allocator, and on a GPU the context. On a GPU
the total is torch.cuda.max_memory_allocated; untested on hardware.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes at the peak; the three parts add up to `peak_bytes`."""

    peak_bytes: int
    weight_bytes: int
    activation_bytes: int
    transient_bytes: int


@dataclass(slots=True)
class _Block:
    """An allocated block: `size` bytes, and the outermost operation that was running."""

    size: int
    operation: Any
    freed_ns: float = field(default=float("inf"))

    @property
    def is_transient(self) -> bool:
        return self.operation is not None and self.freed_ns <= self.operation.end_time_ns


def measure_peak(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PeakMemory:
    """The peak of one run of `model(*args, **kwargs)` in inference mode; costs that run and its record.

    The device is that of the weights and inputs: a GPU if one of them is on one, else the CPU. Raises what the model
    raises.
    """
    inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    weights = _storages([*model.parameters(), *model.buffers()])
    input_storages = {key: size for key, size in _storages(inputs).items() if key not in weights}
    weight_bytes, input_bytes = sum(weights.values()), sum(input_storages.values())
    on_cuda = any(kind == "cuda" for kind, _ in [*weights, *input_storages])
    before = _reset_cuda_peak() if on_cuda else 0
    peak, alive = _peak_and_blocks(_profile_model(model, args, kwargs), "cuda" if on_cuda else "cpu")
    if on_cuda:
        peak = torch.cuda.max_memory_allocated() - before
    transient = sum(block.size for block in alive if block.is_transient)
    return PeakMemory(
        peak_bytes=weight_bytes + input_bytes + peak,
        weight_bytes=weight_bytes,
        activation_bytes=input_bytes + peak - transient,
        transient_bytes=transient,
    )


def _storages(tensors: Sequence[torch.Tensor]) -> dict[tuple[str, int], int]:
    """Device and address → bytes, each storage once; tensors without storage (sparse, meta) have no bytes."""
    return {
        (tensor.device.type, tensor.untyped_storage().data_ptr()): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if tensor.layout is torch.strided and tensor.device.type != "meta"
    }


def _reset_cuda_peak() -> int:
    """Bytes allocated on the GPU before the run, to which the peak counter is reset."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())


def peak_of_run(run: Callable[[], object]) -> int:
    """The most bytes alive on the processor among those allocated while `run` ran."""
    return _peak_and_blocks(_profile_run(run), "cpu")[0]


def _profile_model(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The profiler's tree of events of one run in inference mode."""
    with torch.inference_mode():
        return _profile_run(lambda: model(*args, **kwargs))


def _profile_run(run: Callable[[], object]) -> list[Any]:
    """The profiler's tree of events while `run` ran."""
    # Kineto writes two lines a session to standard error, where callers look for the model's own output.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(use_kineto=True, profile_memory=True) as profiler:
        outcome = run()  # alive until the record ends, as at its caller's
    del outcome
    return list(profiler.kineto_results.experimental_event_tree())


def _peak_and_blocks(roots: list[Any], device: str) -> tuple[int, list[_Block]]:
    """The most bytes alive among those allocated in the run, and the blocks alive then."""
    events = [event for event in _allocations(roots) if event[0].typed[1].device.type == device]
    events.sort(key=lambda event: event[0].start_time_ns)
    alive: dict[int, _Block] = {}
    total = peak = 0
    at_peak: list[_Block] = []
    for event, operation in events:
        size, address = event.typed[1].alloc_size, event.typed[1].ptr
        if size > 0:
            alive[address] = _Block(size, operation)
            total += size
            if total > peak:
                peak, at_peak = total, list(alive.values())
        elif address in alive:  # else it was allocated before the run
            block = alive.pop(address)
            block.freed_ns = event.start_time_ns
            total -= block.size
    return peak, at_peak


def _allocations(roots: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Every event of the allocator with the outermost operation around it (None between operations)."""
    stack = [(root, None) for root in roots]
    while stack:
        event, operation = stack.pop()
        kind = event.typed[0]
        if kind == _EventType.Allocation:
            yield event, operation
        # "aten::linear" is an operation; a name without a library is a user-defined range.
        if operation is None and kind == _EventType.TorchOp and "::" in event.name:
            operation = event
        stack += [(child, operation) for child in event.children]

"""What a model must offer so that TorchSplit can trace and profile it, and what so that it can train it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

CLIENT_TEMPLATE = """import torch


class Client:
    batch_sizes = (1, 2, 4, 8)

    def get_model(self):
        return torch.nn.Linear(128, 10).eval()  # your model

    def get_example_inputs(self, batch_size):
        return (torch.randn(batch_size, 128),)  # what its forward takes, the batch first
"""
"""A SplitClient to copy and change: a file of one's own begins with it."""


@runtime_checkable
class SplitClient(Protocol):
    """A model with example inputs for a batch size.

    `get_model` returns an `nn.Module` in eval mode with deterministic weights.
    `get_example_inputs(batch_size)` returns the positional arguments as a tuple, or
    `(args, kwargs)` with a tuple and a dict; every tensor has the batch in dimension 0.

    A client may also offer `sequence_lengths`, a tuple of whole numbers from 1. Then
    `get_example_inputs(batch_size, sequence_length=N)` returns inputs of N tokens for each N among them.
    """

    batch_sizes: Sequence[int]

    def get_model(self) -> Any: ...

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]: ...


@runtime_checkable
class TrainClient(Protocol):
    """A model with samples, a loss and an optimizer.

    `get_model` returns an `nn.Module` with deterministic weights; a run puts it in training mode.
    `get_dataset` returns a dataset of known length whose `[i]` is `(inputs, target)`: a tuple of the model's
    positional arguments without the batch, and what the loss compares with. Equal i give equal samples. Instead,
    `get_loader(rank, ranks, batch)` may return a DataLoader of an IterableDataset, which gives this one of the data
    ranks its own part in batches of that size; with torchdata's StatefulDataLoader a run goes on where it was.
    `get_loss(outputs, targets)` returns a scalar tensor, the mean over the samples of a batch.
    `get_optimizer(parameters, kind)` returns a `torch.optim.Optimizer` over them; kind is `adamw` or `sgd`, as the
    strategy has it. With `get_scheduler(optimizer, steps)` it also has a schedule of the learning rate, stepped once a
    step.

    A client may also offer `tensor_plan`, which module of the model is cut how in tensor parallelism: names with `*`
    to `colwise` or `rowwise`, and for sequence parallelism to `sequence` (works on a part of the sequence, which is
    dimension 1), `scatter` (its output is divided along it) or `gather` (its first argument is whole). And
    `unused_weights = True` where a step may leave out some of the weights. With `get_validation_dataset()`, samples of
    the same form that no step trains on, and `get_metrics(outputs, targets)`, figures by name as means over a batch
    (`{"accuracy": 0.97}`), the end of a run is measured on them.

    For context parallelism it offers `context_plan`: `inputs` and `targets`, of each tensor of a batch the dimension of
    its sequence or None; `positions`, the argument of `forward` that takes the positions of the tokens (int64, 1-D), or
    None; `causal`, whether all its attention is (default False). Its model then attends by
    `F.scaled_dot_product_attention` alone, and its loss is a mean over all positions.

    For expert parallelism it offers `expert_plan`, names of modules (with `*`) whose weights have the experts in
    dimension 0, and whose `forward(rows, counts)` takes rows ordered by expert and the number for each expert (int64),
    and returns as many rows.
    """

    def get_model(self) -> Any: ...

    def get_dataset(self) -> Any: ...

    def get_loss(self, outputs: Any, targets: Any) -> Any: ...

    def get_optimizer(self, parameters: Any, kind: str) -> Any: ...

"""Runs a whole model or one stage of a cut model in a worker. Needs torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchsplit_core.model_source import example_arguments, foreign_code, load_client, open_model
from torchsplit_core.serving.settings import WARM_UP_RUNS
from torchsplit_core.stages.export_folder import open_manifest
from torchsplit_core.stages.signature import bind_arguments
from torchsplit_core.stages.staged_model import LoadedStage
from torchsplit_core.stages.tensor_transport import DTYPES
from torchsplit_core.values import InputFault, SplitClient, StageManifest
from torchsplit_core.values.serving.datatypes import OF_TORCH

EXAMPLE = "get_example_inputs(2)"
BATCH_FIRST = "Return it with the batch in front, so that each request gets its rows."


@dataclass(frozen=True, slots=True)
class TorchPort:
    """An input or output; `shape` is without the batch."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    def metadata(self) -> dict[str, Any]:
        """The protocol's metadata; the first dimension, the batch, is -1."""
        return {"name": self.name, "datatype": _datatype(self), "shape": [-1, *self.shape]}


class ExampleInput:
    """A model's example arguments, and which of their leaves a client sends."""

    def __init__(self, client: SplitClient) -> None:
        self.client = client
        args, kwargs = example_arguments(client, 2)
        leaves, self.structure = pytree.tree_flatten((args, kwargs))
        self.leaves = leaves
        self.tensor_indices = [
            index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dim()
        ]
        for index in self.tensor_indices:
            if leaves[index].shape[0] != 2:
                raise InputFault(
                    EXAMPLE,
                    f"returns a tensor of the shape {tuple(leaves[index].shape)} without the batch in front",
                    "Put the batch first, so that requests can share one.",
                )
        if not self.tensor_indices:
            raise InputFault(EXAMPLE, "returns no tensor", "Return one with the batch in front.")

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The model's arguments with the tensors that a client sent."""
        leaves = list(self.leaves)
        for index, tensor in zip(self.tensor_indices, tensors, strict=True):
            leaves[index] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return args, kwargs

    def at(self, batch: int) -> list[torch.Tensor]:
        """The tensors of the example at a batch size."""
        leaves = pytree.tree_leaves(example_arguments(self.client, batch))
        return [leaves[index] for index in self.tensor_indices]

    def ports(self, model: Any) -> tuple[TorchPort, ...]:
        """The inputs, named by the parameters of `forward`; several tensors in one parameter are numbered."""
        args, kwargs = pytree.tree_unflatten(self.leaves, self.structure)
        names: list[str] = []
        with suppress(TypeError, ValueError):
            names = list(inspect.signature(model.forward).parameters)
        names = [name for name in names if name not in kwargs]
        positional = {number: name for number, name in enumerate(names) if name not in ("args", "kwargs")}
        labelled = [(positional.get(number, f"input_{number}"), value) for number, value in enumerate(args)]
        leaf_names: list[str] = []
        for name, value in (*labelled, *kwargs.items()):
            count = len(pytree.tree_leaves(value))
            leaf_names += [name] if count == 1 else [f"{name}_{number}" for number in range(count)]
        return tuple(
            TorchPort(leaf_names[i], self.leaves[i].dtype, tuple(self.leaves[i].shape[1:]))
            for i in self.tensor_indices
        )


class ModelRunner:
    """A whole model on a torch device."""

    def __init__(self, source: str, trust: bool, device: str) -> None:
        self.device = torch.device(device)
        client = load_client(source, trust)
        model = open_model(client)
        with foreign_code("moving the model to the device"):
            self.model = model.to(self.device)
        self.example = ExampleInput(client)
        self.inputs = self.example.ports(self.model)
        self.outputs: tuple[TorchPort, ...] = ()

    def warm_up(self, batch: int) -> None:
        """Run the model at the largest batch and at 1; records its outputs. Raises InputFault if they lack a batch."""
        outputs = self(self.example.at(2))
        self.outputs = output_ports([(f"output_{i}", tensor) for i, tensor in enumerate(outputs)])
        for size in (*[batch] * WARM_UP_RUNS, 1):
            self(self.example.at(size))

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the model; the tensors among the leaves of its result."""
        args, kwargs = self.example.arguments([tensor.to(self.device) for tensor in tensors])
        with foreign_code("forward"), torch.inference_mode():
            result = self.model(*args, **kwargs)
        return [leaf.cpu() for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


class StageRunner:
    """One stage of a cut model, from the folder of its parts."""

    def __init__(self, directory: str, position: int, source: str, trust: bool, device: str) -> None:
        self.manifest: StageManifest = open_manifest(directory, trust=True)
        self.stage = LoadedStage(Path(directory), self.manifest.stages[position], device)
        self.first = position == 0
        self.last = position == len(self.manifest.stages) - 1
        self.live_names = live_values(self.manifest, position)
        self.example = ExampleInput(load_client(source, trust)) if self.first else None
        self.inputs: tuple[TorchPort, ...] = ()
        if self.example is not None:
            slots = [self.manifest.inputs[index] for index in self.example.tensor_indices]
            self.inputs = tuple(
                TorchPort(slot.name or "", leaf.dtype, tuple(leaf.shape[1:]))
                for slot, leaf in zip(
                    slots, (self.example.leaves[i] for i in self.example.tensor_indices), strict=True
                )
            )
        self.outputs = _manifest_outputs(self.manifest) if self.last else ()

    def bound(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The model's inputs by name; for the first stage only."""
        assert self.example is not None
        args, kwargs = self.example.arguments(tensors)
        return bind_arguments(self.manifest, args, kwargs)

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run the stage; all values known afterwards."""
        with foreign_code(f"stage {self.stage.part.name}"):
            return {**values, **self.stage(values)}

    def live(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values that are still needed after this stage."""
        return {name: values[name] for name in self.live_names}

    def results(self, values: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors among the leaves of the model's result; for the last stage only."""
        leaves = [slot.constant if slot.name is None else values[slot.name] for slot in self.manifest.outputs]
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def live_values(manifest: StageManifest, position: int) -> list[str]:
    """Values that exist after the stage at `position` and that a later stage or the result needs."""
    later = manifest.stages[position + 1 :]
    needed = {slot.name for slot in manifest.outputs if slot.name is not None}
    needed |= {value.name for stage in later for value in stage.inputs}
    return sorted(needed - {value.name for stage in later for value in stage.outputs})


def _manifest_outputs(manifest: StageManifest) -> tuple[TorchPort, ...]:
    """The output ports of a cut model. Raises InputFault unless exactly the first dimension is free."""
    described = {value.name: value for part in manifest.stages for value in (*part.inputs, *part.outputs)}
    values = [described[slot.name] for slot in manifest.outputs if slot.name in described]
    tensors = [value for value in values if value.shape is not None and value.dtype is not None]
    ports = []
    for number, value in enumerate(tensors):
        assert value.shape is not None and value.dtype is not None
        inner = [size for size in value.shape[1:] if isinstance(size, int)]
        if not value.shape or isinstance(value.shape[0], int) or len(inner) != len(value.shape) - 1:
            raise InputFault(
                f"output_{number}",
                f"has the shape {value.shape}, in which not the first dimension alone is free",
                BATCH_FIRST,
            )
        ports.append(TorchPort(f"output_{number}", DTYPES[value.dtype], tuple(inner)))
    return tuple(ports)


def output_ports(outputs: Sequence[tuple[str, torch.Tensor]]) -> tuple[TorchPort, ...]:
    """The output ports, from a batch of 2. Raises InputFault if an output lacks the batch in front."""
    for name, tensor in outputs:
        if not tensor.dim() or tensor.shape[0] != 2:
            problem = f"has the shape {tuple(tensor.shape)} for a batch of 2, without the batch in front"
            raise InputFault(name, problem, BATCH_FIRST)
    if not outputs:
        raise InputFault("forward", "returns no tensor", "Return one with the batch in front.")
    return tuple(TorchPort(name, tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in outputs)


def _datatype(port: TorchPort) -> str:
    name = str(port.dtype).removeprefix("torch.")
    if name not in OF_TORCH:
        known = ", ".join(OF_TORCH)
        problem = f"has the dtype {name}, which the protocol does not have"
        raise InputFault(port.name, problem, f"Convert it in forward to one of {known}.")
    return OF_TORCH[name]

"""Which servers answer for a model whose slices are servers of their own, part after part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torchsplit_core.values.fields import Length, Name, NodeId, NonEmpty, Positive, Range
from torchsplit_core.values.serving.datatypes import Datatype

ServerUrl = Annotated[str, Length(pattern=r"^http://[A-Za-z0-9._\[\]:-]+$", max_length=300)]
"""http://HOST:PORT, without a path."""


@dataclass(frozen=True, slots=True)
class RoutedTensor:
    """A tensor on the wire: its name, the datatype as Open Inference Protocol v2 has it, −1 for a free size."""

    name: NodeId
    datatype: Datatype
    shape: tuple[Annotated[int, Range(ge=-1)], ...]


@dataclass(frozen=True, slots=True)
class RoutedOutput(RoutedTensor):
    """A tensor that clients get back, and which value of the parts it is."""

    value: NodeId


@dataclass(frozen=True, slots=True)
class RouteServer:
    """A server and the requests/s that the plan gives it, after which requests are shared out."""

    url: ServerUrl
    weight: Positive = 1.0


@dataclass(frozen=True, slots=True)
class RouteStep:
    """A part: the name its servers have for it, the values that it takes and gives in the order of its tensors."""

    model: Name
    inputs: tuple[NodeId, ...]
    outputs: tuple[NodeId, ...]
    servers: NonEmpty[tuple[RouteServer, ...]]


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """A model for its clients, and the parts in a row that answer for it."""

    name: Name
    inputs: tuple[RoutedTensor, ...]
    outputs: tuple[RoutedOutput, ...]
    steps: NonEmpty[tuple[RouteStep, ...]]

    def __post_init__(self) -> None:
        known = {tensor.name for tensor in self.inputs}
        for step in self.steps:
            for name in step.inputs:
                if name not in known:
                    raise ValueError(f"{step.model} reads {name}, which no part before it gives")
            known.update(step.outputs)
        for tensor in self.outputs:
            if tensor.value not in known:
                raise ValueError(f"no part gives {tensor.value}")


@dataclass(frozen=True, slots=True)
class Routes:
    """All models of one address."""

    models: NonEmpty[tuple[RoutedModel, ...]]

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise ValueError("model names are unique")

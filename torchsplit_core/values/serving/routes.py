"""Which servers answer for a model whose slices are servers of their own, part after part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoutedTensor:
    """A tensor on the wire: its name, the datatype as Open Inference Protocol v2 has it, −1 for a free size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RoutedOutput(RoutedTensor):
    """A tensor that clients get back, and which value of the parts it is."""

    value: str


@dataclass(frozen=True, slots=True)
class RouteServer:
    """A server and the requests/s that the plan gives it, after which requests are shared out."""

    url: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class RouteStep:
    """A part: the name its servers have for it, the values that it takes and gives in the order of its tensors."""

    model: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    servers: tuple[RouteServer, ...]


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """A model for its clients, and the parts in a row that answer for it."""

    name: str
    inputs: tuple[RoutedTensor, ...]
    outputs: tuple[RoutedOutput, ...]
    steps: tuple[RouteStep, ...]


@dataclass(frozen=True, slots=True)
class Routes:
    """All models of one address."""

    models: tuple[RoutedModel, ...]

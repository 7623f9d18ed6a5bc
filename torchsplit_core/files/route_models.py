"""Routes as a strict file model."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from torchsplit_core.files.fields import Name, NodeId, Positive, Rows, Strict

ServerUrl = Annotated[str, Field(pattern=r"^http://[A-Za-z0-9._\[\]:-]+$", max_length=300)]
"""http://HOST:PORT, without a path."""
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BF16",
]  # fmt: skip


class RoutedTensorFile(Strict):
    name: NodeId
    datatype: Datatype
    shape: Rows[Annotated[int, Field(ge=-1)]]


class RoutedOutputFile(RoutedTensorFile):
    value: NodeId


class RouteServerFile(Strict):
    url: ServerUrl
    weight: Positive = 1.0


class RouteStepFile(Strict):
    model: Name
    inputs: Rows[NodeId]
    outputs: Rows[NodeId]
    servers: Annotated[Rows[RouteServerFile], Field(min_length=1)]


class RoutedModelFile(Strict):
    name: Name
    inputs: Rows[RoutedTensorFile]
    outputs: Rows[RoutedOutputFile]
    steps: Annotated[Rows[RouteStepFile], Field(min_length=1)]

    @model_validator(mode="after")
    def _fed(self) -> Self:
        known = {tensor.name for tensor in self.inputs}
        for step in self.steps:
            for name in step.inputs:
                if name not in known:
                    raise ValueError(f"{step.model} reads {name}, which no part before it gives")
            known.update(step.outputs)
        for tensor in self.outputs:
            if tensor.value not in known:
                raise ValueError(f"no part gives {tensor.value}")
        return self


class RoutesFile(Strict):
    format: Literal["torchsplit.routes"]
    version: Literal[1]
    models: Annotated[Rows[RoutedModelFile], Field(min_length=1)]

    @model_validator(mode="after")
    def _apart(self) -> Self:
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise ValueError("model names are unique")
        return self

"""The parts of a model on disk: what each reads and gives, and which feeds which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torchsplit_core.values.fields import (
    Added,
    Count,
    FileField,
    Length,
    Name,
    NodeId,
    NonEmpty,
    Sha256,
    Whole,
)

ValueKind = Literal["tensor", "int", "float", "bool"]
PartFileName = Annotated[str, Length(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*\.pt2$", max_length=200)]
"""A file beside the manifest: never a path."""


@dataclass(frozen=True, slots=True)
class StageValue:
    """A value that enters or leaves a stage, under the name it has in the traced graph.

    `shape` has integers, or expressions of symbols where the size is free, and is None for a number, as is
    `dtype`. `bytes` is its size at the traced batch.
    """

    name: NodeId
    kind: ValueKind
    dtype: str | None = None
    shape: tuple[int | str, ...] | None = None
    bytes: Whole = 0


@dataclass(frozen=True, slots=True)
class StagePart:
    """One stage: its file beside the manifest, and the values it takes and gives, in the order of its arguments."""

    name: Name
    file: PartFileName
    sha256: Sha256
    file_bytes: Whole
    operations: Whole
    weight_bytes: Whole
    inputs: tuple[StageValue, ...]
    outputs: tuple[StageValue, ...]


@dataclass(frozen=True, slots=True)
class StageLink:
    """`target` reads `values` of `source`; as source None is who calls the model, as target who takes its result."""

    source: Name | None
    target: Name | None
    values: tuple[NodeId, ...]
    bytes: Whole


@dataclass(frozen=True, slots=True)
class StageSlot:
    """One place among the leaves of the model's arguments or result: a value by name, or a constant."""

    name: NodeId | None = None
    constant: int | float | bool | str | None = None


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The values of a free size for which the parts are the model; `most` None: no limit."""

    symbol: NodeId
    least: Count = 1
    most: Count | None = None


@dataclass(frozen=True, slots=True)
class StageManifest:
    """A model in parts that are run in this order.

    `inputs` are the leaves of the model's (args, kwargs), `outputs` those of its result; the
    structures are torch's pytree structures as JSON text. `cut_bytes[i]` leaves stage i for
    later ones at the traced batch, one entry fewer than stages. `verified_batches` are the batch
    sizes at which the files gave the model's result to the bit when they were written. `sizes`
    names the free sizes of the inputs that are limited.
    """

    source: str
    architecture_hash: str
    torch_version: str
    traced_batch: Count
    inputs: tuple[StageSlot, ...]
    input_structure: str
    outputs: tuple[StageSlot, ...]
    output_structure: Annotated[str, FileField(default=("",))]
    stages: NonEmpty[tuple[StagePart, ...]]
    links: tuple[StageLink, ...]
    cut_bytes: tuple[Whole, ...]
    verified_batches: tuple[Count, ...] = ()
    notes: tuple[str, ...] = ()
    sizes: Added[tuple[SizeRange, ...]] = ()

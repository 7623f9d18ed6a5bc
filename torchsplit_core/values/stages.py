"""The parts of a model on disk: what each reads and gives, and which feeds which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ValueKind = Literal["tensor", "int", "float", "bool"]


@dataclass(frozen=True, slots=True)
class StageValue:
    """A value that enters or leaves a stage, under the name it has in the traced graph.

    `shape` has integers, or expressions of symbols where the size is free, and is None for a number, as is
    `dtype`. `bytes` is its size at the traced batch.
    """

    name: str
    kind: ValueKind
    dtype: str | None = None
    shape: tuple[int | str, ...] | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class StagePart:
    """One stage: its file beside the manifest, and the values it takes and gives, in the order of its arguments."""

    name: str
    file: str
    sha256: str
    file_bytes: int
    operations: int
    weight_bytes: int
    inputs: tuple[StageValue, ...]
    outputs: tuple[StageValue, ...]


@dataclass(frozen=True, slots=True)
class StageLink:
    """`target` reads `values` of `source`; as source None is who calls the model, as target who takes its result."""

    source: str | None
    target: str | None
    values: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class StageSlot:
    """One place among the leaves of the model's arguments or result: a value by name, or a constant."""

    name: str | None = None
    constant: int | float | bool | str | None = None


@dataclass(frozen=True, slots=True)
class StageManifest:
    """A model in parts that are run in this order.

    `inputs` are the leaves of the model's (args, kwargs), `outputs` those of its result; the
    structures are torch's pytree structures as JSON text. `cut_bytes[i]` leaves stage i for
    later ones at the traced batch, one entry fewer than stages. `verified_batches` are the batch
    sizes at which the files gave the model's result to the bit when they were written.
    """

    source: str
    architecture_hash: str
    torch_version: str
    traced_batch: int
    inputs: tuple[StageSlot, ...]
    input_structure: str
    outputs: tuple[StageSlot, ...]
    output_structure: str
    stages: tuple[StagePart, ...]
    links: tuple[StageLink, ...]
    cut_bytes: tuple[int, ...]
    verified_batches: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

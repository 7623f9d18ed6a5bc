"""The manifest of a cut model as a strict file model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torchsplit_core.files.fields import Count, Name, NodeId, Rows, Strict, Whole

PartFileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*\.pt2$", max_length=200)]
"""A file beside the manifest: never a path."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class StageValueFile(Strict):
    name: NodeId
    kind: Literal["tensor", "int", "float", "bool"]
    dtype: str | None = None
    shape: Rows[int | str] | None = None
    bytes: Whole = 0


class StagePartFile(Strict):
    name: Name
    file: PartFileName
    sha256: Sha256
    file_bytes: Whole
    operations: Whole
    weight_bytes: Whole
    inputs: Rows[StageValueFile]
    outputs: Rows[StageValueFile]


class StageLinkFile(Strict):
    source: Name | None
    target: Name | None
    values: Rows[NodeId]
    bytes: Whole


class StageSlotFile(Strict):
    name: NodeId | None = None
    constant: int | float | bool | str | None = None


class StageManifestFile(Strict):
    format: Literal["torchsplit.stages"]
    version: Literal[1]
    source: str
    architecture_hash: str
    torch_version: str
    traced_batch: Count
    inputs: Rows[StageSlotFile]
    input_structure: str
    outputs: Rows[StageSlotFile]
    output_structure: str = ""
    stages: Annotated[Rows[StagePartFile], Field(min_length=1)]
    links: Rows[StageLinkFile]
    cut_bytes: Rows[Whole]
    verified_batches: Rows[Count] = []
    notes: Rows[str] = []

"""The manifest of a cut model as a strict file model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torchsplit_core.files.models import Count, Name, Strict, Whole

PartFileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*\.pt2$", max_length=200)]
"""A file beside the manifest: never a path."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class StageValueFile(Strict):
    name: Name
    kind: Literal["tensor", "int", "float", "bool"]
    dtype: str | None = None
    shape: list[int | str] | None = None
    bytes: Whole = 0


class StagePartFile(Strict):
    name: Name
    file: PartFileName
    sha256: Sha256
    file_bytes: Whole
    operations: Whole
    weight_bytes: Whole
    inputs: list[StageValueFile]
    outputs: list[StageValueFile]


class StageLinkFile(Strict):
    source: Name | None
    target: Name | None
    values: list[Name]
    bytes: Whole


class StageSlotFile(Strict):
    name: Name | None = None
    constant: int | float | bool | str | None = None


class StageManifestFile(Strict):
    format: Literal["torchsplit.stages"]
    version: Literal[1]
    source: str
    architecture_hash: str
    torch_version: str
    traced_batch: Count
    inputs: list[StageSlotFile]
    input_structure: str
    outputs: list[StageSlotFile]
    output_structure: str = ""
    stages: Annotated[list[StagePartFile], Field(min_length=1)]
    links: list[StageLinkFile]
    cut_bytes: list[Whole]
    verified_batches: list[Count] = []
    notes: list[str] = []

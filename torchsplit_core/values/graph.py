"""One node of a traced model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torchsplit_core.values.fields import Free, NodeId, Whole

NodeKind = Literal["input", "parameter", "buffer", "constant", "op", "output"]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A value of the dataflow graph: an input, a weight, an operation or the output.

    `inputs` are the ids of the values it reads (a value read twice stands twice).
    `shape` has integers, or symbol names where the size is free; None where the value is
    not a tensor. `output_bytes` is the size of its output at the traced batch. `source` is
    "file.py:118", and `code` that line's text as torch recorded it when it traced the model.
    `arguments`: those of an operation by name, in the JSON of `graph.arguments`; empty if unknown.
    """

    id: NodeId
    kind: NodeKind
    op: str = ""
    target: str = ""
    inputs: tuple[str, ...] = ()
    module: str = ""
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None
    output_bytes: Whole = 0
    source: str = ""
    code: str = ""
    arguments: Free = field(default_factory=dict, hash=False)

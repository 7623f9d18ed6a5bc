"""One node of a traced model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

NodeKind = Literal["input", "parameter", "buffer", "constant", "op", "output"]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A value of the dataflow graph: an input, a weight, an operation or the output.

    `inputs` are the ids of the values it reads (a value read twice stands twice).
    `shape` has integers, or symbol names where the size is free; None where the value is
    not a tensor. `output_bytes` is the size of its output at the traced batch. `source` is
    "file.py:118", and `code` that line's text as torch recorded it when it traced the model.
    `arguments` is what an operation is called with, by name, in the JSON of `graph.arguments`; empty where
    nobody says.
    """

    id: str
    kind: NodeKind
    op: str = ""
    target: str = ""
    inputs: tuple[str, ...] = ()
    module: str = ""
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None
    output_bytes: int = 0
    source: str = ""
    code: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

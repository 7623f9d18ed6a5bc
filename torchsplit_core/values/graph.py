"""One node of a traced model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NodeKind = Literal["input", "parameter", "buffer", "constant", "op", "output"]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A value of the dataflow graph: an input, a weight, an operation or the output.

    `inputs` are the ids of the values it reads (a value read twice stands twice).
    `shape` has integers, or symbol names where the size is free; None where the value is
    not a tensor. `output_bytes` is the size of its output at the traced batch. `source` is
    "file.py:118", and `code` that line's text as torch recorded it when it traced the model.
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

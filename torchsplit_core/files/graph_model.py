"""The schema of a graph's file, which `graph.serialization` reads and checks."""

from __future__ import annotations

from typing import Any, Literal

from torchsplit_core.files.fields import Count
from torchsplit_core.files.file_models import Strict, file_model
from torchsplit_core.values import GraphNode

GraphNodeFile: Any = file_model(GraphNode)


class GraphFile(Strict):
    format: Literal["torchsplit.graph"]
    version: Literal[1]
    architecture_hash: str = ""
    traced_batch: Count = 1
    route: Literal["", "non-strict", "strict", "draft", "read"] = ""
    notes: list[str] = []
    experts: list[str] = []
    largest_batch: Count | None = None
    nodes: list[GraphNodeFile]
    subgraphs: dict[str, GraphFile] = {}

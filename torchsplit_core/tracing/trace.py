"""`trace`: the graph of a model from any kind of source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchsplit_core import extras
from torchsplit_core.graph.architecture import hash_model_architecture
from torchsplit_core.graph.serialization import GraphParts, graph_from_dict
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.isolation import Limits, run_limited, schema_reader
from torchsplit_core.model_source import parse_source
from torchsplit_core.values import Progress, ignore_progress

EXPORT_FUNCTION = "torchsplit_core.tracing.export:export_in_child"
EXPORTER = "torchsplit_core.tracing.export:export_program"
"""Exports a model loaded by another package's child: (model, args, kwargs, other), where other is (args, kwargs) of one
row more."""
DESCRIBER = "torchsplit_core.tracing.export:describe_program"
"""Makes the contract's graph of such an export: (program, batch)."""
READ_FUNCTION = "torchsplit_core.tracing.pt2:read_in_child"
READ_LIMITS = Limits(wall_s=600, memory_bytes=4 * 10**9)
"""Reading needs no torch; a file that exceeds these limits is refused with the figure."""


def trace(
    source: str,
    *,
    trust: bool = False,
    limits: Limits | None = None,
    progress: Progress = ignore_progress,
) -> TorchGraph:
    """The graph, with its architecture hash, of `sample:NAME[@large]`, `FILE.py:NAME` or `FILE.pt2`.

    A sample or a Python file (which needs `trust`) is exported in a limited child process; a `.pt2` is read in one,
    without torch and without executing anything in it, trusted or not. Raises InputFault for every fault of the source:
    its form, its file, its code, its limits.
    """
    parsed = parse_source(source, trust=trust)
    arguments = {"source": parsed.text, "trust": trust}
    subject = f"model {Path(parsed.path).name or source}"
    if parsed.kind == "pt2":
        parts = GraphParts()
        limits = READ_LIMITS if limits is None else limits
        run_limited(
            READ_FUNCTION, arguments, limits=limits, progress=progress, subject=subject, receive=parts.add,
            read=schema_reader(None), read_part=schema_reader(dict), readable=parsed.files,
        )  # fmt: skip
        graph = replace(parts.graph(), route="read")
    else:
        extras.require_extra("trace")
        graph = run_limited(
            EXPORT_FUNCTION, arguments, limits=limits, progress=progress, subject=subject, read=graph_from_dict,
            readable=parsed.files,
        )  # fmt: skip
    return replace(graph, architecture_hash=hash_model_architecture(graph))

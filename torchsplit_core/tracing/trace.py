"""`trace`: the graph of a model, whatever the kind of its source."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.clients import parse_source
from torchsplit_core.graph.graph_json import graph_from_dict
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.isolation import Limits, run_limited
from torchsplit_core.tracing.architecture import hash_model_architecture
from torchsplit_core.values import Progress, ignore_progress

EXPORT = "torchsplit_core.tracing.export:export_in_child"
READ = "torchsplit_core.tracing.pt2:read_in_child"


def trace(
    source: str,
    *,
    trust: bool = False,
    limits: Limits | None = None,
    progress: Progress = ignore_progress,
) -> TorchGraph:
    """The graph, with its architecture hash, of `sample:NAME[@large]`, `FILE.py:NAME` or `FILE.pt2`.

    A sample or a Python file (which needs `trust`) is exported in a limited child process; a
    `.pt2` is read in one, without torch and without executing anything in it, trusted or not.
    Raises InputFault for every fault of the source: its form, its file, its code, its limits.
    """
    parsed = parse_source(source, trust=trust)
    target = READ if parsed.kind == "pt2" else EXPORT
    arguments = {"source": parsed.text, "trust": trust}
    graph = graph_from_dict(
        run_limited(target, arguments, limits=limits, progress=progress, subject=f"model {source}")
    )
    return replace(graph, architecture_hash=hash_model_architecture(graph))

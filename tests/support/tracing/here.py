"""A trace without its child, for tests whose subject is not the child: a process of its own costs seconds."""

from torchsplit_core.graph import TorchGraph
from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.values import ignore_progress


def traced_here(source: str, *, trust: bool = False) -> TorchGraph:
    """What `tracing.trace` answers for this source, made by the child's own function in this process."""
    from torchsplit_core.tracing.export import export_in_child

    return graph_from_dict(export_in_child({"source": source, "trust": trust}, ignore_progress))

"""The dataflow of a model: its graph, dominance, preparation for cutting, regions, drawing.

Without torch. DOT texts are in `graph.dot` (they need pydot), the graph contract in
`graph.graph_json`.
"""

from torchsplit_core.graph.annotate import annotate_with_profiling_data
from torchsplit_core.graph.dominance import ENTRY, EXIT, DominanceInformation
from torchsplit_core.graph.modules import CollapsedGraph, CollapsedNode, collapse
from torchsplit_core.graph.prepare import PreparedGraph, Unit, ValueEdge, prepare
from torchsplit_core.graph.regions import Region, RegionTree, region_tree
from torchsplit_core.graph.torch_graph import TorchGraph

__all__ = [
    "ENTRY",
    "EXIT",
    "CollapsedGraph",
    "CollapsedNode",
    "DominanceInformation",
    "PreparedGraph",
    "Region",
    "RegionTree",
    "TorchGraph",
    "Unit",
    "ValueEdge",
    "annotate_with_profiling_data",
    "collapse",
    "prepare",
    "region_tree",
]

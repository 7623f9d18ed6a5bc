"""The dataflow of a model: its graph, dominance, preparation for cutting, regions, drawing.

Without torch. DOT texts are in `graph.dot` (they need pydot), the graph contract in
`graph.graph_json`. What needs numpy loads when first used: reading a graph, which a page waits
for, does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchsplit_core.graph.annotate import annotate_with_profiling_data
from torchsplit_core.graph.preparation.prepare import PreparedGraph, Unit, ValueEdge, prepare
from torchsplit_core.graph.preparation.steps import ALL_STEPS, STEPS, Step, StepName
from torchsplit_core.graph.torch_graph import TorchGraph

if TYPE_CHECKING:
    from torchsplit_core.graph.dominance import ENTRY, EXIT, DominanceInformation, immediate_dominators
    from torchsplit_core.graph.preparation.step_report import Fate, StepReport, fates, preparation_report
    from torchsplit_core.graph.regions import Region, RegionTree, region_tree

__all__ = [
    "ALL_STEPS",
    "ENTRY",
    "EXIT",
    "STEPS",
    "DominanceInformation",
    "Fate",
    "PreparedGraph",
    "Region",
    "RegionTree",
    "Step",
    "StepName",
    "StepReport",
    "TorchGraph",
    "Unit",
    "ValueEdge",
    "annotate_with_profiling_data",
    "fates",
    "immediate_dominators",
    "preparation_report",
    "prepare",
    "region_tree",
]

_LATER = {
    "ENTRY": "dominance",
    "EXIT": "dominance",
    "DominanceInformation": "dominance",
    "immediate_dominators": "dominance",
    "Fate": "preparation.step_report",
    "StepReport": "preparation.step_report",
    "fates": "preparation.step_report",
    "preparation_report": "preparation.step_report",
    "Region": "regions",
    "RegionTree": "regions",
    "region_tree": "regions",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"torchsplit_core.graph.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The dataflow of a model: its graph, dominance, preparation for cutting, regions, drawing.

Without torch. `graph.dot` has DOT texts (needs pydot), `graph.serialization` the graph contract. Modules that need
numpy load on first use: a page that waits for a graph does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.graph.annotate import annotate_with_profiling_data
    from torchsplit_core.graph.dominance import ENTRY, EXIT, DominanceInformation, immediate_dominators
    from torchsplit_core.graph.preparation.prepare import PreparedGraph, Unit, ValueEdge, prepare
    from torchsplit_core.graph.preparation.step_report import Fate, StepReport, fates, preparation_report
    from torchsplit_core.graph.preparation.steps import ALL_STEPS, STEPS, PreparationStep, StepName
    from torchsplit_core.graph.regions import Region, RegionTree, region_tree
    from torchsplit_core.graph.torch_graph import TorchGraph

__all__ = [
    "ALL_STEPS",
    "ENTRY",
    "EXIT",
    "STEPS",
    "DominanceInformation",
    "Fate",
    "PreparationStep",
    "PreparedGraph",
    "Region",
    "RegionTree",
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

__getattr__ = on_demand(
    __name__,
    {
        "annotate": "annotate_with_profiling_data",
        "dominance": "ENTRY EXIT DominanceInformation immediate_dominators",
        "preparation.prepare": "PreparedGraph Unit ValueEdge prepare",
        "preparation.step_report": "Fate StepReport fates preparation_report",
        "preparation.steps": "ALL_STEPS STEPS PreparationStep StepName",
        "regions": "Region RegionTree region_tree",
        "torch_graph": "TorchGraph",
    },
)

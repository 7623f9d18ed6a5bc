"""TorchSplit: trace, profile, partition, plan and deploy PyTorch models on MIG-partitioned GPUs.

The names below load their room when first used, so that `import torchsplit_core` needs neither
torch nor a solver.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_ROOMS = {
    "TorchGraph": "torchsplit_core.graph.torch_graph",
    "DominanceInformation": "torchsplit_core.graph.dominance",
    "annotate_with_profiling_data": "torchsplit_core.graph.annotate",
    "PartitionProvider": "torchsplit_core.partitioning",
    "solve_partitioning_problem": "torchsplit_core.partitioning",
    "DeviceAnnotator": "torchsplit_core.profiling",
    "RuntimeAnnotator": "torchsplit_core.profiling",
    "hash_model_architecture": "torchsplit_core.tracing",
    "SplitClient": "torchsplit_core.values",
    "solve_leximin": "torchsplit_core.planning",
    "solve_leximin_shared": "torchsplit_core.planning",
}

__all__ = ["__version__", *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""TorchSplit: trace, profile, partition, plan and deploy PyTorch models on MIG-partitioned GPUs.

The names below load their room when first used, so that `import torchsplit_core` needs neither
torch nor a solver.
"""

from __future__ import annotations

from torchsplit_core.on_demand import on_demand

__version__ = "0.1.0"

_ROOMS = {
    "graph.annotate": "annotate_with_profiling_data",
    "graph.dominance": "DominanceInformation",
    "graph.torch_graph": "TorchGraph",
    "partitioning": "PartitionProvider solve_partitioning_problem",
    "planning": "solve_leximin solve_leximin_shared",
    "profiling": "DeviceAnnotator RuntimeAnnotator",
    "tracing": "hash_model_architecture",
    "values": "SplitClient",
}

__all__ = ["__version__", *(name for names in _ROOMS.values() for name in names.split())]

__getattr__ = on_demand(__name__, _ROOMS)

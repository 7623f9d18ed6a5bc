"""TorchSplit: trace, profile, partition, plan and deploy PyTorch models on MIG-partitioned GPUs.

The names below load their room when first used, so that `import torchsplit_core` needs neither
torch nor a solver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    # Type checkers read these; at run time they load as the others do.
    from torchsplit_core.api import Load as Load
    from torchsplit_core.api import Plan as Plan
    from torchsplit_core.api import ProfiledModel as ProfiledModel
    from torchsplit_core.api import deploy as deploy
    from torchsplit_core.api import plan as plan
    from torchsplit_core.api import profile as profile
    from torchsplit_core.api import request as request
    from torchsplit_core.api import simulate as simulate
    from torchsplit_core.api import trace as trace

__version__ = "0.1.0"

_ROOMS = {
    "api": "Load Plan ProfiledModel deploy plan profile request simulate trace",
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

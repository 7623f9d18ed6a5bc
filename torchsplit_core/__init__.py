"""TorchSplit: trace, profile, partition, plan and deploy PyTorch models on MIG-partitioned GPUs.

The names below load their room when first used, so that `import torchsplit_core` needs neither
torch nor a solver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
_WALK = ("Load", "Plan", "ProfiledModel", "deploy", "plan", "profile", "request", "simulate", "trace")
_ROOMS |= dict.fromkeys(_WALK, "torchsplit_core.api")

__all__ = ["__version__", *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

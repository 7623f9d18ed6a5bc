"""The planner: which layout every GPU takes, and which slices and shares every model gets."""

from torchsplit_core.planning.doors import solve_leximin, solve_leximin_shared
from torchsplit_core.planning.planner import plan
from torchsplit_core.planning.request_hash import request_hash
from torchsplit_core.planning.validate import validate
from torchsplit_core.planning.verify import verify, violations

__all__ = [
    "plan",
    "request_hash",
    "solve_leximin",
    "solve_leximin_shared",
    "validate",
    "verify",
    "violations",
]

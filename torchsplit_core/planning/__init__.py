"""The planner: which layout every GPU takes, and which slices and shares every model gets."""

from torchsplit_core.planning.from_tables import solve_leximin, solve_leximin_shared
from torchsplit_core.planning.planner import plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.planning.verification.outcome import verify, violations

__all__ = [
    "plan",
    "request_hash",
    "solve_leximin",
    "solve_leximin_shared",
    "validate",
    "verify",
    "violations",
]

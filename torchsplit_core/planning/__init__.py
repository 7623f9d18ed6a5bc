"""The planner: which layout every GPU takes, and which slices and shares every model gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.planning.legacy_api import solve_leximin, solve_leximin_shared
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

__getattr__ = on_demand(
    __name__,
    {
        "legacy_api": "solve_leximin solve_leximin_shared",
        "planner": "plan",
        "request.hash": "request_hash",
        "request.validate": "validate",
        "verification.outcome": "verify violations",
    },
)

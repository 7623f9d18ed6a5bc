"""Plans of whole slices by patterns: exact and fast if equal GPUs can be counted together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.planning.patterns.solve import (
        LossLimits,
        PatternSolution,
        patterns_meet_minima,
        solve_patterns,
    )

__all__ = ["LossLimits", "PatternSolution", "patterns_meet_minima", "solve_patterns"]

__getattr__ = on_demand(
    __name__,
    {
        "solve": "LossLimits PatternSolution solve_patterns patterns_meet_minima",
    },
)

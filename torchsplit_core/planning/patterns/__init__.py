"""Whole slices by patterns: exact and fast where equal GPUs can be counted together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.planning.patterns.engine import Counted, count_patterns, serves

__all__ = ["Counted", "count_patterns", "serves"]

__getattr__ = on_demand(
    __name__,
    {
        "engine": "Counted count_patterns serves",
    },
)

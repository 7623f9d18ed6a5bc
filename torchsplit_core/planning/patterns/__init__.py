"""Whole slices by patterns: exact and fast where equal GPUs can be counted together."""

from torchsplit_core.planning.patterns.engine import Counted, count_patterns, serves

__all__ = ["Counted", "count_patterns", "serves"]

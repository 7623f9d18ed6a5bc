"""Profiling: per-node and end-to-end timing, memory, and estimates for GPUs that are not here.

`RuntimeAnnotator` and `DeviceAnnotator` need torch and load when first asked for; all else runs without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchsplit_core.profiling.estimate import estimate_rows, estimated_nodes
from torchsplit_core.profiling.library import library_profiles, measured_library, mix_request, serving_mixes
from torchsplit_core.profiling.measuring.measurement import measure
from torchsplit_core.profiling.points import KeptPoint, Settings

if TYPE_CHECKING:
    from torchsplit_core.profiling.measuring.annotators import DeviceAnnotator, RuntimeAnnotator

__all__ = [
    "DeviceAnnotator",
    "KeptPoint",
    "RuntimeAnnotator",
    "Settings",
    "estimate_rows",
    "estimated_nodes",
    "library_profiles",
    "measure",
    "measured_library",
    "mix_request",
    "serving_mixes",
]


def __getattr__(name: str) -> Any:
    if name in ("DeviceAnnotator", "RuntimeAnnotator"):
        from torchsplit_core.profiling.measuring import annotators

        return getattr(annotators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

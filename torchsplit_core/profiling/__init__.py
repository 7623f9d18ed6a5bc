"""Profiling: per-node and end-to-end timing, memory, and estimates for GPUs that are not in this host.

`RuntimeAnnotator` and `DeviceAnnotator` need torch and load on first use; the rest runs without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.profiling.library import (
        library_profiles,
        measured_library,
        mix_request,
        serving_mixes,
    )
    from torchsplit_core.profiling.measuring.annotators import DeviceAnnotator, RuntimeAnnotator
    from torchsplit_core.profiling.measuring.measurement import measure
    from torchsplit_core.profiling.points import MeasuredPoint, MeasurementSettings
    from torchsplit_core.profiling.roofline import estimate_rows, estimated_nodes

__all__ = [
    "DeviceAnnotator",
    "MeasuredPoint",
    "MeasurementSettings",
    "RuntimeAnnotator",
    "estimate_rows",
    "estimated_nodes",
    "library_profiles",
    "measure",
    "measured_library",
    "mix_request",
    "serving_mixes",
]

__getattr__ = on_demand(
    __name__,
    {
        "roofline": "estimate_rows estimated_nodes",
        "library": "library_profiles measured_library mix_request serving_mixes",
        "measuring.annotators": "DeviceAnnotator RuntimeAnnotator",
        "measuring.measurement": "measure",
        "points": "MeasuredPoint MeasurementSettings",
    },
)

"""Profiling: per-node and end-to-end timing, memory, and estimates for GPUs that are not here.

What needs torch (`RuntimeAnnotator`, `DeviceAnnotator`, `measure`) loads when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchsplit_core.profiling.library import library_profiles, measured_library, mix_request, serving_mixes

if TYPE_CHECKING:
    from torchsplit_core.profiling.annotators import DeviceAnnotator, RuntimeAnnotator

__all__ = [
    "DeviceAnnotator",
    "RuntimeAnnotator",
    "library_profiles",
    "measured_library",
    "mix_request",
    "serving_mixes",
]


def __getattr__(name: str) -> Any:
    if name in ("DeviceAnnotator", "RuntimeAnnotator"):
        from torchsplit_core.profiling import annotators

        return getattr(annotators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

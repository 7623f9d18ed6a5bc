"""GPUs and their MIG profiles: the sourced catalogue, every legal layout, and the host at hand."""

from torchsplit_core.hardware.catalogue import catalogue, gpu_type, plain_profiles, unsourced_profiles
from torchsplit_core.hardware.discovery import HostGpu, HostReport, MigInstance, discover_host
from torchsplit_core.hardware.layouts import (
    creation_order,
    layout_multisets,
    legal_layouts,
    maximal_multisets,
    place_layout,
)
from torchsplit_core.hardware.peaks import GpuPeaks, peak_names, peaks

__all__ = [
    "GpuPeaks",
    "HostGpu",
    "HostReport",
    "MigInstance",
    "catalogue",
    "creation_order",
    "discover_host",
    "gpu_type",
    "layout_multisets",
    "legal_layouts",
    "maximal_multisets",
    "peak_names",
    "peaks",
    "place_layout",
    "plain_profiles",
    "unsourced_profiles",
]

"""GPUs and their MIG profiles: the sourced catalogue, every legal layout, this host and its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

# Not on demand, because two of these names are also the names of their modules.
from torchsplit_core.hardware.catalogue import (
    MOST_CORES,
    catalogue,
    gpu_type,
    plain_profiles,
    profile_cores,
    sliced_types,
    unsourced_profiles,
    without_mig,
)
from torchsplit_core.hardware.peaks import GpuPeaks, peak_names, peaks
from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.hardware.clock_stability import ClockStability, instability_words, measure_cores
    from torchsplit_core.hardware.current_state import (
        CoreTimes,
        DcgmFigures,
        LiveGpu,
        LiveHost,
        live_gpus,
        live_host,
    )
    from torchsplit_core.hardware.devices import available_devices, choose_devices
    from torchsplit_core.hardware.discovery import HostGpu, HostReport, MigInstance, discover_host, open_nvml
    from torchsplit_core.hardware.interference import NeighbourLoad, neighbour_load
    from torchsplit_core.hardware.layouts import (
        creation_order,
        layout_multisets,
        legal_layouts,
        maximal_multisets,
        place_layout,
    )
    from torchsplit_core.hardware.mig_commands import slice_commands
    from torchsplit_core.hardware.mig_setup import restore_from_journal, temporary_slices
    from torchsplit_core.hardware.nvml import GpuState, Nvml, NvmlFault, gpu_state

__all__ = [
    "MOST_CORES",
    "ClockStability",
    "CoreTimes",
    "DcgmFigures",
    "GpuPeaks",
    "GpuState",
    "HostGpu",
    "HostReport",
    "LiveGpu",
    "LiveHost",
    "MigInstance",
    "NeighbourLoad",
    "Nvml",
    "NvmlFault",
    "available_devices",
    "catalogue",
    "choose_devices",
    "creation_order",
    "discover_host",
    "gpu_state",
    "gpu_type",
    "instability_words",
    "layout_multisets",
    "legal_layouts",
    "live_gpus",
    "live_host",
    "maximal_multisets",
    "measure_cores",
    "neighbour_load",
    "open_nvml",
    "peak_names",
    "peaks",
    "place_layout",
    "plain_profiles",
    "profile_cores",
    "restore_from_journal",
    "slice_commands",
    "sliced_types",
    "temporary_slices",
    "unsourced_profiles",
    "without_mig",
]

__getattr__ = on_demand(
    __name__,
    {
        "devices": "available_devices choose_devices",
        "discovery": "HostGpu HostReport MigInstance discover_host open_nvml",
        "layouts": "creation_order layout_multisets legal_layouts maximal_multisets place_layout",
        "current_state": "CoreTimes DcgmFigures LiveGpu LiveHost live_gpus live_host",
        "mig_commands": "slice_commands",
        "mig_setup": "restore_from_journal temporary_slices",
        "interference": "NeighbourLoad neighbour_load",
        "nvml": "GpuState Nvml NvmlFault gpu_state",
        "clock_stability": "ClockStability instability_words measure_cores",
    },
)

"""This machine at one moment, read only: its cores, memory and GPUs by the driver, and by DCGM where it is there."""

from torchsplit_core.hardware.current_state.dcgm import DcgmSampler, DcgmFigures
from torchsplit_core.hardware.current_state.host import CoreTimes, LiveGpu, LiveHost, live_gpus, live_host

__all__ = ["CoreTimes", "DcgmSampler", "DcgmFigures", "LiveGpu", "LiveHost", "live_gpus", "live_host"]

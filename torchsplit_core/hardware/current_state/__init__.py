"""This machine at one moment, read only: its cores, memory and GPUs by the driver, and by DCGM where it is there."""

from torchsplit_core.hardware.current_state.dcgm import DcgmFigures, DcgmSampler
from torchsplit_core.hardware.current_state.host import CoreTimes, LiveGpu, LiveHost, live_gpus, live_host

__all__ = ["CoreTimes", "DcgmFigures", "DcgmSampler", "LiveGpu", "LiveHost", "live_gpus", "live_host"]

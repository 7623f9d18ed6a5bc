"""The present state of this machine, read only: cores, memory, and GPUs by the driver and, if present, DCGM."""

from torchsplit_core.hardware.current_state.dcgm import DcgmFigures, DcgmSampler
from torchsplit_core.hardware.current_state.host import CoreTimes, LiveGpu, LiveHost, live_gpus, live_host

__all__ = ["CoreTimes", "DcgmFigures", "DcgmSampler", "LiveGpu", "LiveHost", "live_gpus", "live_host"]

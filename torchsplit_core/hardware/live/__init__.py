"""This machine at one moment, read only: its cores, memory and GPUs by the driver, and by DCGM where it is there."""

from torchsplit_core.hardware.live.dcgm import Dcgm, DcgmFigures
from torchsplit_core.hardware.live.host import CoreTimes, LiveGpu, LiveHost, live_gpus, live_host

__all__ = ["CoreTimes", "Dcgm", "DcgmFigures", "LiveGpu", "LiveHost", "live_gpus", "live_host"]

"""A run seen from outside, while it trains and after: what its folder holds, and what is requested of it.

The names offered here do not load torch. `RUN/watch/` holds what was started (`launch.json`), each rank's status
(`rank-0.json`), where figures are served (`endpoint-HOST-PORT`), and requests to the run (`checkpoint`, `stop`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.training.monitor.control_files import (
        ControlRequest,
        acknowledge,
        is_requested,
        send_request,
    )
    from torchsplit_core.training.monitor.discovery import endpoints, event_files
    from torchsplit_core.training.monitor.launch_record import LaunchRecord, read_launch, save_launch
    from torchsplit_core.training.monitor.run_reader import RunReader
    from torchsplit_core.training.monitor.run_view import Checkpoint, Event, Rank, RunView, State, Steps

__all__ = [
    "Checkpoint",
    "ControlRequest",
    "Event",
    "LaunchRecord",
    "Rank",
    "RunReader",
    "RunView",
    "State",
    "Steps",
    "acknowledge",
    "endpoints",
    "event_files",
    "is_requested",
    "read_launch",
    "save_launch",
    "send_request",
]

__getattr__ = on_demand(
    __name__,
    {
        "control_files": "ControlRequest acknowledge send_request is_requested",
        "discovery": "endpoints event_files",
        "launch_record": "LaunchRecord save_launch read_launch",
        "run_reader": "RunReader",
        "run_view": "Checkpoint Event Rank RunView State Steps",
    },
)

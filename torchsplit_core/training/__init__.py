"""Training runs: train a model by a strategy on the processes that are available, and go on when any of them is lost.

`train` starts and monitors the processes (`launch`). Each process is a `rank` with a `TrainingRun` (`loop`), which a
user's own training loop has as well. The engines are torch's: elastic agent, DDP, FSDP2, DTensor, ZeRO, distributed
checkpoint. torch is loaded when one of the names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.training.fitted_strategy import (
        communication_of,
        fit_to_world_size,
        run_strategy_of,
    )
    from torchsplit_core.training.launch import train
    from torchsplit_core.training.loop import TrainingRun
    from torchsplit_core.training.run_folder import RunFolder
    from torchsplit_core.training.updates.schedules import schedule_of
    from torchsplit_core.training.user_loop import prepare

__all__ = [
    "RunFolder",
    "TrainingRun",
    "communication_of",
    "fit_to_world_size",
    "prepare",
    "run_strategy_of",
    "schedule_of",
    "train",
]

__getattr__ = on_demand(
    __name__,
    {
        "run_folder": "RunFolder",
        "launch": "train",
        "fitted_strategy": "communication_of fit_to_world_size run_strategy_of",
        "loop": "TrainingRun",
        "updates.schedules": "schedule_of",
        "user_loop": "prepare",
    },
)

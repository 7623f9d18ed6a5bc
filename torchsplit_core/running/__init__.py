"""Training runs: a model trained by a strategy on the processes that there are, and on after any of them is lost.

`train` starts the processes and watches them (`launch`); each is a `rank` with a `TrainingRun` (`loop`), which a
loop of one's own has as well. The engines are torch's: elastic agent, DDP, FSDP2, DTensor, ZeRO, distributed
checkpoint. torch is loaded where one of the names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.running.folder import RunFolder
    from torchsplit_core.running.launch import train
    from torchsplit_core.running.layout import on_processes, run_strategy
    from torchsplit_core.running.loop import TrainingRun
    from torchsplit_core.running.own_loop import prepare

__all__ = ["RunFolder", "TrainingRun", "on_processes", "prepare", "run_strategy", "train"]

__getattr__ = on_demand(
    __name__,
    {
        "folder": "RunFolder",
        "launch": "train",
        "layout": "on_processes run_strategy",
        "loop": "TrainingRun",
        "own_loop": "prepare",
    },
)

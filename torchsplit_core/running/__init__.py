"""Training runs: a model trained by a strategy on the processes that there are, and on after any of them is lost.

`train` starts the processes and watches them (`launch`); each is a `rank` with a `TrainingRun` (`loop`), which a
loop of one's own has as well. The engines are torch's: elastic agent, DDP, FSDP2, DTensor, ZeRO, distributed
checkpoint. torch is loaded where one of the names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchsplit_core.running.folder import RunFolder
from torchsplit_core.running.layout import on_processes, run_strategy

if TYPE_CHECKING:
    from torchsplit_core.running.launch import train
    from torchsplit_core.running.loop import TrainingRun
    from torchsplit_core.running.own_loop import prepare

__all__ = ["RunFolder", "TrainingRun", "on_processes", "prepare", "run_strategy", "train"]


def __getattr__(name: str) -> Any:
    """What needs torch, loaded when first used."""
    if name == "train":
        from torchsplit_core.running import launch

        return launch.train
    if name == "TrainingRun":
        from torchsplit_core.running import loop

        return loop.TrainingRun
    if name == "prepare":
        from torchsplit_core.running import own_loop

        return own_loop.prepare
    raise AttributeError(name)

"""A run as it is seen from outside, while it goes on and after: what its folder says, and what is asked of it.

Nothing here loads torch. `RUN/watch/` has what was started (`launch.json`), what each rank says of itself
(`rank-0.json`), where its figures are served (`endpoint-HOST-PORT`), and what is asked of a run (`checkpoint`, `stop`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.running.watch.asking import Asked, answer, ask, is_asked
    from torchsplit_core.running.watch.elsewhere import endpoints, event_files
    from torchsplit_core.running.watch.launched import Launch, keep_launch, read_launch
    from torchsplit_core.running.watch.look import Look
    from torchsplit_core.running.watch.view import Checkpoint, Event, Rank, RunView, State, Steps

__all__ = [
    "Asked",
    "Checkpoint",
    "Event",
    "Launch",
    "Look",
    "Rank",
    "RunView",
    "State",
    "Steps",
    "answer",
    "ask",
    "endpoints",
    "event_files",
    "is_asked",
    "keep_launch",
    "read_launch",
]

__getattr__ = on_demand(
    __name__,
    {
        "asking": "Asked answer ask is_asked",
        "elsewhere": "endpoints event_files",
        "launched": "Launch keep_launch read_launch",
        "look": "Look",
        "view": "Checkpoint Event Rank RunView State Steps",
    },
)

"""A trace of steps by torch's profiler: what each operation of a rank takes, on the processor and the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchsplit_core.training.run_folder import TRACES, RunFolder


class StepTracer:
    """Records steps `first` to `last`, each under its name (`step 10`), and writes a file of the rank in `traces/`.

    The file has Chrome's trace format, which Perfetto and chrome://tracing open. A run that ends earlier writes what it
    has; one that begins after `first` records the rest.
    """

    def __init__(
        self,
        steps: tuple[int, int],
        folder: RunFolder,
        rank: int,
        log_event: Callable[[str, str, int | None], None],
    ) -> None:
        self.first, self.last = steps
        self._path = folder.path / TRACES / f"steps-{self.first}-{self.last}-rank-{rank}.json"
        self._log_event, self._rank = log_event, rank
        self._profiler: Any = None
        self._mark: Any = None

    def begin(self, step: int) -> None:
        """The step of this number begins."""
        if not self.first <= step <= self.last:
            return
        if self._profiler is None:
            # Imported here: few runs are traced.
            from torch.profiler import ProfilerActivity, profile

            gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._profiler = profile(activities=[ProfilerActivity.CPU, *gpu])
            self._profiler.start()
        self._mark = torch.profiler.record_function(f"step {step}")
        self._mark.__enter__()

    def end(self, step: int) -> None:
        """The step of this number has ended; after the last one the file is written."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        if step >= self.last:
            self.close()

    def close(self) -> None:
        """Write what was recorded. A file that cannot be written is an event: the run goes on."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        try:
            self._path.parent.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:
            self._log_event("warning", f"{self._path.name} was not written: {error}", self._rank)
        else:
            self._log_event(
                "traced", f"steps {self.first} to {self.last}: {TRACES}/{self._path.name}", self._rank
            )

"""When a run is measured on held-out samples, what is written of it, and which step is the best so far."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn

from torchsplit_core.checkpoints.store import Checkpoints
from torchsplit_core.checkpoints.trained_run import VALIDATION, BestStep
from torchsplit_core.files import replace_file
from torchsplit_core.training.held_out.evaluation import Evaluator
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault, quoted, suggestion
from torchsplit_core.values.strategy.held_out import ValidationOptions


class Validator:
    """Measures a run every so many steps and at its last one. `is_best`: whether the last measurement is the best."""

    def __init__(
        self,
        evaluator: Evaluator,
        options: ValidationOptions,
        checkpoints: Checkpoints,
        folder: RunFolder,
        source: str,
        log_event: Callable[[str, str, int | None], None],
    ) -> None:
        self.evaluator, self.options, self.checkpoints = evaluator, options, checkpoints
        self.is_best = False
        self._folder, self._source, self._log_event = folder, source, log_event
        # The first rank has looked which checkpoints are there.
        best: list[Any] = [checkpoints.best]
        dist.broadcast_object_list(best, src=0, group=evaluator.group)
        checkpoints.best = best[0]

    def is_due(self, step: int, last_step: int) -> bool:
        """Whether the run is measured after that step."""
        every = self.options.every
        return step == last_step or (every is not None and step % every == 0)

    def measure(self, step: int, model: nn.Module) -> dict[str, Any]:
        """What the step's line says of the measurement; the same on every rank. Raises InputFault if it fails."""
        began = time.perf_counter()
        metrics, samples = self.evaluator.measure(model)
        seconds = time.perf_counter() - began
        self._take_best(step, metrics)
        if dist.get_rank() == 0:
            record = {"step": step, "samples": samples, "metrics": metrics, "source": self._source}
            replace_file(self._folder.path / VALIDATION, json.dumps(record, allow_nan=False) + "\n")
        return {"validation": metrics, "validation_s": round(seconds, 6)}

    def _take_best(self, step: int, metrics: dict[str, float]) -> None:
        """Note whether this step is the best so far. Raises InputFault if its metric was not measured."""
        self.is_best, name = False, self.options.best_metric
        if name is None:
            return
        if name not in metrics:
            raise InputFault(
                "--best",
                f"is {quoted(name)}, but the validation gives {', '.join(metrics) or 'nothing'}",
                suggestion(name, metrics, "metrics"),
            )
        best = self.checkpoints.best
        before = best.value if best and best.metric == name else None
        if self.options.is_better(metrics[name], before):
            self.is_best, self.checkpoints.best = True, BestStep(step, name, metrics[name])
            rest = "" if before is None else f"; before: {before:.4g}"
            self._log_event(
                "best", f"step {step} has the best {name} so far: {metrics[name]:.4g}{rest}", None
            )

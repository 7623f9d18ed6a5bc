"""The update of the weights at the end of a step, by the run's own loop or by `optimizer.step()` of a user's."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer

from torchsplit_core.checkpoints.packed_state import pack, unpack
from torchsplit_core.training.updates.clipping import clip_gradients
from torchsplit_core.values import InputFault

SCHEDULE, SCALER = "schedule", "scaler"
"""States of the schedule and of the scaler among what a checkpoint keeps of an update."""
LEAST_SCALE = 2.0**-14
"""Gradients that are not finite even when the loss is scaled by less are so by themselves, not by overflow."""


class WeightUpdate:
    """Gradients clipped, then the optimizer's and the schedule's step, once for all passes of a run's step.

    In a user's loop each pass ends with `optimizer.step()`, `scheduler.step()` and `optimizer.zero_grad()`, in this
    order or with the last one first. These calls act only where the gradients of a step are complete, and do nothing
    after the other passes, so that the loop is the same with and without accumulation. `learning_rate` is that of the
    first group of weights, `gradient_norm` the norm before clipping (None without it), `loss_scale` what the loss is
    multiplied by in fp16; all of the last step.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        given: torch.optim.Optimizer,
        scheduler: Any,
        clip_norm: float | None,
        stages: dist.ProcessGroup | None,
        scaler: GradScaler | None,
    ) -> None:
        """`given`: the optimizer that the user has, another one than `optimizer` under zero1. `stages`: as for
        `clip_gradients`. `scaler`: of the loss in fp16, which leaves out steps whose gradients overflow."""
        self.optimizer, self.scheduler, self.scaler = optimizer, scheduler, scaler
        self.learning_rate, self.gradient_norm = 0.0, float("nan") if clip_norm else None
        self.loss_scale = 1.0
        self._clip_norm, self._stages = clip_norm, stages
        self._in_loop = self._pending = self._complete = self._stepped = False
        self._on_step: Callable[[], None] = lambda: None
        self._gate(optimizer, "step", lambda: self._complete and not self._stepped, self._after_step)
        self._gate(optimizer, "zero_grad", lambda: not self._pending)
        if scheduler is not None:
            self._gate(scheduler, "step", lambda: self._stepped)
        if given is not optimizer:
            _stand_in(given, optimizer)

    def _gate(
        self, holder: Any, name: str, may_act: Callable[[], bool], after: Callable[[], None] = lambda: None
    ) -> None:
        """Let this method act only if `may_act`; outside of a step always."""
        method = getattr(holder, name)

        # A schedule warns if it does not find its own mark on the optimizer's method.
        @functools.wraps(method)
        def gated(*given: Any, **named: Any) -> Any:
            if not self._in_loop:
                return method(*given, **named)
            if not may_act():
                return None
            if name == "step" and holder is self.optimizer and self.scaler:
                result = self._step_scaled(*given, **named)
            else:
                result = method(*given, **named)
            after()
            return result

        setattr(holder, name, gated)

    def state(self) -> dict[str, str]:
        """What a checkpoint keeps besides the optimizer's state, as text by name; completes that state."""
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            # The checkpoint has the rates of its part, which it would take over only in its next step.
            self.optimizer._sync_param_groups(self.optimizer.param_groups, self.optimizer.optim.param_groups)
        states: dict[str, str] = {}
        if self.scheduler is not None:
            # Without the method that stands in for its own.
            entries = {name: value for name, value in self.scheduler.state_dict().items() if name != "step"}
            states[SCHEDULE] = pack(entries)
        if self.scaler:
            states[SCALER] = pack(self.scaler.state_dict())
        return states

    def load(self, state: Mapping[str, str]) -> None:
        """Take over what a checkpoint kept, once the optimizer's own state is loaded.

        Raises InputFault if the checkpoint lacks the schedule's state, or has another schedule's.
        """
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            # It would set the rates of the checkpoint, in its part of the weights, back to those of the start.
            self.optimizer._sync_param_groups(self.optimizer.optim.param_groups, self.optimizer.param_groups)
        if self.scaler and SCALER in state:
            self.scaler.load_state_dict(unpack(state[SCALER], "the checkpoint's scaler"))
        if self.scheduler is None:
            return
        where = "the checkpoint's schedule"
        if SCHEDULE not in state:
            raise InputFault(where, "is missing", "Go on without a schedule, or start another run.")
        entries = unpack(state[SCHEDULE], where)
        try:
            self.scheduler.load_state_dict(entries)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputFault(
                where,
                f"does not fit {type(self.scheduler).__name__}: {type(error).__name__}: {error}",
                "Go on with the schedule that the run began with.",
            ) from error

    def begin(self, on_step: Callable[[], None]) -> None:
        """A step begins; `on_step` is called when the optimizer has taken it."""
        self._in_loop, self._on_step = True, on_step
        self._pending = self._complete = self._stepped = False

    def add_gradients(self) -> None:
        """A pass has added its gradients."""
        self._pending = True

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss as it is back-propagated."""
        return self.scaler.scale(loss) if self.scaler else loss

    def is_lost(self) -> bool:
        """Whether the gradients are not finite for another reason than that the scaled loss overflows."""
        return self.scaler is not None and self.loss_scale < LEAST_SCALE

    def _step_scaled(self, *given: Any, **named: Any) -> Any:
        """The optimizer's step, unless the gradients have overflowed: then the next loss is scaled by less."""
        assert self.scaler is not None
        # The scaler calls the optimizer's method.
        with self.outside():
            result = self.scaler.step(self.optimizer, *given, **named)
        self.scaler.update()
        return result

    def complete(self, model: nn.Module, norms: torch.Tensor) -> None:
        """The gradients of the step are complete: clip them. `norms`: of each gradient of this rank's part."""
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        if self.scaler:
            self.loss_scale = float(self.scaler.get_scale())
            self.scaler.unscale_(self.optimizer)
        if self._clip_norm:
            self.gradient_norm = clip_gradients(
                model, self._clip_norm, self._stages, None if self.scaler else norms
            )
        self._complete = True

    def figures(self) -> dict[str, float]:
        """What a step's line says of its update."""
        figures = {"learning_rate": self.learning_rate}
        if self.gradient_norm is not None and math.isfinite(self.gradient_norm):
            figures["gradient_norm"] = self.gradient_norm
        return figures | ({"loss_scale": self.loss_scale} if self.scaler else {})

    def apply(self) -> None:
        """Take the step, as a user's loop does."""
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _after_step(self) -> None:
        self._stepped, self._pending = True, False
        self._on_step()

    def end(self) -> bool:
        """The step ends; whether the optimizer has taken it."""
        self._in_loop = False
        return self._stepped

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Within this the methods act as those of any optimizer: a checkpoint may call them."""
        before, self._in_loop = self._in_loop, False
        try:
            yield
        finally:
            self._in_loop = before


def _stand_in(given: Any, optimizer: Any) -> None:
    """Let the optimizer that the user made stand for the one that holds the divided states."""
    for group, before in zip(optimizer.param_groups, given.param_groups, strict=True):
        # A schedule keeps figures of its own there.
        group |= {name: value for name, value in before.items() if name not in group}
    optimizer._sync_param_groups(optimizer.param_groups, optimizer.optim.param_groups)
    # What a schedule or the user changes in the groups of one is changed in those of the other.
    given.param_groups = optimizer.param_groups

    @functools.wraps(given.step)
    def step(*arguments: Any, **named: Any) -> Any:
        # A schedule looks for this mark before its own first step.
        given._opt_called = True
        return optimizer.step(*arguments, **named)

    given.step, given.zero_grad = step, optimizer.zero_grad

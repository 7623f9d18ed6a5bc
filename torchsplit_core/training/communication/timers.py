"""When the gradients of a step are ready, and what the exchanges of a step take, by kind."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.futures import Future

from torchsplit_core.training.communication.hooks import BucketHook

EXPOSED: Final = "all_reduce_exposed"
"""Exchange of gradients after the backward pass is done: the step waits for it."""
OVERLAPPED: Final = "all_reduce_overlapped"
"""Exchange of gradients while the backward pass runs."""
BROADCAST: Final = "broadcast"
"""Buffers of the model, and under ZeRO-1 the new weights."""
AGREEMENT: Final = "agreement"
"""Losses and requests of all ranks; a fast rank waits there for a slow one."""
KINDS: tuple[str, ...] = (EXPOSED, OVERLAPPED, BROADCAST, AGREEMENT)


class ExchangeTimer:
    """Seconds of a step's exchanges on this rank, by kind; a kind that did not occur is left out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[tuple[float, float]] = []
        self._seconds: dict[str, float] = defaultdict(float)

    def timed_hook(self, hook: BucketHook) -> BucketHook:
        """The hook, whose exchanges are timed from the bucket's gradients being ready to their mean."""

        def run(bucket: Any) -> Future[Tensor]:
            began = time.perf_counter()

            def end(future: Future[Tensor]) -> Tensor:
                value = future.value()
                with self._lock:
                    self._spans.append((began, time.perf_counter()))
                return value

            return hook(bucket).then(end)

        return run

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Add the time inside to the kind."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[kind] += time.perf_counter() - began

    def end_backward(self) -> None:
        """Divide what the last backward pass exchanged: it was done when its last bucket began."""
        with self._lock:
            spans, self._spans = self._spans, []
        if not spans:
            return
        ready = max(began for began, _ in spans)
        exposed = max(0.0, max(ended for _, ended in spans) - ready)
        self._seconds[EXPOSED] += exposed
        self._seconds[OVERLAPPED] += _covered([(began, min(ended, ready)) for began, ended in spans])

    def take(self) -> dict[str, float]:
        """Seconds by kind since the last call."""
        seconds = {kind: self._seconds[kind] for kind in KINDS if kind in self._seconds}
        self._seconds.clear()
        return seconds

    def time_broadcasts(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Time DDP's broadcasts of buffers, and those of ZeRO-1's new weights."""
        for owner, name in ((model, "_sync_buffers"), (optimizer, "_sync_params")):
            if (plain := getattr(owner, name, None)) is not None:
                setattr(owner, name, self._timed_call(plain))

    def _timed_call(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with self.timed(BROADCAST):
                return plain(*given, **named)

        return call


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the spans."""
    total, end = 0.0, float("-inf")
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, end))
        end = max(end, ended)
    return total


class ReadyTimes:
    """When each gradient of a backward pass is ready, from hooks on the weights, until `close`.

    On a GPU by events in its stream: untested on hardware.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], device: torch.device) -> None:
        self.active = False
        self._device = device
        self._marks: dict[str, Any] = {}
        self._began: Any = None
        self._handles = [
            weight.register_post_accumulate_grad_hook(self._marker(name))
            for name, weight in parameters.items()
            if weight.requires_grad
        ]

    def _marker(self, name: str) -> Callable[[Tensor], None]:
        def mark(_: Tensor) -> None:
            if self.active:
                self._marks[name] = self._now()

        return mark

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        """Begin a backward pass."""
        self._marks, self._began, self.active = {}, self._now(), True

    def end(self) -> dict[str, float]:
        """Seconds from the beginning to each gradient, by name, in the order in which they were ready."""
        self.active = False
        if self._device.type != "cuda":
            return {name: at - self._began for name, at in self._marks.items()}
        torch.cuda.synchronize(self._device)
        return {name: self._began.elapsed_time(at) / 1e3 for name, at in self._marks.items()}

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

"""The exchange of a run's gradients: measured in its first steps, chosen, applied to DDP, checked, timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_PREFIX
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BucketCapacityConfig

from torchsplit_core.checkpoints.store import Checkpoints
from torchsplit_core.training.async_checkpoint import load_exchange
from torchsplit_core.training.communication.choice import (
    FIRST_CAP_MIB,
    GRADIENT_BYTES,
    ExchangeChoice,
    ExchangeCosts,
    GradientTimeline,
    TransferTimes,
    choose,
    describe_exchange,
)
from torchsplit_core.training.communication.hooks import (
    DTYPES,
    BucketHook,
    NodeGroups,
    PowerSGD,
    SerialExchange,
    all_reduce_hierarchical,
    hierarchical_hook,
    make_node_groups,
    rounded_exchange,
    simple_hook,
)
from torchsplit_core.training.communication.measurement import (
    BUDGET_S,
    measure_exchange,
    measure_products,
    supports,
)
from torchsplit_core.training.communication.record import (
    ExchangeKey,
    ExchangeRecord,
    read_exchange,
    save_exchange,
)
from torchsplit_core.training.communication.timers import AGREEMENT, ExchangeTimer, ReadyTimes
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.communication import (
    COMPRESSIONS,
    WHERE,
    CommunicationRequest,
    Hook,
    check_communication,
)
from torchsplit_core.values.units import MIB

EVENT = "communication"
"""Kind of the events that say what was chosen."""
UNTIMED_STEPS = 2
"""Steps after which DDP has its buckets: it forms them anew after the first."""
TIMED_STEPS = 5
CHECKED_STEPS = 5
MIN_STEPS = 20
"""A run that ends sooner keeps DDP's default buckets."""
SLOWER = 0.05
"""Share by which a choice may be slower than the default before the run goes back."""
WARM_UP_SHARE, MOST_WARM_UP = 0.1, 1000
"""Steps before PowerSGD compresses: a tenth of the run (torch's advice), at most torch's default."""


class GradientExchange:
    """Exchanges the gradients of a model under DDP as the request says; for other models it only times.

    `steps`: those that this start will do at most. Every rank calls the same methods in the same order. Raises
    InputFault for a request that the strategy or the backend cannot carry out.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        request: CommunicationRequest,
        run: Path,
        *,
        steps: int,
        log: Callable[[str, str, int | None], None],
    ) -> None:
        self.request, self._run, self._log = check_communication(request), run, log
        self.timer = ExchangeTimer()
        self.loss_factor = 1.0
        """Factor on the loss of every batch of the next step: DDP averages gradients, an exchange without loss sums."""
        self._powersgd: PowerSGD | None = None
        self._serial: SerialExchange | None = None
        self._groups: NodeGroups | None = None
        self._ready: ReadyTimes | None = None
        self._record: ExchangeRecord | None = None
        self._ready_samples: list[dict[str, float]] = []
        self._backward_s: list[float] = []
        self._step_s: list[float] = []
        self._applied = False
        self._done, self._checked_from = 0, 0
        self._steps, self._step_began = steps, time.perf_counter()
        self._model = model if isinstance(model, DistributedDataParallel) else None
        if self._model is None:
            return
        self._group = self._model.process_group
        self.processes = self._group.size()
        self.device = next(model.parameters()).device
        # Without recomputation a layer has another name: a checkpoint must not depend on it.
        self._names = {
            name.replace(_CHECKPOINT_PREFIX, ""): weight
            for name, weight in model.module.named_parameters()
            if weight.requires_grad
        }
        self._per_node = self._ranks_per_node()
        if self.processes > 1 and self.request.hook != "ddp":
            self._refuse_unsupported()
            if self.request.hook == "hierarchical" and not self._divided:
                self._say("all ranks are on one node, or each on its own: a plain all-reduce instead")
                self.request = replace(self.request, hook="all_reduce")
            self.timer.time_broadcasts(self._model, optimizer)
            self._begin()

    def _refuse_unsupported(self) -> None:
        hook = self.request.hook
        if hook is not None and hook in DTYPES and not supports(DTYPES[hook], self._group, self.device):
            raise InputFault(
                f"{WHERE}.hook",
                f"is {hook}, which the backend {self._backend} of this run does not sum",
                "Fix hook to all_reduce, or leave it out.",
            )
        if hook == "hierarchical" and self.device.type != "cpu":
            raise InputFault(
                f"{WHERE}.hook",
                f"is hierarchical, but on {self.device.type} the backend {self._backend} divides exchanges by itself",
                "Fix hook to all_reduce, or leave it out.",
            )

    @property
    def _backend(self) -> str:
        return str(dist.get_backend(self._group))

    def _ranks_per_node(self) -> int:
        """Ranks on each node; all of them where nodes do not divide the group."""
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.processes))
        whole = self.processes == dist.get_world_size() and self.processes % per_node == 0
        return per_node if whole and self.device.type == "cpu" else self.processes

    @property
    def _divided(self) -> bool:
        """Whether there are several nodes with several ranks each."""
        return bool(1 < self._per_node < self.processes)

    @property
    def key(self) -> ExchangeKey:
        """What this start's choice holds for."""
        size = GRADIENT_BYTES * sum(prod(weight.shape) for weight in self._names.values())
        nodes = self.processes // self._per_node
        return ExchangeKey(self.request, self.processes, nodes, self._backend, size)

    def _begin(self) -> None:
        """Apply what is fixed or was chosen before; otherwise begin to measure."""
        request = self.request
        records: list[ExchangeRecord | None] = [read_exchange(self._run) if dist.get_rank() == 0 else None]
        # The first rank's reading counts for all: another node may be writing the file.
        dist.broadcast_object_list(records, src=0)
        record, hook = records[0], request.hook or "all_reduce"
        if not request.open:
            self._apply(hook, request.bucket_mib)
            self._say(f"{describe_exchange(hook, request.bucket_mib)}, as the request fixes it")
        elif record and record.key == self.key:
            self._apply(record.hook, record.bucket_mib)
            self._say(f"{describe_exchange(record.hook, record.bucket_mib)}, as chosen before")
        elif self.key.gradient_bytes <= FIRST_CAP_MIB * MIB or self._steps < MIN_STEPS:
            self._apply(hook, request.bucket_mib)
        else:
            self._apply("all_reduce", None)
            self._ready = ReadyTimes(self._names, self.device)

    def _say(self, words: str) -> None:
        self._log(EVENT, words, None)

    def _apply(self, hook: Hook, bucket_mib: float | None) -> None:
        """Have DDP exchange so from the next backward pass on."""
        assert self._model is not None
        if self._applied or bucket_mib is not None:
            rebuild_buckets(self._model, bucket_mib)
        self._applied = True
        made = self._make_hook(hook)
        self.loss_factor = 1.0 if hook in COMPRESSIONS else 1.0 / self.processes
        if self.device.type == "cpu":
            # A GPU's exchange is not done when its future says so: untested on hardware.
            made = self.timer.timed_hook(made)
        # torch checks annotations of a hook, but not as the texts that they are here.
        self._model.register_comm_hook(None, lambda _, bucket: made(bucket))

    def _make_hook(self, hook: Hook) -> BucketHook:
        if hook == "hierarchical":
            return hierarchical_hook(self._node_groups(), self._in_order())
        if hook != "powersgd":
            return simple_hook(hook, self._group)
        warm_up = min(MOST_WARM_UP, round(WARM_UP_SHARE * self._steps))
        names = {id(weight): name for name, weight in self._names.items()}
        serial = self._in_order() if self.device.type == "cpu" else None
        self._powersgd = PowerSGD(self._group, self.request.rank, warm_up, names, serial)
        return self._powersgd

    def _in_order(self) -> SerialExchange:
        self._serial = self._serial or SerialExchange()
        return self._serial

    def _node_groups(self) -> NodeGroups:
        self._groups = self._groups or make_node_groups(self._per_node)
        return self._groups

    @contextmanager
    def backward(self, *, last: bool) -> Iterator[None]:
        """Around a backward pass; `last`: the one of its step that exchanges."""
        began = time.perf_counter()
        if last and self._ready:
            self._ready.begin()
        yield
        if not last or self._model is None:
            return
        self.timer.end_backward()
        self._backward_s.append(time.perf_counter() - began)
        if self._ready:
            self._ready_samples.append(self._ready.end())

    def agreement(self) -> AbstractContextManager[None]:
        """Around the exchange of losses and requests."""
        return self.timer.timed(AGREEMENT)

    def after_step(self) -> None:
        """Count a completed step; choose and check when enough are measured."""
        now = time.perf_counter()
        self._step_s.append(now - self._step_began)
        self._step_began = now
        self._done += 1
        if self._ready and self._done == UNTIMED_STEPS + TIMED_STEPS:
            self._choose()
        elif self._checked_from and self._done == self._checked_from + UNTIMED_STEPS + CHECKED_STEPS:
            self._check()
        self._step_began = time.perf_counter()
        # Only the last few count.
        for samples in (self._step_s, self._backward_s, self._ready_samples):
            del samples[: -max(TIMED_STEPS, CHECKED_STEPS)]

    def _choose(self) -> None:
        """Choose from the steps timed so far, and apply it."""
        assert self._ready is not None
        timeline, before_s = self._timeline()
        self._ready.close()
        self._ready = None
        costs = self._measure()
        choice = choose(timeline, costs, self.request, self.processes)
        self._record = ExchangeRecord(
            self.key,
            choice.hook,
            choice.bucket_mib,
            choice.reason,
            costs.transfers,
            choice.candidates,
            before_s,
        )
        self._adopt(choice)

    def _adopt(self, choice: ExchangeChoice) -> None:
        self._say(choice.reason)
        if (choice.hook, choice.bucket_mib) != ("all_reduce", None):
            self._apply(choice.hook, choice.bucket_mib)
            # A hook that the request fixes stays even if it is slower.
            if self.request.hook is None:
                self._checked_from = self._done + (self._powersgd.warm_up if self._powersgd else 0)
        self._save()

    def _timeline(self) -> tuple[GradientTimeline, float]:
        """The timed steps as medians, of the slowest rank; and the seconds of backward pass and exchange."""
        samples, backward_s = self._ready_samples[-TIMED_STEPS:], self._backward_s[-TIMED_STEPS:]
        # A weight that no step uses is ready at the end.
        ready = [
            median(sample.get(name, max(sample.values(), default=0.0)) for sample in samples)
            for name in self._names
        ]
        pass_s = max(ready)
        rest_s = max(0.0, median(self._step_s[-TIMED_STEPS:]) - median(backward_s))
        *ready, pass_s, rest_s, before_s = self._slowest([*ready, pass_s, rest_s, median(backward_s)])
        assert self._model is not None
        shapes = [tuple(weight.shape) for weight in self._names.values()]
        order = sorted(range(len(ready)), key=ready.__getitem__)
        if self._model.find_unused_parameters:
            # DDP then keeps its first buckets, by the weights' order from the end.
            order = [*reversed(range(len(ready)))]
            for before, place in pairwise(order):
                ready[place] = max(ready[place], ready[before])
        timeline = GradientTimeline(
            tuple(shapes[place] for place in order), tuple(ready[place] for place in order), pass_s, rest_s
        )
        return timeline, before_s

    def _slowest(self, seconds: list[float]) -> list[float]:
        """Of each entry the largest of all ranks."""
        values = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._group)
        return [float(value) for value in values.tolist()]

    def _measure(self) -> ExchangeCosts:
        """Times of the hooks that the request leaves."""
        request, group, device = self.request, self._group, self.device
        wanted = {*request.lossy, request.hook}
        exchanges: dict[Hook, Callable[[Tensor], object]] = {
            "all_reduce": lambda buffer: dist.all_reduce(buffer, group=group)
        }
        if self._divided and request.hook in (None, "hierarchical"):
            groups = self._node_groups()
            exchanges["hierarchical"] = lambda buffer: all_reduce_hierarchical(buffer, groups)
        for hook, dtype in DTYPES.items():
            if hook in wanted and supports(dtype, group, device):
                exchanges[hook] = rounded_exchange(dtype, group)
        budget_s = BUDGET_S / len(exchanges)
        transfers: dict[Hook, TransferTimes] = {
            hook: measure_exchange(exchange, group, device, budget_s) for hook, exchange in exchanges.items()
        }
        products = measure_products(request.rank, group, device) if "powersgd" in wanted else None
        return ExchangeCosts(transfers, products, on_processor=device.type == "cpu")

    def _check(self) -> None:
        """Compare the choice with the default as both were measured; go back if it is slower."""
        assert self._record is not None and self._record.before_s is not None
        (after_s,) = self._slowest([median(self._backward_s[-CHECKED_STEPS:])])
        self._checked_from = 0
        before_s, slower = self._record.before_s, after_s > self._record.before_s * (1 + SLOWER)
        words = f"backward pass and exchange take {after_s:.3g} s, {before_s:.3g} s by DDP's defaults"
        self._record = replace(self._record, after_s=after_s, reverted=slower)
        if slower:
            self._powersgd = None
            self._apply("all_reduce", None)
            self._record = replace(self._record, hook="all_reduce", bucket_mib=None)
            words += ": goes back to these"
        self._say(words)
        self._save()

    def _save(self) -> None:
        if dist.get_rank() == 0 and self._record is not None:
            save_exchange(self._run, self._record)

    def load(self, checkpoints: Checkpoints, step: int) -> None:
        """Take up PowerSGD's errors from the checkpoint of `step`, 0: none; they begin at zero for other ranks."""
        if self._powersgd is None or step == 0:
            return
        errors = load_exchange(checkpoints.path_of(step), self._names)
        if errors is None:
            self._say(
                f"the error feedback of PowerSGD begins at zero: the checkpoint of step {step} has none of these ranks"
            )
        self._powersgd.errors = errors or {}

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds of this rank's exchange: PowerSGD's errors by weight; mostly nothing."""
        return self._powersgd.local_errors() if self._powersgd else {}


def rebuild_buckets(model: DistributedDataParallel, bucket_mib: float | None) -> None:
    """Give DDP buckets of another size, None: its default, and no hook. Between two steps only.

    As DDP's own constructor and `__setstate__` do it: a new reducer over the same weights.
    """
    model._remove_autograd_hooks()
    model._bucket_config = _BucketCapacityConfig.create(bucket_mib, None, use_python_reducer=False)
    model.bucket_bytes_cap = model._bucket_config.bucket_bytes_cap
    model.bucket_bytes_cap_default = bucket_mib is None
    parameters, sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    model._ddp_init_helper(parameters, sparse, names, model.static_graph)
    model._comm_hooks.clear()

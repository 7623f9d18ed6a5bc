"""A training loop over the processes that it was started on: divided, weighted, written down, saved, gone on with.

    run = prepare(model, optimizer, loader, strategy, "RUN")
    for inputs, targets in run:
        run.backward(loss_of(run.model(*inputs), targets))

It runs alone, or in each process of `torchrun`; `torchsplit train` does the same with a `TrainClient`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader

from torchsplit_core.running.adapt.changes import Changes
from torchsplit_core.running.adapt.moving import Moving
from torchsplit_core.running.adapt.told import Told, not_finite, told_by_all
from torchsplit_core.running.beginning import Beginning
from torchsplit_core.running.checkpoints import Checkpoints, Manifest
from torchsplit_core.running.divide import (
    data_rank,
    divided,
    finite_gradients,
    in_bf16,
    mesh_of,
    moved,
    own_part,
    same_optimizer,
)
from torchsplit_core.running.feed import Feed
from torchsplit_core.running.folder import MAKE_ROOM, RunFolder
from torchsplit_core.running.layout import check_options
from torchsplit_core.running.processes import check_alike
from torchsplit_core.running.saving import Saver, model_digest, seed_all
from torchsplit_core.running.shares import position_of
from torchsplit_core.running.staged.feed import Loss, StagedFeed, single
from torchsplit_core.running.staged.names import name_in_model
from torchsplit_core.running.starts.stalls import STEP_BEGINS, WAITS_FOR_DISK
from torchsplit_core.running.watch.asking import answer, is_asked
from torchsplit_core.running.watch.pulse import Pulse
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.training import SHARDED

if TYPE_CHECKING:
    from torchsplit_core.running.staged.pipeline import Pipeline

WRAPPED = "_checkpoint_wrapped_module."


class TrainingRun:
    """Iterated over, it gives this process's batches; each is answered by `backward(loss)`, the mean over the batch.

    The gradients of a step are those of the mean over all its samples, however they are divided. `model` and
    `optimizer` are what was given, divided. `step` counts the steps that are done, those before a resumption too.
    `began_s`: when its processes were begun, in seconds of the epoch.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        strategy: RunStrategy,
        folder: RunFolder,
        options: RunOptions,
        *,
        name: str = "",
        tensor_plan: Mapping[str, str] | None = None,
        unused_weights: bool = False,
        mark: Callable[[str, int], None] | None = None,
        began_s: float | None = None,
    ) -> None:
        self.folder, self.options, self.strategy = folder, options, strategy
        self._mark = mark or (lambda doing, step: None)
        self.name = name or type(model).__name__
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.nodes = check_alike(folder.node)
        choices, precision = strategy.choices, strategy.job.precision
        self.device = (
            torch.device("cuda", torch.cuda.current_device())
            if torch.cuda.is_available()
            else torch.device("cpu")
        )
        check_options(strategy, options)
        mesh = mesh_of(choices, self.device.type, int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size)))
        feed = StagedFeed if choices.pipeline > 1 else Feed
        self.feed: Feed = feed(
            loader, strategy.job.global_batch, choices.micro_batch, data_rank(choices, self.rank), choices.data,
            options.shares, options.seed,
        )  # fmt: skip
        self.last_step = self.feed.steps_a_pass if options.steps is None else options.steps
        self.digest = model_digest(model)
        before = dict(model.named_parameters())
        self.pipeline = self._staged(model.train(), mesh)
        if self.pipeline:
            self.model = model = self.pipeline.model
        else:
            model.to(self.device)
            if precision == "bf16" and choices.shard not in SHARDED:
                in_bf16(model, self.device.type)
            self.model = divided(
                model, mesh, choices, precision, tensor_plan=tensor_plan, unused_weights=unused_weights
            )
        after = {name_in_model(key.replace(WRAPPED, "")): weight for key, weight in model.named_parameters()}
        self.optimizer = same_optimizer(optimizer, before, after, choices, mesh)
        if precision == "tf32":
            torch.set_float32_matmul_precision("high")
        self._group = dist.new_group(backend="gloo")
        self.checkpoints = Checkpoints(folder.checkpoints, options.keep)
        # A group of its own: checkpoints are written by another thread, between this one's exchanges.
        self.saver = Saver(folder, self.checkpoints, dist.new_group(backend="gloo"))
        self.changes = Changes(self.feed, strategy, options, self.device, self._tell_once, self.pipeline)
        self._pass_count, self._pass_last, self._answered = 0, False, True
        self._loss_sum = 0.0
        self._step_samples = self._own_samples = 0
        self._memory_bytes = 0
        self._asked = False
        seed_all(options.seed, self.rank)
        self._mark(WAITS_FOR_DISK, 0)
        begins = Beginning(folder, self.checkpoints, self.digest, self._facts(), self._notes())
        self.step = begins.go_on(self.model, own_part(self.optimizer), self._group)
        self.saver.newest = self.step or None
        self.pulse = Pulse(folder.path, self.rank, self.device, self.model, self.step)
        self.moves = False
        """Whether it has ended because the next start of the processes goes on with other stages."""
        self._moving: Moving | None = None
        if self.changes.mover:
            self._moving = Moving(folder, self.rank, began_s or time.time(), self.changes, self.saver)

    def _staged(self, model: nn.Module, mesh: DeviceMesh) -> Pipeline | None:
        """Where the strategy has a pipeline."""
        if not isinstance(self.feed, StagedFeed):
            return None
        # It brings torch's tracer, which other runs do without.
        from torchsplit_core.running.staged.pipeline import Pipeline

        timed = self.options.balance or self.device.type == "cpu"
        return Pipeline(model, self.feed, mesh, self.strategy, self.device, timed=timed)

    def _facts(self) -> dict[str, Any]:
        """What run.json says."""
        return {
            "source": self.name,
            "global_batch": self.strategy.job.global_batch,
            "seed": self.options.seed,
            "steps": self.last_step,
            "shuffled": self.feed.shuffle,
            "samples": self.feed.samples,
            "processes": self.world_size,
            "nodes": self.nodes,
            "choices": asdict(self.strategy.choices),
            "precision": self.strategy.job.precision,
            "optimizer": type(self.optimizer).__name__,
            "device": str(self.device),
            "backend": str(dist.get_backend()),
            "torch_version": torch.__version__,
        }

    def _notes(self) -> tuple[str, ...]:
        """What the first event says of the division."""
        choices = self.strategy.choices
        if self.pipeline:
            stages = ", ".join(self.pipeline.words())
            return (f"{choices.pipeline} stages of blocks: {stages}",)
        if choices.tensor > 1 and choices.sequence_parallel:
            return (
                "without sequence parallelism: the results are the same, activations take more than was reckoned",
            )
        return ()

    def follow(self, loss_of: Loss) -> None:
        """Train to the last step, or to one at which blocks move (`moves`).

        `loss_of(outputs, targets)` is the mean over the samples of a batch.
        Raises InputFault where the loss or a gradient of a step is not finite: nothing was changed by that step.
        """
        if self.pipeline is None:
            for inputs, targets in self:
                self.backward(loss_of(self.model(*inputs), targets))
            return
        while self.step < self.last_step:
            began = self._begin_step()
            self._own_samples = self.pipeline.fetch(self.step)
            self.pulse.lap("data")
            self._mark("stages", self.step)
            self._loss_sum = self.pipeline.step(self._own_samples, self._step_samples, loss_of)
            self.pulse.lap_of("waiting for stages", self.pipeline.seconds)
            self.changes.took(sum(self.pipeline.seconds.values()))
            self.pulse.blocks_s = self.pipeline.own_blocks()
            self._end_step()
            self._finish_step(began)
            if self._moving and self._moving.begins(self.step, self.save):
                self.moves = True
                return
        self._finish()

    def __iter__(self) -> Iterator[Any]:
        while self.step < self.last_step:
            began = self._begin_step()
            for one in self.feed.passes(self.step):
                self._pass_count, self._pass_last, self._answered = one.counted, one.last, False
                if isinstance(self.model, nn.parallel.DistributedDataParallel):
                    # What `no_sync` does, which a loop of the user's cannot be put into.
                    self.model.require_backward_grad_sync = one.last
                batch = moved(one.batch, self.device)
                self.pulse.lap("data")
                self._mark("forward pass", self.step)
                yield batch
                if not self._answered:
                    raise InputFault(
                        "the training loop",
                        f"did not call run.backward(loss) for a batch of step {self.step + 1}",
                        "Call it once in each turn of the loop.",
                    )
                self._mark(STEP_BEGINS, self.step)
            self._finish_step(began)
        self._finish()

    def _begin_step(self) -> float:
        """When it began."""
        began = time.perf_counter()
        self.pulse.begin()
        self._mark(STEP_BEGINS, self.step)
        self.changes.begin(step=True)
        self._loss_sum, self._step_samples = 0.0, len(self.feed.indices(self.step))
        self._own_samples = 0
        return began

    def backward(self, loss: torch.Tensor) -> None:
        """Take the mean loss of the batch that was given last: gradients, and at the end of a step the optimizer.

        Raises InputFault where the loss or a gradient of the step is not finite: nothing was changed by that step.
        """
        single(loss)
        self._answered = True
        self.pulse.lap("forward")
        self.changes.end(self._pass_count)
        self._own_samples += self._pass_count
        weight = self._pass_count / self._step_samples
        self._mark("backward pass", self.step)
        # DDP and FSDP average over ranks.
        (loss.float() * (weight * self.strategy.choices.data)).backward()
        if self._pass_count:
            self._loss_sum += float(loss.detach()) * weight
        self.pulse.lap("backward")
        if self._pass_last:
            self._end_step()
        else:
            self.changes.begin()

    def _end_step(self) -> None:
        """The step's gradients are there: what all say of it, and the optimizer."""
        self._mark("sum of the losses", self.step)
        told = self._told_by_all()
        # The ranks of a tensor group have the same samples; of a pipeline's stages only the last knows a loss.
        self._loss_sum = float(sum(one.loss for one in told[:: self.strategy.choices.tensor]))
        self._memory_bytes = int(max(one.peak_bytes for one in told))
        self.pulse.lap("agreement")
        self._mark("optimizer", self.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.pulse.lap("optimizer")
        self.step += 1
        self.changes.after(self.step, told, self.last_step - self.step)

    def _tell_once(self, kind: str, words: str, rank: int | None) -> None:
        """What all ranks know, told by the first."""
        if self.rank == 0:
            self.folder.tell(kind, words, rank)

    def _told_by_all(self) -> list[Told]:
        """What all ranks say of the step. Raises InputFault where a loss, or a gradient, is not finite."""
        # Asked of the run, heard by rank 0, done by all in the same step.
        asked = float(self.rank == 0 and is_asked(self.folder.path, "checkpoint"))
        own = self.changes.own(
            self._loss_sum,
            finite_gradients(self.model),
            self._own_samples,
            asked=asked,
            move_s=self._moving.seconds() if self._moving else 0.0,
        )
        told = told_by_all(own, self._group)
        self._asked = bool(told[0].asked)
        if bad := not_finite(told):
            self._stop_at_nonsense(*bad, told[bad[1][0]].loss)
        return told

    def _stop_at_nonsense(self, what: str, ranks: list[int], value: float) -> None:
        self.saver.close()
        step = self.step + 1
        kept = self.checkpoints.steps()
        where = f"step {step}, rank {', '.join(map(str, ranks))}"
        last = f"the checkpoint of step {kept[-1]} is kept" if kept else "there is no checkpoint yet"
        if self.rank == 0:
            self.folder.tell("not_finite", f"the {what} of {where} is not a finite number; {last}", ranks[0])
        raise InputFault(
            f"the {what} of {where}",
            f"is {value if what == 'loss' else 'nan or inf'}; nothing of that step was taken, and {last}",
            "Lower the learning rate, look at the samples of that step, or choose another precision.",
        )

    def _finish_step(self, began: float) -> None:
        if self.rank == 0:
            seconds = time.perf_counter() - began
            self.folder.add_step(
                self.step, self._loss_sum, self._step_samples, seconds, self.world_size, self._memory_bytes
            )
        if (self._asked or self.step % self.options.checkpoint_every == 0) and self.step < self.last_step:
            self.pulse.begin()
            self.save()
            self.pulse.lap("checkpoint")
        if self._asked and self.rank == 0:
            answer(self.folder.path, "checkpoint")
        self.pulse.beat(self.step)

    def save(self) -> None:
        """Begin a checkpoint of the steps that are done."""
        self._mark(WAITS_FOR_DISK, self.step)
        place = position_of(self.step, self.feed.samples, self.strategy.job.global_batch)
        manifest = Manifest(
            step=self.step,
            epoch=place.epoch,
            offset=place.offset,
            world_size=self.world_size,
            global_batch=self.strategy.job.global_batch,
            samples=self.feed.samples,
            seed=self.options.seed,
            model=self.name,
            model_sha256=self.digest,
            torch_version=torch.__version__,
        )
        self.saver.save(self.model, own_part(self.optimizer), manifest)

    def meet(self) -> None:
        """Wait until all ranks are here."""
        dist.barrier(group=self._group)

    def _finish(self) -> None:
        """The last checkpoint. Raises InputFault where it could not be written."""
        if self.saver.newest != self.step:
            self.save()
        self._mark(WAITS_FOR_DISK, self.step)
        reason = self.saver.close()
        self._mark("end", self.step)
        self.pulse.say(self.step, ended=True)
        if reason:
            raise InputFault(f"checkpoint of step {self.step}", f"was not written: {reason}", MAKE_ROOM)
        if self.rank == 0:
            self.folder.tell("finished", f"step {self.step} of {self.last_step} is done", 0)

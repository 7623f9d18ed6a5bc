"""A training loop over the processes that it was started on: divided, weighted, written down, saved, gone on with.

    run = prepare(model, optimizer, loader, strategy, "RUN")
    for inputs, targets in run:
        run.backward(loss_of(run.model(*inputs), targets))

It runs alone, or in each process of `torchrun`; `torchsplit train` does the same with a `TrainClient`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from torchsplit_core.running.adapt.changes import Changes
from torchsplit_core.running.adapt.speed import check_balance
from torchsplit_core.running.adapt.told import Told, told_by_all
from torchsplit_core.running.checkpoints import Checkpoints, Manifest
from torchsplit_core.running.divide import divided, in_bf16, mesh_of, own_part, same_optimizer
from torchsplit_core.running.feed import Feed
from torchsplit_core.running.folder import RunFolder
from torchsplit_core.running.processes import check_alike
from torchsplit_core.running.saving import Saver, check_model, load, model_digest, seed_all
from torchsplit_core.running.shares import check_shares, position_of
from torchsplit_core.running.starts.stalls import STEP_BEGINS, WAITS_FOR_DISK
from torchsplit_core.running.watch.asking import answer, is_asked
from torchsplit_core.running.watch.pulse import Pulse
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.training import SHARDED

WRAPPED = "_checkpoint_wrapped_module."
FIXED = ("source", "global_batch", "seed", "shuffled", "samples")
"""What a run goes on with as it began."""


class TrainingRun:
    """Iterated over, it gives this process's batches; each is answered by `backward(loss)`, the mean over the batch.

    The gradients of a step are those of the mean over all its samples, however they are divided. `model` and
    `optimizer` are what was given, divided. `step` counts the steps that are done, those before a resumption too.
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
        model = model.to(self.device).train()
        check_shares(options.shares, choices.data)
        if options.balance:
            check_balance(strategy)
        ranks = choices.data
        self.feed = Feed(
            loader, strategy.job.global_batch, choices.micro_batch, self.rank // choices.tensor, ranks,
            options.shares, options.seed,
        )  # fmt: skip
        self.last_step = self.feed.steps_a_pass if options.steps is None else options.steps
        self.digest = model_digest(model)
        if precision == "bf16" and choices.shard not in SHARDED:
            in_bf16(model, self.device.type)
        before = dict(model.named_parameters())
        mesh = mesh_of(choices, self.device.type, int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size)))
        self.model = divided(
            model, mesh, choices, precision, tensor_plan=tensor_plan, unused_weights=unused_weights
        )
        after = {key.replace(WRAPPED, ""): weight for key, weight in model.named_parameters()}
        self.optimizer = same_optimizer(optimizer, before, after, choices)
        if precision == "tf32":
            torch.set_float32_matmul_precision("high")
        self._group = dist.new_group(backend="gloo")
        self.checkpoints = Checkpoints(folder.checkpoints, options.keep)
        # A group of its own: checkpoints are written by another thread, between this one's exchanges.
        self.saver = Saver(folder, self.checkpoints, dist.new_group(backend="gloo"))
        self.changes = Changes(self.feed, strategy, options, self.device, self._tell_once)
        self._pass_count, self._pass_last, self._answered = 0, False, True
        self._loss_sum = 0.0
        self._step_samples = self._own_samples = 0
        self._memory_bytes = 0
        self._asked = False
        seed_all(options.seed, self.rank)
        self._mark(WAITS_FOR_DISK, 0)
        self.step = self._go_on()
        self.pulse = Pulse(folder.path, self.rank, self.device, self.model, self.step)

    def _go_on(self) -> int:
        """Load the newest complete checkpoint, if any; the step to go on from. Raises InputFault on every rank."""
        found: list[Any] = [None]
        if self.rank == 0:
            found = [self._newest()]
        dist.broadcast_object_list(found, src=0, group=self._group)
        if isinstance(found[0], InputFault):
            raise found[0]
        if found[0] is None:
            if self.rank == 0:
                self._begin_at(0)
            return 0
        path, manifest = found[0]
        load(path, manifest, self.model, own_part(self.optimizer))
        self.saver.newest = manifest.step
        if self.rank == 0:
            self._begin_at(manifest.step)
        return int(manifest.step)

    def _newest(self) -> tuple[Path, Manifest] | InputFault | None:
        """Rank 0: the checkpoint to go on from, or why there is none that will do."""
        try:
            before = self.folder.facts().get("nodes")
            self.folder.keep_facts(self._facts(), FIXED)
            self._tell_of_nodes(before)
            found = self.checkpoints.newest(lambda words: self.folder.tell("checkpoint_damaged", words, 0))
            if found:
                path, manifest = found
                check_model(path, manifest, self.name, self.digest)
        except InputFault as fault:
            return fault
        return found

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

    def _tell_of_nodes(self, before: list[str] | None) -> None:
        """Which nodes have come and gone since the last start."""
        if before is None or set(before) == set(self.nodes):
            return
        words = [f"{name} has come" for name in self.nodes if name not in before]
        words += [f"{name} is gone" for name in before if name not in self.nodes]
        now = f"goes on with ranks 0 to {self.world_size - 1} on {', '.join(self.nodes)}"
        self.folder.tell("scaled", f"{now}: {', '.join(words)}; the global batch as it was", 0)

    def _begin_at(self, step: int) -> None:
        self.checkpoints.sweep(step)
        again = self.folder.forget_steps_after(step)
        words = f"goes on after step {step}" if step else "begins at step 1"
        if again:
            words += f"; {again} steps since then are done again"
        words += f" with {self.world_size} processes"
        choices = self.strategy.choices
        if choices.tensor > 1 and choices.sequence_parallel:
            words += "; without sequence parallelism: the results are the same, activations take more than was reckoned"
        self.folder.tell("resumed" if step else "started", words, 0)

    def __iter__(self) -> Iterator[Any]:
        while self.step < self.last_step:
            began = time.perf_counter()
            self.pulse.begin()
            self._mark(STEP_BEGINS, self.step)
            self.changes.begin(step=True)
            self._loss_sum, self._step_samples = 0.0, len(self.feed.indices(self.step))
            self._own_samples = 0
            for one in self.feed.passes(self.step):
                self._pass_count, self._pass_last, self._answered = one.counted, one.last, False
                if isinstance(self.model, nn.parallel.DistributedDataParallel):
                    # What `no_sync` does, which a loop of the user's cannot be put into.
                    self.model.require_backward_grad_sync = one.last
                batch = _moved(one.batch, self.device)
                self.pulse.lap("data")
                self._mark("forward pass", self.step)
                yield batch
                if not self._answered:
                    raise InputFault(
                        "the training loop",
                        f"step {self.step + 1}",
                        "every batch is answered by run.backward(loss)",
                        "Call it once in each turn of the loop.",
                    )
                self._mark(STEP_BEGINS, self.step)
            self._finish_step(began)
        self._finish()

    def backward(self, loss: torch.Tensor) -> None:
        """Take the mean loss of the batch that was given last: gradients, and at the end of a step the optimizer.

        Raises InputFault where the loss or a gradient of the step is not finite: nothing was changed by that step.
        """
        if loss.dim():
            raise InputFault(
                "the loss", tuple(loss.shape), "it is the mean over the batch, a single number", "Take it."
            )
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
            self._mark("sum of the losses", self.step)
            told = self._told_by_all()
            # The ranks of a tensor group have the same samples.
            self._loss_sum = float(sum(one.loss for one in told[:: self.strategy.choices.tensor]))
            self._memory_bytes = int(max(one.peak_bytes for one in told))
            self.pulse.lap("agreement")
            self._mark("optimizer", self.step)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.pulse.lap("optimizer")
            self.step += 1
            self.changes.after(self.step, told)
        else:
            self.changes.begin()

    def _tell_once(self, kind: str, words: str, rank: int | None) -> None:
        """What all ranks know, told by the first."""
        if self.rank == 0:
            self.folder.tell(kind, words, rank)

    def _told_by_all(self) -> list[Told]:
        """What all ranks say of the step. Raises InputFault where a loss, or a gradient, is not finite."""
        grads = [_local(one.grad) for one in self.model.parameters() if one.grad is not None]
        norms = torch.stack(torch._foreach_norm(grads)) if grads else torch.zeros(1)
        finite = float(bool(torch.isfinite(norms).all()))
        # Asked of the run, heard by rank 0, done by all in the same step.
        asked = float(self.rank == 0 and is_asked(self.folder.path, "checkpoint"))
        own = self.changes.own(self._loss_sum, finite, self._own_samples, asked)
        told = told_by_all(own, self._group)
        self._asked = bool(told[0].asked)
        bad_loss = [rank for rank, one in enumerate(told) if not math.isfinite(one.loss)]
        bad = bad_loss or [rank for rank, one in enumerate(told) if not one.finite]
        if bad:
            self._stop_at_nonsense("loss" if bad_loss else "gradient", bad, told[bad[0]].loss)
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
            value if what == "loss" else "nan or inf",
            f"it is a finite number; nothing of that step was taken, {last}",
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

    def _finish(self) -> None:
        """The last checkpoint. Raises InputFault where it could not be written."""
        if self.saver.newest != self.step:
            self.save()
        self._mark(WAITS_FOR_DISK, self.step)
        reason = self.saver.close()
        self._mark("end", self.step)
        self.pulse.say(self.step, ended=True)
        if reason:
            raise InputFault(
                f"checkpoint of step {self.step}",
                reason,
                "the last step of a run is kept",
                "Make room; --resume goes on from the last complete checkpoint.",
            )
        if self.rank == 0:
            self.folder.tell("finished", f"step {self.step} of {self.last_step} is done", 0)


def _local(value: torch.Tensor) -> torch.Tensor:
    """This rank's part of a weight's gradient."""
    return value.to_local() if hasattr(value, "to_local") else value


def _moved(batch: Any, device: torch.device) -> Any:
    """The batch's tensors on the device."""
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, batch
    )

"""A training loop over all processes of a run: it divides and weights batches, logs, checkpoints and resumes.

    run = prepare(model, optimizer, loader, strategy, "RUN")
    for inputs, targets in run:
        run.backward(loss_of(run.model(*inputs), targets))
        optimizer.step()
        optimizer.zero_grad()

It runs in one process or in each process of `torchrun`; `torchsplit train` does the same with a `TrainClient`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_PREFIX
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader

from torchsplit_core.checkpoints.store import Checkpoints, Manifest
from torchsplit_core.training.async_checkpoint import AsyncCheckpointer, model_digest, seed_all
from torchsplit_core.training.attempts.hang_detection import CHECKPOINT_PHASE, DATA_PHASE
from torchsplit_core.training.communication.exchange import GradientExchange
from torchsplit_core.training.division.context import ContextParallel
from torchsplit_core.training.division.tensor import (
    GradientAverage,
    check_replicated_gradients,
)
from torchsplit_core.training.feeding.choice import batches_of
from torchsplit_core.training.fitted_strategy import check_options
from torchsplit_core.training.held_out.evaluation import Evaluator, HeldOut
from torchsplit_core.training.held_out.validator import Validator
from torchsplit_core.training.monitor.control_files import acknowledge, is_requested
from torchsplit_core.training.monitor.rank_status import RankReporter
from torchsplit_core.training.monitor.run_facts import division_notes, facts_of
from torchsplit_core.training.monitor.step_check import StepCheck
from torchsplit_core.training.monitor.step_tracer import StepTracer
from torchsplit_core.training.parallelize import (
    apply_activation_offload,
    apply_autocast,
    data_rank,
    gradient_norms,
    local_optimizer,
    mesh_of,
    parallelize,
    rebuild_optimizer,
    to_device,
)
from torchsplit_core.training.pipeline.parameter_names import name_in_model
from torchsplit_core.training.pipeline.stage_batches import Loss, StageBatches, scalar_loss
from torchsplit_core.training.process_group import check_same_torch
from torchsplit_core.training.rebalance.migration import StageMigration
from torchsplit_core.training.rebalance.rebalancer import Rebalancer
from torchsplit_core.training.rebalance.step_report import (
    RankReport,
    all_gather_reports,
    find_not_finite,
    not_finite_fault,
)
from torchsplit_core.training.resume import Resumption
from torchsplit_core.training.run_folder import MAKE_ROOM, RunFolder
from torchsplit_core.training.updates.schedules import choose_schedule, length_warning
from torchsplit_core.training.updates.update import WeightUpdate
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.training import SHARDED

if TYPE_CHECKING:
    from torchsplit_core.training.pipeline.engine import PipelineEngine


class TrainingRun:
    """Iterate to get this rank's batches; for each call `backward(mean_loss)`, then `optimizer.step()` and
    `zero_grad()`, which act on the last batch of a step alone.

    The gradients of a step are those of the mean over all its samples, however these are divided. `model` and
    `optimizer` are the given ones, divided over the ranks. `step` counts completed steps, including those before a
    resumption. `began_s`: when this process started, in seconds since the epoch.
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
        context_plan: Mapping[str, Any] | None = None,
        expert_plan: Sequence[str] | None = None,
        unused_weights: bool = False,
        scheduler: Any = None,
        held_out: HeldOut | None = None,
        heartbeat: Callable[[str, int], None] | None = None,
        began_s: float | None = None,
    ) -> None:
        self.folder, self.options, self.strategy = folder, options, strategy
        self._heartbeat = heartbeat or (lambda doing, step: None)
        self.name = name or type(model).__name__
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.nodes = check_same_torch(folder.node)
        choices, precision = strategy.choices, strategy.job.precision
        self.device = (
            torch.device("cuda", torch.cuda.current_device())
            if torch.cuda.is_available()
            else torch.device("cpu")
        )
        check_options(strategy, options)
        mesh = mesh_of(choices, self.device.type)
        self._group = dist.new_group(backend="gloo")
        self.batches = batches_of(loader, strategy, options, self._group)
        self.last_step = self.batches.steps_per_epoch if options.steps is None else options.steps
        self.digest = model_digest(model)
        before = dict(model.named_parameters())
        self._context: ContextParallel | None = None
        if choices.context > 1:
            self._context = ContextParallel(model, choices, context_plan, self.device)
        self.pipeline = self._make_pipeline(model.train(), mesh, tensor_plan, expert_plan)
        if self.pipeline:
            self.model = model = self.pipeline.model
        else:
            model.to(self.device)
            if options.offload_activations:
                apply_activation_offload(model, self.device.type)
            if choices.shard not in SHARDED:
                apply_autocast(model, self.device.type, precision)
            self.model = parallelize(
                model,
                mesh,
                choices,
                precision,
                tensor_plan=tensor_plan,
                expert_plan=expert_plan,
                unused_weights=unused_weights,
            )
        self._average: GradientAverage | None = None
        dtensors = choices.tensor > 1 or choices.expert > 1
        if dtensors and choices.data * choices.context > 1 and choices.shard not in SHARDED:
            self._average = GradientAverage(self.model, mesh)
        after = {
            name_in_model(key.replace(_CHECKPOINT_PREFIX, "")): weight
            for key, weight in model.named_parameters()
        }
        self.optimizer = rebuild_optimizer(optimizer, before, after, choices, mesh)
        scheduler, schedule_facts = choose_schedule(
            self.optimizer, options.update, scheduler, self.last_step, folder.facts()
        )
        self.update = WeightUpdate(
            self.optimizer,
            optimizer,
            scheduler,
            options.update.clip_norm,
            mesh["pipeline"].get_group() if choices.pipeline > 1 else None,
            GradScaler(self.device.type) if precision == "fp16" else None,
        )
        if precision == "tf32":
            torch.set_float32_matmul_precision("high")
        self.checkpoints = Checkpoints(folder.checkpoints, options.keep)
        # A separate group: another thread writes checkpoints, between the exchanges of this thread.
        self.checkpointer = AsyncCheckpointer(folder, self.checkpoints, dist.new_group(backend="gloo"))
        self.rebalancer = Rebalancer(
            self.batches, strategy, options, self.device, self._log_event, self.pipeline
        )
        self._micro_batch_samples, self._is_last_micro_batch, self._backward_called = 0, False, True
        self._loss_sum = 0.0
        self._reports: list[RankReport] = []
        self._gradient_norms = torch.zeros(1)
        self._step_samples = self._rank_samples = 0
        self._memory_bytes = 0
        self._checkpoint_requested = False
        # Ranks of a tensor group must apply the same dropout to values that each of them holds whole.
        random_rank = self.rank - self.rank % choices.tensor
        seed_all(options.seed, random_rank)
        self._heartbeat(CHECKPOINT_PHASE, 0)
        resumption = Resumption(
            folder,
            self.checkpoints,
            self.digest,
            facts_of(self, schedule_facts),
            division_notes(self, self._context, tensor_plan),
        )
        self.step, run_state = resumption.resume(
            self.model, local_optimizer(self.optimizer), self._group, random_rank
        )
        if self.step:
            self.update.load(run_state)
            self.batches.load(run_state, self.step)
        self._validator = self._make_validator(held_out) if held_out else None
        if words := length_warning(schedule_facts, self.last_step):
            self._log_event("warning", words, 0)
            if self.rank == 0:
                warnings.warn(words, stacklevel=2)
        self._tensor_group = mesh["tensor"].get_group() if choices.tensor > 1 else None
        """None once the first step has shown that the group's ranks agree."""
        self.checkpointer.newest = self.step or None
        self.reporter = RankReporter(folder.path, self.rank, self.device, self.model, self.step)
        self._step_check = StepCheck(strategy.predicted)
        self._tracer = None
        if options.trace_steps:
            self._tracer = StepTracer(options.trace_steps, folder, self.rank, folder.log_event)
        self.repartition = False
        """Whether the run ended because the next attempt goes on with other stages."""
        self._exchange = GradientExchange(
            self.model,
            self.optimizer,
            options.communication,
            folder.path,
            steps=self.last_step - self.step,
            log=self._log_event,
        )
        self._exchange.load(self.checkpoints, self.step)
        self._migration: StageMigration | None = None
        if self.rebalancer.stage_balancer:
            self._migration = StageMigration(
                folder, self.rank, began_s or time.time(), self.rebalancer, self.checkpointer
            )

    def _make_pipeline(
        self,
        model: nn.Module,
        mesh: DeviceMesh,
        tensor_plan: Mapping[str, str] | None,
        expert_plan: Sequence[str] | None,
    ) -> PipelineEngine | None:
        """The pipeline's engine; None if the strategy has no pipeline."""
        if not isinstance(self.batches, StageBatches):
            return None
        # Imported here: it loads torch's tracer, which other runs do not need.
        from torchsplit_core.training.pipeline.engine import PipelineEngine

        timed = self.options.balance or self.device.type == "cpu"
        return PipelineEngine(
            model,
            self.batches,
            mesh,
            self.strategy,
            self.device,
            timed=timed,
            tensor_plan=tensor_plan,
            expert_plan=expert_plan,
            context=self._context,
        )

    def _make_validator(self, held_out: HeldOut) -> Validator:
        """What measures the run, whose model is no pipeline."""
        choices = self.strategy.choices
        evaluator = Evaluator(
            held_out, data_rank(choices, self.rank), choices.data, self._group, self.device,
            divided=self.world_size > 1 and not isinstance(self.model, nn.parallel.DistributedDataParallel),
            context=self._context,
            heartbeat=lambda: self._heartbeat("validation", self.step),
        )  # fmt: skip
        return Validator(
            evaluator, self.options.validation, self.checkpoints, self.folder, self.name, self._log_event
        )

    def train(self, loss_of: Loss) -> None:
        """Train to the last step, or to a step at which blocks move (`repartition`).

        `loss_of(outputs, targets)` returns the mean over the samples of a batch. Raises InputFault if the loss or a
        gradient of a step is not finite; that step changes nothing.
        """
        if self.pipeline is None:
            for inputs, targets in self:
                self.backward(loss_of(self.model(*inputs), targets))
                if self._is_last_micro_batch:
                    self.update.apply()
            return
        while self.step < self.last_step:
            began = self._begin_step()
            self._rank_samples = self.pipeline.fetch(self.step)
            self.reporter.record_phase("data")
            self._heartbeat("stages", self.step)
            if self._average:
                self._average.last = False
            self._loss_sum = self.pipeline.step(self._step_samples, loss_of)
            if self._average:
                self._average.exchange_all()
            self.reporter.record_phases("waiting for stages", self.pipeline.seconds)
            self.rebalancer.record(sum(self.pipeline.seconds.values()))
            self.reporter.blocks_s = self.pipeline.local_blocks()
            self._complete_gradients()
            self.update.apply()
            self._finish_step(began)
            if self._migration and self._migration.start_pending(self.step, self.save):
                self.repartition = True
                return
        self._finish()

    def __iter__(self) -> Iterator[Any]:
        while self.step < self.last_step:
            began = self._begin_step()
            for micro_batch in self.batches.iter_micro_batches(self.step):
                self._micro_batch_samples, self._is_last_micro_batch, self._backward_called = (
                    micro_batch.samples,
                    micro_batch.last,
                    False,
                )
                if isinstance(self.model, nn.parallel.DistributedDataParallel):
                    # What `no_sync` does; a user's loop cannot be wrapped in that context.
                    self.model.require_backward_grad_sync = micro_batch.last
                if self._average:
                    self._average.last = micro_batch.last
                batch = to_device(micro_batch.batch, self.device)
                self.reporter.record_phase("data")
                self._heartbeat("forward pass", self.step)
                with self._context.divide(batch) if self._context else nullcontext(batch) as part:
                    yield part
                if not self._backward_called:
                    raise InputFault(
                        "the training loop",
                        f"did not call run.backward(loss) for a batch of step {self.step + 1}",
                        "Call it once in each turn of the loop.",
                    )
                self._heartbeat(DATA_PHASE, self.step)
            self._finish_step(began)
        self._finish()

    def _begin_step(self) -> float:
        """Begin a step; returns its start time."""
        began = time.perf_counter()
        self.reporter.start_phase()
        self._heartbeat(DATA_PHASE, self.step)
        if self._tracer:
            self._tracer.begin(self.step + 1)
        self.rebalancer.begin(step=True)
        self._loss_sum, self._step_samples = 0.0, self.batches.begin_step(self.step)
        self._rank_samples = 0
        self.update.begin(self._count_step)
        return began

    def _count_step(self) -> None:
        """The optimizer has taken the step."""
        self.step += 1

    def backward(self, loss: torch.Tensor) -> None:
        """Back-propagate the mean loss of the last batch; after a step's last one, complete and clip the gradients.

        Raises InputFault if the loss or a gradient of the step is not finite; that step changes nothing.
        """
        scalar_loss(loss)
        self._backward_called = True
        if self._context:
            self._context.check_attended()
        self.reporter.record_phase("forward")
        self.rebalancer.end_micro_batch(self._micro_batch_samples)
        self._rank_samples += self._micro_batch_samples
        weight = self._micro_batch_samples / self._step_samples
        self._heartbeat("backward pass", self.step)
        # DDP and FSDP average over ranks; the ranks of a context group have the means of parts of equal length.
        factor = weight * self.strategy.choices.data * self._exchange.loss_factor
        with self._exchange.backward(last=self._is_last_micro_batch):
            self.update.scaled(loss.float() * factor).backward()
        if self._micro_batch_samples:
            self._loss_sum += float(loss.detach()) * weight
        self.update.add_gradients()
        self.reporter.record_phase("backward")
        if self._is_last_micro_batch:
            self._complete_gradients()
        else:
            self.rebalancer.begin()

    def _complete_gradients(self) -> None:
        """Complete the gradients of a step and clip them, and exchange the ranks' reports."""
        self._heartbeat("sum of the losses", self.step)
        if self._average:
            self._average.finish()
        if self._tensor_group:
            check_replicated_gradients(self.model, self._tensor_group, name_in_model)
            self._tensor_group = None
        reports = self._reports = self._gather_reports()
        # Ranks of a tensor group have the same samples, ranks of a context group parts of the same samples; in a
        # pipeline only the last stage knows the loss.
        choices = self.strategy.choices
        self._loss_sum = float(sum(report.loss for report in reports[:: choices.tensor])) / choices.context
        self._memory_bytes = int(max(report.peak_bytes for report in reports))
        self.reporter.record_phase("agreement")
        self._heartbeat("optimizer", self.step)
        self.update.complete(self.model, self._gradient_norms)
        if self.update.is_lost():
            self._fail_not_finite("gradient", [self.rank], float("nan"))

    def _log_event(self, kind: str, words: str, rank: int | None) -> None:
        """Log an event that all ranks know; only the first rank writes it."""
        if self.rank == 0:
            self.folder.log_event(kind, words, rank)

    def _gather_reports(self) -> list[RankReport]:
        """The reports of all ranks on the step. Raises InputFault if a loss or a gradient is not finite."""
        # Rank 0 reads the request; all ranks carry it out in the same step.
        self._gradient_norms = gradient_norms(self.model)
        requested = float(self.rank == 0 and is_requested(self.folder.path, "checkpoint"))
        report = self.rebalancer.local_report(
            self._loss_sum,
            # Gradients that overflow fp16 are the scaler's to handle.
            1.0 if self.update.scaler else float(bool(torch.isfinite(self._gradient_norms).all())),
            self._rank_samples,
            checkpoint_requested=requested,
            move_s=self._migration.estimated_seconds() if self._migration else 0.0,
        )
        with self._exchange.agreement():
            reports = all_gather_reports(report, self._group)
        self._checkpoint_requested = bool(reports[0].checkpoint_requested)
        if bad := find_not_finite(reports):
            self._fail_not_finite(*bad, reports[bad[1][0]].loss)
        return reports

    def _fail_not_finite(self, what: str, ranks: list[int], value: float) -> None:
        self.checkpointer.close()
        words, fault = not_finite_fault(what, ranks, value, self.step + 1, self.checkpoints.steps())
        if self.rank == 0:
            self.folder.log_event("not_finite", words, ranks[0])
        raise fault

    def _finish_step(self, began: float) -> None:
        self.reporter.record_phase("optimizer")
        if not self.update.end():
            raise InputFault(
                "the training loop",
                f"did not call optimizer.step() in step {self.step + 1}",
                "Call it after run.backward(loss) in each turn of the loop; it acts once a step.",
            )
        self.rebalancer.after_step(self.step, self._reports, self.last_step - self.step)
        seconds = time.perf_counter() - began
        communication_s = self._exchange.timer.take()
        self.reporter.record_communication(communication_s)
        if self._tracer:
            self._tracer.end(self.step)
        figures: dict[str, Any] = self.update.figures()
        figures |= {"communication_s": communication_s} if communication_s else {}
        best, fault = False, None
        if self._validator and self._validator.is_due(self.step, self.last_step):
            self.reporter.start_phase()
            try:
                figures |= self._validator.measure(self.step, self.model)
            except InputFault as error:
                fault = error
            self.reporter.record_phase("validation")
            best = self._validator.is_best
        if self.rank == 0:
            self.folder.add_step(
                self.step, self._loss_sum, self._step_samples, seconds, self.world_size, self._memory_bytes, figures
            )  # fmt: skip
            if words := self._step_check.add(seconds, self.reporter.step_phases()):
                self.folder.log_event("step_time", words, 0)
        if fault:
            self._fail_validation(fault)
        if (
            best or self._checkpoint_requested or self.step % self.options.checkpoint_every == 0
        ) and self.step < self.last_step:
            self.reporter.start_phase()
            self.save()
            self.reporter.record_phase("checkpoint")
        if self._checkpoint_requested and self.rank == 0:
            acknowledge(self.folder.path, "checkpoint")
        self.reporter.end_step(self.step)
        self._exchange.after_step()

    def _fail_validation(self, fault: InputFault) -> None:
        """Stop a run that cannot be measured, with a checkpoint of all that it has trained. Raises InputFault."""
        self.save()
        reason = self.checkpointer.close()
        saved = f"was not written: {reason}" if reason else "is kept"
        problem = f"{fault.problem}; the checkpoint of step {self.step} {saved}"
        self._log_event("validation_failed", f"{fault.where}: {problem}", 0)
        raise InputFault(
            f"the validation after step {self.step}: {fault.where}",
            problem,
            f"{fault.remedy} Then resume the run.",
        )

    def save(self) -> None:
        """Start a checkpoint of the completed steps."""
        self._heartbeat(CHECKPOINT_PHASE, self.step)
        position = self.batches.position(self.step)
        manifest = Manifest(
            step=self.step,
            epoch=position.epoch,
            offset=position.offset,
            world_size=self.world_size,
            global_batch=self.strategy.job.global_batch,
            samples=self.batches.samples,
            seed=self.options.seed,
            model=self.name,
            model_sha256=self.digest,
            torch_version=torch.__version__,
        )
        with self.update.outside():
            run_state = self.update.state() | self.batches.state()
            self.checkpointer.save(
                self.model, local_optimizer(self.optimizer), manifest, run_state, self._exchange.state()
            )

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        dist.barrier(group=self._group)

    def _finish(self) -> None:
        """Write the last checkpoint and end the run. Raises InputFault if the checkpoint could not be written."""
        if self._tracer:
            self._tracer.close()
        if self.checkpointer.newest != self.step:
            self.save()
        self._heartbeat(CHECKPOINT_PHASE, self.step)
        reason = self.checkpointer.close()
        self._heartbeat("end", self.step)
        self.reporter.publish(self.step, ended=True)
        if reason:
            raise InputFault(f"checkpoint of step {self.step}", f"was not written: {reason}", MAKE_ROOM)
        if self.rank == 0:
            self.folder.log_event("finished", f"step {self.step} of {self.last_step} is done", 0)

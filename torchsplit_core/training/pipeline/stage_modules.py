"""The stages that a pipeline's process holds, as modules, and the names of their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

from torchsplit_core.partitioning.extraction.stage_program import build_program
from torchsplit_core.training.division.experts import restore_modules
from torchsplit_core.training.division.traced import local_weights
from torchsplit_core.training.pipeline.device_timer import DeviceTimer, Timestamp
from torchsplit_core.training.pipeline.parameter_names import REST, STAGES
from torchsplit_core.training.pipeline.split_program import SplitProgram

InputsOfMicroBatch = Callable[[int], Mapping[str, Any]]
"""The model's inputs of a micro-batch, by name."""


class BlockModule(nn.Module):  # type: ignore[misc]
    """A part of the chain with named inputs and outputs; the weights are the model's own.

    `experts`: the modules for which operators stand in the trace, by name.
    """

    def __init__(
        self, chain: SplitProgram, place: int, device: torch.device, experts: Mapping[str, nn.Module]
    ) -> None:
        super().__init__()
        draft = chain.parts[place]
        program = build_program(chain.program, draft, None)
        if device.type != "cpu":
            program = move_to_device_pass(program, device)
        self.program = program.module(check_guards=False)
        restore_modules(self.program, experts)
        self.input_names, self.output_names = draft.inputs, draft.outputs

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        with local_weights(self.program):
            outputs: tuple[Tensor, ...] = self.program(*given)
        return outputs


class StageModule(nn.Module):  # type: ignore[misc]
    """A stage: consecutive parts.

    It takes what the previous stage passes on, reads the model's inputs by the micro-batch's number, and returns what
    later stages read; the last stage returns the model's result. Values are passed on in the type in which they were
    traced, whatever precision the parts compute in. `timestamps`: of each forward pass, its start and each part's end,
    by the timer.
    """

    def __init__(
        self,
        chain: SplitProgram,
        places: range,
        device: torch.device,
        given: InputsOfMicroBatch,
        experts: Mapping[str, nn.Module],
        *,
        precise: bool,
        timer: DeviceTimer | None,
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(BlockModule(chain, place, device, experts) for place in places)
        self.is_last = places.stop == len(chain.parts)
        self.received_names = chain.boundary_tensors(places.start)
        self.sent_names = chain.result.tensors if self.is_last else chain.boundary_tensors(places.stop)
        self.types = [chain.values[name].dtype for name in self.sent_names]
        reads = {name for place in places for name in chain.parts[place].inputs}
        self.reads_inputs = any(name in chain.inputs for name in (*reads, *self.sent_names))
        self.device, self._given, self._precise = device, given, precise
        self._timer, self.timestamps = timer, list[list[Timestamp]]()

    def forward(self, *taken: Tensor, number: Tensor) -> tuple[Tensor, ...]:
        known = dict(zip(self.received_names, taken, strict=True))
        if self.reads_inputs:
            known |= self._given(int(number))
        timestamps = [self._timer.now()] if self._timer else []
        with torch.autocast(self.device.type, torch.bfloat16, enabled=not self._precise):
            for part in self.parts:
                plain = _without_checkpoint_wrapper(part)
                known |= zip(
                    plain.output_names, part(*(known[name] for name in plain.input_names)), strict=True
                )
                if self._timer:
                    timestamps.append(self._timer.now())
        if timestamps:
            self.timestamps.append(timestamps)
        return tuple(known[name].to(kind) for name, kind in zip(self.sent_names, self.types, strict=True))


def _without_checkpoint_wrapper(part: nn.Module) -> BlockModule:
    """The part inside its checkpoint wrapper, if it has one."""
    block = getattr(part, "_checkpoint_wrapped_module", part)
    assert isinstance(block, BlockModule)
    return block


class PipelineStages(nn.Module):  # type: ignore[misc]
    """The stages of one process. `rest`: weights and buffers that no part reads, which the first process holds."""

    def __init__(self, stages: Sequence[StageModule], rest: Mapping[str, Any]) -> None:
        super().__init__()
        self.add_module(STAGES, nn.ModuleList(stages))
        for name, value in {f"{REST}.{name}": value for name, value in rest.items()}.items():
            place: nn.Module = self
            *way, last = name.split(".")
            for step in way:
                if not hasattr(place, step):
                    place.add_module(step, nn.Module())
                place = getattr(place, step)
            if isinstance(value, nn.Parameter):
                place.register_parameter(last, value)
            else:
                place.register_buffer(last, value)

    @property
    def stages(self) -> list[StageModule]:
        """The stages of this process, in the order of the chain."""
        stages: list[StageModule] = list(getattr(self, STAGES))
        return stages

"""What a process of a pipeline holds: its stages of the chain as modules, with the names that the weights have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

from torchsplit_core.partitioning.extraction.build import build_program
from torchsplit_core.running.staged.chain import Chain
from torchsplit_core.running.staged.clock import Clock, Moment
from torchsplit_core.running.staged.names import REST, STAGES

Given = Callable[[int], Mapping[str, Any]]
"""The model's inputs of a micro-batch, by name."""


class Part(nn.Module):  # type: ignore[misc]
    """A part of the chain. What it reads and makes has names; weights are the model's own."""

    def __init__(self, chain: Chain, place: int, device: torch.device) -> None:
        super().__init__()
        draft = chain.parts[place]
        program = build_program(chain.program, draft, None)
        if device.type != "cpu":
            program = move_to_device_pass(program, device)
        self.program = program.module(check_guards=False)
        self.reads, self.makes = draft.inputs, draft.outputs

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.program(*given)
        return found


class Stage(nn.Module):  # type: ignore[misc]
    """Parts in a row.

    It takes what the stage before hands on, reads the model's inputs by the micro-batch's number, and returns what
    later stages read; the last one what the model returns. Values are handed on in the type that they were traced in,
    whatever precision the parts compute in. `moments`: of each pass by that clock, its beginning and each part's end.
    """

    def __init__(
        self,
        chain: Chain,
        places: range,
        device: torch.device,
        given: Given,
        *,
        precise: bool,
        clock: Clock | None,
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part(chain, place, device) for place in places)
        self.is_last = places.stop == len(chain.parts)
        self.takes = chain.handed_on(places.start)
        self.hands = chain.result.tensors if self.is_last else chain.handed_on(places.stop)
        self.types = [chain.values[name].dtype for name in self.hands]
        reads = {name for place in places for name in chain.parts[place].inputs}
        self.reads_inputs = any(name in chain.inputs for name in (*reads, *self.hands))
        self.device, self._given, self._precise = device, given, precise
        self._clock, self.moments = clock, list[list[Moment]]()

    def forward(self, *taken: Tensor, number: Tensor) -> tuple[Tensor, ...]:
        known = dict(zip(self.takes, taken, strict=True))
        if self.reads_inputs:
            known |= self._given(int(number))
        moments = [self._clock.now()] if self._clock else []
        with torch.autocast(self.device.type, torch.bfloat16, enabled=not self._precise):
            for part in self.parts:
                plain = _plain(part)
                known |= zip(plain.makes, part(*(known[name] for name in plain.reads)), strict=True)
                if self._clock:
                    moments.append(self._clock.now())
        if moments:
            self.moments.append(moments)
        return tuple(known[name].to(kind) for name, kind in zip(self.hands, self.types, strict=True))


def _plain(part: nn.Module) -> Part:
    """The part in what recomputes it."""
    found = getattr(part, "_checkpoint_wrapped_module", part)
    assert isinstance(found, Part)
    return found


class Staged(nn.Module):  # type: ignore[misc]
    """The stages of one process. `rest`: weights and buffers that no part reads, which the first process keeps."""

    def __init__(self, stages: Sequence[Stage], rest: Mapping[str, Any]) -> None:
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
    def stages(self) -> list[Stage]:
        """Those of this process, in the order of the chain."""
        found: list[Stage] = list(getattr(self, STAGES))
        return found

"""Times and devices of every node of an exported program.

`RuntimeAnnotator` walks the graph with a program and times each operation; `DeviceAnnotator`
propagates devices. Node ids are the names of the exported program, which tracing gives to TorchGraph.

The sum of per-node minima across runs is not the time of any run. So shares come from each node's minimum time, and a
user multiplies them with an end-to-end time that was measured separately, without instrumentation (`timing.time_runs`).

The CUDA path (events, synchronisation, device memory) is untested on hardware.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from torchsplit_core.profiling.measuring.timed_program import TimedProgram
from torchsplit_core.profiling.measuring.timing import LEAST_RUNS, MOST_RUNS, SEED
from torchsplit_core.values import InternalFault


@dataclass(frozen=True, slots=True)
class NodeTiming:
    """One operation's times over the timed runs in ms, the bytes of its output at that batch, and its device."""

    id: str
    runs: int
    mean_ms: float
    deviation_ms: float
    least_ms: float
    most_ms: float
    output_bytes: int
    device: str


class RuntimeAnnotator:
    """Times every operation of an exported program on a device ("cpu" or "cuda")."""

    def __init__(self, exported: ExportedProgram, device: str = "cpu") -> None:
        self._device = torch.device(device)
        if self._device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            exported = move_to_device_pass(exported, device)
        self._exported = exported
        self.runs_ms: tuple[tuple[float, float], ...] = ()
        """Of the last `annotate`: each timed run's total time and the sum of its operations, in ms."""

    def annotate(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        budget_s: float = 2.0,
        seed: int = SEED,
    ) -> tuple[NodeTiming, ...]:
        """Every operation's times on these inputs, in the order of the graph.

        One warm-up run, then at least three, and more within `budget_s` seconds. If the first run alone takes half the
        budget, it counts, and one more is enough: such operations are long.
        """
        inputs = self._graph_inputs(args, kwargs or {})
        program = TimedProgram(self._exported.graph_module, self._device)
        samples: dict[str, list[float]] = {}
        runs: list[tuple[float, float]] = []
        with torch.no_grad():
            started = time.perf_counter()
            run_ms, warm_up = _run(program, inputs, seed, record_outputs=True)
            is_slow = run_ms >= 500 * budget_s
            if is_slow:
                samples = {name: [duration] for name, duration in warm_up.items()}
            for count in range(1, MOST_RUNS + 1):
                run_ms, durations = _run(program, inputs, seed)
                runs.append((run_ms, sum(durations.values())))
                for name, duration in durations.items():
                    samples.setdefault(name, []).append(duration)
                enough = count >= (1 if is_slow else LEAST_RUNS)
                if enough and time.perf_counter() - started > budget_s:
                    break
        self.runs_ms = tuple(runs)
        devices = DeviceAnnotator(self._exported).annotate() | program.devices
        return tuple(
            NodeTiming(
                name,
                len(times),
                fmean(times),
                pstdev(times),
                min(times),
                max(times),
                program.bytes[name],
                devices[name],
            )
            for name, times in samples.items()
        )

    def _graph_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Weights and the user's values in the order of the graph's placeholders."""
        exported = self._exported
        ordered = exported.call_spec.in_spec
        expected = ordered.child(1).context if ordered is not None else list(kwargs)
        values = (tuple(args), {name: kwargs[name] for name in expected})
        user = iter(to_device(pytree.tree_leaves(values, is_leaf=lambda item: item is None), self._device))
        graph_inputs = []
        for spec in exported.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                graph_inputs.append(next(user))
            elif isinstance(spec.arg, ConstantArgument):
                graph_inputs.append(spec.arg.value)
            elif spec.target in exported.state_dict:
                graph_inputs.append(exported.state_dict[spec.target])
            elif spec.target in exported.constants:
                graph_inputs.append(exported.constants[spec.target])
            else:
                raise InternalFault(f"the exported program has no value for {spec.target}")
        return graph_inputs


def _run(
    program: TimedProgram, inputs: Sequence[Any], seed: int, *, record_outputs: bool = False
) -> tuple[float, dict[str, float]]:
    """One run: its total time and that of every operation, in ms."""
    torch.manual_seed(seed)
    begin = time.perf_counter_ns()
    program.run(inputs, record_outputs=record_outputs)
    if program.on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - begin) / 1e6, program.durations_ms()


class DeviceAnnotator:
    """The device of every node: from its `device` argument, else from the first value it reads that has one."""

    def __init__(self, exported: ExportedProgram) -> None:
        self._exported = exported

    def annotate(self, default: str = "cpu") -> dict[str, str]:
        """Node id → "cpu" or "cuda:0". Inputs without a recorded device are on `default`."""
        devices: dict[str, str] = {}
        for node in self._exported.graph.nodes:
            explicit = node.kwargs.get("device") or next(
                (item for item in node.args if isinstance(item, torch.device)), None
            )
            if node.op == "placeholder":
                value = node.meta.get("val")
                explicit = value.device if isinstance(value, torch.Tensor) else None
            inherited = next((devices[item.name] for item in node.all_input_nodes), default)
            devices[node.name] = inherited if explicit is None else str(torch.device(explicit))
        return devices


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """The same structure with its tensors on the device, floating-point ones in the dtype if given."""

    def move(item: Any) -> Any:
        return item.to(device, dtype if item.is_floating_point() else None)

    return pytree.tree_map_only(torch.Tensor, move, values)

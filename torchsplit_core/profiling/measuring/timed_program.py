"""Runs an exported program operation by operation, reading the clock once between two of them.

An operation's time runs from the end of the one before to its own end: the call, passing its arguments (about 1 µs),
and freeing the values that it was the last to read. torch.fx's own interpreter looks every argument up by name and maps
nested ones again in every run, 10 µs an operation, as much as a small one takes; here that is done once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

Fetch = Callable[[list[Any]], Any]


@dataclass(slots=True)
class _CallStep:
    """One call: how to get its arguments from the values so far, where its result goes, which values end here."""

    name: str
    function: Callable[..., Any]
    args: Fetch
    kwargs: Fetch | None
    index: int
    last_used: tuple[int, ...]


class TimedProgram:
    """The graph of a program with inputs in the order of its placeholders; values are freed at their last use.

    `bytes` and `devices` of each call's tensors are those of the last `run` with `record_outputs`.
    """

    def __init__(self, module: torch.fx.GraphModule, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self._marks: list[Any] = []
        self.bytes: dict[str, int] = {}
        self.devices: dict[str, str] = {}
        nodes = list(module.graph.nodes)
        index_of = {node: index for index, node in enumerate(nodes)}
        ending = _last_uses(nodes, index_of)
        self._size = len(nodes)
        self._inputs = [index_of[node] for node in nodes if node.op == "placeholder"]
        self._constants = [
            (index_of[node], _attribute(module, node.target)) for node in nodes if node.op == "get_attr"
        ]
        self._steps = tuple(
            _CallStep(
                node.name,
                _call_target(module, node),
                _argument_reader(node.args, index_of),
                _argument_reader(node.kwargs, index_of) if node.kwargs else None,
                index_of[node],
                ending[index_of[node]],
            )
            for node in nodes
            if node.op.startswith("call_")
        )

    def run(self, inputs: Sequence[Any], *, record_outputs: bool = False) -> None:
        """Run it once; `durations_ms` has the time of each call. `record_outputs`, slower, notes sizes and devices."""
        values: list[Any] = [None] * self._size
        for index, value in zip(self._inputs, inputs, strict=True):
            values[index] = value
        for index, value in self._constants:
            values[index] = value
        mark = self._event if self.on_gpu else time.perf_counter_ns
        marks = [mark()]
        for step in self._steps:
            args = step.args(values)
            kwargs = step.kwargs(values) if step.kwargs else {}
            values[step.index] = step.function(*args, **kwargs)
            if record_outputs:
                self._record_output(step.name, values[step.index])
            del args, kwargs
            for index in step.last_used:
                values[index] = None
            marks.append(mark())
        self._marks = marks

    def durations_ms(self) -> dict[str, float]:
        """The time of each call in the last run, by node name."""
        names = [step.name for step in self._steps]
        if self.on_gpu:
            torch.cuda.synchronize()
            durations = [begin.elapsed_time(end) for begin, end in pairwise(self._marks)]
        else:
            durations = [(end - begin) / 1e6 for begin, end in pairwise(self._marks)]
        return dict(zip(names, durations, strict=True))

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _record_output(self, name: str, result: Any) -> None:
        tensors = [item for item in pytree.tree_leaves(result) if isinstance(item, torch.Tensor)]
        self.bytes[name] = sum(item.numel() * item.element_size() for item in tensors)
        if tensors:
            self.devices[name] = str(tensors[0].device)


def _last_uses(nodes: Sequence[torch.fx.Node], index_of: dict[torch.fx.Node, int]) -> list[tuple[int, ...]]:
    """For each node, by its index, the values that nothing later reads, including its own if unused."""
    last = {index_of[node]: index_of[node] for node in nodes}
    for node in nodes:
        for used in node.all_input_nodes:
            last[index_of[used]] = index_of[node]
    ending: list[list[int]] = [[] for _ in nodes]
    for index, end in last.items():
        ending[end].append(index)
    return [tuple(indices) for indices in ending]


def _argument_reader(argument: Any, index_of: dict[torch.fx.Node, int]) -> Fetch:
    """A function from the values so far to this argument (a tuple or dict), with its nodes replaced."""
    if isinstance(argument, tuple) and all(_is_flat(item) for item in argument):
        template = [None if isinstance(item, torch.fx.Node) else item for item in argument]
        wanted = [
            (index, index_of[item]) for index, item in enumerate(argument) if isinstance(item, torch.fx.Node)
        ]

        def fetch(values: list[Any]) -> Any:
            filled = template.copy()
            for index, position in wanted:
                filled[index] = values[position]
            return filled

        return fetch
    return lambda values: map_arg(argument, lambda node: values[index_of[node]])


def _is_flat(item: Any) -> bool:
    """Whether no node can be inside."""
    return isinstance(item, torch.fx.Node) or not isinstance(item, (list, tuple, dict, slice))


def _call_target(module: torch.fx.GraphModule, node: torch.fx.Node) -> Callable[..., Any]:
    """What a call node calls with its arguments."""
    if node.op == "call_function":
        function: Callable[..., Any] = node.target
        return function
    if node.op == "call_module":
        inner: Callable[..., Any] = _attribute(module, str(node.target))
        return inner
    name = str(node.target)
    return lambda owner, *args, **kwargs: getattr(owner, name)(*args, **kwargs)


def _attribute(module: torch.fx.GraphModule, path: Any) -> Any:
    value: Any = module
    for part in str(path).split("."):
        value = getattr(value, part)
    return value

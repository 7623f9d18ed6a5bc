"""The operations, weights and values of each stage of a cut.

- Operations that the result does not need are dropped (assertions, unused results), but not those that write in place.
- A getitem is in the stage of its source, so only tensors and numbers cross.
- Values that depend on no input or parameter (position ids, constant tables) are recomputed in each stage that reads
  them. A symbolic size is read off a tensor that the stage receives, if one has it. Every other value that crosses is
  sent once to each stage that reads it.
- A weight that two stages read is in both.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from torchsplit_core.partitioning.extraction.aliasing import Storages, bodies, check_writes, find_storages
from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted

WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)

Names = tuple[str, ...]
Sizes = tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class StageDraft:
    """A stage by names of the traced graph's nodes, all in execution order.

    `sizes`: symbolic sizes read off a tensor among its inputs: (value, tensor, dimension).
    """

    operations: tuple[str, ...]
    weights: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class Division:
    """The non-empty stages in order, and notes for the user.

    `random`: the operations that draw random numbers. `writes`: some operation writes in place, so a run may change its
    arguments and state.
    """

    stages: tuple[StageDraft, ...]
    notes: tuple[str, ...]
    random: tuple[str, ...]
    writes: bool


def divide(program: ExportedProgram, stages: Sequence[Sequence[str]]) -> Division:
    """Draft the stages, each a collection of operations and inputs of the traced graph.

    Raises InputFault if they are of another graph, if a value runs back to an earlier stage, or if an operation that
    writes in place is separated from values that it affects.
    """
    return _StageDivider(program, stages).division()


class _StageDivider:
    def __init__(self, program: ExportedProgram, stages: Sequence[Sequence[str]]) -> None:
        _check_signature(program)
        self.module = program.graph_module
        self.nodes: dict[str, Node] = {node.name: node for node in program.graph.nodes}
        self.position = {name: i for i, name in enumerate(self.nodes)}
        specs = program.graph_signature.input_specs
        self.kinds = {spec.arg.name: spec.kind for spec in specs}
        self.count = len(stages)
        self.storages: Storages = find_storages(self.module)
        self.live = self._live()
        self.stage_of = self._stage_of_operations(stages)
        self.random = tuple(name for name in self.live if _is_random(self.module, self.nodes[name]))
        self.replicated = self._replicable_operations()

    def division(self) -> Division:
        """The drafts, checked."""
        live = [node for node in self.nodes.values() if node.name in self.live or node.op == "output"]
        inputs = frozenset(name for name, kind in self.kinds.items() if kind not in WEIGHTS)
        check_writes(self.storages, live, self.stage_of, inputs, self.count)
        needed = [self._needed(i) for i in range(self.count)]
        result = {node.name for node in self.nodes["output"].all_input_nodes}
        drafts: list[StageDraft] = []
        notes = [
            f"{name} ({self.nodes[name].target}) draws random numbers: its results differ from process to process."
            for name in self.random
        ]
        for i, (operations, weights, values, sizes) in enumerate(needed):
            later = result.union(*(needed[j][2] for j in range(i + 1, self.count)))
            stage_operations = [name for name in operations if self.stage_of.get(name) == i]
            outputs = tuple(name for name in stage_operations if name in later)
            if i == self.count - 1:  # a weight that is itself a result
                given = [name for name in result if self.kinds.get(name) in WEIGHTS]
                weights, outputs = self._ordered({*weights, *given}), (*outputs, *self._ordered(given))
            if outputs or any(self._writes(name) for name in stage_operations):
                drafts.append(StageDraft(operations, weights, values, outputs, sizes))
            else:
                notes.append(
                    f"Stage {i + 1} of the cut computes nothing that the result needs and is left out."
                )
        if not drafts:
            raise InputFault(
                "", "the model's result needs no operation", "Choose a model that computes something."
            )
        return Division(tuple(drafts), tuple(notes), self.random, bool(self.storages.writers))

    def _needed(self, stage: int) -> tuple[Names, Names, Names, Sizes]:
        """Operations, weights, received values and sizes of a stage."""
        operations = {name for name in self.live if self.stage_of[name] == stage}
        stack = list(operations)
        weights: set[str] = set()
        values: set[str] = set()
        while stack:
            name = stack.pop()
            for read in self._reads(name):
                if read in operations or read in values or read in weights:
                    continue
                if self.kinds.get(read) in WEIGHTS:
                    weights.add(read)
                elif read in self.replicated:
                    operations.add(read)
                    stack.append(read)
                elif self.stage_of.get(read, -1) > stage:
                    raise InputFault(
                        f"stage {stage + 1} of the cut",
                        f"{name} reads {read}, which the later stage {self.stage_of[read] + 1} computes",
                        "Pass a contiguous cut.",
                    )
                else:
                    values.add(read)
        sizes = self._sizes(values)
        received = values - {value for value, _, _ in sizes}
        return self._ordered(operations), self._ordered(weights), self._ordered(received), sizes

    def _sizes(self, values: set[str]) -> Sizes:
        """The sizes that are dimensions of a tensor among the values."""
        dimension: dict[object, tuple[str, int]] = {}
        for name in self._ordered(values):
            value = self.nodes[name].meta.get("val")
            if isinstance(value, torch.Tensor):
                for d, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt):
                        dimension.setdefault(size.node.expr, (name, d))
        dimension_sizes = []
        for name in self._ordered(values):
            value = self.nodes[name].meta.get("val")
            if isinstance(value, torch.SymInt) and value.node.expr in dimension:
                dimension_sizes.append((name, *dimension[value.node.expr]))
        return tuple(dimension_sizes)

    def _live(self) -> frozenset[str]:
        """The operations that the result needs or that write in place, and their predecessors."""
        stack = ["output"] + [
            node.name for writer_nodes in self.storages.writers.values() for node in writer_nodes
        ]
        seen = set(stack)
        while stack:
            for read in self._reads(stack.pop()):
                if read not in seen:
                    seen.add(read)
                    stack.append(read)
        return frozenset(name for name in seen if self.nodes[name].op == "call_function")

    def _stage_of_operations(self, stages: Sequence[Sequence[str]]) -> dict[str, int]:
        """The stage of every live operation."""
        given_stage: dict[str, int] = {}
        for i, stage in enumerate(stages):
            given_stage.update(dict.fromkeys(stage, i))
        unknown = next((name for name in given_stage if name not in self.nodes), None)
        missing = next((name for name in self.nodes if name in self.live and name not in given_stage), None)
        if unknown is not None or missing is not None:
            problem = (
                f"lacks the operation {quoted(missing)} of the model"
                if unknown is None
                else f"names {quoted(unknown)}, which is no operation or input of the model"
            )
            raise InputFault("cut", problem, "Cut the model again: its graph is another than the one cut.")
        homes: dict[str, int] = {}
        for name, node in self.nodes.items():
            if name in self.live:
                origin = node.args[0] if node.target is operator.getitem else None
                picked = isinstance(origin, Node) and origin.name in homes
                homes[name] = homes[origin.name] if picked and isinstance(origin, Node) else given_stage[name]
        return homes

    def _replicable_operations(self) -> frozenset[str]:
        """The operations that depend on no input or parameter, write nothing and draw no random numbers."""
        replicable: set[str] = set()
        for name, node in self.nodes.items():
            if name not in self.live or name in self.random or self.storages.is_written(name):
                continue
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                continue
            reads = self._reads(name)
            fixed = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)
            if all(
                read in replicable or (self.kinds.get(read) in fixed and not self.storages.is_written(read))
                for read in reads
            ):
                replicable.add(name)
        return frozenset(replicable)

    def _writes(self, name: str) -> bool:
        return any(
            node.name == name for writer_nodes in self.storages.writers.values() for node in writer_nodes
        )

    def _reads(self, name: str) -> list[str]:
        return [read.name for read in self.nodes[name].all_input_nodes if read.op != "get_attr"]

    def _ordered(self, names: Sequence[str] | set[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=self.position.__getitem__))


def _is_random(module: torch.fx.GraphModule, node: Node) -> bool:
    """Whether it draws random numbers; dropout only does in training mode."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return any(_is_random(body, inner) for body in bodies(module, node) for inner in body.graph.nodes)
    arguments = node.target._schema.arguments
    given = {
        parameter.name: node.args[i] for i, parameter in enumerate(arguments) if i < len(node.args)
    } | node.kwargs
    for argument in arguments:
        if argument.name in ("dropout_p", "train", "training"):
            return bool(given.get(argument.name, argument.default_value))
    return bool(torch.Tag.nondeterministic_seeded in node.target.tags)


def _check_signature(program: ExportedProgram) -> None:
    """torch.export's programs return only the result; a decomposed one also returns written state."""
    for spec in program.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            raise InputFault(
                "exported program",
                f"returns {spec.target or spec.arg.name} ({spec.kind.name.lower()}) beside its result",
                "Export it without run_decompositions().",
            )
    for given in program.graph_signature.input_specs:
        if given.kind == InputKind.TOKEN:
            raise InputFault(
                "exported program",
                f"takes the effect token {given.arg.name}, which no stage can hand on",
                "Export it again with torch.export.export.",
            )

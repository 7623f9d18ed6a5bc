"""Our cuts against the evenly spread split points of `torch.distributed.pipelining`, on the sample models.

    python -m benchmarks.pipeline_split

torch's `pipeline()` splits where it is told to, and its examples spread the split points evenly over the model's
blocks: before block L/k, 2·L/k, … of L blocks. The blocks are the members (with modules of their own) of the
outermost ModuleLists and Sequentials, in order of execution (the model's direct submodules where there are none);
where they are fewer than k, their submodules.

torch splits the model itself; the operations of its stages are matched, in order, with ours (both come from
torch.export), so that both sides are charged the same node times, measured here once for each model, and the same
link by the partition contract. Beside it, the operations spread evenly in order of execution, as a `split_policy`
could.

A ratio is torch's largest load over ours. Ends with 1 where one is below 1, or where the stages cannot be matched.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import sample_models
from torchsplit_core import workflow
from torchsplit_core.graph import TorchGraph
from torchsplit_core.model_source import example_arguments, load_client, open_model
from torchsplit_core.partitioning import PartitionProvider
from torchsplit_core.values import PartitionRequest

if TYPE_CHECKING:
    from torch.distributed.pipelining import Pipe

SAMPLES = tuple(sample.name for sample in sample_models.SAMPLES)
LARGE = ("clip", "bert", "fastpitch", "ocr", "resnet50")
"""Samples that are also measured at real dimensions."""
COUNTS = (2, 3, 4)
BATCH = 2
LINK_GB_PER_S = 12.0


@dataclass(frozen=True)
class Split:
    """Stages as lists of node ids, and the modules that begin all but the first; `refused` says why there are none."""

    stages: tuple[tuple[str, ...], ...] = ()
    before: tuple[str, ...] = ()
    refused: str = ""


def blocks(model: torch.nn.Module, graph: TorchGraph, count: int) -> list[str]:
    """At least `count` block names in order of execution; empty if the model does not have so many."""
    found = _in_order(_members(model, ""), graph) or _in_order(_submodules(model, ""), graph)
    while len(found) < count:
        finer = [name for one in found for name in _submodules(model.get_submodule(one), one) or [one]]
        finer = _in_order(finer, graph)
        if len(finer) == len(found):
            return []
        found = finer
    return found


def _members(module: torch.nn.Module, path: str) -> list[str]:
    """Members of the outermost ModuleLists and Sequentials that have modules of their own."""
    found = []
    for name, child in module.named_children():
        below = _below(path, name)
        if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)):
            found += [_below(below, n) for n, member in child.named_children() if any(member.children())]
        else:
            found += _members(child, below)
    return found


def _submodules(module: torch.nn.Module, path: str) -> list[str]:
    """Direct submodules; a ModuleList is replaced by its members, since it is never called itself."""
    found = []
    for name, child in module.named_children():
        below = _below(path, name)
        found += _submodules(child, below) if isinstance(child, torch.nn.ModuleList) else [below]
    return found


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _in_order(names: Sequence[str], graph: TorchGraph) -> list[str]:
    first: dict[str, int] = {}
    for position, node in enumerate(graph.ops):
        for name in names:
            if node.module == name or node.module.startswith(f"{name}."):
                first.setdefault(name, position)
    return sorted(first, key=first.__getitem__)


def spread(names: Sequence[str], count: int) -> tuple[str, ...]:
    """Divide `names` into `count` equal parts; return the first name of every part but the first."""
    return tuple(names[round(i * len(names) / count)] for i in range(1, count))


def torch_split(source: str, graph: TorchGraph, count: int) -> Split:
    """torch's split at evenly spread split points, in operations of our graph."""
    from torch.distributed.pipelining import SplitPoint, pipeline  # imported here because it takes seconds

    client = load_client(source)
    model = open_model(client)  # a fresh model each time, since torch changes it
    names = blocks(model, graph, count)
    if not names:
        return Split(refused=f"its modules run in fewer than {count} parts")
    before = spread(names, count)
    args, kwargs = example_arguments(client, BATCH)
    try:
        with torch.no_grad():
            pipe = pipeline(model, args, kwargs, split_spec=dict.fromkeys(before, SplitPoint.BEGINNING))
    except (RuntimeError, ValueError, AssertionError) as error:
        return Split(before=before, refused=f"{type(error).__name__}: {error}".splitlines()[0])
    return Split(matched(graph, [targets(module) for module in modules(pipe)]), before)


def modules(pipe: Pipe) -> list[torch.fx.GraphModule]:
    """The stages of torch's pipeline, in order."""
    calls = [node for node in pipe.split_gm.graph.nodes if node.op == "call_module"]
    return [pipe.split_gm.get_submodule(str(node.target)) for node in calls]


def targets(module: torch.fx.GraphModule) -> list[str]:
    """A stage's operations in order of execution; an inner module is replaced by its operations."""
    found = []
    for node in module.graph.nodes:
        if node.op == "call_module":
            found += targets(module.get_submodule(str(node.target)))
        elif node.op == "call_function" and not _unpacks_a_module(node):
            found.append(_plain(str(node.target)))
    return found


def _unpacks_a_module(node: torch.fx.Node) -> bool:
    """Whether the node picks from an inner module's result: torch adds such nodes where it nests operations again."""
    return _plain(str(node.target)) == "getitem" and node.all_input_nodes[0].op == "call_module"


def _plain(target: str) -> str:
    return "getitem" if "getitem" in target else target


def matched(graph: TorchGraph, stages: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Assign our operations and inputs to the stages that list these targets in order.

    Operations that only our graph has (slices and sizes that a free batch needs) join the stage of the operation before
    them; an input joins its first reader. Raises ValueError where the targets do not match.
    """
    expected = [(target, stage) for stage, listed in enumerate(stages) for target in listed]
    place = 0
    here = 0
    home: dict[str, int] = {}
    for node in graph.ops:
        if place < len(expected) and _plain(node.target) == expected[place][0]:
            here = expected[place][1]
            place += 1
        home[node.id] = here
    if place < len(expected):
        raise ValueError(f"operation {place} of torch's stages, {expected[place][0]}, is not in the graph")
    return _stages(graph, home, len(stages))


def even_operations(graph: TorchGraph, count: int) -> tuple[tuple[str, ...], ...]:
    """The operations in order of execution, equally many in each stage."""
    ops = graph.ops
    return _stages(graph, {op.id: i * count // len(ops) for i, op in enumerate(ops)}, count)


def _stages(graph: TorchGraph, home: dict[str, int], count: int) -> tuple[tuple[str, ...], ...]:
    for node in graph.input_nodes:
        home[node.id] = min((home[user] for user in graph.users[node.id] if user in home), default=0)
    found: list[list[str]] = [[] for _ in range(count)]
    for node in graph.nodes:
        if node.id in home:
            found[home[node.id]].append(node.id)
    return tuple(tuple(stage) for stage in found if stage)


def largest_load_ms(request: PartitionRequest, stages: Sequence[Sequence[str]]) -> float:
    """Largest load by the contract: node times plus every distinct value that enters or leaves, each once."""
    home = {name: i for i, stage in enumerate(stages) for name in stage}
    loads = [0.0] * len(stages)
    for node in request.nodes:
        loads[home[node.id]] += node.time_ms
    moved = {(edge.source, home[edge.target]) for edge in request.edges}
    moved = {(source, there) for source, there in moved if home[source] != there}
    link = request.devices.link_gb_per_s
    send = {node.id: node.output_bytes / (link * 1e6) if link else 0.0 for node in request.nodes}
    for source, there in moved:
        loads[there] += send[source]
    for source in {source for source, _ in moved}:
        loads[home[source]] += send[source]
    return max(loads)


def rows(source: str, counts: Sequence[int], seconds: float) -> tuple[list[str], list[str], bool]:
    """One model's rows, why torch refused to split, and whether no ratio is below 1."""
    graph = workflow.trace(source)
    _, profile = workflow.profile(
        source, graph=graph, device="cpu", batch_sizes=(BATCH,), gpu_types=("A30-24GB",)
    )
    provider = PartitionProvider(graph, profile)
    lines, notes, good = [], [], True
    for count in counts:
        request = provider.request(count, 1, LINK_GB_PER_S, time_limit_s=seconds)
        outcome = provider.solve(request)
        best = outcome.candidates[0]
        ours = largest_load_ms(request, best.stages)
        good &= math.isclose(ours, best.max_load_ms, rel_tol=1e-6)
        cells = [
            source.removeprefix("sample:"),
            str(count),
            _three(ours),
            f"{100 * (outcome.gap or 0.0):.2g}",
        ]
        split = torch_split(source, graph, count)
        for stages in (split.stages, even_operations(graph, count)):
            if not stages:
                cells += ["n/a", "n/a"]
                continue
            load = largest_load_ms(request, stages)
            good &= load >= ours * (1 - 1e-6)
            cells += [_three(load), f"{load / ours:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {', '.join(split.before) or '–'} |")
        if split.refused:
            notes.append(f"{cells[0]}, k = {count}: {split.refused}")
    return lines, notes, good


def _three(value: float) -> str:
    """Three significant figures."""
    return f"{float(f'{value:.3g}'):g}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(SAMPLES), help="small samples")
    parser.add_argument("--large", nargs="*", default=list(LARGE), help="samples at real dimensions")
    parser.add_argument("--counts", nargs="+", type=int, default=list(COUNTS), help="numbers of stages")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each of our searches")
    options = parser.parse_args()
    print(
        "| model | k | ours, ms | proven gap, % | torch, even blocks, ms | ratio | even operations, ms | ratio "
        "| torch splits before |"
    )
    print("|---" * 9 + "|")
    refused: list[str] = []
    good = True
    for source in (
        *(f"sample:{name}" for name in options.models),
        *(f"sample:{name}@large" for name in options.large),
    ):
        lines, notes, fine = rows(source, options.counts, options.seconds)
        print("\n".join(lines), flush=True)
        refused += notes
        good &= fine
    if refused:
        print("\nWhere torch made no split:\n")
        print("\n".join(f"- {note}" for note in refused))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

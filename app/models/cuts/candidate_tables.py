"""Cuts in words and tables: figures of candidates and stages, and why a cut lies where it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from torchsplit_core.graph import TorchGraph
from torchsplit_core.graph.operations import operation_name
from torchsplit_core.partitioning import CutReason, PartitionProvider
from torchsplit_core.partitioning.blocks.stage_memory import stage_weights
from torchsplit_core.partitioning.candidates import objective_value
from torchsplit_core.pictures.numbers import counted, exact, memory_size, short, size
from torchsplit_core.values import PartitionCandidate
from torchsplit_core.values.partition import Objective

OBJECTIVE_LABELS = {"throughput": "slowest stage", "latency": "one batch through all stages"}
"""What each objective minimises, in words."""
MOST_NAMED = 4


def format_shares(candidate: PartitionCandidate) -> str:
    """How the load divides: "49.8 | 50.2"."""
    total = sum(candidate.loads_ms) or 1
    return " | ".join(exact(round(100 * load / total, 1)) for load in candidate.loads_ms)


def candidates_table(
    rows: Sequence[tuple[str, PartitionCandidate, bool]], objective: Objective, chosen: str
) -> pd.DataFrame:
    """A row for each cut of (key, cut, whether another beats it); the chosen one has a filled dot."""
    values = {key: objective_value(candidate, objective) for key, candidate, _ in rows}
    whole = min((values[key] for key, candidate, _ in rows if len(candidate.stages) == 1), default=None)
    return pd.DataFrame(
        [
            {
                "drawn": "●" if key == chosen else "○",
                "stages": len(candidate.stages),
                f"{OBJECTIVE_LABELS[objective]}, ms": values[key],
                "× the whole": whole / values[key] if whole and values[key] > 0 else None,
                "load share, %": format_shares(candidate),
                "across the cuts": " | ".join(size(count) for count in candidate.cut_bytes) or "nothing",
                "peak memory": " | ".join(memory_size(count) for count in candidate.peak_memory_bytes),
                "one batch, ms": candidate.latency_ms,
                "beaten by another": "yes" if dominated else "no",
                "basis": candidate.basis,
            }
            for key, candidate, dominated in rows
        ]
    )


def stages_table(provider: PartitionProvider, candidate: PartitionCandidate) -> pd.DataFrame:
    """A row for each stage: its operations, modules, load, memory, and its time at every profiled batch size."""
    graph = provider.graph
    rows = []
    for index, stage in enumerate(candidate.stages):
        operations = [name for name in stage if graph.by_id[name].kind == "op"]
        row: dict[str, object] = {"stage": index + 1}
        if candidate.devices:
            row["device"] = candidate.devices[index] + 1
        last = index == len(candidate.cut_bytes)
        row |= {
            "operations": len(operations),
            "modules": describe_modules(graph, operations),
            "stage load, ms": candidate.loads_ms[index],
            "leaves it": "the result" if last else size(candidate.cut_bytes[index]),
            "weights": memory_size(
                sum(graph.by_id[name].output_bytes for name in stage_weights(graph, stage))
            ),
            "peak memory": memory_size(candidate.peak_memory_bytes[index]),
            **{f"ms at batch {batch}": times[index] for batch, times in candidate.times_ms.items()},
        }
        row["growth with batch"] = candidate.batch_sensitivity[index] if candidate.batch_sensitivity else None
        rows.append(row)
    return pd.DataFrame(rows)


def describe_modules(graph: TorchGraph, names: Sequence[str]) -> str:
    """The first and the last module of a stage's operations, or its commonest operations where none has a module."""
    modules = [graph.by_id[name].module for name in names if graph.by_id[name].module]
    if modules:
        return modules[0] if modules[0] == modules[-1] else f"{modules[0]} … {modules[-1]}"
    common = Counter(operation_name(graph.by_id[name]) for name in names).most_common(2)
    return ", ".join(name for name, _ in common) or "inputs alone"


def describe_reason(reason: CutReason, provider: PartitionProvider) -> str:
    """Why a cut lies where it does, in a sentence or two."""
    main = [value for value in reason.crossing if not value.sideband]
    beside = [value for value in reason.crossing if value.sideband]
    masks = counted(len(beside), "mask or constant", "masks or constants")
    also = f", and {masks} beside it ({size(sum(value.output_bytes for value in beside))})" if beside else ""
    if reason.cut_point is not None:
        value = main[0]
        where = f" of {value.module}" if value.module else ""
        return (
            f"One value crosses: {value.id}{where}, {size(value.output_bytes)}{also}. "
            "It is a cut point of the whole model: everything after it reads no other value."
        )
    if not main:
        return f"No activation crosses{also}: the stages do not depend on each other."
    named = ", ".join(f"{value.id} ({size(value.output_bytes)})" for value in main[:MOST_NAMED])
    more = f" and {len(main) - MOST_NAMED} more" if len(main) > MOST_NAMED else ""
    text = f"{counted(len(main), 'value')} cross{'es' if len(main) == 1 else ''}: {named}{more}{also}. "
    if reason.inside:
        region = provider.regions.regions[reason.inside]
        start, end = (_last_part(name) for name in (region.start, region.end))
        return (
            f"{text}The cut runs through the region from {start} to {end}, of {short(region.count)} values."
        )
    return text + "The cut runs through no region smaller than the whole model."


def _last_part(name: str) -> str:
    return {"<entry>": "the inputs", "<exit>": "the outputs"}.get(name, name)

"""Trainings in words: a choice, the bottleneck, the rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torchsplit_core.pictures.numbers import counted, percent, short
from torchsplit_core.strategy.search.descriptions import describe_choices
from torchsplit_core.training.fitted_strategy import fit_to_world_size, run_strategy_of
from torchsplit_core.training.launch import most_processes
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest
from torchsplit_core.values.training import ParallelConfig

BOTTLENECKS = {
    "compute": "The GPUs compute most of the step. Faster cards, lower precision or less recomputation shorten it.",
    "tensor_communication": "Exchanges inside a layer take most of what is not compute: fewer devices of tensor "
    "parallelism, or a faster link inside the node, shorten it.",
    "pipeline_bubble": "Stages of the pipeline wait for one another: more micro-batches, chunks of a stage or fewer "
    "stages shorten it.",
    "pipeline_communication": "What stages hand on takes most of what is not compute: fewer stages, or a faster "
    "network, shorten it.",
    "data_communication": "Summing gradients and gathering weights takes most of what is not compute: a larger batch, "
    "a faster network or less sharding shorten it.",
    "optimizer": "The optimizer and what a step takes whatever its size are most of what is not compute: a larger "
    "batch, or sharded states, shorten it.",
}
ON_CORES = "The cores compute most of the step. More of them, or less recomputation, shorten it."
"""The words of "compute" for a fleet without GPUs."""
MOSTLY = 0.75
"""From which share of the step compute is its bottleneck."""


def describe_choice(candidate: StrategyCandidate) -> str:
    """A candidate's choices in a line; for a pipeline across entries its stages, for groups their nodes."""
    if candidate.across:
        order = " → ".join(f"{stage.stages} × {stage.type}" for stage in candidate.stages)
        return f"pipeline across entries, {candidate.pipeline} stages: {order}"
    if candidate.beside:
        numbers = dict.fromkeys(stage.group for stage in candidate.stages)
        groups = (
            " → ".join(stage.type for stage in candidate.stages if stage.group == number)
            for number in numbers
        )
        return f"groups beside each other: {' | '.join(groups)}"
    return describe_choices(candidate.choices)


def share_rows(candidate: StrategyCandidate) -> list[dict[str, Any]]:
    """A row per entry that has a part of the batch; groups beside each other add group and layers."""
    rows: list[dict[str, Any]] = []
    for entry in candidate.stages:
        first: dict[str, Any] = {}
        if candidate.beside:
            first = {"group": entry.group, "layers": f"{entry.start_layer}–{entry.end_layer}"}
        rows.append(
            first
            | {
                "nodes": entry.type, "devices": entry.devices, "sequences": entry.sequences,
                "of a device": entry.batch_per_device, "data": entry.data, "tensor": entry.tensor,
                "stages": entry.stages, "s": short(entry.seconds), "GiB": short(entry.memory_gib),
            }
        )  # fmt: skip
    return rows


def stage_rows(candidate: StrategyCandidate) -> list[dict[str, Any]]:
    """A row per stage of a pipeline across entries, with the memory and time of its devices."""
    rows: list[dict[str, Any]] = []
    for entry in candidate.stages:
        first = entry.start_layer
        columns = zip(
            entry.layers_per_stage, entry.seconds_per_stage, entry.memory_gib_per_stage, strict=True
        )
        for layers, seconds, memory in columns:
            rows.append(
                {
                    "stage": len(rows) + 1,
                    "nodes": entry.type,
                    "devices": entry.devices // entry.stages,
                    "layers": f"{first}–{first + layers - 1}" if layers > 1 else str(first),
                    "layers in all": layers,
                    "choice": describe_choices(
                        ParallelConfig(
                            data=entry.data, tensor=entry.tensor, context=entry.context, expert=entry.expert,
                            micro_batch=entry.micro_batch, shard=entry.shard, recompute=entry.recompute,
                            sequence_parallel=entry.sequence_parallel, offload=entry.offload,
                        )
                    ),
                    "of a device": entry.batch_per_device,
                    "s a micro-batch": short(seconds),
                    "GiB": short(memory),
                }
            )  # fmt: skip
            first += layers
    return rows


def where_trained(request: StrategyRequest, candidate: StrategyCandidate) -> tuple[bool, str]:
    """Whether this machine trains by a candidate, and in words where a run does."""
    precision = request.training.precision
    try:
        fit_to_world_size(run_strategy_of(candidate, precision=precision), candidate.devices)
    except InputFault as fault:
        return False, f"No training run carries it out: {fault.where} {fault.problem}."
    most = most_processes()
    if candidate.devices > most:
        return False, (
            f"torchsplit train runs it on a cluster (--write-fleet, --nnodes): it takes {candidate.devices} devices, "
            f"and this machine takes {most} processes."
        )
    return True, f"torchsplit train runs it, on {counted(candidate.devices, 'process', 'processes')}."


def has_gpus(request: StrategyRequest) -> bool:
    """Whether some nodes of the fleet are not hosts of cores alone."""
    return any(not nodes.type.startswith("CPU-") for nodes in request.fleet)


def describe_bottleneck(candidate: StrategyCandidate, *, gpus: bool) -> str:
    """The part that takes longest, in words, with its share of the step. `gpus`: whether the fleet has any."""
    parts = asdict(candidate.parts_s)
    name = "compute"
    if parts["compute"] < MOSTLY * candidate.seconds_per_step:
        name = max((part for part in parts if part != "compute"), key=lambda part: parts[part])
    share = parts[name] / candidate.seconds_per_step
    words = BOTTLENECKS[name] if gpus or name != "compute" else ON_CORES
    return f"{name.replace('_', ' ').capitalize()} is {percent(share)} of the step. {words}"


def describe_request(request: StrategyRequest) -> str:
    """Model, fleet and batch in a line."""
    model = request.model
    if isinstance(model, SourceSizes):
        what = model.source
    else:
        what = f"{model.layers} layers of width {model.hidden}"
    fleet = " + ".join(f"{entry.nodes} × {entry.gpus_per_node} {entry.type}" for entry in request.fleet)
    return (
        f"{what} on {fleet}, global batch size {request.training.global_batch}, {request.training.precision}"
    )


def proof(outcome: StrategyOutcome) -> tuple[str, str]:
    """How good the answer is, and the badge's colour."""
    if outcome.status == "optimal":
        first = outcome.candidates[0].seconds_per_step
        if outcome.bound_s is not None and first > outcome.bound_s:
            return f"the fastest that runs; another is at {short(outcome.bound_s, 's')}", "gray"
        return "the fastest of all choices", "gray"
    if outcome.status == "feasible":
        return f"feasible: none is below {short(outcome.bound_s, 's')}", "yellow"
    return "nothing fits, proven", "red"


def label(place: int, candidate: StrategyCandidate) -> str:
    """A short name of a candidate for an axis: "1 · d8 t2 p4 FSDP"."""
    if candidate.across:
        return f"{place + 1} · across {len(candidate.stages)} entries p{candidate.pipeline}"
    if candidate.beside:
        return f"{place + 1} · {len({stage.group for stage in candidate.stages})} groups"
    counts = " ".join(
        f"{letter}{value}"
        for letter, value in (
            ("d", candidate.data), ("t", candidate.tensor), ("p", candidate.pipeline),
            ("c", candidate.context), ("e", candidate.expert),
        )
        if value > 1
    )  # fmt: skip
    text = counts or "one device"
    if candidate.shard != "none":
        text += f" {candidate.shard}"
    if candidate.recompute != "none":
        text += f" {'full' if candidate.recompute == 'full' else 'sel.'} rec."
    return f"{place + 1} · {text} b{candidate.micro_batch}"


def ranking_rows(outcome: StrategyOutcome) -> list[dict[str, Any]]:
    """A row per candidate."""
    fastest = min(candidate.seconds_per_step for candidate in outcome.candidates)
    return [
        {
            "#": place + 1,
            "choice": describe_choice(candidate),
            "s/step": short(candidate.seconds_per_step),
            "90 % interval": f"{short(candidate.low_s)} to {short(candidate.high_s)}",
            "longer by": percent(candidate.seconds_per_step / fastest - 1)
            if candidate.seconds_per_step > fastest
            else "",
            "tokens/s": short(candidate.tokens_per_s),
            "of the peak": percent(candidate.mfu),
            "GiB a device": short(candidate.memory_gib.total),
            "not exportable": candidate.not_exportable or "",
        }
        for place, candidate in enumerate(outcome.candidates)
    ]


def refusal_rows(outcome: StrategyOutcome) -> list[dict[str, Any]]:
    """A row per reason for which the search refused choices."""
    return [
        {"choices": refusal.count, "why": refusal.reason, "nearest": refusal.nearest or ""}
        for refusal in outcome.refused
    ]


def changed_rows(changes: Sequence[dict[str, Any]], best_s: float) -> list[dict[str, Any]]:
    """A row per single changed choice, the fastest first."""
    ordered = sorted(changes, key=lambda change: (change["seconds"] is None, change["seconds"] or 0.0))
    return [
        {
            "choice": str(change["choice"]).replace("_", " "),
            "instead": str(change["value"]),
            "s/step": short(change["seconds"]),
            "longer by": percent(change["seconds"] / best_s - 1) if change["seconds"] else "",
            "GiB a device": short(change["memory_gib"]),
            "why not": change["why_not"],
        }
        for change in ordered
    ]

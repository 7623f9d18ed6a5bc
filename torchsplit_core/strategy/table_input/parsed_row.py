"""A row of a training table as the input of an estimate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from torchsplit_core.strategy.cost_model.constants import constants
from torchsplit_core.strategy.cost_model.memory import step_memory
from torchsplit_core.strategy.table_input.cell_values import count, text
from torchsplit_core.strategy.table_input.errors import RowError
from torchsplit_core.strategy.table_input.frameworks import read_framework
from torchsplit_core.strategy.table_input.gpu_text import read_machine
from torchsplit_core.strategy.table_input.models import read_model
from torchsplit_core.values.training import (
    ParallelConfig,
    Precision,
    Recompute,
    Shard,
    TrainingCluster,
    TrainingDevice,
    TrainingJob,
    TrainingSoftware,
    Transformer,
)


@dataclass(frozen=True, slots=True)
class ParsedRow:
    """The input of an estimate."""

    model: Transformer
    device: TrainingDevice
    cluster: TrainingCluster
    choices: ParallelConfig
    job: TrainingJob
    software: TrainingSoftware


def read_row(row: Mapping[str, str]) -> ParsedRow:
    """Parse a row's cells, given by column name. Raises RowError with the reason why it can't be predicted."""
    task = text(row, "task").lower()
    if "inference" in task:
        raise RowError(f"task is {task!r}, no training")
    if re.search(r"lora|adapter|peft", task):
        raise RowError(f"task is {task!r}: steps that train a part of the weights are not reckoned")
    model = read_model(row)
    device, cluster = read_machine(text(row, "gpu"), text(row, "set"))
    precision = read_precision(text(row, "precision"), device)
    recompute_text = (row.get("recompute") or "").strip().lower()
    software = read_framework(
        text(row, "framework"), text(row, "date"), device.generation, precision, recompute_text
    )
    recompute, share = read_recompute(recompute_text)
    if share is not None:
        software = replace(software, selective="layers", selective_share=share)
    choices, job = _choices(row, model, device, software, recompute, precision)
    return ParsedRow(model, device, cluster, choices, job, software)


def read_precision(cell: str, device: TrainingDevice) -> Precision:
    """The format of the products. Raises RowError for weights quantised below eight bits and for unknown words."""
    low = cell.lower()
    if re.search(r"nf4|int4|fp4|4.?bit|int8", low):
        raise RowError(f"precision is {cell!r}: quantised training is not reckoned")
    if re.search(r"f(?:p|loat)[- _]?8|e4m3|mxfp8", low):
        if device.eight_bit_flops <= device.half_flops:
            raise RowError(f"{device.name} has no products of eight-bit floats")
        return "fp8"
    if re.search(r"bf(?:loat)?[- _]?16", low):
        return "bf16"
    if re.search(r"f(?:p|loat)[- _]?16|half|amp|mixed", low):
        return "fp16"
    if "tf32" in low:
        return "tf32"
    if re.search(r"f(?:p|loat)[- _]?32|single", low):
        return "fp32"
    if not low:
        return "bf16" if device.generation != "volta" else "fp16"
    raise RowError(f"precision is {cell[:40]!r}, an unknown word")


def read_recompute(cell: str) -> tuple[Recompute, float | None]:
    """Which layers are recomputed, and for "selective 1/3" or "every 2nd layer" the share of whole layers."""
    low = cell.lower().strip()
    if re.match(r"(no|none|off|without|false|disabled|0|n/a|-|nan|)(\s|$)", low):
        return "none", None
    if "selective" in low or "sac" in low or "attention" in low or "partial" in low or "core" in low:
        part = re.search(r"(\d+)\s*/\s*(\d+)", low)
        if part and 0 < int(part[1]) <= int(part[2]):
            return "selective", int(part[1]) / int(part[2])
        every = re.search(r"every\s*(\d+)", low)
        if every and int(every[1]) > 0:
            return "selective", 1 / int(every[1])
        decimal = re.search(r"0?\.\d+", low)
        if decimal:
            return "selective", float(decimal[0])
        return "selective", None
    if re.search(
        r"full|all|yes|true|\bon\b|1|every|uniform|block|check|re-?comp|remat|\bac\b|activation", low
    ):
        return "full", None
    raise RowError(f"recompute is {cell[:40]!r}, an unknown word")


def read_shard(cell: str) -> Shard | None:
    """The kind of sharding, None if the cell is empty."""
    low = re.sub(r"[\s_-]", "", cell.lower())
    if not low:
        return None
    if re.search(r"hybrid|hsdp", low):
        return "hsdp"
    if re.search(r"gradop|zero2|stage2", low):
        return "zero2"
    if re.search(r"fullshard|fsdp|zero3|stage3|fullysharded", low):
        return "fsdp"
    if re.search(r"zero1|stage1|distopt|distributedoptim|shardedoptim|zero", low):
        return "zero1"
    return "none"


def _choices(
    row: Mapping[str, str],
    model: Transformer,
    device: TrainingDevice,
    software: TrainingSoftware,
    recompute: Recompute,
    precision: Precision,
) -> tuple[ParallelConfig, TrainingJob]:
    tensor, pipeline = count(row, "tp") or 1, count(row, "pp") or 1
    context, chunks = count(row, "cp") or 1, count(row, "vpp") or 1
    expert = count(row, "ep") or 1
    data = _data(row, tensor * pipeline * context, context)
    if model.heads % tensor:
        raise RowError(f"{tensor} devices of tensor parallelism do not divide {model.heads} heads")
    if pipeline > model.layers:
        raise RowError(f"{pipeline} pipeline stages are more than the {model.layers} layers")
    chunks = min(chunks, model.layers // pipeline)
    if model.experts % expert:
        raise RowError(f"{expert} devices do not divide {model.experts} experts")
    # Experts may also lie on tensor-parallel devices, which divide their weights equally.
    expert = gcd(expert, data * context)
    batch = count(row, "global_batch")
    micro = count(row, "micro_batch")
    if batch is None:
        if micro is None:
            raise RowError("global_batch and micro_batch are empty")
        batch = micro * data
    if batch % data:
        raise RowError(f"{data} data-parallel devices do not divide a global batch of {batch}")
    local = batch // data
    if micro is not None and pipeline > 1 and software.family == "torchtitan" and micro == local:
        # With a pipeline torchtitan gives the local batch, which it cuts into as many micro-batches as stages.
        micro = max(1, local // pipeline)
    if micro is not None and local % micro:
        raise RowError(f"micro-batches of {micro} do not divide the {local} sequences of a device")
    choices = ParallelConfig(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        micro_batch=micro or 1,
        interleave=chunks,
        recompute=recompute,
        # Megatron-LM has had it since the version that recomputes selectively.
        sequence_parallel=tensor > 1
        and (
            software.sequence_parallel
            or recompute == "selective"
            or "sequence" in (row.get("recompute") or "").lower()
        ),
    )
    job = TrainingJob(batch, precision)
    choices = replace(choices, shard=_shard(row, model, device, software, choices, job))
    if micro is None:
        choices = _with_micro_batch(model, device, software, choices, job, local)
    return choices, job


def _data(row: Mapping[str, str], others: int, context: int) -> int:
    """Data-parallel devices: as given, or the quotient of all devices by the other degrees."""
    gpus, data = count(row, "n_gpus"), count(row, "dp")
    if gpus is None:
        return data or 1
    if gpus % others:
        raise RowError(f"tp × pp × cp = {others} do not divide {gpus} GPUs")
    left = gpus // others
    if data is not None and data not in (left, left * context):
        raise RowError(f"tp × pp × cp × dp = {others * data}, but there are {gpus} GPUs")
    return left


def _shard(
    row: Mapping[str, str],
    model: Transformer,
    device: TrainingDevice,
    software: TrainingSoftware,
    choices: ParallelConfig,
    job: TrainingJob,
) -> Shard:
    """As given; else the framework's default, or FSDP if the states would not fit otherwise."""
    shard = read_shard(text(row, "sharding"))
    if shard is not None:
        return "fsdp" if shard == "zero2" and software.family in ("composer", "fms") else shard
    usual: Shard = "zero1" if software.family in ("nemo", "megatron-core") else "none"
    if software.family in ("torchtitan", "fms", "composer"):
        usual = "fsdp"
    c = constants()
    states = step_memory(model, replace(choices, shard=usual), job, software, c)
    if states.weights + states.gradients + states.optimizer > device.memory_bytes and choices.data > 1:
        return "fsdp"
    return usual


def _with_micro_batch(
    model: Transformer,
    device: TrainingDevice,
    software: TrainingSoftware,
    choices: ParallelConfig,
    job: TrainingJob,
    local: int,
) -> ParallelConfig:
    """The default micro-batch: the largest power of two that divides, fits, and keeps a pipeline busy (eight
    micro-batches a stage), at most 16."""
    best = 1
    size = 2
    while size <= 16 and local % size == 0:
        enough = choices.pipeline == 1 or local // size >= 8 * choices.pipeline
        trial = replace(choices, micro_batch=size)
        fits = step_memory(model, trial, job, software, constants()).total <= 0.95 * device.memory_bytes
        if enough and fits:
            best = size
        size *= 2
    return replace(choices, micro_batch=best)

"""A placement as launch commands of vLLM and torchrun, as far as it maps to them. Untested on hardware."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from torchsplit_core.values import PlacementOutcome, PlacementRequest
from torchsplit_core.values.placement import GpuId

HEAD = "# Untested on hardware. Written from the placement alone; names of nodes are those of its GPU ids."

LARGEST_NUMBER = 9999
"""Largest number of a GPU in its node."""


@dataclass(frozen=True)
class LaunchCommands:
    """Commands for one launcher, or `unsupported_reason` in words."""

    launcher: str
    text: str
    unsupported_reason: str = ""


def launch_commands(
    request: PlacementRequest, outcome: PlacementOutcome, model: str = "MODEL"
) -> tuple[LaunchCommands, ...]:
    """vLLM and torchrun for a placement of one pipeline; nothing for an outcome without segments."""
    if not outcome.segments:
        return ()
    node_of_gpu = {gpu: _parse_gpu_id(gpu) for part in outcome.segments for gpu in part.gpu_ids}
    if any(node is None for node in node_of_gpu.values()):
        reason = (
            "A launcher needs each GPU's number in its node: ids such as node0/gpu3, or 3 on one machine."
        )
        return LaunchCommands("vLLM", "", reason), LaunchCommands("torchrun", "", reason)
    known = {gpu: node for gpu, node in node_of_gpu.items() if node is not None}
    return _vllm_commands(request, outcome, model, known), _torchrun_commands(request, outcome, known)


def _parse_gpu_id(gpu: GpuId) -> tuple[str, int] | None:
    """(node, number in it): node0/gpu3 or, on one machine, 3.

    None for another id: it would end up in a shell, where a leading hyphen would make it an option.
    """
    if isinstance(gpu, int):
        return ("", gpu) if 0 <= gpu <= LARGEST_NUMBER else None
    node, slash, name = gpu.rpartition("/")
    number = name.removeprefix("gpu")
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", node) and re.fullmatch(r"[0-9]{1,4}", number)
    return (node, int(number)) if slash and plain else None


def _vllm_commands(
    request: PlacementRequest,
    outcome: PlacementOutcome,
    model: str,
    node_of_gpu: dict[GpuId, tuple[str, int]],
) -> LaunchCommands:
    parts = outcome.segments
    sizes = {len(part.gpu_ids) for part in parts}
    if len(sizes) > 1:
        return LaunchCommands(
            "vLLM", "", "Its segments have different numbers of GPUs: vLLM has one number for all stages."
        )
    if any(isinstance(part.batch_per_gpu, tuple) and len(set(part.batch_per_gpu)) > 1 for part in parts):
        return LaunchCommands(
            "vLLM", "", "GPUs of a segment take unequal parts of the batch: vLLM's replicas take equal ones."
        )
    if len({node for node, _ in node_of_gpu.values()}) > 1:
        return LaunchCommands(
            "vLLM",
            "",
            "It spans several nodes: there vLLM chooses the GPUs of a stage itself, not those named here.",
        )
    size = sizes.pop()
    if request.split == "tensor":
        devices = ",".join(str(node_of_gpu[gpu][1]) for part in parts for gpu in part.gpu_ids)
        comment = f"# Every layer is cut among {size} GPUs: ranks of a stage stand one after the other."
        return LaunchCommands(
            "vLLM", "\n".join([HEAD, comment, _vllm_serve(request, outcome, model, devices, 1, 0)]) + "\n"
        )
    lines = [HEAD, f"# {size} replica{'s' if size > 1 else ''} of the pipeline; divide the batch equally."]
    for replica in range(size):
        devices = ",".join(str(node_of_gpu[part.gpu_ids[replica]][1]) for part in parts)
        lines.append(_vllm_serve(request, outcome, model, devices, size, replica))
    return LaunchCommands("vLLM", "\n".join(lines) + "\n")


def _vllm_serve(
    request: PlacementRequest,
    outcome: PlacementOutcome,
    model: str,
    devices: str,
    replicas: int,
    replica: int,
) -> str:
    """The command of one of `replicas` servers, which divide the sequences that memory was computed for; vLLM counts
    all sequences in a pipeline, whatever its stages."""
    parts, sizes = outcome.segments, request.model
    layers = ",".join(str(part.end_layer - part.start_layer + 1) for part in parts)
    in_flight = sizes.batch_size if outcome.sequences_in_flight is None else outcome.sequences_in_flight
    options = [f"--pipeline-parallel-size {len(parts)}"]
    if request.split == "tensor":
        options.append(f"--tensor-parallel-size {len(parts[0].gpu_ids)}")
    options.append(f"--max-num-seqs {max(1, in_flight // replicas)} --max-model-len {sizes.sequence_length}")
    if sizes.prefill_chunk is not None:
        tokens = max(1, sizes.batch_size // replicas) * sizes.prefill_chunk
        options.append(f"--enable-chunked-prefill --max-num-batched-tokens {tokens}")
    return (
        f"CUDA_VISIBLE_DEVICES={devices} VLLM_PP_LAYER_PARTITION={layers} vllm serve {shlex.quote(model)} "
        f"{' '.join(options)} --port {8000 + replica}"
    )


def _torchrun_commands(
    request: PlacementRequest, outcome: PlacementOutcome, node_of_gpu: dict[GpuId, tuple[str, int]]
) -> LaunchCommands:
    stage_of_gpu = {gpu: index for index, part in enumerate(outcome.segments) for gpu in part.gpu_ids}
    nodes: dict[str, list[GpuId]] = {}
    for gpu in stage_of_gpu:
        nodes.setdefault(node_of_gpu[gpu][0], []).append(gpu)
    lines = [HEAD, "# TRAIN_OR_SERVE.py is yours: it gives each rank the stage and layers that stand here."]
    first, rank = next(iter(nodes)) or "localhost", 0
    for number, (node, gpus) in enumerate(nodes.items()):
        gpus.sort(key=lambda gpu: node_of_gpu[gpu][1])
        lines.append(f"# on {shlex.quote(node or 'this machine')}")
        for gpu in gpus:
            part = outcome.segments[stage_of_gpu[gpu]]
            content = f"stage {stage_of_gpu[gpu]}, layers {part.start_layer}-{part.end_layer}"
            if request.split == "tensor":
                content += f", part {part.gpu_ids.index(gpu) + 1} of {len(part.gpu_ids)} of each"
            lines.append(f"#   rank {rank}: {content}")
            rank += 1
        devices = ",".join(str(node_of_gpu[gpu][1]) for gpu in gpus)
        lines.append(
            f"CUDA_VISIBLE_DEVICES={devices} torchrun --nnodes {len(nodes)} --node-rank {number} "
            f"--nproc-per-node {len(gpus)} --master-addr {shlex.quote(first)} --master-port 29500 TRAIN_OR_SERVE.py"
        )
    return LaunchCommands("torchrun", "\n".join(lines) + "\n")

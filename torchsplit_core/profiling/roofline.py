"""Estimates of a model on a MIG slice that is not in this host: a roofline over its operations.

    time of an operation = max(matrix FLOPs / (peak · share of SMs · efficiency) + other FLOPs / (fp32 peak · share),
                               bytes / (bandwidth · share of memory slices · efficiency)) + DEVICE_S · kernels
    time of a batch      = max(sum of its operations, HOST_S · kernels)

The second line is eager PyTorch: the processor issues kernels while the GPU works, and the slower of the two decides.
So all slices are about equally fast at batch 1.

A whole GPU is a slice of all its SMs and memory, and the only one of GPUs without MIG.

Peaks follow PyTorch's defaults. float32 convolutions and recurrent layers run in TF32 (cuDNN allows it; in FP32 on
older GPUs), float32 products and attention in FP32; float16 and bfloat16 have their own peaks. A missing peak leaves
the rows out, with a warning: never a zero.

Constants are fitted (benchmarks/roofline_calibration.py) on the measured A100-80GB library, single process, all slices
and batch sizes: nine convolutional networks, 333 rows. The intervals are the 5 % and 95 % quantiles of measured /
predicted throughput for networks left out of the fit (median error 6.4 %).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.hardware import GpuPeaks, gpu_type, peak_names, peaks, plain_profiles, unsourced_profiles
from torchsplit_core.profiling.flops import NodeCost, node_costs
from torchsplit_core.profiling.library import LIBRARY_GPU
from torchsplit_core.profiling.measured_model import memory_parts
from torchsplit_core.profiling.memory import MemoryEstimate, estimate_memory
from torchsplit_core.values import GpuType, InputFault, NodeProfile, ProfileRow, SliceProfile, profile_words
from torchsplit_core.values.units import GB


@dataclass(frozen=True, slots=True)
class RooflineConstants:
    """Shares of the peaks that real kernels reach, and the fixed seconds of a kernel."""

    convolution: float
    matmul: float
    memory: float
    host_s: float
    device_s: float


FITTED_CONSTANTS = RooflineConstants(
    convolution=0.572, matmul=0.62, memory=0.520, host_s=28.4e-6, device_s=7.0e-6
)
"""`matmul` is fitted on the library's BERT alone, whose sequence length is not published (128 tokens assumed)."""

CONVOLUTION_INTERVAL = (0.81, 1.15)
"""Measured / predicted throughput if convolutions do most of the matrix FLOPs."""

MATMUL_INTERVAL = (0.36, 1.77)
"""The same if matrix products do: the residuals of BERT, the only transformer of the library.

Wide, because 2.4 ms of each of its requests depend on no slice (median error 36 %), like work on the processor.
"""

OTHER_GPU_WIDENING = 1.25
"""Assumption: the factor by which the interval widens at both ends on GPU types outside the library."""

P95_OVER_MEAN = 1.05
"""Assumption: the 95th percentile of one batch's service time over its mean, without queueing.

The library gives one latency a row, equal to batch / throughput within 1.4 % (5 % to 95 %), and no percentiles.
"""

BatchPoint = tuple[int, tuple[NodeCost, ...], MemoryEstimate]
"""A batch size, the costs of every operation there, and the memory of one instance."""

_HALF = {"float16": "fp16_tflops", "half": "fp16_tflops", "bfloat16": "bf16_tflops"}


@dataclass(frozen=True, slots=True)
class SliceRates:
    """Peaks of a slice: FLOP/s by unit and dtype class, bytes/s. None: not sourced."""

    fp32: float | None
    tf32: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    bytes_per_s: float | None

    def matrix(self, cost: NodeCost) -> float | None:
        """The peak for the node's matrix work, by PyTorch's defaults."""
        if cost.dtype in _HALF:
            return self.fp16_tflops if _HALF[cost.dtype] == "fp16_tflops" else self.bf16_tflops
        return self.tf32 if cost.unit in ("convolution", "recurrent") else self.fp32


def slice_rates(peak: GpuPeaks, gpu: GpuType, profile: SliceProfile) -> SliceRates:
    """The slice's share of the GPU: SMs for arithmetic, memory slices for bandwidth.

    SM shares are relative to the SMs of the peak figures, of which MIG may not expose all (98 of 108 on A100).
    """
    whole = peak.sm_count
    compute = profile.sm_count / whole if profile.sm_count and whole else None
    memory = profile.memory_slices / gpu.memory_slices

    def rate(tera: float | None) -> float | None:
        return None if tera is None or compute is None else tera * 1e12 * compute

    bandwidth = None if peak.memory_gb_per_s is None else peak.memory_gb_per_s * GB * memory
    return SliceRates(
        rate(peak.fp32_tflops),
        rate(peak.fp32_tflops if peak.before_tf32 else peak.tf32_tflops),
        rate(peak.fp16_tflops),
        rate(peak.bf16_tflops),
        bandwidth,
    )


def node_time_s(
    cost: NodeCost, rates: SliceRates, constants: RooflineConstants = FITTED_CONSTANTS
) -> float | None:
    """Device time of one operation in seconds; None if a peak it needs is not sourced."""
    if not cost.kernel_count:
        return 0.0
    matrix_peak = rates.matrix(cost)
    if rates.bytes_per_s is None or rates.fp32 is None or (cost.matrix_flops and matrix_peak is None):
        return None
    efficiency = constants.matmul if cost.unit == "matmul" else constants.convolution
    compute_s = (cost.flops - cost.matrix_flops) / rates.fp32
    if matrix_peak:
        compute_s += cost.matrix_flops / (matrix_peak * efficiency)
    transfer_s = (cost.bytes_read + cost.bytes_written) / (rates.bytes_per_s * constants.memory)
    return max(compute_s, transfer_s) + constants.device_s * cost.kernel_count


def batch_time_s(
    costs: Sequence[NodeCost], rates: SliceRates, constants: RooflineConstants = FITTED_CONSTANTS
) -> float | None:
    """Time of a batch in seconds by the formula at the top of this module; None if a peak is missing."""
    device_s, kernels = 0.0, 0
    for cost in costs:
        node_s = node_time_s(cost, rates, constants)
        if node_s is None:
            return None
        device_s += node_s
        kernels += cost.kernel_count
    return max(device_s, constants.host_s * kernels)


def estimate_rows(
    graph: TorchGraph,
    gpu_types: Sequence[str],
    batch_sizes: Sequence[int],
    stage: str = "whole",
    *,
    warn: bool = True,
) -> tuple[ProfileRow, ...]:
    """A row for every plain MIG profile and the whole of the GPU types, and every batch size that fits its memory.

    Basis estimated, one process, with low_rps and high_rps always; latency_ms is the p95 of one batch. Warns
    (UserWarning) of GPU types and profiles that are left out because a figure is not sourced, unless `warn` is False,
    for types that nobody requested. Raises InputFault for a GPU type that the catalogue lacks or an invalid batch size.
    """
    rows: list[ProfileRow] = []
    gpus = [_estimable_gpu_type(name) for name in gpu_types]
    points = [(batch, node_costs(graph, batch), estimate_memory(graph, batch)) for batch in batch_sizes]
    for gpu in gpus:
        unsourced = list(unsourced_profiles(gpu))
        for profile in (*plain_profiles(gpu), *((gpu.whole,) if gpu.whole else ())):
            slice_rows = _profile_rows(gpu, profile, points, stage)
            if slice_rows is None:
                unsourced.append(profile_words(profile.name))
            else:
                rows += slice_rows
        if unsourced and warn:
            text = f"{gpu.name}: no estimate for {', '.join(unsourced)}: a peak, memory or SM figure is not sourced."
            warnings.warn(text, UserWarning, stacklevel=2)
    return tuple(rows)


def _estimable_gpu_type(name: str) -> GpuType:
    """A GPU type, with or without MIG: cores are measured, not estimated."""
    gpu = gpu_type(name)
    if gpu.divided == "cores":
        raise InputFault(
            "GPU type",
            f"{name} is a host of cores, for which there are no estimates",
            "Measure it: profile --device cpu.",
        )
    return gpu


def _profile_rows(
    gpu: GpuType, profile: SliceProfile, points: Sequence[BatchPoint], stage: str
) -> list[ProfileRow] | None:
    """The rows of one slice; None if a figure is missing."""
    if gpu.name not in peak_names() or profile.memory_gib is None:
        return None
    rates = slice_rates(peaks(gpu.name), gpu, profile)
    rows = []
    for batch, costs, memory in points:
        seconds = batch_time_s(costs, rates)
        if not seconds:
            return None
        memory_gib = memory.instance_gib(cuda=True)
        if memory_gib > profile.memory_gib:
            continue
        low, high = interval(costs, gpu.name)
        rows.append(
            ProfileRow(
                stage=stage,
                gpu_type=gpu.name,
                profile=profile.name or None,
                batch_size=batch,
                processes=1,
                throughput_rps=batch / seconds,
                latency_ms=1000 * seconds * P95_OVER_MEAN,
                low_rps=low * batch / seconds,
                high_rps=high * batch / seconds,
                memory_gib=memory_gib,
                basis="estimated",
                memory_parts_gib=memory_parts(None, memory, cuda=True),
            )
        )
    return rows


def interval(costs: Sequence[NodeCost], gpu_name: str) -> tuple[float, float]:
    """Factors on the throughput that include 90 % of measurements, as far as the library can tell."""
    matrix = sum(cost.matrix_flops for cost in costs)
    convolved = sum(cost.matrix_flops for cost in costs if cost.unit == "convolution")
    low, high = CONVOLUTION_INTERVAL if matrix and convolved > matrix / 2 else MATMUL_INTERVAL
    if gpu_name == LIBRARY_GPU:
        return low, high
    return low / OTHER_GPU_WIDENING, high * OTHER_GPU_WIDENING


def estimated_nodes(graph: TorchGraph) -> tuple[NodeProfile, ...]:
    """Every operation's share of the device time on a whole A100-80GB, at the traced batch; bytes by liveness."""
    gpu = gpu_type(LIBRARY_GPU)
    whole = max(plain_profiles(gpu), key=lambda profile: profile.sm_count or 0)
    rates = slice_rates(peaks(LIBRARY_GPU), gpu, whole)
    costs = node_costs(graph, graph.traced_batch)
    times = {cost.id: node_time_s(cost, rates) or 0.0 for cost in costs}
    total = sum(times.values())
    peak_bytes = estimate_memory(graph, graph.traced_batch).node_peak_bytes
    return tuple(
        NodeProfile(
            id=node.id,
            time_share=times[node.id] / total if total else 0.0,
            output_bytes=node.output_bytes,
            peak_bytes=peak_bytes[node.id],
        )
        for node in graph.ops
    )

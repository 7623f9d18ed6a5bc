"""Seconds of one kernel on one device: matrix products, attention, memory-bound operations.

For a GPU from its peaks and the fitted shares of them; for a measured host from its measured rates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchsplit_core.profiling.host_rates import HostRates, rate_at
from torchsplit_core.profiling.roofline import FITTED_CONSTANTS
from torchsplit_core.strategy.cost_model.constants import Constants
from torchsplit_core.values.training import Attention, Precision, TrainingDevice

TILE = 128
"""Rows and columns of the tile that a multiprocessor computes at a time."""
BACKWARD_ATTENTION = 2.5
"""Matrix products of fused attention's backward pass over its forward pass: five over two (FlashAttention-2)."""


class Kernels:
    """The device's speeds in a precision; every method returns seconds."""

    __slots__ = (
        "attention_flops", "bytes_per_s", "depth", "flops", "launch_s", "peak_flops", "softmax", "wave", "width",
    )  # fmt: skip

    def __init__(
        self, device: TrainingDevice, precision: Precision, attention: Attention, c: Constants
    ) -> None:
        new = device.generation in ("hopper", "blackwell")
        power = float(device.power_share**c.power_exponent)
        share = c.gemm_share_hopper if new else c.gemm_share_ampere
        if precision == "fp8" and device.eight_bit_flops > device.half_flops:
            peak = device.half_flops * c.eight_bit_gain
        elif precision in ("fp32", "tf32"):
            peak = device.single_flops
        else:
            peak = device.half_flops
        self.peak_flops = peak * power
        self.flops = self.peak_flops * share
        self.width = 4 if precision in ("fp32", "tf32") else 2
        self.bytes_per_s = device.bytes_per_s * c.memory_share
        self.wave = c.gemm_wave * device.multiprocessors * TILE * TILE
        self.depth = c.gemm_depth if device.multiprocessors else 0.0
        self.launch_s = c.launch_s
        self.softmax = c.softmax_passes
        of = {
            "triton": (c.triton_share_ampere, c.triton_share_hopper),
            "flash": (c.flash_share_ampere, c.flash_share_hopper),
            "cudnn": (c.flash_share_ampere, c.cudnn_share),
            "unfused": (share, share),
        }[attention]
        half = device.half_flops if self.width == 2 else device.single_flops
        self.attention_flops = half * of[new] * power

    def gemm(self, rows: float, columns: float, depth: float) -> float:
        """A product of rows × depth by depth × columns: the longer of its operations (with part-filled waves of tiles
        and the start of a tile's inner loop) and its bytes."""
        flops = 2.0 * depth * (rows * columns + self.wave) * (1.0 + self.depth / depth)
        moved = self.width * (rows * depth + depth * columns + rows * columns)
        return max(flops / self.flops, moved / self.bytes_per_s) + self.launch_s

    def gemm_backward(self, rows: float, columns: float, depth: float) -> float:
        """The two products that compute the gradients of both factors."""
        return self.gemm(rows, depth, columns) + self.gemm(depth, columns, rows)

    def attention(self, flops: float) -> float:
        """Fused attention of `flops` operations."""
        return flops / self.attention_flops

    def fused_attention(self, tokens: float, seen: float, width: float) -> float:
        """The causal forward pass over `seen` keys: half of 4 · tokens · seen · width operations."""
        return 2.0 * tokens * seen * width / self.attention_flops + self.launch_s

    def unfused_attention(self, tokens: float, seen: float, width: float, heads: float) -> float:
        """Two products that ignore the mask, and the scores through memory several times."""
        products = 4.0 * tokens * seen * width / self.attention_flops
        scores = self.softmax * self.width * tokens * seen * heads / self.bytes_per_s
        return products + scores + 4 * self.launch_s

    def convolution(self, flops: float) -> float:
        """A convolution (or a recurrent layer) of `flops` operations."""
        return flops / (self.peak_flops * FITTED_CONSTANTS.convolution)

    def moved(self, size_bytes: float) -> float:
        """`size_bytes` through the device's memory."""
        return size_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class HostFactors:
    """How many times longer a step takes than the probe's best times: for compute and exchanges, and for starts
    (of operations and of the optimizer)."""

    compute: float
    starts: float


HOST_FACTORS = HostFactors(1.25, 6.6)
"""Fitted by benchmarks.training_intervals: in a step, caches are cold and other threads run."""


def in_a_step(rates: HostRates, factors: HostFactors = HOST_FACTORS) -> HostRates:
    """The probed rates scaled to those within a training step."""
    return replace(
        rates,
        products=tuple((size, rate / factors.compute) for size, rate in rates.products),
        moved=tuple((size, rate / factors.compute) for size, rate in rates.moved),
        operation_s=rates.operation_s * factors.starts,
        backward_operation_s=rates.backward_operation_s * factors.starts,
        optimizer_s=rates.optimizer_s * factors.starts,
        exchange_s=rates.exchange_s * factors.compute,
        exchange_bytes_per_s=rates.exchange_bytes_per_s / factors.compute,
    )


class HostKernels(Kernels):
    """Measured cores (`HostRates`) in single precision. Starts of operations are counted separately."""

    __slots__ = ("rates",)

    def __init__(self, rates: HostRates) -> None:
        self.rates = rates
        self.launch_s = 0.0

    def gemm(self, rows: float, columns: float, depth: float) -> float:
        """The longer of its operations, at the rate of an equally large product, and its bytes."""
        flops = 2.0 * rows * columns * depth
        size = 4.0 * (rows * depth + depth * columns + rows * columns)
        return max(flops / rate_at(self.rates.products, flops), self.moved(size))

    def fused_attention(self, tokens: float, seen: float, width: float) -> float:
        """The causal forward pass over `seen` keys."""
        return self.attention(2.0 * tokens * seen * width)

    def attention(self, flops: float) -> float:
        """Fused attention of `flops` operations, at the rate of products."""
        return flops / rate_at(self.rates.products, flops)

    def convolution(self, flops: float) -> float:
        """A convolution of `flops` operations."""
        return flops / (rate_at(self.rates.products, flops) * self.rates.convolution)

    def moved(self, size_bytes: float) -> float:
        """Bytes that an operation reads and writes, from the caches if they fit."""
        return size_bytes / rate_at(self.rates.moved, size_bytes) if size_bytes else 0.0

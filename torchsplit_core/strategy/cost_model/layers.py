"""Seconds of one layer, and of the model's embedding and logits, for one micro-batch on one device."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.strategy.cost_model.constants import Constants
from torchsplit_core.strategy.cost_model.kernels import BACKWARD_ATTENTION, Kernels
from torchsplit_core.strategy.cost_model.network import Network
from torchsplit_core.values.training import ParallelConfig, TrainingSoftware, Transformer

BACKWARD_MEMORY = 2.0
"""Element-wise traffic of the backward pass over the forward's: it reads saved values and the gradient."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of a layer for one micro-batch, forward, backward and recomputation together."""

    compute: float
    attention: float
    memory_bound: float
    host: float
    tensor: float
    context: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.compute + self.attention + self.memory_bound + self.host + self.tensor + self.context


@dataclass(frozen=True, slots=True)
class RecomputeShares:
    """Shares of a forward pass that the backward pass computes again."""

    products: float
    attention: float
    memory_bound: float


def recompute_shares(choices: ParallelConfig, software: TrainingSoftware) -> RecomputeShares:
    """What recomputation repeats: all, or what the software's selective kind does not keep."""
    if choices.recompute == "full":
        return RecomputeShares(1.0, 1.0, 1.0)
    if choices.recompute == "none":
        return RecomputeShares(0.0, 0.0, 0.0)
    if software.selective == "layers":
        share = software.selective_share
        return RecomputeShares(share, share, share)
    if software.selective == "matmuls":
        return RecomputeShares(0.5, 0.0, 1.0)
    return RecomputeShares(0.0, 1.0, 0.0)


def exposed_host(device_s: float, host_s: float) -> float:
    """What the host adds to the device's time: (device⁴ + host⁴)^¼ − device, near 0 while the device is slower."""
    return float((device_s**4 + host_s**4) ** 0.25) - device_s


class LayerModel:
    """One layer of the model under the choices."""

    def __init__(
        self,
        model: Transformer,
        choices: ParallelConfig,
        software: TrainingSoftware,
        kernels: Kernels,
        network: Network,
        c: Constants,
    ) -> None:
        self.model, self.choices, self.software = model, choices, software
        self.kernels, self.network, self.c = kernels, network, c
        self.tokens = choices.micro_batch * model.sequence / choices.context
        self.host_s = c.host_compiled_s if software.compiled else c.host_eager_s

    def time(self) -> LayerTime:
        """The layer's seconds."""
        recompute = recompute_shares(self.choices, self.software)
        forward, backward, last = self._products()
        recomputed_s = forward - last if self.software.early_stop else forward
        first, second = self._attention()
        moved = self.kernels.moved(self._moved_bytes())
        exchange = self._exchange()
        forward_s = (forward, first, moved)
        backward_s = (
            backward + recompute.products * recomputed_s,
            second + recompute.attention * first,
            (BACKWARD_MEMORY + recompute.memory_bound) * moved,
        )
        repeats = 2.0 + (1.0 if self.choices.recompute == "full" else 0.0)
        passes = 2.0 + recompute.memory_bound
        device = sum(forward_s) + sum(backward_s) + repeats * exchange
        host = exposed_host(device, self.host_s * passes)
        return LayerTime(
            compute=forward_s[0] + backward_s[0],
            attention=forward_s[1] + backward_s[1],
            memory_bound=forward_s[2] + backward_s[2],
            host=host,
            tensor=repeats * exchange,
            context=self._context_exposed(first, second),
        )

    def _shapes(self) -> tuple[tuple[float, float, float, float], ...]:
        """Matrix products of a layer's forward pass: count, rows, columns, depth."""
        model, t = self.model, self.choices.tensor
        attention = (
            (1.0, self.tokens, (model.hidden + 2 * model.kv_width) / t, model.hidden),
            (1.0, self.tokens, model.hidden, model.hidden / t),
        )
        local = model.experts / self.choices.expert
        rows = self.tokens * model.experts_per_token / local
        up = (2 if model.gated else 1) * model.ffn / t
        return (
            *attention,
            (local, rows, up, model.hidden),
            (local, rows, model.hidden, model.ffn / t),
        )

    def _products(self) -> tuple[float, float, float]:
        """Seconds of the forward products, the backward ones, and the last forward product."""
        forward = backward = last = 0.0
        for count, rows, columns, depth in self._shapes():
            last = count * self.kernels.gemm(rows, columns, depth)
            forward += last
            backward += count * self.kernels.gemm_backward(rows, columns, depth)
        return forward, backward, last

    def _attention(self) -> tuple[float, float]:
        model, t = self.model, self.choices.tensor
        width = model.hidden / t
        if self.software.attention == "unfused":
            forward = self.kernels.unfused_attention(self.tokens, model.sequence, width, model.heads / t)
            return forward, 2.0 * forward
        forward = self.kernels.fused_attention(self.tokens, model.sequence, width)
        return forward, BACKWARD_ATTENTION * forward

    def _moved_bytes(self) -> float:
        """Element-wise bytes of a forward pass. Sequence parallelism divides norms and residuals too."""
        model, t = self.model, self.choices.tensor
        around = model.hidden / (t if self.choices.sequence_parallel else 1)
        inner = (1.5 if model.gated else 1.0) * model.ffn * model.experts_per_token / t
        factor = 1.0 if self.software.compiled else self.c.unfused_factor
        wide = self.c.hidden_passes * around + self.c.ffn_passes * inner
        return factor * self.kernels.width * self.tokens * wide

    def _exchange(self) -> float:
        """Tensor parallelism in one pass: two all-reduces of the hidden states, or exchanges of as many bytes."""
        t = self.choices.tensor
        size = self.kernels.width * self.tokens * self.model.hidden
        experts = 0.0
        if self.choices.expert > 1:
            sent = size * self.model.experts_per_token
            experts = 2.0 * self.network.gather(sent, self.choices.expert, t * self.choices.context)
        exposed = self.c.tensor_exposed if self.software.tensor_overlap else 1.0
        return 2.0 * exposed * self.network.reduce(size, t, 1) + experts

    def _context_exposed(self, forward: float, backward: float) -> float:
        """Seconds of passing keys and values around the ring that the attention of other blocks does not hide."""
        n = self.choices.context
        if n == 1:
            return 0.0
        size = self.kernels.width * self.tokens * 2 * self.model.kv_width / self.choices.tensor * n
        ring = self.network.gather(size, n, self.choices.tensor)
        return max(0.0, ring - forward) + max(0.0, 2 * ring - backward)

    def logits(self) -> LayerTime:
        """Seconds of the product with the vocabulary and of the loss, for a micro-batch."""
        columns = self.model.vocab / self.choices.tensor
        product = self.kernels.gemm(self.tokens, columns, self.model.hidden)
        product += self.kernels.gemm_backward(self.tokens, columns, self.model.hidden)
        loss = self.kernels.moved(self.c.logit_bytes * self.tokens * columns)
        return LayerTime(product, 0.0, loss, 0.0, 0.0, 0.0)

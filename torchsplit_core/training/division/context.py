"""Context parallelism: each rank of a group has a part of every sequence, and attends to the keys of all parts.

A sequence is cut into 2n blocks for n ranks, and rank r has the blocks r and 2n - 1 - r: under a causal mask all ranks
then have equal work (Llama 3, arXiv 2407.21783).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.utils import _pytree as pytree

from torchsplit_core.training.division.traced import Exchanges
from torchsplit_core.values import InputFault, quoted, suggestion
from torchsplit_core.values.training import ParallelConfig

PLAN_KEYS = ("inputs", "targets", "positions", "causal")
ATTENTION = F.scaled_dot_product_attention
WHERE, REMEDY = "the client's context_plan", "Correct it, or fix context to 1."


class ContextParallel:
    """Gives a rank its part of each batch, and makes its attention span all parts.

    `plan`: the client's `context_plan` (`values.TrainClient`). Raises InputFault if it is missing or incomplete. The
    model receives the positions of its part if the plan names the argument that takes them.
    """

    def __init__(
        self,
        model: nn.Module,
        choices: ParallelConfig,
        plan: Mapping[str, Any] | None,
        device: torch.device,
    ) -> None:
        if not plan:
            raise InputFault(
                "the strategy's context",
                f"is {choices.context}, but the client has no context_plan, which says where samples have sequences",
                "Give it one, for example {'inputs': (1,), 'targets': (1,), 'positions': 'positions'}, or fix context "
                "to 1.",
            )
        for key in plan:
            if key not in PLAN_KEYS:
                raise InputFault(WHERE, f"has {quoted(key)}", suggestion(key, PLAN_KEYS, "entries"))
        if missing := [key for key in PLAN_KEYS[:3] if key not in plan]:
            raise InputFault(
                WHERE,
                f"lacks {' and '.join(missing)}",
                "Give dimensions of inputs and targets, and the argument that takes positions (None if none does).",
            )
        names = ("pipeline", "data", "context", "tensor")
        sizes = (choices.pipeline, choices.data, choices.context, choices.tensor)
        self.mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)["context"]
        # A pipeline is traced on the CPU, and a trace does not hold torch's ring.
        self.device = device if choices.pipeline == 1 else torch.device("cpu")
        self.dims = (tuple(plan["inputs"]), tuple(plan["targets"]))
        self.ring = self.device.type == "cuda" and bool(plan.get("causal"))
        self._length, self._positions = 0, torch.empty(0)
        self._attention: _GatheredAttention | None = None
        if plan["positions"] is not None:
            model.register_forward_pre_hook(
                lambda _, given, named: (given, {**named, plan["positions"]: self._positions}),
                with_kwargs=True,
            )

    def describe(self) -> str:
        """The note of the run's first event."""
        if self.ring:
            return f"context {self.mesh.size()}: attention by torch's ring (untested on hardware)"
        return f"context {self.mesh.size()}: each rank gathers the keys and values of its attention"

    @contextmanager
    def divide(self, batch: Any) -> Iterator[Any]:
        """This rank's part of a batch `(inputs, targets)`; inside, forward and backward pass attend to all parts.

        Raises InputFault if the sequences are not as the plan says.
        """
        with self.divided_attention(batch):
            yield self.part(batch)

    def part(self, batch: Any) -> Any:
        """This rank's part of a batch `(inputs, targets)`.

        Raises InputFault if its sequences are not as long as those for which attention was divided.
        """
        length = self._length_of(batch)
        if length != self._length:
            raise InputFault(
                "the data",
                f"has sequences of {length} positions, but those before had {self._length}",
                "Pad the samples to one size, or fix pipeline to 1.",
            )
        halves = []
        for half, dims in zip(batch, self.dims, strict=True):
            flat, spec = pytree.tree_flatten(half)
            parts = [
                leaf if dim is None else leaf.index_select(dim, self._positions)
                for leaf, dim in zip(flat, dims, strict=True)
            ]
            halves.append(pytree.tree_unflatten(parts, spec))
        return halves

    def check_attended(self) -> None:
        """Raises InputFault if no part of a sequence attended to the others in the forward pass."""
        if self._attention and not self._attention.calls:
            raise InputFault(
                "the strategy's context",
                f"is {self.mesh.size()}, but the model never calls F.scaled_dot_product_attention, by which each part "
                "of a sequence attends to the others",
                "Have the model call it, or fix context to 1.",
            )

    @contextmanager
    def divided_attention(self, batch: Any) -> Iterator[None]:
        """Inside, attention is from this rank's part of a sequence as long as the batch's to all parts."""
        self._length = self._length_of(batch)
        whole = torch.arange(self._length, device=self.device)
        if self.ring:
            # torch cuts the positions as its ring needs them; everything else is cut by these positions.
            with context_parallel(
                self.mesh, buffers=[whole], buffer_seq_dims=[0], no_restore_buffers={whole}
            ):
                self._positions = whole
                yield
            return
        ranks = self.mesh.size()
        blocks = whole.chunk(2 * ranks)
        parts = [torch.cat([blocks[rank], blocks[2 * ranks - 1 - rank]]) for rank in range(ranks)]
        self._positions = parts[self.mesh.get_local_rank()]
        self._attention = _GatheredAttention(Exchanges(self.mesh), self._positions, torch.cat(parts))
        # A torch function mode would be off while the backward pass recomputes layers.
        F.scaled_dot_product_attention = self._attention  # type: ignore[assignment]
        try:
            yield
        finally:
            F.scaled_dot_product_attention = ATTENTION

    def _length_of(self, batch: Any) -> int:
        """The length of the batch's sequences. Raises InputFault if it does not suit the plan or the ranks."""
        if not (isinstance(batch, list | tuple) and len(batch) == len(self.dims)):
            raise InputFault(
                "the data", "gives batches that are not (inputs, targets)", "Give these, or fix context to 1."
            )
        halves = [pytree.tree_leaves(half) for half in batch]
        for name, flat, dims in zip(("inputs", "targets"), halves, self.dims, strict=True):
            if len(flat) != len(dims):
                raise InputFault(WHERE, f"has {len(dims)} {name}, but a sample has {len(flat)}", REMEDY)
        lengths = {
            leaf.shape[dim] if isinstance(leaf, Tensor) and leaf.dim() > dim else 0
            for flat, dims in zip(halves, self.dims, strict=True)
            for leaf, dim in zip(flat, dims, strict=True)
            if dim is not None
        }
        if len(lengths) != 1 or 0 in lengths:
            raise InputFault(
                WHERE,
                "names no dimension of a sequence"
                if not lengths
                else f"names dimensions of {sorted(lengths)} positions",
                "Name one dimension of equal length in each tensor that is a sequence, None in the others.",
            )
        (length,) = lengths
        if length % (2 * self.mesh.size()):
            raise InputFault(
                "the data",
                f"has sequences of {length} positions, which {self.mesh.size()} ranks do not cut in two blocks each",
                f"Pad them to a multiple of {2 * self.mesh.size()}, or fix context to 1.",
            )
        return int(length)


class _GatheredAttention:
    """Replaces torch's attention: a rank's queries attend to the keys and values of all ranks.

    Gradients of keys and values are summed over ranks and scattered back.
    """

    def __init__(self, exchanges: Exchanges, positions: Tensor, gathered_positions: Tensor) -> None:
        self.exchanges, self.calls = exchanges, 0
        self.positions, self.gathered_positions = positions, gathered_positions

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **others: Any,
    ) -> Tensor:
        """As `F.scaled_dot_product_attention`; raises InputFault for attention that does not span the sequence."""
        self.calls += 1
        part = len(self.positions)
        if key.shape[-2] != part or (is_causal and query.shape[-2] != part):
            raise InputFault(
                "the strategy's context",
                f"leaves a rank {part} positions, but the model attends from {query.shape[-2]} to {key.shape[-2]}",
                "Fix context to 1: such attention is not divided.",
            )
        mask = attn_mask
        if mask is not None:
            if mask.shape[-1] != part or mask.shape[-2] != 1:
                raise InputFault(
                    "the strategy's context",
                    f"divides sequences, but the model gives attention a mask of the shape {tuple(mask.shape)}",
                    "Give is_causal, or a mask that is the same for all queries; or fix context to 1.",
                )
            whole = self._gather(mask.byte() if mask.dtype == torch.bool else mask, -1)
            mask = whole.bool() if mask.dtype == torch.bool else whole
        if is_causal:
            mask = self.positions[:, None] >= self.gathered_positions[None, :]
        return ATTENTION(
            query, self._gather(key, -2), self._gather(value, -2), mask, dropout_p, False, **others
        )

    def _gather(self, tensor: Tensor, dim: int) -> Tensor:
        """The parts of all ranks, concatenated. The gradient is summed over ranks, and each rank receives its part."""
        return self.exchanges(tensor, "gather", "scatter_sum", tensor.dim() + dim)

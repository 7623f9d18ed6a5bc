"""Rows of each stage of a candidate, estimated from the model's profile.

    time of a stage at b   = time of the whole model at b · the stage's share of it at b
    memory of a stage at b = its weights + its share of the activations · activations of the whole model at b + context

Time: the shares are those of the nodes, timed at b or at the timed batch size nearest in ratio; they add up to 1 at
every b. A stage keeps the inefficiency of a small batch in proportion: the rows of the whole model already include that
a kernel launch costs the same on every slice. Transfers are added by the planner (`cut_bytes`).

Memory: every batch size has the weights, and every stage the context (CUDA's). Activations (with what an operation
needs while it runs) grow with the batch as those of the whole model do; a stage's share of them is its peak without
weights over the whole model's, both at the traced batch. Defaults for a profile without these parts: the weights of
another row of the model (else the sum of the stages'), and the context of another row on the same GPU type, else on any
GPU (else none). A candidate without separate weights has its whole peak at every batch size, and more if activations
exceed those of the traced batch (which includes the whole model's weights if no row has them: an overestimate). So
memory never falls below a stage's weights, nor as the batch grows unless the whole model's does. A row of unknown
memory stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.values import MemoryParts, PartitionCandidate, Profile, ProfileRow, stage_shares
from torchsplit_core.values.units import GIB

MIN_SHARE = 1e-6
"""A stage's smallest share of the time; prevents infinite throughput of a stage of free nodes."""

_CPU = "CPU"


def stage_rows(
    profile: Profile, rows: Sequence[ProfileRow], candidate: PartitionCandidate, names: Sequence[str]
) -> tuple[tuple[ProfileRow, ...], ...]:
    """Rows for each stage, in the stages' order, with the `names` of the stages; basis estimated.

    `rows` are of the whole model; each gives one row a stage. The interval of its throughput is carried over.
    """
    memory = _stage_memory(profile, candidate)
    shares: dict[int, tuple[float, ...]] = {}
    for batch in {row.batch_size for row in rows}:
        shares[batch] = stage_shares(profile.nodes, candidate.stages, batch)
    return tuple(
        tuple(_scale_row(row, name, shares[row.batch_size][i], memory.parts(row, i)) for row in rows)
        for i, name in enumerate(names)
    )


def _scale_row(row: ProfileRow, name: str, time_share: float, parts: MemoryParts | None) -> ProfileRow:
    share = max(time_share, MIN_SHARE)
    total = None if parts is None else parts.weights + parts.activations + parts.transient + parts.context
    return replace(
        row,
        stage=name,
        throughput_rps=row.throughput_rps / share,
        latency_ms=row.latency_ms * share,
        low_rps=None if row.low_rps is None else row.low_rps / share,
        high_rps=None if row.high_rps is None else row.high_rps / share,
        memory_gib=total,
        basis="estimated",
        device=None,
        percentiles_ms=None,
        memory_parts_gib=parts,
    )


@dataclass(frozen=True, slots=True)
class _StageMemory:
    """Figures in GiB. `weights` and `traced` (activations) of each stage, `whole_*` of the whole model.

    `whole_traced` is 0 if the profile does not have it; `weights_known`: the candidate has separate weights.
    """

    weights: tuple[float, ...]
    traced: tuple[float, ...]
    weights_known: bool
    whole_weights: float
    whole_traced: float
    contexts: Mapping[str, float]
    any_context: float

    def parts(self, row: ProfileRow, stage: int) -> MemoryParts | None:
        """The memory of a stage if the whole model takes that of the row; None if unknown."""
        if row.memory_gib is None:
            return None
        measured = row.memory_parts_gib
        if measured is not None:
            context, weights = measured.context, measured.weights
        else:
            other = 0.0 if row.gpu_type == _CPU else self.any_context
            context, weights = self.contexts.get(row.gpu_type, other), self.whole_weights
        working = max(0.0, row.memory_gib - weights - context)
        share = self.traced[stage] / self.whole_traced if self.whole_traced > 0 else 1.0
        if self.weights_known:
            activations = share * working
        else:  # the peak has them at the traced batch
            activations = share * max(0.0, working - self.whole_traced)
        return MemoryParts(self.weights[stage], activations, 0.0, context, "estimated")


def _stage_memory(profile: Profile, candidate: PartitionCandidate) -> _StageMemory:
    peaks = {node.id: node.peak_bytes / GIB for node in profile.nodes}
    weights_known = len(candidate.weight_bytes) == len(candidate.stages)
    fixed = candidate.weight_bytes if weights_known else candidate.peak_memory_bytes
    weights = tuple(size / GIB for size in fixed)
    if weights_known:
        both = zip(candidate.peak_memory_bytes, candidate.weight_bytes, strict=True)
        traced = tuple(max(0, peak - weight) / GIB for peak, weight in both)
    else:
        traced = tuple(max((peaks.get(name, 0.0) for name in s), default=0.0) for s in candidate.stages)
    measured = [(row.gpu_type, row.memory_parts_gib) for row in profile.rows if row.memory_parts_gib]
    return _StageMemory(
        weights=weights,
        traced=traced,
        weights_known=weights_known,
        whole_weights=max(
            (parts.weights for _, parts in measured), default=sum(weights) if weights_known else 0.0
        ),
        whole_traced=max(peaks.values(), default=0.0),
        contexts={kind: parts.context for kind, parts in measured},
        any_context=max((parts.context for _, parts in measured), default=0.0),
    )

"""What a profile says of stages at every batch size that the whole model was profiled at."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from torchsplit_core.values import Profile, ProfileRow


def stage_times(
    profile: Profile, reference: ProfileRow, stages: Sequence[Collection[str]]
) -> Mapping[int, tuple[float, ...]]:
    """Times of the stages in ms by batch size: the whole model's latency there, by the nodes' shares.

    Rows are those of the device, slice and processes of the reference row. The shares are those
    timed at the batch size, else at the timed one nearest in ratio.
    """
    device = (reference.gpu_type, reference.profile, reference.processes, reference.device)
    latencies = {
        row.batch_size: row.latency_ms
        for row in profile.rows
        if row.stage == "whole"
        and (row.gpu_type, row.profile, row.processes, row.device) == device
        and (row.basis == reference.basis or row is reference)
    }
    timed = sorted({batch for node in profile.nodes for batch in node.time_shares})
    found: dict[int, tuple[float, ...]] = {}
    for batch, latency in sorted(latencies.items()):
        nearest = min(timed, key=lambda b: (abs(math.log(b / batch)), b)) if timed else None
        shares = {
            node.id: node.time_share if nearest is None else node.time_shares.get(nearest, node.time_share)
            for node in profile.nodes
        }
        parts = [math.fsum(shares.get(name, 0.0) for name in stage) for stage in stages]
        whole = math.fsum(parts)
        found[batch] = tuple(latency * part / whole for part in parts) if whole > 0 else (0.0,) * len(parts)
    return found


def batch_sensitivities(times_ms: Mapping[int, Sequence[float]]) -> tuple[float | None, ...]:
    """How each stage's time grows from the smallest to the largest batch: 0 not at all, 1 in proportion.

    None where one batch size is known, or a stage takes no time.
    """
    small, large = min(times_ms), max(times_ms)
    found: list[float | None] = []
    for first, last in zip(times_ms[small], times_ms[large], strict=True):
        known = small != large and first > 0 and last > 0
        found.append(math.log(last / first) / math.log(large / small) if known else None)
    return tuple(found)

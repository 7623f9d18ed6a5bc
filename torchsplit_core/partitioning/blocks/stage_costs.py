"""Times of stages at every profiled batch size of the whole model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from torchsplit_core.values import Profile, ProfileRow, stage_shares


def stage_times(
    profile: Profile, reference: ProfileRow, stages: Sequence[Collection[str]]
) -> Mapping[int, tuple[float, ...]]:
    """Times of the stages in ms by batch size: the whole model's time, split by `stage_shares`.

    Only rows with the device, slice, processes and sequence length of the reference row.
    """
    times = {
        row.batch_size: row.batch_ms
        for row in profile.rows
        if row.stage == "whole"
        and _configuration(row) == _configuration(reference)
        and (row.basis == reference.basis or row is reference)
    }
    return {
        batch: tuple(whole * share for share in stage_shares(profile.nodes, stages, batch))
        for batch, whole in sorted(times.items())
    }


def _configuration(row: ProfileRow) -> tuple[str, str | None, int, str | None, int | None]:
    """What rows that differ only in their batch size have in common."""
    return row.gpu_type, row.profile, row.processes, row.device, row.sequence_length


def batch_sensitivities(times_ms: Mapping[int, Sequence[float]]) -> tuple[float | None, ...]:
    """Growth of each stage's time from the smallest to the largest batch: 0 none, 1 in proportion.

    None with a single batch size, or for a stage that takes no time.
    """
    small, large = min(times_ms), max(times_ms)
    sensitivities: list[float | None] = []
    for first, last in zip(times_ms[small], times_ms[large], strict=True):
        known = small != large and first > 0 and last > 0
        sensitivities.append(math.log(last / first) / math.log(large / small) if known else None)
    return tuple(sensitivities)

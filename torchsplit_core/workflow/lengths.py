"""Profile a model at several sequence lengths: one run per length, all rows in one profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core.profiling.points import MeasurementSettings
from torchsplit_core.values import Profile, Progress, ignore_progress
from torchsplit_core.workflow.profiling import profile

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph


def profile_lengths(
    source: str,
    lengths: Sequence[int],
    *,
    settings: MeasurementSettings | None = None,
    progress: Progress = ignore_progress,
    **options: Any,
) -> tuple[TorchGraph, Profile]:
    """The graph at the first length, and one profile with the measured rows of every length.

    `options` are those of `profile`. The model is exported again at each length, since most graphs fix the length.
    Estimates and the operations' shares are of the first length.
    Raises InputFault if the source does not support sequence lengths, or not one of these.
    """
    from torchsplit_core.profiling.measuring.grids import check_sequence_lengths
    from torchsplit_core.profiling.merge import combine_lengths

    distinct = check_sequence_lengths(lengths)
    graphs: list[TorchGraph] = []
    profiles: list[Profile] = []
    for number, length in enumerate(distinct):

        def part(share: float, text: str, number: int = number, length: int = length) -> None:
            progress((number + share) / len(distinct), f"sequence length {length} · {text}")

        graph, result = profile(
            source,
            settings=replace(settings or MeasurementSettings(), sequence_length=length),
            progress=part,
            **options,
        )
        graphs.append(graph)
        profiles.append(result)
    return graphs[0], combine_lengths(profiles, distinct)

"""A profile with estimates for GPU types that it has none for: from the model's graph, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchsplit_core.values import InputFault, Profile
from torchsplit_core.workflow.profiling import ESTIMATED_BATCH_SIZES

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph


def with_estimates(profile: Profile, graph: TorchGraph, gpu_types: Sequence[str]) -> Profile:
    """The profile with rows (basis estimated, each with its interval) of those GPU types that it has no row of.

    By the roofline of `estimate_rows`; what was measured stays as it is. Raises InputFault where the graph is of
    another architecture, and for a GPU type whose slices are not estimated.
    """
    from torchsplit_core.profiling.estimate import estimate_rows

    if graph.architecture_hash != profile.architecture_hash:
        raise InputFault(
            profile.source,
            "the profile is of another architecture than the graph, which was traced anew since",
            "Profile the model again.",
        )
    known = {row.gpu_type for row in profile.rows}
    missing = [name for name in gpu_types if name not in known]
    if not missing:
        return profile
    batches = sorted({*ESTIMATED_BATCH_SIZES, *(row.batch_size for row in profile.rows)})
    return replace(profile, rows=(*profile.rows, *estimate_rows(graph, missing, batches)))

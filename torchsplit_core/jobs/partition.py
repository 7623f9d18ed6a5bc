"""Partitions a model of a workspace as a job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core.jobs.job_kinds import PartitionParameters
from torchsplit_core.values import Progress
from torchsplit_core.workspace.named_results import partition_name, partition_names

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


def partition_job(
    workspace: Workspace, parameters: PartitionParameters, progress: Progress
) -> dict[str, Any]:
    """Cut a traced and profiled model of the workspace into 1 to `stages` parts and store each outcome by its number.

    All stored outcomes of a model share the link, memory, objective and speeds: those of earlier settings are removed.
    """
    from torchsplit_core.partitioning import PartitionProvider, pareto_candidates

    name, factors = parameters.source, parameters.time_factors
    frontier = pareto_candidates(
        PartitionProvider(workspace.get("graph", name), workspace.get("profile", name)),
        stages=(len(factors),) if factors else range(1, parameters.stages + 1),
        link_gb_per_s=parameters.link_gb_per_s,
        memory_bytes=parameters.memory_bytes,
        time_limit_s=parameters.time_limit_s,
        objective=parameters.objective,
        time_factors=factors or None,
        progress=progress,
    )
    outcomes = {partition_name(name, count): outcome for count, outcome in frontier.outcomes.items()}
    for stored_name in partition_names(workspace, name):
        if stored_name not in outcomes:
            workspace.remove("partition", stored_name)
    for title, outcome in outcomes.items():
        workspace.put("partition", title, replace(outcome, source=name))
    return {"partition": name, "parts": max(frontier.outcomes)}

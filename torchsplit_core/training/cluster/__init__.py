"""Runs on fleets: the files that start a run on nodes of Slurm or Kubernetes, and the nodes of a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.training.cluster.job_spec import FORMATS, FleetJob, PodSpec, fleet_job
    from torchsplit_core.training.cluster.resources import Fleet, ResourceRequest, fleet_of

__all__ = ["FORMATS", "Fleet", "FleetJob", "PodSpec", "ResourceRequest", "fleet_job", "fleet_of"]

__getattr__ = on_demand(
    __name__,
    {
        "job_spec": "FORMATS FleetJob PodSpec fleet_job",
        "resources": "ResourceRequest Fleet fleet_of",
    },
)

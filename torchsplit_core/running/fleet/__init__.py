"""Runs on fleets: the files by which Slurm or Kubernetes starts a run on its nodes, and the nodes of a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.running.fleet.job import FORMATS, FleetJob, Pods, fleet_job
    from torchsplit_core.running.fleet.size import Asked, Fleet, fleet_of

__all__ = ["FORMATS", "Asked", "Fleet", "FleetJob", "Pods", "fleet_job", "fleet_of"]

__getattr__ = on_demand(
    __name__,
    {
        "job": "FORMATS FleetJob Pods fleet_job",
        "size": "Asked Fleet fleet_of",
    },
)

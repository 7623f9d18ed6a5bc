"""Runs on fleets: the files by which Slurm or Kubernetes starts a run on its nodes, and the nodes of a Ray cluster."""

from torchsplit_core.running.fleet.job import FORMATS, FleetJob, Pods, fleet_job
from torchsplit_core.running.fleet.size import Asked, Fleet, fleet_of

__all__ = ["FORMATS", "Asked", "Fleet", "FleetJob", "Pods", "fleet_job", "fleet_of"]

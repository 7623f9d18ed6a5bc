"""Runs on fleets: the files by which Slurm or Kubernetes starts a run on its nodes, and the nodes of a Ray cluster."""

from torchsplit_core.running.fleet.files import FORMATS, fleet_files
from torchsplit_core.running.fleet.job import FleetJob, Pods, fleet_job, node_counts

__all__ = ["FORMATS", "FleetJob", "Pods", "fleet_files", "fleet_job", "node_counts"]

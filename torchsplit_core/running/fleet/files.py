"""The one door: a run on nodes and the name of a format in, files out."""

from __future__ import annotations

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.running.fleet.job import FORMATS, FleetJob, Pods
from torchsplit_core.running.fleet.pods import job_files, jobset_files
from torchsplit_core.running.fleet.slurm import slurm_files
from torchsplit_core.values import InputFault, quoted, suggestion


def fleet_files(job: FleetJob, format_name: str, pods: Pods | None = None) -> tuple[DeploymentFile, ...]:
    """The files by which a cluster starts the run. Raises InputFault for an unknown format and what it cannot carry."""
    if format_name == "slurm":
        return slurm_files(job)
    if format_name == "jobset":
        return jobset_files(job, pods or Pods())
    if format_name == "job":
        return job_files(job, pods or Pods())
    raise InputFault(
        "--write-fleet", f"unknown format {quoted(format_name)}", suggestion(format_name, FORMATS, "formats")
    )

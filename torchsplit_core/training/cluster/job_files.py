"""The files that start a run on nodes, by the name of a format."""

from __future__ import annotations

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.training.cluster.job_spec import FORMATS, FleetJob, PodSpec
from torchsplit_core.training.cluster.kubernetes import job_files, jobset_files
from torchsplit_core.training.cluster.slurm import slurm_files
from torchsplit_core.values import InputFault, quoted, suggestion


def fleet_files(job: FleetJob, format_name: str, pods: PodSpec | None = None) -> tuple[DeploymentFile, ...]:
    """The files that start the run on a cluster. Raises InputFault for an unknown format, and what it cannot hold."""
    if format_name == "slurm":
        return slurm_files(job)
    if format_name == "jobset":
        return jobset_files(job, pods or PodSpec())
    if format_name == "job":
        return job_files(job, pods or PodSpec())
    raise InputFault(
        "--write-fleet", f"unknown format {quoted(format_name)}", suggestion(format_name, FORMATS, "formats")
    )

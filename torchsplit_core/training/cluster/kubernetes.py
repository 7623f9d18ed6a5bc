"""A run for Kubernetes: a JobSet whose pods are its nodes, or an indexed Job with a headless Service.

A lost pod is replaced under the same name (an indexed Job's pods have stable host names), and so is the first pod,
where the nodes meet. An eviction does not count as a failure; a pod whose command refuses, or is asked to stop, is not
restarted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.yaml_text import BlockText, documents
from torchsplit_core.training.cluster.job_spec import FleetJob, PodSpec
from torchsplit_core.values import InputFault, quoted, system_reason

PORT = 29500
"""torch's default; each pod has its own address."""
JOB = "/job"
"""Where a pod mounts the strategy, and the source's file under the name `SOURCE`."""
RUNS = "/runs"
"""Where a pod mounts the claim; each run is a folder with its name."""
RETRIES = 3
"""Restarts of a pod whose command failed otherwise than by refusing, and of a JobSet."""
LEAVE_S = 60
"""Seconds between the notice to a pod and SIGTERM: the run takes a checkpoint, if it can, before it loses the pod."""
GRACE_S = LEAVE_S + 60
SOURCE = "client.py"
MOST_BYTES = 900_000
"""Maximum bytes of the files in a ConfigMap, which holds 1 MiB."""
USER = 10001
"""An unprivileged user id, to which the claim's files belong."""
REFUSED = (2, 130)
"""Exit codes that the same command would give again: its input is at fault; it was asked to stop."""
JOBSET = "jobset.x-k8s.io/v1alpha2"
"""Checked against the definition of JobSet 0.12 (kubernetes-sigs/jobset)."""

_START = """\
until getent hosts "$TORCHSPLIT_MEETING" > /dev/null; do sleep 1; done
exec torchsplit "$@" --rendezvous "$TORCHSPLIT_MEETING:{port}" --node "node-$JOB_COMPLETION_INDEX"
"""
_LEAVE = """\
newest() {{ cat "$0/checkpoints/LATEST"; }} 2> /dev/null
last=$(newest); touch "$0/watch/checkpoint"
for i in $(seq {seconds}); do test "$(newest)" = "$last" || break; sleep 1; done
"""
_DOCKERFILE = f"""\
# The image that the pods run. Build it in a checkout of TorchSplit:
#   docker build -t {{image}} -f THIS_FOLDER/Dockerfile .
FROM python:3.11-slim
COPY . /srv/torchsplit
RUN pip install --no-cache-dir /srv/torchsplit
ENV PYTHONUNBUFFERED=1
USER {USER}
"""


def jobset_files(job: FleetJob, pods: PodSpec) -> tuple[DeploymentFile, ...]:
    """`jobset.yaml` with the strategy's ConfigMap, and the image's Dockerfile.

    Raises InputFault for a source file that does not fit into a ConfigMap.
    """
    set_ = {
        "apiVersion": JOBSET,
        "kind": "JobSet",
        "metadata": _meta(job),
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": RETRIES,
                "rules": [
                    {
                        "name": "refused",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["MaxFailedIndexesExceeded", "FailedIndexes"],
                    }
                ],
            },
            "replicatedJobs": [
                {"name": "node", "replicas": 1, "template": {"spec": _job(job, pods, f"{job.name}-node-0")}}
            ],
        },
    }
    return _files("jobset.yaml", job, pods, [set_])


def job_files(job: FleetJob, pods: PodSpec) -> tuple[DeploymentFile, ...]:
    """`job.yaml` with the strategy's ConfigMap, and the image's Dockerfile. Raises InputFault as `jobset_files`."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(job),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(job),
            "ports": [{"name": "meeting", "port": PORT}],
        },
    }
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _meta(job),
        "spec": _job(job, pods, job.name),
    }
    return _files("job.yaml", job, pods, [service, manifest])


def _files(name: str, job: FleetJob, pods: PodSpec, manifests: list[object]) -> tuple[DeploymentFile, ...]:
    data = {"strategy.json": BlockText(job.strategy)}
    if job.source.kind == "python":
        data[SOURCE] = BlockText(_text_of(job.source.path))
    total = sum(len(text.encode()) for text in data.values())
    if total > MOST_BYTES:
        raise InputFault(
            "the job's files",
            f"{' and '.join(data)} have {total:,} bytes, more than the {MOST_BYTES:,} that a ConfigMap holds",
            "Shorten the source file: what it imports can be in the image.",
        )
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(job), "data": data}
    head = (
        f"# The run {job.name}. Untested on hardware.\n"
        f"#   kubectl apply -f {name}\n"
        f"# Its folder is {job.name}/ of the claim {pods.claim}, which all pods mount (ReadWriteMany) and whose file\n"
        "# system has locks for all of them. Deleted and applied again it goes on from its newest checkpoint.\n"
    )
    return (
        DeploymentFile(name, head + documents([config, *manifests])),
        DeploymentFile("Dockerfile", _DOCKERFILE.format(image=pods.image)),
    )


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputFault(
            "model source", f"{quoted(path)} cannot be read: {reason}", "Correct the file or its path."
        ) from error


def _labels(job: FleetJob) -> dict[str, str]:
    return {"app.kubernetes.io/name": job.name, "app.kubernetes.io/part-of": "torchsplit"}


def _meta(job: FleetJob) -> dict[str, object]:
    return {"name": job.name, "labels": _labels(job)}


def _job(job: FleetJob, pods: PodSpec, hosts: str) -> Mapping[str, object]:
    """The Job's specification; the host names of its pods are `hosts`, a hyphen and their index."""
    spec: dict[str, object] = {
        "completionMode": "Indexed",
        "completions": job.fleet.most,
        "parallelism": job.fleet.most,
        "backoffLimitPerIndex": RETRIES,
        "maxFailedIndexes": job.fleet.most - job.fleet.least,
        # The run's folder accepts only one node of each name at a time.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {
                    "action": "FailIndex",
                    "onExitCodes": {"containerName": "train", "operator": "In", "values": [*REFUSED]},
                },
            ]
        },
        "template": {"metadata": {"labels": _labels(job)}, "spec": _pod(job, pods, hosts)},
    }
    if job.fleet.least < job.fleet.most:
        # All nodes end well together; a node that was lost before does not count then.
        spec["successPolicy"] = {"rules": [{"succeededCount": 1}]}
    return spec


def _pod(job: FleetJob, pods: PodSpec, hosts: str) -> Mapping[str, object]:
    run = f"{RUNS}/{job.name}"
    container = {
        "name": "train",
        "image": pods.image,
        "command": ["bash", "-c", _START.format(port=PORT), "torchsplit"],
        "args": [_escape(argument) for argument in _arguments(job, run)],
        "env": [
            {"name": "TORCHSPLIT_MEETING", "value": f"{hosts}-0.{job.name}"},
            # The user has no entry in the image's list of users, hence no home.
            {"name": "HOME", "value": "/tmp"},
            {"name": "USER", "value": "torchsplit"},
        ],
        "resources": _resources(job),
        "volumeMounts": [
            {"name": "runs", "mountPath": RUNS},
            {"name": "job", "mountPath": JOB, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
        "lifecycle": {"preStop": {"exec": {"command": ["bash", "-c", _LEAVE.format(seconds=LEAVE_S), run]}}},
    }
    return {
        "restartPolicy": "Never",
        "subdomain": job.name,
        "terminationGracePeriodSeconds": GRACE_S,
        # The pod's init process reaps what ranks leave behind.
        "shareProcessNamespace": True,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": pods.claim}},
            {"name": "job", "configMap": {"name": job.name}},
            {
                "name": "shared-memory",
                "emptyDir": {"medium": "Memory", "sizeLimit": f"{job.fleet.processes}Gi"},
            },
        ],
    }


def _arguments(job: FleetJob, run: str) -> list[str]:
    source = job.source.text
    if job.source.kind == "python":
        source = f"{JOB}/{SOURCE}:{job.source.name}"
    nodes = ["--nnodes", f"{job.fleet.least}:{job.fleet.most}", "--processes", str(job.fleet.processes)]
    return [
        "train",
        source,
        "--strategy",
        f"{JOB}/strategy.json",
        "-o",
        run,
        "--resume",
        *nodes,
        *job.options,
    ]


def _escape(text: str) -> str:
    """Kubernetes reads $(NAME) in a command as a variable, and $$ as a dollar."""
    return text.replace("$", "$$")


def _resources(job: FleetJob) -> Mapping[str, object]:
    cores = {"cpu": job.fleet.processes * job.fleet.cores}
    if job.fleet.gpu is None:
        return {"requests": cores, "limits": cores}
    return {"requests": cores, "limits": {"nvidia.com/gpu": job.fleet.processes}}

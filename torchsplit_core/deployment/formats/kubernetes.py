"""A plan as Kubernetes manifests, for the NVIDIA GPU operator with `mig.strategy=mixed`.

The operator's MIG manager cuts the nodes (a ConfigMap with the mig-parted configuration and
a label on each node), then one Deployment for each way a slice is used: model, stage,
profile, batch size, processes. Its pods may only run on nodes of the plan that have such
slices, and each takes one, so all pods of a plan fit whichever way the scheduler turns.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import yaml

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.mig_parted import config_labels, dump, mig_config
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.names import cluster_names, one_line
from torchsplit_core.hardware import profile_cores
from torchsplit_core.planning.sureness.words import tenant_words
from torchsplit_core.values import CPU, InputFault, PlannedSlice, PlanOutcome, Tenant, point_type

IMAGE = "TORCHSPLIT_IMAGE"
"""Stands for the serving image. Upper case: no registry has it, so forgetting it fails at once."""

MIG_LABEL = "nvidia.com/mig.config"

_NODE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*"
"""A DNS subdomain (RFC 1123), as the names of nodes are; also a regular expression of bash."""
LONGEST_NODE = 253

_LABEL_SCRIPT = r"""#!/usr/bin/env bash
# Labels the nodes of plan {plan}, so that the GPU operator cuts their GPUs. Not tested on hardware.
#
#   bash label-nodes.sh           shows the commands
#   bash label-nodes.sh --apply   runs them: GPU pods on these nodes stop while they are cut anew
set -euo pipefail
LC_ALL=C # so that a-z are these 26 letters

apply=false
if (( $# == 1 )) && [[ $1 == --apply ]]; then
  apply=true
elif (( $# > 0 )); then
  printf 'unknown arguments: %s (only --apply is known)\n' "$*" >&2
  exit 2
fi

node_name='^{node}$'
label() {{ # node, label
  if (( ${{#1}} > {longest} )) || ! [[ $1 =~ $node_name ]]; then
    printf 'refused: %q is no name of a node (RFC 1123)\n' "$1" >&2
    exit 1
  fi
  # What stands behind -- is never an option, whatever it is called.
  local -a command=(kubectl label --overwrite node -- "$1" "{key}=$2")
  printf '%q ' "${{command[@]}}"; printf '\n'
  if [[ $apply == true ]]; then "${{command[@]}}"; fi
}}

{commands}
"""


@dataclass(frozen=True, slots=True, order=True)
class _Job:
    """What a tenant runs; its figures are left out, so that equal ones count as replicas."""

    model: str
    variant: str
    stage: str
    batch_size: int
    processes: int
    share: float


@dataclass(frozen=True, slots=True)
class _Use:
    """One way a slice is used: a Deployment."""

    jobs: tuple[_Job, ...]
    gpu: str
    profile: str


def kubernetes_files(plan: PlanOutcome, hosts: tuple[Host, ...]) -> tuple[DeploymentFile, ...]:
    """The operator's ConfigMap, the script that labels the nodes, the Deployments.

    Raises InputFault for a host that can be no node's name.
    """
    for host in hosts:
        if host.name is not None and not _is_node(host.name):
            raise InputFault(
                "plan gpus id",
                host.name,
                "for Kubernetes a host is the name of a node: lower-case letters, digits, hyphens and dots "
                "(RFC 1123), at most 63 characters between dots and 253 in all",
                "Give GPUs the ids NODE/gpu0, or choose another --format.",
            )
    short = plan.request_sha256[:12]
    labels = config_labels(hosts)
    return (
        DeploymentFile("kubernetes/mig-config.yaml", _config_map(short, hosts)),
        DeploymentFile("kubernetes/label-nodes.sh", _label_script(short, hosts, labels), executable=True),
        DeploymentFile("kubernetes/deployments.yaml", _deployments(short, hosts, labels)),
    )


def _is_node(name: str) -> bool:
    return len(name) <= LONGEST_NODE and re.fullmatch(_NODE, name) is not None


def resource_name(profile: str) -> str:
    """The device plugin's resource for a profile; a plus, not allowed in it, becomes a dot."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}" if profile else "nvidia.com/gpu"


def _resources(use: _Use) -> dict[str, object]:
    """One slice, one whole GPU, or whole cores: with equal requests and limits the kubelet can pin those."""
    if point_type(use.gpu) == CPU:
        cores = profile_cores(use.profile)
        return {"requests": {"cpu": cores}, "limits": {"cpu": cores}}
    return {"limits": {resource_name(use.profile): 1}}


def _config_map(short: str, hosts: tuple[Host, ...]) -> str:
    # The operator gives nodes without a label of their own its default, all-disabled: it must exist.
    configs: dict[str, object] = {"all-disabled": [{"devices": "all", "mig-enabled": False}]}
    configs.update((label, entries) for label, entries in mig_config(hosts).items() if entries)
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "torchsplit-mig-config",
            "labels": {"app.kubernetes.io/part-of": "torchsplit"},
            "annotations": {"torchsplit/plan": short},
        },
        "data": {"config.yaml": _Block(dump({"version": "v1", "mig-configs": configs}))},
    }
    return "# Apply in the namespace of the GPU operator. Not tested on hardware.\n" + _document(manifest)


def _label_script(short: str, hosts: tuple[Host, ...], labels: tuple[str, ...]) -> str:
    lines = []
    for host, label in zip(hosts, labels, strict=True):
        if host.name is None:
            node = '"${TORCHSPLIT_NODE:?the plan names no host: set TORCHSPLIT_NODE to the node to cut}"'
        else:
            node = shlex.quote(host.name)
        lines.append(f"label {node} {label}")
    return _LABEL_SCRIPT.format(
        plan=short, key=MIG_LABEL, node=_NODE, longest=LONGEST_NODE, commands="\n".join(lines)
    )


def _deployments(short: str, hosts: tuple[Host, ...], labels: tuple[str, ...]) -> str:
    uses: dict[_Use, list[PlannedSlice]] = {}
    offered: dict[tuple[str, str], dict[str, None]] = {}
    for host, label in zip(hosts, labels, strict=True):
        for gpu in host.gpus:
            for item in gpu.slices:
                offered.setdefault((gpu.type, item.profile), {})[label] = None
                if item.tenants:
                    use = _Use(tuple(sorted(map(_job, item.tenants))), gpu.type, item.profile)
                    uses.setdefault(use, []).append(item)
    names = cluster_names({use: _readable(use) for use in uses})
    documents = [
        _document(_deployment(short, names[use], use, slices, list(offered[use.gpu, use.profile])))
        for use, slices in uses.items()
    ]
    head = (
        f"# Workloads of plan {short}. Not tested on hardware.\n"
        f"# {IMAGE} stands for your serving image: replace it before you apply this.\n"
    )
    return head + "---\n".join(documents)


def _job(tenant: Tenant) -> _Job:
    return _Job(
        tenant.model,
        tenant.variant,
        tenant.stage,
        tenant.batch_size,
        tenant.processes,
        round(tenant.share, 6),
    )


def _readable(use: _Use) -> list[str]:
    """A name a person understands: what runs, where, and how."""
    what = [part for job in use.jobs for part in (job.model, job.stage)]
    how = [part for job in use.jobs for part in (f"b{job.batch_size}", f"p{job.processes}")]
    return [*what, use.profile or "whole", use.gpu, *how]


def _deployment(
    short: str, name: str, use: _Use, slices: list[PlannedSlice], labels: list[str]
) -> Mapping[str, object]:
    selector = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "torchsplit"}
    annotations = {
        "torchsplit/plan": short,
        "torchsplit/gpu-type": use.gpu,
        "torchsplit/tenants": ", ".join(f"{one_line(t.model)} {one_line(t.stage)}" for t in use.jobs),
        "torchsplit/planned-rps-per-replica": ", ".join(
            f"{t.throughput_rps:g}" for t in sorted(slices[0].tenants, key=_job)
        ),
        "torchsplit/planned-throughput": "; ".join(
            tenant_words(t) for t in sorted(slices[0].tenants, key=_job)
        ),
    }
    container = {
        "name": "serve",
        "image": IMAGE,
        "env": [{"name": key, "value": value} for key, value in _environment(use.jobs).items()],
        "resources": _resources(use),
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    on_planned_nodes = {"key": MIG_LABEL, "operator": "In", "values": labels}
    pod = {
        "containers": [container],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [on_planned_nodes]}]
                }
            }
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": selector, "annotations": annotations},
        "spec": {
            "replicas": len(slices),
            # No slice is spare: a new pod can start only where an old one has gone.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": selector, "annotations": annotations}, "spec": pod},
        },
    }


def _environment(jobs: tuple[_Job, ...]) -> dict[str, str]:
    """How the image learns what to serve: plain variables, or TORCHSPLIT_TENANTS where a slice is shared."""
    if len(jobs) == 1:
        return {f"TORCHSPLIT_{key.upper()}": str(value) for key, value in asdict(jobs[0]).items()}
    return {"TORCHSPLIT_TENANTS": json.dumps([asdict(job) for job in jobs])}


class _Block(str):
    """A text that is written as a block, line by line."""


class _Documents(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


_Documents.add_representer(
    _Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


def _document(value: object) -> str:
    return yaml.dump(value, Dumper=_Documents, sort_keys=False, width=110)

"""A plan as Kubernetes manifests, for the NVIDIA GPU operator with `mig.strategy=mixed`.

The operator's MIG manager cuts the nodes (a ConfigMap with the mig-parted configuration and a label on each node);
`kubernetes_workload` has what runs on them.
"""

from __future__ import annotations

import shlex

from torchsplit_core.deployment.addresses import LONGEST_NODE, NODE, check_nodes
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.kubernetes_workload import MIG_LABEL, workload_files
from torchsplit_core.deployment.formats.mig_parted import (
    config_labels,
    dump,
    mig_config,
    standard_configs,
)
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.workload import Workload
from torchsplit_core.deployment.yaml_text import BlockText, document
from torchsplit_core.values import PlanOutcome

_LABEL_SCRIPT = r"""#!/usr/bin/env bash
# Labels the nodes of plan {plan}, so that the GPU operator cuts their GPUs. Not tested on hardware.
#
#   bash label-nodes.sh           shows the commands
#   bash label-nodes.sh --apply   runs them: the operator pauses its own GPU pods and cuts; yours have to end first
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


def kubernetes_files(
    plan: PlanOutcome, hosts: tuple[Host, ...], workload: Workload
) -> tuple[DeploymentFile, ...]:
    """The operator's ConfigMap, the script that labels the nodes, and the workload.

    Raises InputFault for a host whose name is no valid node name.
    """
    check_nodes(hosts, "Kubernetes")
    short = plan.request_sha256[:12]
    labels = config_labels(hosts)
    return (
        DeploymentFile("kubernetes/mig-config.yaml", _config_map(short, hosts)),
        DeploymentFile("kubernetes/label-nodes.sh", _label_script(short, hosts, labels), executable=True),
        *workload_files(workload, hosts, labels),
    )


def _config_map(short: str, hosts: tuple[Host, ...]) -> str:
    # The operator takes one file for all nodes: what other nodes' labels name has to be in it.
    configs = {label: entries for label, entries in mig_config(hosts).items() if entries}
    configs |= standard_configs()
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "torchsplit-mig-config",
            "labels": {"app.kubernetes.io/part-of": "torchsplit"},
            "annotations": {"torchsplit/plan": short},
        },
        "data": {"config.yaml": BlockText(dump({"version": "v1", "mig-configs": configs}))},
    }
    head = (
        "# Apply in the namespace of the GPU operator. Not tested on hardware, not tried on a cluster.\n"
        "# Complete, since it replaces what the operator generates on every node. First come the plan's.\n"
    )
    return head + document(manifest)


def _label_script(short: str, hosts: tuple[Host, ...], labels: tuple[str, ...]) -> str:
    lines = []
    for host, label in zip(hosts, labels, strict=True):
        if host.name is None:
            node = '"${TORCHSPLIT_NODE:?the plan names no host: set TORCHSPLIT_NODE to the node to cut}"'
        else:
            node = shlex.quote(host.name)
        lines.append(f"label {node} {label}")
    return _LABEL_SCRIPT.format(
        plan=short, key=MIG_LABEL, node=NODE, longest=LONGEST_NODE, commands="\n".join(lines)
    )

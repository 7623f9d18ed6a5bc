"""A script for each host that finds the UUIDs of the planned slices, which every cut creates anew."""

from __future__ import annotations

import shlex

from torchsplit_core.deployment.custom_images import ImageContainer
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.workload import SliceServer, Workload

_SCRIPT = r"""#!/usr/bin/env bash
# UUIDs of the slices that plan {plan} uses on one host. Not tested on hardware. Changes nothing on a GPU.
#
#   bash {file} > .env          a line SLICE_SERVER=UUID for each server (compose)
#   bash {file} --units DIR     DIR/SERVER.env for each server (systemd)
#
# Slices of one profile on one GPU are alike: the first that is listed goes to the first server. Run it again
# whenever the GPUs were cut, a reboot included: UUIDs change with it.
set -euo pipefail

units=
if (( $# == 2 )) && [[ $1 == --units && -d $2 ]]; then
  units=$2
elif (( $# > 0 )); then
  printf 'unknown arguments: %s (only --units DIR is known, a folder that exists)\n' "$*" >&2
  exit 2
fi

declare -A found=() # GPU/PROFILE/NUMBER -> UUID; a whole GPU has no profile
declare -A count=()
gpu=
while IFS= read -r line; do
  if [[ $line =~ ^GPU[[:space:]]([0-9]+):.*\(UUID:[[:space:]](GPU-[^\)]+)\) ]]; then
    gpu=${{BASH_REMATCH[1]}}
    found[$gpu//0]=${{BASH_REMATCH[2]}}
  elif [[ $line =~ ^[[:space:]]+MIG[[:space:]]+([^[:space:]]+)[[:space:]].*\(UUID:[[:space:]](MIG-[^\)]+)\) ]]; then
    key=$gpu/${{BASH_REMATCH[1]}}
    found[$key/${{count[$key]:-0}}]=${{BASH_REMATCH[2]}}
    count[$key]=$(( ${{count[$key]:-0}} + 1 ))
  fi
done < <(nvidia-smi -L)

missing=0
slice() {{ # SERVER, GPU/PROFILE/NUMBER, and of a further GPU the server that it belongs to
  local uuid=${{found[$2]:-}} name=${{1^^}}
  if [[ -z $uuid ]]; then
    printf 'missing: %s (GPU/PROFILE/NUMBER) for %s: cut as planned? See nvidia-smi -L.\n' "$2" "$1" >&2
    missing=1
  elif [[ -n $units && $# == 3 ]]; then # a further GPU of an engine
    sed -i "s/\$/,$uuid/" "$units/$3.env"
  elif [[ -n $units ]]; then
    printf 'CUDA_VISIBLE_DEVICES=%s\n' "$uuid" > "$units/$1.env"
  else
    printf 'SLICE_%s=%s\n' "${{name//-/_}}" "$uuid"
  fi
}}

{slices}

exit "$missing"
"""


def slice_variable(server: SliceServer | ImageContainer) -> str:
    """The variable that the script sets for a server."""
    return f"SLICE_{server.label.upper().replace('-', '_')}"


def slice_variables(server: SliceServer | ImageContainer) -> tuple[str, ...]:
    """The variables for its GPUs: one, but for an engine on several."""
    return tuple(
        f"{slice_variable(server)}{'' if not number else f'_{number}'}" for number in range(_gpus(server))
    )


def _gpus(server: SliceServer | ImageContainer) -> int:
    return len(server.gpus) if isinstance(server, ImageContainer) else 1


def slice_script(name: str, workload: Workload, host: Host) -> DeploymentFile | None:
    """The script of a host; None if all its servers are on cores."""
    numbers: dict[tuple[int, str], dict[int, int]] = {}
    lines = []
    for server in workload.servers_and_containers_of(host):
        if server.gpu.is_cpu:
            continue
        starts = numbers.setdefault((server.gpu.index, server.slice.profile), {})
        # Servers that share a slice have its UUID.
        number = starts.setdefault(server.slice.start, len(starts))
        where = f"{server.gpu.index}/{server.slice.profile}/{number}"
        lines.append(f"slice {server.label} {shlex.quote(where)}")
        further = server.further_gpus if isinstance(server, ImageContainer) else ()
        for position, gpu in enumerate(further, 1):
            lines.append(f"slice {server.label}-{position} {gpu.index}//0 {server.label}")
    if not lines:
        return None
    text = _SCRIPT.format(plan=workload.plan, file=name.rpartition("/")[2], slices="\n".join(lines))
    return DeploymentFile(name, text, executable=True)

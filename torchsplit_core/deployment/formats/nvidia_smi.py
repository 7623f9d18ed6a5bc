"""A plan as bash scripts around nvidia-smi, one a host.

Unlike mig-parted, nvidia-smi takes explicit starts (`-cgi 3g.40gb:4`), so the script makes exactly the slices of the
plan. Profiles are given by name, not by id: on another GPU type an id may be another slice, while an unknown name is
rejected. Large slices come first, an order that also suits a driver that places them itself.
"""

from __future__ import annotations

import shlex

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.hosts import Host, HostGpu, gpu_hosts
from torchsplit_core.deployment.safe_text import dns_labels, one_line
from torchsplit_core.planning.confidence.formatting import format_tenant
from torchsplit_core.values import PlannedSlice, PlanOutcome, slice_name

_HEAD = """\
#!/usr/bin/env bash
# MIG slices of plan {plan} on {host}. Not tested on hardware: read it before you run it.
#
#   bash {file}           shows the present state and what would be done; changes nothing
#   bash {file} --apply   does it (needs root)
#
# Disruptive: removes all MIG instances of each GPU whose slices are not the planned ones, also those in the plan.
# Such a GPU is refused while processes run on it; one that is cut as planned is left alone.
# Instances do not survive a reboot: run this again after one.
# Exit codes: 0 as planned, or could be; 1 refused or failed; 2 unknown argument.
set -euo pipefail
"""

# No expression here comes from the plan: the last section has everything that varies.
SHELL_ARGUMENTS = r"""
apply=false
if (( $# == 1 )) && [[ $1 == --apply ]]; then
  apply=true
elif (( $# > 0 )); then
  printf 'unknown arguments: %s (only --apply is known)\n' "$*" >&2
  exit 2
fi
"""

SHELL_FUNCTIONS = r"""
refuse() {
  printf 'refused: %s\n' "$1" >&2
  exit 1
}

change() { # runs a command with --apply, shows it without
  if [[ $apply == true ]]; then
    printf '  +'; printf ' %q' "$@"; printf '\n'
    "$@"
  else
    printf '  would run:'; printf ' %q' "$@"; printf '\n'
  fi
}

listing() { # GPU, option: a listing of nvidia-smi mig; an empty one is no fault
  local text status=0
  text=$(nvidia-smi mig -i "$1" "$2" 2>&1) || status=$?
  case $text in
    *'Not Found'* | *'No MIG-enabled devices'*) return 0 ;;
  esac
  if (( status != 0 )); then
    printf 'nvidia-smi mig -i %s %s: %s\n' "$1" "$2" "$text" >&2
    return "$status"
  fi
  printf '%s\n' "$text"
}

instances() { # GPU: its GPU instances as PROFILE:START, sorted, on one line
  local text line
  local -a found=()
  text=$(listing "$1" -lgi) || return
  while IFS= read -r line; do
    if [[ $line =~ MIG[[:space:]]+([^[:space:]]+)[[:space:]].*[[:space:]]([0-9]+):[0-9]+ ]]; then
      found+=("${BASH_REMATCH[1]}:${BASH_REMATCH[2]}")
    fi
  done <<< "$text"
  sorted ${found[@]+"${found[@]}"}
}

compute_instances() { # GPU: the profiles of its compute instances, sorted, on one line
  local text line
  local -a found=()
  text=$(listing "$1" -lci) || return
  while IFS= read -r line; do
    if [[ $line =~ MIG[[:space:]]+([0-9][^[:space:]]*)[[:space:]] ]]; then found+=("${BASH_REMATCH[1]}"); fi
  done <<< "$text"
  sorted ${found[@]+"${found[@]}"}
}

sorted() {
  if (( $# == 0 )); then return 0; fi
  printf '%s\n' "$@" | LC_ALL=C sort | paste -sd ' ' -
}

mig_mode() { nvidia-smi -i "$1" --query-gpu=mig.mode.current --format=csv,noheader; }
"""
"""For bash scripts around nvidia-smi: `refuse`, `change` (by the variable `apply`), `listing`, `instances`,
`compute_instances`, `sorted`, `mig_mode`."""

_CUT = r"""
# Called in conditions, where set -e does not reach: so each failure exits by hand.
as_planned() { # GPU, PROFILE:START...: the very instances, each with its one full compute instance
  local gpu=$1 present computing
  shift
  present=$(instances "$gpu") || exit 1
  computing=$(compute_instances "$gpu") || exit 1
  [[ $present == "$(sorted "$@")" && $computing == "$(sorted "${@%:*}")" ]]
}

offers_profiles() { # GPU, PROFILE:START...: refuses where the GPU has not got one of them
  local gpu=$1 text item
  shift
  text=$(listing "$gpu" -lgip)
  for item in "$@"; do
    if [[ ! $text =~ MIG[[:space:]]+"${item%:*}"[[:space:]] ]]; then
      refuse "GPU $gpu offers no profile ${item%:*}: is it the GPU of the plan? See nvidia-smi -L."
    fi
  done
}

check_gpu() { # GPU, type, PROFILE:START...: everything that can be refused, before anything changes
  local gpu=$1 type=$2 name mode present busy
  shift 2
  name=$(nvidia-smi -i "$gpu" --query-gpu=name --format=csv,noheader)
  mode=$(mig_mode "$gpu")
  present=$(instances "$gpu")
  printf 'GPU %s (%s; the plan says %s): MIG mode %s\n' "$gpu" "$name" "$type" "$mode"
  printf '  present: %s\n' "${present:-none}"
  printf '  planned: %s\n' "$(sorted "$@")"
  case $mode in
    Enabled) offers_profiles "$gpu" "$@" ;;
    Disabled) printf '  its profiles can be checked only after MIG mode is on\n' ;;
    *) refuse "GPU $gpu has no MIG mode ($mode)." ;;
  esac
  if as_planned "$gpu" "$@"; then return 0; fi
  busy=$(nvidia-smi -i "$gpu" --query-compute-apps=pid,process_name --format=csv,noheader)
  if [[ $busy == *[0-9]* ]]; then
    refuse "GPU $gpu has running processes; stop them first:"$'\n'"$busy"
  fi
}

cut_gpu() { # GPU, PROFILE:START... in the order in which to create them
  local gpu=$1 mode computing present placed
  shift
  printf 'GPU %s\n' "$gpu"
  if as_planned "$gpu" "$@"; then
    printf '  is as planned: nothing to do\n'
    return 0
  fi
  mode=$(mig_mode "$gpu")
  if [[ $mode != Enabled ]]; then
    change nvidia-smi -i "$gpu" -mig 1
    if [[ $apply == true ]]; then
      mode=$(mig_mode "$gpu")
      if [[ $mode != Enabled ]]; then
        refuse "MIG mode of GPU $gpu is pending: reset the GPU or reboot, then run this again."
      fi
      offers_profiles "$gpu" "$@"
    fi
  fi
  # Compute instances go before the GPU instances that hold them.
  computing=$(compute_instances "$gpu")
  present=$(instances "$gpu")
  if [[ -n $computing ]]; then change nvidia-smi mig -i "$gpu" -dci; fi
  if [[ -n $present ]]; then change nvidia-smi mig -i "$gpu" -dgi; fi
  placed=$(IFS=,; printf '%s' "$*")
  change nvidia-smi mig -i "$gpu" -cgi "$placed" -C
  if [[ $apply == true ]]; then
    present=$(instances "$gpu")
    printf '  now: %s\n' "${present:-none}"
    if ! as_planned "$gpu" "$@"; then
      refuse "GPU $gpu is not as planned after the change."
    fi
  fi
}

on_exit() {
  local status=$?
  if (( status != 0 )) && [[ $apply == true ]]; then
    printf 'Stopped. Mend what is said above and run this again: unfinished GPUs start over.\n' >&2
  fi
}
trap on_exit EXIT
"""


_WHOLE_BODY = r"""
check_whole() { # GPU, type: everything that can be refused, before anything changes
  local gpu=$1 type=$2 name mode busy
  name=$(nvidia-smi -i "$gpu" --query-gpu=name --format=csv,noheader)
  mode=$(mig_mode "$gpu")
  printf 'GPU %s (%s; the plan says %s): MIG mode %s\n' "$gpu" "$name" "$type" "$mode"
  printf '  planned: whole, MIG mode off\n'
  if [[ $mode != Enabled ]]; then return 0; fi
  busy=$(nvidia-smi -i "$gpu" --query-compute-apps=pid,process_name --format=csv,noheader)
  if [[ $busy == *[0-9]* ]]; then
    refuse "GPU $gpu has running processes; stop them first:"$'\n'"$busy"
  fi
}

leave_whole() { # GPU: without MIG instances, MIG mode off
  local gpu=$1 computing present
  printf 'GPU %s\n' "$gpu"
  if [[ $(mig_mode "$gpu") != Enabled ]]; then
    printf '  is as planned: nothing to do\n'
    return 0
  fi
  computing=$(compute_instances "$gpu")
  present=$(instances "$gpu")
  if [[ -n $computing ]]; then change nvidia-smi mig -i "$gpu" -dci; fi
  if [[ -n $present ]]; then change nvidia-smi mig -i "$gpu" -dgi; fi
  change nvidia-smi -i "$gpu" -mig 0
  if [[ $apply == true && $(mig_mode "$gpu") == Enabled ]]; then
    refuse "MIG mode of GPU $gpu is pending: reset the GPU or reboot, then run this again."
  fi
}
"""


def nvidia_smi_files(plan: PlanOutcome, hosts: tuple[Host, ...]) -> tuple[DeploymentFile, ...]:
    """`apply-mig.sh`, or `apply-mig-HOST.sh` for each host that the ids name.

    Raises InputFault if the plan uses no GPU.
    """
    hosts = gpu_hosts(hosts, "nvidia-smi")
    names = dns_labels({host.name: (host.name,) for host in hosts if host.name is not None})
    return tuple(
        mig_script(
            plan.request_sha256[:12],
            host,
            "apply-mig.sh" if host.name is None else f"apply-mig-{names[host.name]}.sh",
        )
        for host in hosts
    )


def mig_script(plan: str, host: Host, file: str, *, tenants: bool = True) -> DeploymentFile:
    """The script of one host, as the file of that path. `plan`: its short hash; `tenants`: comments name them."""
    head = _HEAD.format(plan=plan, host=one_line(host.display_name), file=file.rpartition("/")[2])
    lines = [f"plan_host={shlex.quote(host.display_name)}", "printf 'Plan for %s\\n' \"$plan_host\"", ""]
    lines += ["# Every GPU is checked before the first one changes."]
    lines += [
        f"check_whole {gpu.index} {shlex.quote(gpu.type)}"
        if gpu.is_unpartitioned
        else f"check_gpu {gpu.index} {shlex.quote(gpu.type)} {' '.join(_placements(gpu))}"
        for gpu in host.gpus
    ]
    for gpu in host.gpus:
        lines += ["", f"# ---- GPU {gpu.index}: {gpu.type}, {one_line(gpu.id)}"]
        if tenants:
            lines += [f"#   {slice_name(item.profile, item.start)}: {_tenants(item)}" for item in gpu.slices]
        lines += [
            f"leave_whole {gpu.index}"
            if gpu.is_unpartitioned
            else f"cut_gpu {gpu.index} {' '.join(_placements(gpu))}"
        ]
    lines += [
        "",
        "if [[ $apply == true ]]; then",
        "  printf 'Done: every GPU is as planned.\\n'",
        "else",
        "  printf 'Nothing was changed. Run with --apply to do it.\\n'",
        "fi",
    ]
    whole = _WHOLE_BODY if any(gpu.is_unpartitioned for gpu in host.gpus) else ""
    body = SHELL_ARGUMENTS + SHELL_FUNCTIONS + _CUT + whole
    return DeploymentFile(file, head + body + "\n" + "\n".join(lines) + "\n", executable=True)


def _tenants(item: PlannedSlice) -> str:
    """The tenants of the slice, quoted on one line."""
    if not item.tenants:
        return "free"
    return "; ".join(
        f"{one_line(tenant.model)} {one_line(tenant.stage)}, batch {tenant.batch_size},"
        f" {tenant.processes} {'process' if tenant.processes == 1 else 'processes'}"
        + ("" if tenant.share == 1 else f", {tenant.share:.3g} of the slice")
        + f": {format_tenant(tenant)}"
        for tenant in item.tenants
    )


def _placements(gpu: HostGpu) -> list[str]:
    """Only catalogue names and integers, but quoted all the same."""
    return [shlex.quote(f"{item.profile}:{item.start}") for item in gpu.slices]

"""A change of one host as a bash script around nvidia-smi, for hosts without TorchSplit: the same steps, only those.

It asserts the state first, journals and reads back each step, stops at the first surprise, and goes on when it is run
again. It knows no UUIDs of slices, and undoes nothing.
"""

from __future__ import annotations

import shlex
from hashlib import sha256

from torchsplit_core import files
from torchsplit_core.apply.change import HostChange
from torchsplit_core.apply.execution import DRAIN_S, hook_environment
from torchsplit_core.apply.hosts import instances_of, is_gpu
from torchsplit_core.apply.standing import Standing, all_standings, step_words
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.boot_unit import boot_files
from torchsplit_core.deployment.formats.nvidia_smi import SHELL_ARGUMENTS, SHELL_FUNCTIONS
from torchsplit_core.deployment.hosts import Host, HostGpu
from torchsplit_core.deployment.safe_text import one_line
from torchsplit_core.hardware import creation_order, gpu_type
from torchsplit_core.hardware.gpu_ids import device_indices
from torchsplit_core.values import ForeignTenant, InputFault, Layout, PlannedSlice, TransitionStep

_HEAD = """\
#!/usr/bin/env bash
# The change of {host} to plan {plan}, only what differs. Not tested on hardware: read it before you run it.
#
#   bash FILE           shows the present state and the steps; changes nothing
#   bash FILE --apply   does them (needs root)
#
# TORCHSPLIT_ON_STOP, TORCHSPLIT_ON_START: commands that stop and start a tenant, told by TORCHSPLIT_MODEL, _VARIANT,
# _STAGE, _BATCH_SIZE, _PROCESSES, _SHARE, _GPU, _PROFILE, _START and _GROUP (of an engine on several GPUs, for each of
# which they are called) which; they may be called twice for the same one.
# Without them the script asks you. It ends no process: an instance in use is waited for (TORCHSPLIT_DRAIN_S,
# {drain:g} s).
# TORCHSPLIT_JOURNAL: the file of finished steps, by which a script that was cut off goes on (apply-mig.journal).
# Exit codes: 0 as planned, or could be; 1 refused or failed; 2 unknown argument.
set -euo pipefail
"""

# No expression here comes from the plan: the last section has everything that varies.
_BODY = r"""
journal=${TORCHSPLIT_JOURNAL:-apply-mig.journal}
drain_s=${TORCHSPLIT_DRAIN_S:-60}
finished=0

blank='[[:space:]]+'
compute_row="^\|${blank}[0-9]+${blank}([0-9]+)${blank}MIG${blank}([^[:space:]]+)[[:space:]]"
instance_row="MIG${blank}([^[:space:]]+)${blank}[0-9]+${blank}([0-9]+)${blank}([0-9]+):[0-9]+"

rows() { # GPU: a line for each of its instances: PROFILE:START, the id, 1 if one compute instance takes all of it
  local text line
  local -A computing=()
  text=$(listing "$1" -lci) || exit 1
  while IFS= read -r line; do
    if [[ $line =~ $compute_row ]]; then computing[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}; fi
  done <<< "$text"
  text=$(listing "$1" -lgi) || exit 1
  while IFS= read -r line; do
    if [[ $line =~ $instance_row ]]; then
      printf '%s:%s %s ' "${BASH_REMATCH[1]}" "${BASH_REMATCH[3]}" "${BASH_REMATCH[2]}"
      if [[ ${computing[${BASH_REMATCH[2]}]:-} == "${BASH_REMATCH[1]}" ]]; then printf '1\n'; else printf '0\n'; fi
    fi
  done <<< "$text"
}

standing() { # rows: their PROFILE:START, sorted; one without its compute instance has a ! behind it
  local item complete _
  local -a marked=()
  while read -r item _ complete; do
    if [[ $complete == 1 ]]; then marked+=("$item"); elif [[ -n $item ]]; then marked+=("$item!"); fi
  done <<< "$1"
  sorted ${marked[@]+"${marked[@]}"}
}

id_of() { # rows, PROFILE:START: its id, nothing where it is not there
  local item number _
  while read -r item number _; do
    if [[ $item == "$2" ]]; then printf '%s\n' "$number"; fi
  done <<< "$1"
}

enabled() { # GPU: Enabled, else Disabled, also where it has no MIG mode
  local mode
  mode=$(mig_mode "$1") || exit 1
  if [[ $mode == Enabled ]]; then printf 'Enabled\n'; else printf 'Disabled\n'; fi
}

differs() { # GPU, what should stand there, MIG mode (Enabled, Disabled or nothing): prints the difference
  local text present mode
  text=$(rows "$1") || exit 1
  present=$(standing "$text")
  mode=$(enabled "$1") || exit 1
  if [[ -n $3 && $3 != "$mode" ]]; then
    printf 'MIG mode of GPU %s is %s\n' "$1" "$mode"
  elif [[ $present != "$2" ]]; then
    printf 'GPU %s has %s, not %s\n' "$1" "${present:-no instance}" "${2:-none}"
  fi
}

while_in_use() { # command: runs it until it does not fail for use, at most drain_s; what is not there is no fault
  local text deadline=$(( SECONDS + drain_s + 2 ))
  until text=$("$@" 2>&1); do
    if [[ $text == *'Not Found'* ]]; then return 0; fi
    if [[ $text != *'n use'* ]] || (( SECONDS >= deadline )); then
      refuse "$* says: $text (TorchSplit ends no process: stop what uses the instance)"
    fi
    sleep 0.2
  done
}

destroy() { # GPU, its rows, PROFILE:START
  local number
  number=$(id_of "$2" "$3")
  if [[ -z $number ]]; then return 0; fi
  while_in_use nvidia-smi mig -i "$1" -dci -gi "$number"
  while_in_use nvidia-smi mig -i "$1" -dgi -gi "$number"
}

create() { # GPU, its rows, PROFILE:START
  local number
  number=$(id_of "$2" "$3")
  if [[ -z $number ]]; then
    while_in_use nvidia-smi mig -i "$1" -cgi "$3" -C
  elif [[ $(standing "$2") == *"$3!"* ]]; then
    while_in_use nvidia-smi mig -i "$1" -cci -gi "$number"
  fi
}

await_idle() { # GPU that is left whole
  local busy deadline=$(( SECONDS + drain_s ))
  while true; do
    busy=$(nvidia-smi -i "$1" --query-compute-apps=pid,process_name --format=csv,noheader)
    if [[ $busy != *[0-9]* ]]; then return 0; fi
    if (( SECONDS >= deadline )); then refuse "GPU $1 has running processes:"$'\n'"$busy"; fi
    sleep 0.2
  done
}

check_mode() { # GPU, 0 or 1
  local mode wanted=Disabled
  if [[ $2 == 1 ]]; then wanted=Enabled; fi
  mode=$(enabled "$1")
  if [[ $mode != "$wanted" ]]; then
    refuse "MIG mode of GPU $1 is $mode: run nvidia-smi -i $1 -mig $2, where it is pending also --gpu-reset, then this."
  fi
}

call_hooks() { # command, what happens, then for each tenant its variables and --
  local command=$1 words=$2 word
  local -a variables=()
  shift 2
  for word in "$@"; do
    if [[ $word != -- ]]; then
      variables+=("$word")
    elif [[ -n $command ]]; then
      env "${variables[@]}" bash -c "$command" < /dev/null || refuse "the command failed for: $words"
      variables=()
    fi
  done
  if [[ -n $command ]]; then return 0; fi
  if [[ ! -t 0 ]]; then refuse "nobody does this: $words. Set TORCHSPLIT_ON_STOP and TORCHSPLIT_ON_START."; fi
  read -r -p "  you: $words; then press Enter "
}

run_step() { # number, GPU (- for cores), what stands there before, after, action, PROFILE:START, words, tenants
  local number=$1 gpu=$2 before=$3 after=$4 action=$5 item=$6 words=$7 text='' present
  shift 7
  if (( number <= finished )); then return 0; fi
  printf '%s/%s %s\n' "$number" "$steps" "$words"
  if [[ $apply != true ]]; then return 0; fi
  if [[ $gpu != - ]]; then
    text=$(rows "$gpu")
    present=$(standing "$text")
    if [[ -n $item ]]; then present=${present//"$item!"/"$item"}; fi
    if [[ $present != "$before" && $present != "$after" ]]; then
      refuse "step $number expects ${before:-no instance} on GPU $gpu, and there is ${present:-none}"
    fi
  fi
  record "begun $number"
  case $action in
    stop) call_hooks "${TORCHSPLIT_ON_STOP:-}" "$words" "$@" ;;
    start) call_hooks "${TORCHSPLIT_ON_START:-}" "$words" "$@" ;;
    await_idle) await_idle "$gpu" ;;
    destroy | create) "$action" "$gpu" "$text" "$item" ;;
    enable_mig) check_mode "$gpu" 1 ;;
    disable_mig) check_mode "$gpu" 0 ;;
  esac
  if [[ $gpu != - ]]; then
    text=$(rows "$gpu")
    present=$(standing "$text")
    if [[ $present != "$after" ]]; then
      refuse "GPU $gpu has ${present:-no instance} after step $number, not ${after:-none}"
    fi
  fi
  record "done $number"
}

record() { # a line of the journal, on disk when it returns
  printf '%s\n' "$1" >> "$journal"
  sync "$journal"
}

read_journal() { # sets finished
  local line
  if [[ ! -e $journal ]]; then return 0; fi
  { IFS= read -r line || true; } < "$journal"
  if [[ $line != "$change" ]]; then
    refuse "$journal is of another change ($line). Name another file in TORCHSPLIT_JOURNAL."
  fi
  while IFS= read -r line; do
    if [[ $line =~ ^done\ ([0-9]+)$ ]]; then finished=${BASH_REMATCH[1]}; fi
  done < "$journal"
}

on_exit() {
  local status=$?
  if (( status != 0 )) && [[ $apply == true ]]; then
    printf 'Stopped; nothing further is done. Mend what is said above and run this again: it goes on there.\n' >&2
  fi
}
trap on_exit EXIT

start() { # asserts the state where no step is done yet
  local difference
  read_journal
  if [[ -e $journal ]]; then
    printf '%s of %s steps are done\n' "$finished" "$steps"
    return 0
  fi
  difference=$(old_state)
  if [[ -z $difference ]]; then
    if [[ $apply == true ]]; then record "$change"; fi
    return 0
  fi
  if [[ -z $(new_state) ]]; then
    printf 'as planned: nothing to do\n'
    exit 0
  fi
  refuse "the state file is older than the host: $difference"
}
"""


def change_script(change: HostChange) -> str:
    """The script of a change; its journal is named by the change, so it goes on with no other."""
    gpus, steps = change.state.gpus, change.transition.steps
    standings = all_standings(gpus, steps)
    indices = device_indices([gpu.id for gpu in gpus if is_gpu(gpu)])
    names = {gpu.id: gpu.uuid or str(indices[gpu.id]) if is_gpu(gpu) else "-" for gpu in gpus}
    digest = sha256(
        (change.plan_sha256 + files.write_text(change.state) + files.write_text(change.transition)).encode()
    ).hexdigest()
    lines = [f"change={digest}", f"steps={len(steps)}", ""]
    for function, at in (("old_state", standings[0]), ("new_state", standings[-1])):
        checks = [
            f"  differs {shlex.join((name, _instances(at[gpu_id]), _mode(at[gpu_id])))}"
            for gpu_id, name in names.items()
            if name != "-"
        ]
        lines += [f"{function}() {{", *(checks or ["  :"]), "}", ""]
    lines += [f"printf 'Change of %s\\n' {shlex.quote(change.host)}", "start"]
    for number, step in enumerate(steps, 1):
        before, after = (_instances(standings[at][step.gpu]) for at in (number - 1, number))
        lines.append(_step_line(number, step, names[step.gpu], before, after))
    lines += [
        "if [[ $apply != true ]]; then",
        "  printf 'Nothing was changed. Run with --apply to do it.\\n'",
        "elif [[ -n $(new_state) ]]; then",
        '  refuse "the host is not as planned: $(new_state)"',
        "else",
        "  printf 'as planned\\n'",
        "fi",
    ]
    head = _HEAD.format(host=one_line(change.host), plan=change.plan_sha256[:12], drain=DRAIN_S)
    return head + SHELL_ARGUMENTS + SHELL_FUNCTIONS + _BODY + "\n" + "\n".join(lines) + "\n"


def boot_unit(change: HostChange) -> tuple[DeploymentFile, ...]:
    """The systemd unit that brings the instances after the change back at every boot, and its script.

    Raises InputFault where no instance is to stand then.
    """
    gpus = change.state.gpus
    end = all_standings(gpus, change.transition.steps)[-1]
    indices = device_indices([gpu.id for gpu in gpus if is_gpu(gpu)])
    kinds = {gpu.id: gpu_type(gpu.type) for gpu in gpus if is_gpu(gpu) and end[gpu.id].places}
    host_gpus = tuple(
        HostGpu(
            indices[gpu_id],
            gpu_id,
            kind.name,
            tuple(
                PlannedSlice(place.profile, place.start)
                for place in creation_order(kind, Layout(kind.name, tuple(end[gpu_id].places)))
            ),
        )
        for gpu_id, kind in kinds.items()
    )
    if not host_gpus:
        raise InputFault(
            "--boot-unit", f"has nothing to do: no instance stands on {change.host} then", "Leave it out."
        )
    return boot_files(change.plan_sha256[:12], Host(change.host, host_gpus), "", "", finds=False)


def _step_line(number: int, step: TransitionStep, gpu: str, before: str, after: str) -> str:
    action: str = step.action
    if step.action in ("create", "destroy") and (gpu == "-" or not step.profile):
        # A whole GPU and cores are not divided by the driver; a GPU that changes its mode has to be idle.
        action = "await_idle" if step.action == "destroy" and gpu != "-" else "nothing"
    item = "" if step.start is None else f"{step.profile}:{step.start}"
    words = ["run_step", str(number), gpu, before, after, action, item, step_words(step)]
    for tenant in step.tenants:
        if isinstance(tenant, ForeignTenant):
            continue
        variables = hook_environment(step, tenant, None)
        words += [f"{name}={value}" for name, value in variables.items() if name != "TORCHSPLIT_UUID"]
        words.append("--")
    return shlex.join(words)


def _instances(standing: Standing) -> str:
    return " ".join(sorted(f"{place.profile}:{place.start}" for place in instances_of(standing)))


def _mode(standing: Standing) -> str:
    if standing.mig_enabled is None:
        return ""
    return "Enabled" if standing.mig_enabled else "Disabled"

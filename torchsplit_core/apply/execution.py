"""One step of a transition on this host's GPUs. Untested on hardware: it ran only on replayed listings.

Every step may be repeated after it was cut off anywhere. No process is ever killed.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchsplit_core.apply.hosts import PresentGpu, driver_faults, read_host
from torchsplit_core.apply.standing import Standing, place_of, step_words, tenant_words
from torchsplit_core.hardware import Nvml, NvmlFault, gpu_type
from torchsplit_core.hardware.cuda_causes import HOLDERS_HINT
from torchsplit_core.hardware.host_state.validity import engine_group
from torchsplit_core.hardware.mig_commands import mode_commands
from torchsplit_core.hardware.nvml import pids
from torchsplit_core.values import (
    WHOLE_GPU,
    ForeignTenant,
    InputFault,
    PlacedProfile,
    StateGpu,
    Tenant,
    TransitionStep,
    point_type,
    slice_name,
)

DRAIN_S = 60.0
"""How long a step waits for the processes of an instance to end, by default."""
_POLL_S = 0.2
_RETRIES, _RETRY_S = 20, 0.1
"""The driver calls an instance in use for some tenths of a second after its last process (findings of users)."""
_PURPOSES = {"destroy": "to be destroyed", "stop": "to be left"}
_SHOWN_OUTPUT = 400
"""Characters of a failed hook's output that the fault shows."""


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """The commands that stop and start a tenant (None: the user does it), and how long a step waits for processes.

    `switch_mig_mode`: MIG mode is switched too, which resets the GPU where its type needs that.
    """

    on_stop: str | None = None
    on_start: str | None = None
    drain_s: float = DRAIN_S
    switch_mig_mode: bool = False


Report = Callable[[str], None]
"""Takes one line for the user."""


def perform(
    nvml: Nvml, gpu: StateGpu, step: TransitionStep, after: Standing, settings: ApplySettings, report: Report
) -> None:
    """Do a step, or what is left of it. `after`: what stands on its GPU when it is done.

    Raises InputFault where the driver refuses, a process does not end in time, or a hook fails.
    """
    present = read_host(nvml, [gpu]).get(gpu.id)
    if step.action in ("stop", "start"):
        run_hooks(step, present, settings, report)
        if step.action == "stop" and present is not None and not after.tenants.get(place_of(step)):
            _wait_until_idle(nvml, step, present, settings.drain_s, report)
    elif present is None:
        pass  # cores of a host are divided by whoever starts a process on them
    elif step.action == "destroy":
        _wait_until_idle(nvml, step, present, settings.drain_s, report)
        _destroy(nvml, gpu.id, place_of(step), present)
    elif step.action == "create":
        create(nvml, gpu, place_of(step), present)
    elif settings.switch_mig_mode:
        _switch_mode(nvml, gpu, step, present, settings, report)
    else:
        _check_mode(gpu, step, present)


def check_coverage(
    steps: Sequence[TransitionStep], afters: Sequence[Standing], settings: ApplySettings
) -> None:
    """Raise InputFault for a tenant whose stop nobody would notice: it has no hook, and others run on beside it.

    And where what replaces a tenant would be left to the user, but not the tenant's stop.
    """
    actions = [step.action for step in steps]
    if (
        settings.on_stop
        and not settings.on_start
        and "start" in actions
        and "stop" in actions[actions.index("start") :]
    ):
        raise InputFault(
            "--on-start",
            "is not given beside --on-stop, so tenants would be stopped before those run that take their place",
            "Name the command that starts a tenant, or neither.",
        )
    for step, after in zip(steps, afters, strict=True):
        if step.action != "stop":
            continue
        unhooked = [
            item for item in step.tenants if settings.on_stop is None or isinstance(item, ForeignTenant)
        ]
        on_cores = point_type(after.type) != after.type
        if unhooked and (on_cores or after.tenants.get(place_of(step))):
            why = "on cores" if on_cores else "while others run on beside it"
            raise InputFault(
                "--on-stop",
                f"is not given for {tenant_words(unhooked)}, and the driver cannot show when it has stopped {why} "
                f"({step_words(step)})",
                "Name the command that stops a tenant.",
            )


def run_hooks(
    step: TransitionStep, present: PresentGpu | None, settings: ApplySettings, report: Report
) -> None:
    """Call the user's command once for each tenant that stops or starts. Raises InputFault where it fails."""
    command = settings.on_stop if step.action == "stop" else settings.on_start
    for tenant in step.tenants:
        if command is None or isinstance(tenant, ForeignTenant):
            ask = "waiting for it to end" if step.action == "stop" else "by you: no --on-start is given"
            report(f"{step_words(step)}: {ask}")
            continue
        with (
            tempfile.TemporaryFile() as output
        ):  # a pipe would wait for what the command leaves in the background
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                env=os.environ | hook_environment(step, tenant, present),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
            output.seek(0)
            text = output.read().decode("utf-8", "replace").strip()[-_SHOWN_OUTPUT:]
        if done.returncode != 0:
            said = f", it says: {text}" if text else ""
            raise InputFault(
                f"--on-{step.action}",
                f"ended with {done.returncode} for {tenant.model} ({step_words(step)}){said}",
                "Correct the command, or what it runs into.",
            )


def hook_environment(step: TransitionStep, tenant: Tenant, present: PresentGpu | None) -> dict[str, str]:
    """What a hook is told. TORCHSPLIT_UUID: of the MIG device, of the GPU that is left whole, empty on cores."""
    uuid = None
    if present is not None:
        instance = present.instance(place_of(step))
        uuid = present.uuid if step.profile == WHOLE_GPU else instance and instance.uuid
    values = {
        "GPU": step.gpu,
        "PROFILE": step.profile,
        "START": step.start,
        "UUID": uuid or "",
        "MODEL": tenant.model,
        "VARIANT": tenant.variant,
        "STAGE": tenant.stage,
        "BATCH_SIZE": tenant.batch_size,
        "PROCESSES": tenant.processes,
        "SHARE": f"{tenant.share:g}",
        "GROUP": engine_group(tenant) or "",
    }
    return {f"TORCHSPLIT_{name}": str(value) for name, value in values.items()}


def create(nvml: Nvml, gpu: StateGpu, place: PlacedProfile, present: PresentGpu) -> None:
    """Make an instance with its one compute instance, or what of them is missing; a whole GPU needs nothing."""
    if place.profile == WHOLE_GPU:
        return
    profile = gpu_type(gpu.type).profile(place.profile)
    instance = present.instance(place)
    with driver_faults(f"{slice_name(place.profile, place.start)} of {gpu.id}"):
        number = (
            _retried(
                lambda: nvml.create_gpu_instance(
                    present.index, profile.profile_id, place.start, profile.memory_slices
                )
            )
            if instance is None
            else instance.id
        )
        if instance is None or not instance.compute_instances:
            _retried(lambda: nvml.create_compute_instance(present.index, number))


def _destroy(nvml: Nvml, gpu_id: str, place: PlacedProfile, present: PresentGpu) -> None:
    instance = present.instance(place)
    if instance is None:
        return
    index, number = present.index, instance.id
    with driver_faults(f"{slice_name(place.profile, place.start)} of {gpu_id}"):
        for part in instance.compute_instances:
            _retried(lambda part=part: nvml.destroy_compute_instance(index, number, part))  # type: ignore[misc]
        _retried(lambda: nvml.destroy_gpu_instance(index, number))


def _wait_until_idle(
    nvml: Nvml, step: TransitionStep, present: PresentGpu, drain_s: float, report: Report
) -> None:
    """Wait until no process is on the instance. Raises InputFault with their ids when the time is over."""
    deadline = time.monotonic() + drain_s
    is_reported = False
    while True:
        with driver_faults(step.gpu):
            running = _processes(nvml, step, present)
        if not running:
            return
        named = f"process{'es' if len(running) > 1 else ''} {', '.join(map(str, running))}"
        if time.monotonic() >= deadline:
            purpose = _PURPOSES.get(step.action, "whose MIG mode is to be switched")
            runs = "a process runs" if len(running) == 1 else "processes run"
            raise InputFault(
                step.gpu,
                f"{runs} on the instance {purpose}, {slice_name(step.profile, step.start or 0)}: {named} "
                f"(waited {drain_s:g} s)",
                f"Stop it; TorchSplit ends no process. {HOLDERS_HINT}",
            )
        if not is_reported:
            report(f"{step_words(step)}: waiting up to {drain_s:g} s for {named}")
            is_reported = True
        time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))


def _processes(nvml: Nvml, step: TransitionStep, present: PresentGpu) -> tuple[int, ...]:
    if step.profile == WHOLE_GPU:
        return nvml.processes(present.index)
    instance = present.instance(place_of(step))
    running = nvml.placed_processes(present.index)
    return () if instance is None else pids(item for item in running if item.gpu_instance_id == instance.id)


def _check_mode(gpu: StateGpu, step: TransitionStep, present: PresentGpu) -> None:
    """Unless asked for, MIG mode is left to the user: on some types it takes a reset, which ends what runs there."""
    is_wanted = step.action == "enable_mig"
    if bool(present.mig_enabled) == is_wanted and not present.is_pending:
        return
    wanted = "on" if is_wanted else "off"
    raise InputFault(
        step.gpu,
        f"MIG mode is {_mode_words(present)}, the plan needs it {wanted}, and without --switch-mig-mode apply does not "
        "switch it",
        f"Run `{mode_commands(gpu.type, present.index, is_on=is_wanted)}` and apply again, or add --switch-mig-mode.",
    )


def _switch_mode(
    nvml: Nvml,
    gpu: StateGpu,
    step: TransitionStep,
    present: PresentGpu,
    settings: ApplySettings,
    report: Report,
) -> None:
    """Switch MIG mode once no process is on the GPU, and reset it where the mode waits for that."""
    is_wanted = step.action == "enable_mig"
    if bool(present.mig_enabled) == is_wanted and not present.is_pending:
        return
    _wait_until_idle(nvml, step, present, settings.drain_s, report)
    with driver_faults(step.gpu):
        if nvml.gpu(present.index).mig_pending is not is_wanted:
            nvml.set_mig_mode(present.index, is_wanted)
    present = read_host(nvml, [gpu])[gpu.id]
    if present.is_pending:
        report(f"{step_words(step)}: waits for a reset of the GPU, which is done now")
        try:
            nvml.reset_gpu(present.index)
        except NvmlFault as fault:
            raise InputFault(
                step.gpu,
                f"its reset, for which MIG mode waits, was refused: {fault.words}",
                f"Stop the services that hold the GPU (nvsm, dcgm, nvidia-persistenced). {HOLDERS_HINT}",
            ) from fault
        present = read_host(nvml, [gpu])[gpu.id]
    if bool(present.mig_enabled) != is_wanted or present.is_pending:
        raise InputFault(
            step.gpu,
            f"MIG mode is {_mode_words(present)} after it was switched",
            f"Run `{mode_commands(gpu.type, present.index, is_on=is_wanted)}`.",
        )


def _mode_words(present: PresentGpu) -> str:
    return ("on" if present.mig_enabled else "off") + (" until the next reset" if present.is_pending else "")


def _retried(call: Callable[[], int | None]) -> int:
    for _ in range(_RETRIES):
        try:
            return call() or 0
        except NvmlFault as fault:
            if fault.kind != "in_use":
                raise
            time.sleep(_RETRY_S)
    return call() or 0

"""A change on one host from its first check to its last: applied, finished after a kill, undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torchsplit_core.apply.execution import ApplySettings, Report, check_coverage, create, perform
from torchsplit_core.apply.hosts import (
    CAPTURE_AGAIN,
    Presence,
    gpus_of,
    instances_of,
    mode_difference,
    read_host,
    standing_difference,
    state_difference,
)
from torchsplit_core.apply.journal import ApplyJournal, finished_words, read_journal, write_journal
from torchsplit_core.apply.standing import (
    Standings,
    all_standings,
    first_standings,
    inverse,
    step_words,
)
from torchsplit_core.files.user_locks import user_lock
from torchsplit_core.hardware import Nvml
from torchsplit_core.values import HostState, InputFault, Transition, slice_name


@dataclass(frozen=True, slots=True)
class HostChange:
    """What of a transition concerns one host: its GPUs before the first step, and its steps."""

    host: str
    plan_sha256: str
    state: HostState
    transition: Transition

    @staticmethod
    def of(transition: Transition, state: HostState, host: str, plan_sha256: str) -> HostChange:
        """The part of that host. Raises InputFault for a host that the state does not have."""
        gpus = gpus_of(state, host)
        ids = {gpu.id for gpu in gpus}
        steps = tuple(step for step in transition.steps if step.gpu in ids)
        return HostChange(host, plan_sha256, replace(state, gpus=gpus), replace(transition, steps=steps))


def finish_change(
    nvml: Nvml, host: str, plan_sha256: str, path: Path, settings: ApplySettings, report: Report
) -> ApplyJournal | None:
    """Finish a change to this plan that was cut off, in whatever direction it went; None where there is none.

    `path`: of the journal. Raises InputFault where another process changes the host, an unfinished change leads to
    another plan, the host is not where the journal left it, and at the first surprise, after which nothing further is
    done.
    """
    with _lock(host):
        journal = read_journal(path)
        if journal is None or journal.is_finished:
            return None
        if journal.plan_sha256 != plan_sha256:
            raise InputFault(
                str(path),
                f"has an unfinished change to plan {journal.plan_sha256[:12]}, not to {plan_sha256[:12]}: "
                f"{finished_words(journal)}",
                "Apply that plan to finish it, or undo it with --undo.",
            )
        return _run(nvml, journal.towards("new"), path, settings, report)


def apply_change(
    nvml: Nvml, change: HostChange, path: Path, settings: ApplySettings, report: Report
) -> ApplyJournal | None:
    """Bring the host to the plan, after `finish_change`; None if it is as planned already.

    Raises InputFault as that does, and where the state is not the host's.
    """
    with _lock(change.host):
        journal = read_journal(path)
        if journal is not None and not journal.is_finished:
            raise InputFault(
                str(path), f"has an unfinished change: {finished_words(journal)}", "Apply again."
            )
        if journal is not None and _is_reached(nvml, journal, change):
            return None
        return _start(nvml, change, path, settings, report, _came_back_to(journal, change))


def undo_change(
    nvml: Nvml, host: str, path: Path, settings: ApplySettings, report: Report
) -> ApplyJournal | None:
    """Bring the host back to what stood before the change of the journal; None if it is there already.

    Raises InputFault as `apply_change` does, and where there is no journal.
    """
    with _lock(host):
        journal = read_journal(path)
        if journal is None:
            raise InputFault(
                str(path), "is not there, so nothing that could be undone was applied", "Check --journal."
            )
        back = journal.towards("old")
        return None if back.is_finished else _run(nvml, back, path, settings, report)


@contextmanager
def _lock(host: str) -> Iterator[None]:
    def taken(process: str) -> InputFault:
        return InputFault(
            host, f"is being changed: {process} applies a plan there", "Wait until it has ended."
        )

    with ExitStack() as locks:
        user_lock(f"apply-{host}", locks, taken)
        yield


def _is_reached(nvml: Nvml, journal: ApplyJournal, change: HostChange) -> bool:
    """Whether this journal has led to the change's plan, and the host is still so."""
    if (journal.goal, journal.plan_sha256) != ("new", change.plan_sha256):
        return False
    gpus = journal.state.gpus
    try:
        presence = read_host(nvml, gpus)
    except InputFault:
        return False  # a GPU has left since; whether the change has it is found next
    return _difference(all_standings(gpus, journal.transition.steps)[-1], presence) is None


def _came_back_to(journal: ApplyJournal | None, change: HostChange) -> bool:
    """Whether the last change was an undo that led back to this state: it made slices that have other UUIDs now."""
    if journal is None or journal.goal != "old":
        return False
    before, now = (first_standings(item.state.gpus) for item in (journal, change))
    return {gpu: (item.places, item.tenants) for gpu, item in before.items()} == {
        gpu: (item.places, item.tenants) for gpu, item in now.items()
    }


def _start(
    nvml: Nvml, change: HostChange, path: Path, settings: ApplySettings, report: Report, ignore_uuids: bool
) -> ApplyJournal | None:
    gpus, steps = change.state.gpus, change.transition.steps
    presence = read_host(nvml, gpus)
    standings = all_standings(gpus, steps)
    difference = state_difference(gpus, standings[0], presence, ignore_uuids=ignore_uuids)
    if difference is not None:
        if steps and _difference(standings[-1], presence) is None:
            report("the instances are the planned ones already; what runs on them was not looked at")
            return None
        raise InputFault(
            "--from",
            f"the state file is older than the host: {difference}",
            f"Nothing was changed. {CAPTURE_AGAIN}",
        )
    if not steps:
        return None
    # Modes and UUIDs that the state does not know are read now, so that an undo finds the very GPUs.
    known = tuple(
        replace(gpu, uuid=presence[gpu.id].uuid, mig_enabled=presence[gpu.id].mig_enabled)
        if gpu.id in presence
        else gpu
        for gpu in gpus
    )
    journal = ApplyJournal(
        change.host,
        change.plan_sha256,
        "new",
        0,
        None,
        replace(change.state, gpus=known),
        change.transition,
        settings.switch_mig_mode,
    )
    check_coverage(
        steps, [after[step.gpu] for step, after in zip(steps, standings[1:], strict=True)], settings
    )
    write_journal(journal, path)
    return _run(nvml, journal, path, settings, report)


def _run(
    nvml: Nvml, journal: ApplyJournal, path: Path, settings: ApplySettings, report: Report
) -> ApplyJournal:
    """Go step by step to the journal's goal, from wherever it and the host stand.

    MIG mode that was switched on the way there is switched back without being asked again.
    """
    settings = replace(settings, switch_mig_mode=settings.switch_mig_mode or journal.switches_mig_mode)
    journal = replace(journal, switches_mig_mode=settings.switch_mig_mode)
    gpus = {gpu.id: gpu for gpu in journal.state.gpus}
    steps = journal.transition.steps
    standings = all_standings(journal.state.gpus, steps)
    forward = journal.goal == "new"
    if forward:
        ahead = [(steps[index], standings[index + 1]) for index in range(journal.position, len(steps))]
    else:
        ahead = [(inverse(steps[index]), standings[index]) for index in reversed(range(journal.position))]
    check_coverage([step for step, _ in ahead], [after[step.gpu] for step, after in ahead], settings)
    _restore_lost(nvml, journal, standings, path, report)
    for number, (step, after) in enumerate(ahead, 1):
        index = journal.position if forward else journal.position - 1
        journal = replace(journal, doing=index)
        write_journal(journal, path)
        report(f"{number}/{len(ahead)} {step_words(step)}")
        try:
            perform(nvml, gpus[step.gpu], step, after[step.gpu], settings, report)
            surprise = _difference(after, read_host(nvml, journal.state.gpus))
            if surprise is not None:
                raise InputFault(step.gpu, f"differs after the step: {surprise}", "See nvidia-smi mig -lgi.")
        except InputFault as fault:
            raise _stopped(journal, fault) from fault
        journal = replace(journal, doing=None, position=index + 1 if forward else index)
        write_journal(journal, path)
    return journal


def _restore_lost(
    nvml: Nvml, journal: ApplyJournal, standings: tuple[Standings, ...], path: Path, report: Report
) -> None:
    """Compare the host with where the journal has come, and make again what a reboot took.

    Raises InputFault for any other difference.
    """
    low = journal.position if journal.doing is None else journal.doing
    high = journal.position if journal.doing is None else journal.doing + 1
    lower, upper = standings[low], standings[high]
    doing = None if journal.doing is None else journal.transition.steps[journal.doing]
    for gpu in journal.state.gpus:
        present = read_host(nvml, [gpu]).get(gpu.id)
        if present is None:
            continue
        modes = [mode_difference(gpu.id, standing[gpu.id], present) for standing in (lower, upper)]
        before, after = instances_of(lower[gpu.id]), instances_of(upper[gpu.id])
        unknown = sorted(
            {item.place for item in present.instances} - (before | after), key=lambda item: item.start
        )
        # A switch of the mode that was cut off may wait for its reset.
        is_switching = (
            present.is_pending and doing is not None and doing.gpu == gpu.id and doing.start is None
        )
        surprise = modes[0] if all(modes) and not is_switching else None
        if unknown:
            surprise = (
                f"{slice_name(unknown[0].profile, unknown[0].start)} of {gpu.id} is there and should not be"
            )
        if surprise is not None:
            raise InputFault(
                str(path),
                f"the host is not where its last change left it ({finished_words(journal)}): {surprise}",
                "Nothing was changed. Undo by hand what was changed meanwhile; or remove this journal and "
                + CAPTURE_AGAIN[0].lower()
                + CAPTURE_AGAIN[1:],
            )
        for place in sorted(before & after, key=lambda item: item.start):
            instance = present.instance(place)
            if instance is None or not instance.is_complete:
                report(
                    f"{slice_name(place.profile, place.start)} of {gpu.id} was gone, as after a reboot: it is made "
                    "again; start what ran on it"
                )
                create(nvml, gpu, place, present)


def _difference(standings: Standings, presence: Presence) -> str | None:
    """The first difference between what should stand on the host and what does."""
    differences = (
        standing_difference(gpu_id, standings[gpu_id], present) for gpu_id, present in presence.items()
    )
    return next(filter(None, differences), None)


def _stopped(journal: ApplyJournal, fault: InputFault) -> InputFault:
    other = "undo" if journal.goal == "new" else "apply the plan"
    again = "apply the plan again" if journal.goal == "new" else "--undo again"
    return InputFault(
        fault.where,
        f"{fault.problem.rstrip('.')}; nothing further was done: {finished_words(journal)}",
        f"{fault.remedy} Then {again} to finish it, or {other} to go {'back' if journal.goal == 'new' else 'forward'}.",
    )

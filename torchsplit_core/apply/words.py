"""A change as a person reads it before signing it, and how far one has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchsplit_core.apply.change import HostChange
from torchsplit_core.apply.execution import ApplySettings
from torchsplit_core.apply.hosts import is_gpu
from torchsplit_core.apply.journal import ApplyJournal, finished_words
from torchsplit_core.apply.standing import inverse, step_words
from torchsplit_core.hardware.catalogue import mode_needs_reset
from torchsplit_core.hardware.gpu_ids import device_indices
from torchsplit_core.hardware.mig_commands import mode_commands
from torchsplit_core.transition import transition_table
from torchsplit_core.values import StateGpu, TransitionStep

UNTESTED = "Untested on hardware: it ran only on replayed listings."


def change_text(change: HostChange, settings: ApplySettings, others: Sequence[str]) -> str:
    """The steps of a change that is not carried out: who stops, when, for how long, and what would run.

    `others`: hosts of the same transition, whose steps are not among these.
    """
    steps = change.transition.steps
    if not steps:
        return f"{change.host}: as planned: nothing to do\n"
    lines = [
        f"{change.host}: dry run, nothing is changed. {UNTESTED}",
        *transition_table(change.transition),
        "",
    ]
    lines += _means(steps, change.state.gpus, settings)
    if others:
        lines.append(
            f"steps of {', '.join(others)} belong to the same transition: each host applies its own, and the order "
            "between hosts is yours to keep"
        )
    lines.append(_how_to(change.host))
    return "\n".join(lines) + "\n"


def undo_text(journal: ApplyJournal, settings: ApplySettings) -> str:
    """The steps of an undo that is not carried out."""
    position = journal.towards("old").position
    if not position:
        return f"{journal.host}: as before the change: nothing to do\n"
    steps = [inverse(step) for step in reversed(journal.transition.steps[:position])]
    lines = [f"{journal.host}: back to the state before; dry run, nothing is changed. {UNTESTED}"]
    lines += [f"{number}  {step_words(step)}" for number, step in enumerate(steps, 1)]
    if journal.switches_mig_mode:
        settings = replace(settings, switch_mig_mode=True)
    return "\n".join((*lines, *_means(steps, journal.state.gpus, settings), _how_to(journal.host))) + "\n"


def status_text(journal: ApplyJournal, path: Path) -> str:
    """Where the last change of a host stands, in words."""
    plan = f"plan {journal.plan_sha256[:12]}"
    if journal.is_finished:
        words = f"as {plan} has it" if journal.goal == "new" else f"as before {plan}, whose change was undone"
        after = " --undo brings back what was before." if journal.goal == "new" else ""
        return f"{journal.host}: {words} ({finished_words(journal)}).{after} Journal: {path}\n"
    way = f"to {plan}" if journal.goal == "new" else f"back to the state before {plan}"
    return (
        f"{journal.host}: on the way {way}, {finished_words(journal)}. Apply that plan again to finish at it, or "
        f"--undo to go back. Journal: {path}\n"
    )


def _means(steps: Sequence[TransitionStep], gpus: Sequence[StateGpu], settings: ApplySettings) -> list[str]:
    """Who does what of the steps that is not the driver's. `gpus`: of the host."""
    types = {gpu.id: gpu.type for gpu in gpus if is_gpu(gpu)}
    actions = {step.action for step in steps}
    lines = []
    if "stop" in actions:
        lines.append(
            f"stops: by {settings.on_stop!r}"
            if settings.on_stop
            else f"stops: by you (--on-stop: a command); up to {settings.drain_s:g} s are waited for processes to end"
        )
    if "start" in actions:
        lines.append(
            f"starts: by {settings.on_start!r}"
            if settings.on_start
            else "starts: by you (--on-start: a command)"
        )
    switched = [step for step in steps if step.action in ("enable_mig", "disable_mig")]
    if switched and settings.switch_mig_mode:
        reset = sorted({step.gpu for step in switched if mode_needs_reset(types.get(step.gpu))})
        also = f", with a reset of {', '.join(reset)}" if reset else ""
        lines.append(f"MIG mode: switched once no process runs on the GPU{also}")
    elif switched:
        lines.append("MIG mode: by you, at that step, then apply again (or all at once: --switch-mig-mode):")
        indices = device_indices(list(types))
        lines += [
            f"  {mode_commands(types[step.gpu], indices[step.gpu], is_on=step.action == 'enable_mig')}"
            for step in switched
        ]
    return lines


def _how_to(host: str) -> str:
    return f"to do it, on that host as root: add --yes {host}"

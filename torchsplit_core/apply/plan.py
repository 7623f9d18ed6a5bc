"""A plan applied to one host: what was cut off is finished first, else the transition from what stands there now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from torchsplit_core.apply.change import HostChange, apply_change, finish_change
from torchsplit_core.apply.execution import ApplySettings, Report
from torchsplit_core.apply.hosts import with_host_facts
from torchsplit_core.apply.journal import ApplyJournal, journal_path
from torchsplit_core.files import write_text
from torchsplit_core.hardware import Nvml, NvmlFault, open_nvml
from torchsplit_core.values import HostState, InputFault, PlanOutcome, Transition


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """`journal` None: nothing was to do, or there is no transition (`transition` is infeasible then).

    `transition`: None if an earlier change was finished instead.
    """

    journal: ApplyJournal | None
    path: Path
    transition: Transition | None = None


def plan_digest(plan: PlanOutcome) -> str:
    """SHA-256 (hex) of the plan's text: what makes two plans the same to the journal."""
    return sha256(write_text(plan).encode()).hexdigest()


def apply_plan(
    nvml: Nvml,
    plan: PlanOutcome,
    state: HostState,
    host: str,
    find_transition: Callable[[HostState], Transition],
    folder: Path,
    settings: ApplySettings,
    report: Report,
) -> AppliedPlan:
    """Bring the host, which this machine is, to the plan; `folder`: of the journals.

    `find_transition` gets the state with what the host tells of it. Raises InputFault as `finish_change` and
    `apply_change` do.
    """
    path, digest = journal_path(folder, host), plan_digest(plan)
    journal = finish_change(nvml, host, digest, path, settings, report)
    if journal is not None:
        return AppliedPlan(journal, path)
    state = with_host_facts(state, host, nvml)
    transition = find_transition(state)
    if transition.status != "infeasible":
        change = HostChange.of(transition, state, host, digest)
        journal = apply_change(nvml, change, path, settings, report)
    return AppliedPlan(journal, path, transition)


@contextmanager
def host_driver(remedy: str) -> Iterator[Nvml]:
    """The driver of this host's GPUs. Raises InputFault with the remedy where there is none, or it fails."""
    try:
        with open_nvml() as nvml:
            yield nvml
    except NvmlFault as fault:
        raise InputFault("this host", fault.words, remedy) from fault

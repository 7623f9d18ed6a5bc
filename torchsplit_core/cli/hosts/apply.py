"""The command apply: a plan brought onto the GPUs of one host, only what differs from what runs there."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core.cli.arguments.outputs import OutputFolder
from torchsplit_core.cli.common import EXIT_OF_STATUS, Command
from torchsplit_core.cli.transition import plan_and_state, transition_between, transition_options
from torchsplit_core.values import HostState, InputFault, PlanOutcome, StateGpu, Transition
from torchsplit_core.values.limits import check_number

if TYPE_CHECKING:
    from torchsplit_core.apply import ApplySettings, HostChange
    from torchsplit_core.hardware import Nvml


def add_apply_command(command: Command) -> None:
    """Add apply to the command line through its `command(name, run)`."""
    parser = command("apply", _apply)
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="a file of a plan outcome")
    transition_options(parser, required=False)
    parser.add_argument(
        "--yes",
        metavar="HOST",
        help="do it, on this host, which the state calls HOST (without: nothing is changed)",
    )
    parser.add_argument(
        "--host", metavar="NAME", help="what the state calls this host (default: its host name)"
    )
    parser.add_argument(
        "--journal",
        action=OutputFolder,
        metavar="FOLDER",
        help="of the hosts' journals (default: apply in the user's state folder)",
    )
    parser.add_argument("--status", action="store_true", help="say where the last change stands")
    parser.add_argument("--undo", action="store_true", help="go back to what stood before the last change")
    parser.add_argument(
        "--script", action="store_true", help="print the same steps as a bash script around nvidia-smi"
    )
    parser.add_argument(
        "--boot-unit",
        action=OutputFolder,
        metavar="DIR",
        help="write a systemd unit and its script there, which cut the GPUs as they are after the change at every boot",
    )
    parser.add_argument(
        "--on-stop",
        metavar="COMMAND",
        help="stops a tenant, which TORCHSPLIT_MODEL, _GPU, _PROFILE, _START, _UUID and others describe",
    )
    parser.add_argument("--on-start", metavar="COMMAND", help="starts a tenant, likewise")
    parser.add_argument(
        "--switch-mig-mode",
        action="store_true",
        help="switch MIG mode where the plan needs it and no process runs on the GPU, with a reset where its type "
        "needs one (A100, A30); --undo switches it back",
    )


def _apply(options: argparse.Namespace) -> int:
    from torchsplit_core.apply import change_script, change_text, plan_digest

    if options.status:
        return _status(options)
    settings = _settings(options)
    if options.undo:
        return _undo(options, settings)
    for name, value in (("PLAN", options.plan), ("--from", options.state)):
        if value is None:
            raise InputFault(
                name, "is not given", "Give PLAN and --from STATE; --status and --undo need neither."
            )
    plan, state = plan_and_state(options)
    if options.yes is not None and not (options.script or options.boot_unit):
        return _change(plan, state, options, settings)
    outcome = transition_between(plan, state, options)
    if outcome.status == "infeasible":
        return _refused(outcome)
    changes = _changes(outcome, state, options.yes or options.host, plan_digest(plan))
    if options.script or options.boot_unit:
        if len(changes) > 1:
            hosts = ", ".join(change.host for change in changes)
            raise InputFault("--host", f"is not given, and the state has {hosts}", "Name one of them.")
        if options.boot_unit:
            _write_boot_unit(changes[0], Path(options.boot_unit))
        if options.script:
            sys.stdout.write(change_script(changes[0]))
        return 0
    for change in changes:
        sys.stdout.write(change_text(change, settings, _others(outcome, change.state.gpus)))
    return 0


def _change(plan: PlanOutcome, state: HostState, options: argparse.Namespace, settings: ApplySettings) -> int:
    """Do it."""
    from torchsplit_core.apply import apply_plan, gpus_of, this_host

    def find_transition(now: HostState) -> Transition:
        outcome = transition_between(plan, now, options)
        others = _others(outcome, gpus_of(now, host))
        if others:
            print(f"warning: steps of {', '.join(others)} belong to the same transition", file=sys.stderr)
        return outcome

    with _driver() as nvml:
        host = this_host(state, options.yes, options.host, nvml)
        done = apply_plan(nvml, plan, state, host, find_transition, _folder(options), settings, _report)
    if done.transition is not None and done.transition.status == "infeasible":
        return _refused(done.transition)
    print(f"{host}: as planned" + (": nothing to do" if done.journal is None else f". Journal: {done.path}"))
    return 0


def _undo(options: argparse.Namespace, settings: ApplySettings) -> int:
    from torchsplit_core.apply import read_journal, undo_change, undo_text

    host = options.yes or options.host or socket.gethostname()
    path = _journal_path(options, host)
    if options.yes is None:
        journal = read_journal(path)
        if journal is None:
            raise InputFault(
                str(path), "is not there, so nothing was applied that could be undone", _OTHER_JOURNAL
            )
        sys.stdout.write(undo_text(journal, settings))
        return 0
    with _driver() as nvml:
        done = undo_change(nvml, host, path, settings, _report)
    print(f"{host}: as before the change" + (": nothing to do" if done is None else ""))
    return 0


_OTHER_JOURNAL = "Name the host with --host, or the folder of its journal with --journal."


def _status(options: argparse.Namespace) -> int:
    """Of the host that is named, else of every host with a journal in the folder."""
    from torchsplit_core.apply import read_journal, status_text

    host, folder = options.yes or options.host, _folder(options)
    paths = sorted(folder.glob("*.journal.json")) if host is None else [_journal_path(options, host)]
    for path in paths:
        journal = read_journal(path)
        sys.stdout.write(f"{host}: nothing was applied\n" if journal is None else status_text(journal, path))
    if not paths:
        print(f"nothing was applied: {folder} has no journal")
    return 0


def _settings(options: argparse.Namespace) -> ApplySettings:
    from torchsplit_core.apply import ApplySettings

    settings = ApplySettings(options.on_stop, options.on_start, switch_mig_mode=options.switch_mig_mode)
    if options.drain_s is None:
        return settings
    check_number("--drain-s", options.drain_s)
    return replace(settings, drain_s=options.drain_s)


def _changes(outcome: Transition, state: HostState, name: str | None, digest: str) -> tuple[HostChange, ...]:
    """The change of the host that is named, else of this one if the state has it, else of every host."""
    from torchsplit_core.apply import HostChange, hosts_of

    hosts = [host for host in hosts_of(state) if host is not None] or [socket.gethostname()]
    if name is None and socket.gethostname() in hosts:
        name = socket.gethostname()
    return tuple(HostChange.of(outcome, state, host, digest) for host in (hosts if name is None else [name]))


def _others(outcome: Transition, gpus: Sequence[StateGpu]) -> Sequence[str]:
    """Other hosts with steps than that of these GPUs."""
    ids = {gpu.id for gpu in gpus}
    return list(dict.fromkeys(step.gpu.rpartition("/")[0] for step in outcome.steps if step.gpu not in ids))


def _write_boot_unit(change: HostChange, folder: Path) -> None:
    from torchsplit_core.apply import boot_unit
    from torchsplit_core.deployment import write_deployment

    for path in write_deployment(boot_unit(change), folder):
        print(path, file=sys.stderr)


def _refused(outcome: Transition) -> int:
    print(f"infeasible: {outcome.message}", file=sys.stderr)
    return EXIT_OF_STATUS[outcome.status]


def _folder(options: argparse.Namespace) -> Path:
    """Of the journals."""
    from torchsplit_core.apply import default_folder

    return Path(options.journal) if options.journal else default_folder()


def _journal_path(options: argparse.Namespace, host: str) -> Path:
    from torchsplit_core.apply import journal_path

    return journal_path(_folder(options), host)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _driver() -> Iterator[Nvml]:
    """The driver; says if it is a replayed listing. Raises InputFault where there is none."""
    from torchsplit_core.apply import host_driver

    with host_driver("Run it on the host of the GPUs.") as nvml:
        if nvml.origin is not None:
            _report(nvml.origin)
        yield nvml

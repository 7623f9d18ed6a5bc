"""The process above the worker: starts it confined, counts what it uses, and ends it with all its descendants.

With namespaces the supervisor is their PID 1, so that the kernel ends every other process in them with it; the process
that the caller started waits for it. Otherwise that process itself is the supervisor: it is a subreaper, so orphaned
descendants become its children, and it kills until none is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import sys
import time
from dataclasses import asdict
from typing import Any, NoReturn

from torchsplit_core.isolation.sandbox import current_sandbox, kernel, landlock, namespaces, seccomp
from torchsplit_core.isolation.usage_monitor import UsageMonitor, descendants

SAMPLE_S = 0.2
"""The shortest time between two samples of what the work uses …"""
SAMPLING_SHARE = 0.02
"""… and the share of one processor that sampling may take …"""
LONGEST_SAMPLE_S = 2.0
"""… unless the interval would exceed this."""
ENDING_S = 10.0
"""Seconds to keep killing descendants that start others as fast as they are killed."""
HANDLED_SIGNALS = (signal.SIGCHLD, signal.SIGTERM)
_STATUS = struct.Struct("<i")


def start_worker(request: dict[str, Any], verdict: int) -> None:
    """Set up the isolation and return in the confined worker; the supervisor never returns.

    `request`: `level`, Landlock's `abi`, socket `families` (None: all), `limits`, `access`, `room` (the private
    folder), working `folder`, `watched` folders, `caller`'s process id. An exceeded limit is written to `verdict` as
    JSON. Raises OSError if the isolation cannot be set up.
    """
    begun = time.perf_counter()
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    if request["level"] == "namespaces":
        kernel.set_parent_death_signal()
        maps_all_ids = namespaces.enter()
        kernel.set_parent_death_signal()  # cleared when the credentials changed
        status_write = _fork_init(request["caller"], verdict)
        access = request["access"]
        namespaces.build_tree(
            request["room"], access["read"], [*access["write"], request["room"]], access["devices"],
            shared_bytes=namespaces.shared_memory_bytes(request["limits"]["total_memory_bytes"]),
            tasks=request["limits"]["tasks"],
        )  # fmt: skip
    else:
        kernel.set_parent_death_signal(signal.SIGTERM)
        kernel.become_subreaper()
        _exit_if_orphaned(request["caller"])
        status_write, maps_all_ids = -1, os.geteuid() == 0
    monitor = UsageMonitor(request["limits"], request["watched"], is_init=status_write >= 0)
    worker = os.fork()
    if worker:
        _supervise(worker, monitor, verdict, status_write)
    for descriptor in (verdict, status_write):
        if descriptor >= 0:
            os.close(descriptor)
    _enter_sandbox(request, maps_all_ids)
    current_sandbox.level, current_sandbox.setup_s = request["level"], time.perf_counter() - begun


def _enter_sandbox(request: dict[str, Any], maps_all_ids: bool) -> None:
    """Confine the worker: a new session, no privileges, Landlock, few socket families."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)
    kernel.die_with_parent()
    os.chdir(request["folder"])
    level, access = request["level"], request["access"]
    kernel.set_no_new_privileges()
    if level == "namespaces":
        namespaces.limit_tasks(request["limits"]["tasks"])
    # Root often reads files of other users: without these capabilities it could not read the paths given.
    capabilities = (kernel.CAP_DAC_OVERRIDE, kernel.CAP_DAC_READ_SEARCH) if maps_all_ids else ()
    if level == "namespaces" or os.geteuid() == 0:
        kernel.restrict_capabilities(capabilities)
        kernel.set_parent_death_signal()
    if level != "limits" and request["abi"]:
        shared_memory = ("/dev/shm",) if level == "namespaces" else ()
        landlock.restrict(
            request["abi"],
            ["/proc", *access["read"]],
            [request["room"], *shared_memory, *access["write"]],
            access["devices"],
        )
    if request["families"] is not None:
        seccomp.restrict(request["families"])


def _fork_init(caller: int, verdict: int) -> int:
    """Return in PID 1, with the pipe for its exit status; the process outside waits and ends as the worker did."""
    status_read, status_write = os.pipe()
    _exit_if_orphaned(caller)
    init_pid = os.fork()
    if init_pid:
        _close_all_but(status_read)
        _wait_for_init(init_pid, status_read)
    os.close(status_read)
    kernel.set_parent_death_signal()
    poll = select.poll()
    poll.register(status_write, select.POLLERR)
    if poll.poll(0):  # the process outside has already ended
        os._exit(1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    return status_write


def _wait_for_init(init_pid: int, status_read: int) -> NoReturn:
    """Wait for PID 1, killing it on SIGTERM; then end as the worker did."""
    ended = 0
    while not ended:
        if signal.sigwait(HANDLED_SIGNALS) == signal.SIGTERM:
            with contextlib.suppress(ProcessLookupError):
                os.kill(init_pid, signal.SIGKILL)
        ended, status = os.waitpid(init_pid, os.WNOHANG)
    data = os.read(status_read, _STATUS.size)
    _exit_with_status(_STATUS.unpack(data)[0] if len(data) == _STATUS.size else status)


def _supervise(worker: int, monitor: UsageMonitor, verdict: int, status_write: int) -> NoReturn:
    """Monitor until the worker ends, a limit is exceeded, or SIGTERM arrives; then end every descendant."""
    status = signal.SIGKILL.value
    try:
        _close_all_but(verdict, status_write)
        status = _monitor_worker(worker, monitor, verdict)
        if status_write < 0:
            _end_descendants()
        else:
            os.write(status_write, _STATUS.pack(status))
    except BaseException as error:  # noqa: BLE001 - the work must not outlive the supervisor
        print(f"the supervisor failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(BaseException):
            _end_descendants()
    if status_write >= 0:
        os._exit(0)  # the kernel first kills all others in the namespace
    _exit_with_status(status)


def _monitor_worker(worker: int, monitor: UsageMonitor, verdict: int) -> int:
    """The worker's wait status; that of SIGKILL if it must be ended here."""
    next_sample = time.monotonic() + SAMPLE_S
    while True:
        received = signal.sigtimedwait(HANDLED_SIGNALS, max(0.0, next_sample - time.monotonic()))
        if received is not None and received.si_signo == signal.SIGTERM:
            return signal.SIGKILL.value
        for pid, status in _reap_children():
            if pid == worker:
                return status
        # By the clock: work whose processes end all the time must not postpone the sample.
        if time.monotonic() >= next_sample:
            spent = time.process_time()
            excess = monitor.check_limits()
            if excess is not None:
                os.write(verdict, json.dumps(asdict(excess)).encode())
                return signal.SIGKILL.value
            spent = time.process_time() - spent  # waiting for a slow disk does not count
            next_sample = time.monotonic() + min(max(SAMPLE_S, spent / SAMPLING_SHARE), LONGEST_SAMPLE_S)


def _reap_children() -> list[tuple[int, int]]:
    """Reap the children that have ended; returns their process ids and wait statuses."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(child)
    return ended


def _end_descendants() -> None:
    """Kill every descendant, by process and by group, until none is left."""
    deadline = time.monotonic() + ENDING_S
    own_group = os.getpgrp()
    while time.monotonic() < deadline:
        left = descendants(is_init=False)
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
        for group in {process.group for process in left} - {own_group, 0}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        _reap_children()
        if not left:
            return
        time.sleep(0.002)


def _exit_if_orphaned(caller: int) -> None:
    """Exit if the caller ended before the death signal was set."""
    if os.getppid() != caller:
        os._exit(1)


def _close_all_but(*keep: int) -> None:
    """Close inherited descriptors: others wait for the closing of the worker's pipes and sockets."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _exit_with_status(status: int) -> NoReturn:
    """End with the worker's wait status, so that the waiting process sees how it ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            kernel.disable_core_dumps()
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)

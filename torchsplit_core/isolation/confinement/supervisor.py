"""The process above the work: starts it confined, counts what it uses, and ends all of it with it.

In namespaces it is PID 1 of them, so that the kernel ends every other process there with it, and the process that
the caller started waits for it. Elsewhere that process is the supervisor itself: every descendant that loses its
parent becomes its child, and it kills until none is left.
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

from torchsplit_core.isolation.confinement import calls, inside, kernel, landlock, namespaces
from torchsplit_core.isolation.watch import Watch, descendants

LOOK_S = 0.2
"""The shortest time between two looks at what the work uses …"""
SHARE_FOR_LOOKING = 0.02
"""… and the share of one processor that they may take …"""
LONGEST_LOOK_S = 2.0
"""… as long as they come this often."""
ENDING_S = 10.0
"""How long descendants are chased that start others as fast as they are killed."""
HEARD = (signal.SIGCHLD, signal.SIGTERM)
_STATUS = struct.Struct("<i")


def start_worker(request: dict[str, Any], verdict: int) -> None:
    """Set the isolation up and return in the worker, confined; the supervisor never returns.

    `request`: `level`, `abi` of Landlock, `families` of sockets (None: all), `limits`, `access`, `room`, `folder` to
    work in, `watched` folders, `caller`'s process id. What limit was passed is written to `verdict` as JSON.
    Raises OSError where the isolation cannot be set up.
    """
    begun = time.perf_counter()
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    if request["level"] == "namespaces":
        kernel.signal_at_parents_end()
        whole = namespaces.enter()
        kernel.signal_at_parents_end()  # cleared by the new rights
        telling = _begin_namespaces(request["caller"], verdict)
        access = request["access"]
        namespaces.build_tree(
            request["room"], access["read"], [*access["write"], request["room"]], access["devices"],
            shared_bytes=namespaces.shared_memory_bytes(request["limits"]["total_memory_bytes"]),
            tasks=request["limits"]["tasks"],
        )  # fmt: skip
    else:
        kernel.signal_at_parents_end(signal.SIGTERM)
        kernel.adopt_orphans()
        _leave_with(request["caller"])
        telling, whole = -1, os.geteuid() == 0
    watch = Watch(request["limits"], request["watched"], alone=telling >= 0)
    worker = os.fork()
    if worker:
        _supervise(worker, watch, verdict, telling)
    for descriptor in (verdict, telling):
        if descriptor >= 0:
            os.close(descriptor)
    _confine(request, whole)
    inside.level, inside.setup_s = request["level"], time.perf_counter() - begun


def _confine(request: dict[str, Any], whole: bool) -> None:
    """The worker's own part: a session, no privileges, Landlock, few kinds of sockets."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    kernel.die_with_parent()
    os.chdir(request["folder"])
    level, access = request["level"], request["access"]
    kernel.renounce_privileges()
    if level == "namespaces":
        namespaces.hold_tasks(request["limits"]["tasks"])
    # Root's files are often others' too: without these rights it could not read what its user names.
    kept = (kernel.CAP_DAC_OVERRIDE, kernel.CAP_DAC_READ_SEARCH) if whole else ()
    if level == "namespaces" or os.geteuid() == 0:
        kernel.keep_capabilities(kept)
        kernel.signal_at_parents_end()
    if level != "limits" and request["abi"]:
        own = ("/dev/shm",) if level == "namespaces" else ()
        landlock.restrict(
            request["abi"],
            ["/proc", *access["read"]],
            [request["room"], *own, *access["write"]],
            access["devices"],
        )
    if request["families"] is not None:
        calls.restrict(request["families"])


def _begin_namespaces(caller: int, verdict: int) -> int:
    """Return in PID 1, with what it tells its end on; the process outside waits for it and ends as the work did."""
    hearing, telling = os.pipe()
    _leave_with(caller)
    first = os.fork()
    if first:
        _close_all_but(hearing)
        _wait_outside(first, hearing)
    os.close(hearing)
    kernel.signal_at_parents_end()
    poll = select.poll()
    poll.register(telling, select.POLLERR)
    if poll.poll(0):  # the process outside ended before that
        os._exit(1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    return telling


def _wait_outside(first: int, hearing: int) -> NoReturn:
    """Wait for PID 1, killing it where this process is asked to end; then end as the work did."""
    ended = 0
    while not ended:
        if signal.sigwait(HEARD) == signal.SIGTERM:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
        ended, status = os.waitpid(first, os.WNOHANG)
    told = os.read(hearing, _STATUS.size)
    _end_as(_STATUS.unpack(told)[0] if len(told) == _STATUS.size else status)


def _supervise(worker: int, watch: Watch, verdict: int, telling: int) -> NoReturn:
    """Until the worker ends, a limit is passed, or this process is asked to end; then nothing is left."""
    status = signal.SIGKILL.value
    try:
        _close_all_but(verdict, telling)
        status = _watched(worker, watch, verdict)
        if telling < 0:
            _end_descendants()
        else:
            os.write(telling, _STATUS.pack(status))
    except BaseException as error:  # noqa: BLE001 - whatever it was, the work must not outlive it
        print(f"the supervisor failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(BaseException):
            _end_descendants()
    if telling >= 0:
        os._exit(0)  # the kernel kills all others of the namespace first
    _end_as(status)


def _watched(worker: int, watch: Watch, verdict: int) -> int:
    """The worker's wait status; that of a kill where it was ended here."""
    next_look = time.monotonic() + LOOK_S
    while True:
        found = signal.sigtimedwait(HEARD, max(0.0, next_look - time.monotonic()))
        if found is not None and found.si_signo == signal.SIGTERM:
            return signal.SIGKILL.value
        for pid, status in _reaped():
            if pid == worker:
                return status
        # By the clock: work that ends a process every moment must not put the look off.
        if time.monotonic() >= next_look:
            spent = time.process_time()
            excess = watch.look()
            if excess is not None:
                os.write(verdict, json.dumps(asdict(excess)).encode())
                return signal.SIGKILL.value
            spent = time.process_time() - spent  # waiting for a slow disk costs nobody
            next_look = time.monotonic() + min(max(LOOK_S, spent / SHARE_FOR_LOOKING), LONGEST_LOOK_S)


def _reaped() -> list[tuple[int, int]]:
    """The children that have ended, with their wait status."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(found)
    return ended


def _end_descendants() -> None:
    """Kill every descendant, by process and by group, until none is left."""
    deadline = time.monotonic() + ENDING_S
    own = os.getpgrp()
    while time.monotonic() < deadline:
        left = descendants(alone=False)
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
        for group in {process.group for process in left} - {own, 0}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        _reaped()
        if not left:
            return
        time.sleep(0.002)


def _leave_with(caller: int) -> None:
    """End where the caller ended before its end could be signalled."""
    if os.getppid() != caller:
        os._exit(1)


def _close_all_but(*kept: int) -> None:
    """Give back what is the worker's: the ends of pipes and sockets that others wait to see closed."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _end_as(status: int) -> NoReturn:
    """End with the wait status of the work, so that whoever waits sees what became of it."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            kernel.leave_no_core()
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)

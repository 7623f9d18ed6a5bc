"""All that a child started ends with it: daemons too, however it ends, and when whoever called it is killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.isolation.processes import began, gone, mark, running
from tests.support.seeds import repeated
from torchsplit_core.isolation import Limits, run_limited
from torchsplit_core.values import InputFault

pytestmark = pytest.mark.slow

CALL = """
import json, sys
from torchsplit_core.isolation import run_limited
run_limited("tests.support.isolation.targets:daemons", json.loads(sys.argv[1]), receive=lambda part: None)
"""


@repeated(("end", "said"), [
    ("result", ""), ("fault", "is wrong"), ("exit", "status 7"), ("crash", "SIGSEGV"),
    ("wait", "still running"),
], kept=4)  # fmt: skip
def test_no_daemon_outlives_its_child(level, end, said):
    name = mark()
    heard = []

    def call():
        run_limited(
            "tests.support.isolation.targets:daemons", {"mark": name, "end": end},
            limits=Limits(wall_s=120.0, silent_s=1.5 if end == "wait" else 60.0), subject="the model",
            receive=heard.append,
        )  # fmt: skip

    if said:
        with pytest.raises(InputFault, match=said):
            call()
    else:
        call()
    assert heard == ["three of them"] and running(name) == []


def test_a_cancelled_call_leaves_no_daemon(level):
    name = mark()

    def stop(share, text):
        assert len(running(name)) == 3
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_limited(
            "tests.support.isolation.targets:daemons", {"mark": name, "end": "wait"}, progress=stop,
            receive=print,
        )  # fmt: skip
    assert running(name) == []


def calling(arguments: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process of its own that calls a child which waits."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", CALL, json.dumps(arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_caller_takes_all_of_it_along(level, sign):
    name = mark()
    caller = calling({"mark": name, "end": "wait"})
    try:
        # The caller itself has the mark in its arguments.
        assert began(name, 4)
        caller.send_signal(sign)
        caller.wait(60)
    finally:
        caller.kill()
        caller.wait()
    assert gone(name)


def own_children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def test_a_killed_supervisor_takes_all_of_it_along_in_namespaces(monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", "namespaces")
    name, before = mark(), own_children()

    def kill_it(share, text):
        (supervisor,) = own_children() - before  # other tests of this process may have left children
        os.kill(supervisor, signal.SIGKILL)

    with pytest.raises(InputFault):
        run_limited(
            "tests.support.isolation.targets:daemons", {"mark": name, "end": "wait"}, progress=kill_it,
            receive=print,
        )  # fmt: skip
    assert gone(name)

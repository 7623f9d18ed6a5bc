"""The end: what was taken is answered or refused, and no process is left behind."""

import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.seeds import repeated
from tests.support.serving.doubling import children_of, doubled, until, x
from tests.support.serving.plans import Placed, cpu_plan
from tests.support.serving.running import running
from torchsplit_core.files import write_file
from torchsplit_core.serving.settings import ServeSettings

pytestmark = pytest.mark.torch


def test_what_is_not_answered_in_time_at_the_end_is_refused(file, gate):
    plan = cpu_plan([Placed("double")], {"double": f"{file}:Client"})
    settings = ServeSettings(trust=True, drain_s=0.1, deadline_s=120)
    with running(plan, settings) as server, ThreadPoolExecutor(1) as pool:
        taken = pool.submit(server.infer, "double", x(300))
        until(lambda: server.state() == ("busy", 0))
        server.stop()
        status, told = taken.result()
        assert status == 503 and "stopped" in told["error"]


def test_draining_answers_what_was_taken_and_refuses_the_rest(doubling, gate):
    with ThreadPoolExecutor(2) as pool:
        taken = pool.submit(doubling.infer, "double", x(300))
        until(lambda: doubling.state() == ("busy", 0))
        doubling.stop()
        until(lambda: doubling.ask("GET", "/v2/health/ready")[0] == 503)
        assert doubling.infer("double", x(1))[0] == 503
        gate.touch()
        assert doubled(taken.result()) == [600]


@repeated("ends", [(signal.SIGKILL,), (signal.SIGKILL, signal.SIGTERM)])
def test_no_process_is_left_behind(ends, file, tmp_path):
    """kill -9 of the front: the workers end by themselves. Then SIGTERM, a port and a slice that are taken."""
    plan, request = cpu_plan([Placed("double")], {"double": f"{file}:Client"}, cores=1)
    write_file(plan, tmp_path / "plan.json")
    write_file(request, tmp_path / "request.json")
    command = [
        sys.executable, "-m", "torchsplit_core", "serve", str(tmp_path / "plan.json"), "--request",
        str(tmp_path / "request.json"), "--trust", "--ready-file", str(tmp_path / "ready"),
    ]  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = subprocess.run(
            [*command, "--port", port], capture_output=True, text=True, timeout=120, check=False
        )
    assert refused.returncode == 2 and "--port" in refused.stderr and "Traceback" not in refused.stderr
    for number in ends:
        (tmp_path / "ready").unlink(missing_ok=True)
        process = subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True)
        until(lambda: (tmp_path / "ready").exists() or process.poll() is not None)  # noqa: B023
        assert process.poll() is None
        below = children_of(process.pid)
        assert below
        if number == signal.SIGKILL:
            before = (tmp_path / "ready").read_text()
            second = subprocess.run(
                [*command, "--port", "0"], capture_output=True, text=True, timeout=120, check=False
            )
            assert (
                second.returncode == 2 and f"is taken: process {process.pid} serves on core" in second.stderr
            )
            assert (tmp_path / "ready").read_text() == before
        process.send_signal(number)
        _, told = process.communicate(timeout=120)
        assert process.returncode == (0 if number == signal.SIGTERM else -number), told
        # No worker outlives its front.
        until(lambda: not any(Path(f"/proc/{pid}/exe").exists() and _alive(pid) for pid in below))  # noqa: B023


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False

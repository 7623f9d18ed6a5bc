"""What a child tries to reach and must not, at every level that promises so (docs/reference/security.md)."""

import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation.escapes import GOT
from tests.support.paths import ROOT, TESTS
from torchsplit_core.isolation import isolation_level, run_limited
from torchsplit_core.isolation.sandbox.kernel import kernel_version
from torchsplit_core.values import InputFault

pytestmark = pytest.mark.slow

CALL = """
import json, os, sys
from torchsplit_core.isolation import run_limited
arguments = json.loads(sys.argv[2]) | {"caller": os.getpid()}
print(json.dumps(run_limited(sys.argv[1], arguments)))
"""


def escape(function: str, **arguments: Any) -> dict[str, str]:
    return run_limited(f"tests.support.isolation.escapes:{function}", arguments)


def called_by_another(target: str, arguments: dict[str, Any], **environment: str) -> Any:
    """The same from a process of its own, with these names in its environment."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CALL, target, json.dumps(arguments)], env=os.environ | environment,
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def reached(outcomes: dict[str, str]) -> dict[str, str]:
    """Those that got what they must not."""
    return {name: outcome for name, outcome in outcomes.items() if outcome.startswith(GOT)}


def test_no_file_outside_is_read_or_changed(holding, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    outcomes = escape(
        "try_files", secret=str(secret), folder=str(tmp_path), store=os.environ["TORCHSPLIT_HOME"],
        home=str(Path.home()),
    )  # fmt: skip
    # In a tree of its own /tmp is there where something was bound below it, and shows that alone.
    if holding == "namespaces":
        outcomes = {
            name: outcome for name, outcome in outcomes.items() if name not in ("list /tmp", "list the home")
        }
    assert len(outcomes) > 18 and reached(outcomes) == {}
    assert secret.read_text() == "the secret" and os.listdir(tmp_path) == ["secret"]


def test_in_a_tree_of_its_own_only_what_was_bound_has_a_name(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", "namespaces")
    for name in ("given", "kept"):
        (tmp_path / name).write_text(name)
    there = [str(tmp_path / "given"), "/dev/null", "/proc/self", os.__file__]
    hidden = [
        str(tmp_path / "kept"), os.environ["TORCHSPLIT_HOME"], "/var", "/run", "/etc/shadow", "/dev/mem",
    ]  # fmt: skip
    call = {"paths": [*there, *hidden]}
    answer = run_limited("tests.support.isolation.escapes:named", call, readable=[tmp_path / "given"])
    assert answer == there


@pytest.fixture
def servers(tmp_path) -> Iterator[dict[str, Any]]:
    """Servers of the test's own that say hello; their addresses."""
    name = uuid.uuid4().hex
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        named, abstract = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        named.bind(str(tmp_path / "socket"))
        abstract.bind("\0" + name)

        def greet(server):
            while True:
                try:
                    with server.accept()[0] as client:
                        client.sendall(client.recv(16))
                except OSError:
                    return

        def answer():
            while True:
                try:
                    udp.sendto(b"hello", udp.recvfrom(16)[1])
                except OSError:
                    return

        for server in (named, abstract, tcp):
            server.listen()
            threading.Thread(target=greet, args=(server,), daemon=True).start()
        threading.Thread(target=answer, daemon=True).start()
        yield {
            "tcp": tcp.getsockname(), "udp": udp.getsockname(), "named": str(tmp_path / "socket"),
            "abstract": name,
        }  # fmt: skip
        for server in (named, abstract, tcp, udp):
            server.shutdown(socket.SHUT_RDWR) if server is not udp else None


def test_no_server_is_reached_that_the_level_says_it_holds(level, servers):
    found = set(reached(escape("try_network", **servers)))
    abi = isolation_level().landlock_abi
    everything = {"tcp", "listen", "abstract", "udp", "named"}
    if level == "limits":  # without isolation the same tries succeed, so that a failure above means something
        assert found == everything
    elif level == "namespaces" or isolation_level().sockets_held:
        assert found == set()
    else:
        closed = ({"tcp", "listen"} if abi >= 4 else set()) | ({"abstract"} if abi >= 6 else set())
        assert found == everything - closed


def test_no_socket_of_a_family_that_no_namespace_holds_can_be_made(level):
    found = escape("try_sockets")
    held = isolation_level().sockets_held
    assert found["a pair"] == GOT + "b'hello'"
    if held and level != "limits":
        assert found["vsock"] == "OSError 101" and found["rings"] == "OSError 38"
        assert found["unix"].startswith(GOT) is (level == "namespaces")
        assert found["udp"].startswith(GOT) is (
            level == "namespaces"
        )  # of a network of its own, without a way out
    else:
        assert found["unix"].startswith(GOT) and found["udp"].startswith(GOT)


def test_no_process_outside_is_read_traced_or_signalled(holding):
    token = f"token-{uuid.uuid4().hex}"
    outcomes = called_by_another(
        "tests.support.isolation.escapes:try_processes", {"token": token, "kill": True}, MY_SECRET=token,
        TORCHSPLIT_ISOLATION=holding,
    )  # fmt: skip
    rights = {outcomes.pop("own capabilities"), outcomes.pop("capabilities of a program it starts")}
    assert rights <= {"0000000000000000", "0000000000000006"}  # of root's: reading and writing its files
    spaces, pids, processes = (outcomes.pop(name) for name in ("user namespaces", "pids", "processes"))
    host = Path("/proc/sys/kernel/pid_max").read_text().strip()
    if holding == "namespaces":
        assert spaces == "0" and processes.split(",")[:2] == ["1", "2"] and len(processes.split(",")) <= 4
        assert (int(pids) < 100_000 and pids != host) or kernel_version() < (6, 14)
        outcomes.pop(
            "signal to the supervisor"
        )  # PID 1 takes no SIGKILL from inside: the call succeeds, it lives on
    elif isolation_level().landlock_abi < 6:
        outcomes = {name: told for name, told in outcomes.items() if not name.startswith("signal")}
    assert outcomes.pop("own limits") == "(0, 0)"
    if not isolation_level().sockets_held:
        outcomes = {name: told for name, told in outcomes.items() if name not in ("limits", "keys")}
    assert len(outcomes) >= 4 and reached(outcomes) == {}
    assert int(Path("/proc/sys/user/max_user_namespaces").read_text()) > 0
    assert Path("/proc/sys/kernel/pid_max").read_text().strip() == host


def test_the_same_tries_succeed_without_isolation(monkeypatch, tmp_path):
    """Else a try that fails for another reason would pass for isolation."""
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", "limits")
    (tmp_path / "secret").write_text("the secret")
    paths = {"secret": str(tmp_path / "secret"), "folder": str(tmp_path), "home": str(Path.home())}
    outcomes = escape("try_files", store=os.environ["TORCHSPLIT_HOME"], **paths)
    assert {
        "read", "read by a link", "overwrite", "new file", "list", "list the store", "list the home",
    } <= set(reached(outcomes))  # fmt: skip
    token = f"token-{uuid.uuid4().hex}"
    answer = called_by_another(
        "tests.support.isolation.escapes:try_processes", {"token": token, "kill": False}, MY_SECRET=token
    )
    # Root gives up the right to trace at every level.
    assert {"signal", "limits", "keys"} | ({"environment"} if os.geteuid() else set()) <= set(reached(answer))


def test_what_a_call_names_is_open_and_nothing_beside_it(holding, tmp_path):
    for name in ("given", "beside", "changeable"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "link").symlink_to(tmp_path / "given")
    paths = [str(tmp_path / name) for name in ("given/file", "link/file", "beside/file")]
    answer = run_limited(
        "tests.support.isolation.escapes:read", {"paths": paths}, readable=[tmp_path / "link"]
    )
    assert [answer[path].startswith(GOT) for path in paths] == [True, True, False]
    folders = [str(tmp_path / name) for name in ("given", "changeable", "beside")]
    answer = run_limited(
        "tests.support.isolation.escapes:write", {"paths": folders},
        readable=[tmp_path / "given"], writable=[tmp_path / "changeable"],
    )  # fmt: skip
    assert [answer[path].startswith(GOT) for path in folders] == [False, True, False]
    assert (tmp_path / "changeable" / "new").read_text() == "x"


def test_paths_of_the_environment_are_open_to_every_child(holding, tmp_path, monkeypatch):
    (tmp_path / "weights").write_text("weights")
    monkeypatch.setenv("TORCHSPLIT_READABLE", str(tmp_path / "weights"))
    path = str(tmp_path / "weights")
    assert run_limited("tests.support.isolation.escapes:read", {"paths": [path]})[path] == f"{GOT}'weights'"
    monkeypatch.setenv("TORCHSPLIT_READABLE", f"{path}:{tmp_path / 'gone'}")
    with pytest.raises(InputFault, match=r"TORCHSPLIT_READABLE: names .*gone.*does not exist"):
        run_limited("tests.support.isolation.escapes:read", {"paths": [path]})


def test_where_the_packages_lie_in_the_home_only_they_are_open(holding):
    paths = [str(ROOT / "README.md"), str(ROOT / "torchsplit_core" / "__init__.py")]
    answer = called_by_another(
        "torchsplit_core.isolation.cost:report_setup_s", {}, HOME=str(ROOT), TORCHSPLIT_ISOLATION=holding
    )
    assert answer > 0
    # Of the home the child finds our packages alone, so what it runs is named from a folder inside.
    modules = os.pathsep.join((os.environ["PYTHONPATH"], str(TESTS / "support" / "isolation")))
    seen = called_by_another(
        "escapes:read", {"paths": paths}, HOME=str(ROOT), TORCHSPLIT_ISOLATION=holding, PYTHONPATH=modules
    )
    assert [seen[path].startswith(GOT) for path in paths] == [False, True]


def test_in_namespaces_locks_between_processes_work_and_their_memory_is_the_childs_own(monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", "namespaces")
    ours = SharedMemory(create=True, size=16)
    try:
        assert ours.name in os.listdir("/dev/shm")
        assert ours.name not in run_limited("tests.support.isolation.escapes:shared_memory", {})
    finally:
        ours.close()
        ours.unlink()


def test_a_fault_of_isolation_names_the_way_to_open_a_path(holding):
    with pytest.raises(InputFault, match=r"--read PATH .*TORCHSPLIT_READABLE"):
        run_limited(
            "tests.support.isolation.targets:read_elsewhere",
            {"path": str(ROOT.parent / "nowhere" / "weights")},
        )
    with pytest.raises(InputFault, match="no network: fetch what it needs beforehand"):
        run_limited("tests.support.isolation.targets:look_up", {})

"""The server of `torchsplit app`, started for real: which hosts it answers to, and that it ends with its command."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.seeds import repeated
from torchsplit_core.cli.command import main
from torchsplit_core.values import InputFault
from torchsplit_core.values.serving.hosts import allowed_hosts, host_name, is_loopback

pytestmark = pytest.mark.slow

NAMED = "plan.example.com"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455, section 1.3


class Server:
    """A started `torchsplit app`, and what it prints."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self.port = free_port()
        environment = {key: value for key, value in os.environ.items() if key != "TORCHSPLIT_EXECUTION"}
        self.log = folder / f"server-{self.port}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torchsplit_core", "app", "--port", str(self.port), *options],
                cwd=ROOT,
                env=environment | {"TORCHSPLIT_HOME": str(folder / "home")},
                stdout=log,
                stderr=log,
                start_new_session=True,
                # Started by nohup, these tests would hand their deafness on.
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            )
        deadline = time.monotonic() + 120
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the dashboard did not start"
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return self.get("localhost", "/_stcore/health").status == 200
        except OSError:
            return False

    def get(self, host: str, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        """The answer to a request for a host; its body is not read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, headers={"Host": f"{host}:{self.port}", **headers})
        answer = connection.getresponse()
        connection.close()
        return answer

    def websocket(self, host: str, origin: str | None = None) -> int:
        """The status of a websocket's upgrade; a page sends the origin it was loaded from."""
        return self.get(
            host, "/_stcore/stream", Origin=f"http://{origin or host}:{self.port}", Connection="Upgrade",
            Upgrade="websocket", **{"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": KEY},
        ).status  # fmt: skip

    def environment(self) -> list[str]:
        return Path(f"/proc/{self.process.pid}/environ").read_text().split("\0")

    def members(self) -> list[int]:
        """The live processes of its session."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except (OSError, NotADirectoryError):
                continue
            if folder.name.isdigit() and int(fields[3]) == self.process.pid and fields[0] != "Z":
                found.append(int(folder.name))
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def private(tmp_path_factory) -> Iterator[Server]:
    """On the default address, without a name."""
    server = Server(tmp_path_factory.mktemp("private"), [])
    yield server
    server.end()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory) -> Iterator[Server]:
    """On the default address, behind a proxy of this name."""
    server = Server(tmp_path_factory.mktemp("proxied"), ["--host", NAMED.upper()])
    yield server
    server.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[Server]:
    """On every address, without a name."""
    server = Server(tmp_path_factory.mktemp("shared"), ["--address", "0.0.0.0"])
    yield server
    server.end()


PATHS = ("/", "/Plan", "/_stcore/health", "/_stcore/upload_file/a/b", "/media/a.bin")


@pytest.mark.parametrize(
    "host", ["evil.example", f"a.{NAMED}", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_foreign_name_gets_nothing(private, proxied, host):
    for server in (private, proxied):
        assert {server.get(host, path).status for path in PATHS} == {403}
        assert server.get(host, "/_stcore/upload_file/a/b", "PUT").status == 403
        assert server.websocket(host) == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_this_machine_gets_the_dashboard(private, proxied, shared, host):
    for server in (private, proxied, shared):
        assert server.get(host, "/").status == 200
        assert server.websocket(host) == 101
        assert server.websocket(host, origin="evil.example") == 403


def test_a_name_that_was_given_is_answered_and_only_that(private, proxied):
    assert proxied.get(NAMED, "/").status == 200
    assert proxied.websocket(NAMED) == 101
    assert private.get(NAMED, "/").status == private.websocket(NAMED) == 403


def test_on_every_address_any_name_is_answered_and_the_user_told_so(shared, private):
    assert shared.get("anything.example", "/").status == 200
    assert shared.websocket("anything.example") == 101
    assert "--host NAME" in shared.log.read_text()
    assert "--host" not in private.log.read_text()


def test_whoever_may_be_reached_by_others_executes_nothing(private, proxied, shared):
    assert "TORCHSPLIT_EXECUTION=allowed" in private.environment()
    assert "TORCHSPLIT_EXECUTION=refused" in proxied.environment()
    assert "TORCHSPLIT_EXECUTION=refused" in shared.environment()
    assert f"for {NAMED}: uploaded files are read, never executed" in proxied.log.read_text()


def test_no_other_site_may_frame_the_dashboard(private):
    for path in ("/", "/_stcore/health", "/nothing"):
        answer = private.get("localhost", path)
        assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"
        assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'self'"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@repeated("sent", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP], kept=1)
def test_what_ends_the_command_ends_the_server(tmp_path, sent):
    server = Server(tmp_path, [])
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as browser:
            browser.sendall(
                f"GET /_stcore/stream HTTP/1.1\r\nHost: localhost:{server.port}\r\nConnection: Upgrade\r\n"
                f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n".encode()
            )
            assert b"101" in browser.recv(200)
            os.kill(server.process.pid, sent)  # the command alone, not its group
            # Ctrl-C is no fault; otherwise the shell sees the signal.
            assert server.process.wait(timeout=120) == (0 if sent == signal.SIGINT else -sent)
        assert server.members() == []
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", server.port))
    finally:
        server.end()


@pytest.mark.parametrize(
    "name",
    ["", " ", "*", "*.example.com", "http://a.example", "a.example:80", "a b", "a/b", "-a", "a..b", "a" * 64,
     "1.2.3", "256.1.1.1", "a\n--server.enableXsrfProtection", "münchen.example", "[::1]:80", "@a"],
)  # fmt: skip
def test_what_is_no_host_is_refused(name, capsys):
    with pytest.raises(InputFault, match="host name or IP address"):
        host_name(name)
    assert main(["app", f"--host={name}"]) == 2
    assert "--host" in capsys.readouterr().err


def test_hosts_are_told_apart():
    assert host_name(" Plan.Example.com. ") == NAMED
    assert host_name("[FE80::1]") == "fe80::1"
    assert allowed_hosts("127.0.0.1", ()) == ("127.0.0.1", "localhost", "::1")
    assert allowed_hosts("0.0.0.0", ()) == ("*",)
    assert allowed_hosts("0.0.0.0", (NAMED,)) == ("127.0.0.1", "localhost", "::1", NAMED)
    assert allowed_hosts("10.0.0.7", (NAMED,))[-2:] == ("10.0.0.7", NAMED)
    assert [is_loopback(name) for name in ("127.0.0.2", "::1", "localhost", NAMED, "10.0.0.7", "0.0.0.0")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip

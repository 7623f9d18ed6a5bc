"""Ways out of the isolation, tried by the child: each tells what it got, or the error that stopped it."""

import ctypes
import os
import platform
import resource
import socket
import stat
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torchsplit_core.values import Progress

GOT = "got: "
"""How the outcome of a try begins that reached what it must not."""
NEW_USERS_AND_MOUNTS = 0x10020000
PTRACE_ATTACH = 16
KEYCTL = {"x86_64": 250, "aarch64": 219}[platform.machine()]


def tried(attempt: Callable[[], Any]) -> str:
    """What one attempt got, or the error that stopped it."""
    try:
        return f"{GOT}{attempt()!r}"[:300]
    except (OSError, ValueError) as error:
        return f"{type(error).__name__} {getattr(error, 'errno', '')}"


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "call")
    return result


def try_files(arguments: dict[str, Any], progress: Progress) -> dict[str, str]:
    """Files outside: the one named, its folder, the store, the home, and the ways around a name."""
    secret, folder, store, home = (arguments[name] for name in ("secret", "folder", "store", "home"))
    Path("link").symlink_to(secret)
    parent = os.getppid()

    def hard_link() -> str:
        os.link(secret, "hard")
        return Path("hard").read_text()

    return {
        "read": tried(lambda: Path(secret).read_text()),
        "read by a link": tried(lambda: Path("link").read_text()),
        "hard link": tried(hard_link),
        "move": tried(lambda: Path(secret).rename("moved")),
        "overwrite": tried(lambda: Path(secret).write_text("changed")),
        "cut": tried(lambda: os.truncate(secret, 0)),
        "remove": tried(lambda: Path(secret).unlink()),
        "new file": tried(lambda: Path(folder, "new").write_text("x")),
        "new folder": tried(lambda: Path(folder, "newer").mkdir()),
        "list": tried(lambda: os.listdir(folder)),
        "list the store": tried(lambda: os.listdir(store)),
        "list the home": tried(lambda: os.listdir(home)),
        "list /tmp": tried(lambda: os.listdir("/tmp")),
        "passwords": tried(lambda: Path("/etc/shadow").read_text()),
        "by the parent's root": tried(lambda: Path(f"/proc/{parent}/root{secret}").read_text()),
        "by the first process's root": tried(lambda: Path(f"/proc/1/root{secret}").read_text()),
        "by the parent's folder": tried(lambda: os.listdir(f"/proc/{parent}/cwd/../..")),
        "by a device of its own": tried(make_disk),
        "by memory": tried(lambda: Path("/dev/mem").open("rb").read(1)),
        # Opened and not written: without isolation root succeeds, and nothing may come of it.
        "a setting of the kernel": tried(
            lambda: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
        ),
        "a mount": tried(mount_the_folder_of(folder)),
        "a mount in further namespaces": tried(mount_in_namespaces(folder)),
        "Python itself": tried(lambda: Path(os.__file__).open("a").close()),
    }


def make_disk() -> bytes:
    """A block device file of the first disk there is, read."""
    os.mknod("disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
    return Path("disk").open("rb").read(1)


def mount_the_folder_of(folder: str) -> Callable[[], list[str]]:
    def attempt() -> list[str]:
        libc = ctypes.CDLL(None, use_errno=True)
        Path("mounted").mkdir(exist_ok=True)
        checked(libc.mount(folder.encode(), b"mounted", None, 4096, None))
        return os.listdir("mounted")

    return attempt


def mount_in_namespaces(folder: str) -> Callable[[], list[str]]:
    def attempt() -> list[str]:
        libc = ctypes.CDLL(None, use_errno=True)
        checked(libc.unshare(NEW_USERS_AND_MOUNTS))
        return mount_the_folder_of(folder)()

    return attempt


def try_network(arguments: dict[str, Any], progress: Progress) -> dict[str, str]:
    """Sockets of the test's own: TCP and UDP on 127.0.0.1, a named and an abstract unix socket; a port to listen on."""

    def connected(family: int, kind: int, address: Any) -> str:
        with socket.socket(family, kind) as client:
            client.settimeout(5)
            client.connect(address)
            client.send(b"hello")
            return client.recv(5).decode()

    def listens() -> Any:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return server.getsockname()

    return {
        "tcp": tried(lambda: connected(socket.AF_INET, socket.SOCK_STREAM, tuple(arguments["tcp"]))),
        "listen": tried(listens),
        "abstract": tried(
            lambda: connected(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + arguments["abstract"])
        ),
        "udp": tried(lambda: connected(socket.AF_INET, socket.SOCK_DGRAM, tuple(arguments["udp"]))),
        "named": tried(lambda: connected(socket.AF_UNIX, socket.SOCK_STREAM, arguments["named"])),
    }


def try_sockets(arguments: dict[str, Any], progress: Progress) -> dict[str, str]:
    """Making sockets of each kind, without connecting them; a pair, and rings that make sockets of their own."""
    libc = ctypes.CDLL(None, use_errno=True)

    def pair() -> bytes:
        one, other = socket.socketpair()
        with one, other:
            one.send(b"hello")
            return other.recv(5)

    def made(family: int, kind: int) -> str:
        with socket.socket(family, kind):
            return "a socket"

    return {
        "a pair": tried(pair),
        "unix": tried(lambda: made(socket.AF_UNIX, socket.SOCK_STREAM)),
        "udp": tried(lambda: made(socket.AF_INET, socket.SOCK_DGRAM)),
        "vsock": tried(lambda: made(socket.AF_VSOCK, socket.SOCK_STREAM)),
        "rings": tried(lambda: checked(libc.syscall(425, 1, ctypes.create_string_buffer(256)))),
    }


def try_processes(arguments: dict[str, Any], progress: Progress) -> dict[str, str]:
    """The processes outside: their environment, memory, descriptors, and signals to them."""
    libc = ctypes.CDLL(None, use_errno=True)
    caller, supervisor = arguments["caller"], os.getppid()
    token = arguments["token"].encode()

    def environments() -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    content = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if token in content:
                    found.append(entry.name)
        if not found:
            raise OSError(0, "no environment has it")
        return found

    return {
        "environment": tried(environments),
        "memory": tried(lambda: Path(f"/proc/{caller}/mem").open("rb").read(1)),
        "a descriptor": tried(lambda: os.readlink(f"/proc/{caller}/fd/0")),
        "ptrace": tried(lambda: checked(libc.ptrace(PTRACE_ATTACH, caller, None, None))),
        "ptrace of the supervisor": tried(
            lambda: checked(libc.ptrace(PTRACE_ATTACH, supervisor, None, None))
        ),
        "limits": tried(lambda: resource.prlimit(caller, resource.RLIMIT_CORE, (0, 0))),
        "own limits": tried(lambda: resource.prlimit(0, resource.RLIMIT_CORE)).removeprefix(GOT),
        "keys": tried(lambda: checked(libc.syscall(KEYCTL, 0, -3, 0))),
        "signal": tried(lambda: os.kill(caller, 0)),
        "signal to the supervisor": tried(lambda: _killed(supervisor)) if arguments["kill"] else "",
        "own capabilities": _capabilities("/proc/self/status"),
        "capabilities of a program it starts": subprocess.run(
            ["grep", "CapEff", "/proc/self/status"], capture_output=True, text=True, check=True
        ).stdout.split()[1],
        "user namespaces": Path("/proc/sys/user/max_user_namespaces").read_text().strip(),
        "pids": Path("/proc/sys/kernel/pid_max").read_text().strip(),
        "processes": ",".join(
            sorted(entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit())
        ),
    }


def _killed(pid: int) -> str:
    """Kill a process; whether it is gone after that."""
    import signal
    import time

    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    os.kill(pid, 0)
    raise OSError(0, "it lives on")


def _capabilities(path: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("CapEff"))


def read(arguments: dict[str, Any], progress: Progress) -> dict[str, str]:
    """What each path gives: its text, the names in it, or the error."""

    def content(path: str) -> Any:
        return sorted(os.listdir(path)) if os.path.isdir(path) else Path(path).read_text()[:50]

    return {path: tried(lambda path=path: content(path)) for path in arguments["paths"]}  # type: ignore[misc]


def named(arguments: dict[str, Any], progress: Progress) -> list[str]:
    """Those of the paths that have a name here, readable or not."""
    return [path for path in arguments["paths"] if os.path.lexists(path)]


def write(arguments: dict[str, Any], progress: Progress) -> dict[str, str]:
    """Write a file into each folder."""
    return {folder: tried(partial(Path(folder, "new").write_text, "x")) for folder in arguments["paths"]}


def shared_memory(arguments: dict[str, Any], progress: Progress) -> list[str]:
    """A lock and a queue between processes, as libraries make them; what /dev/shm holds."""
    import multiprocessing

    with multiprocessing.Lock():
        return sorted(os.listdir("/dev/shm"))

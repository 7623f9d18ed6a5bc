"""What the tests of isolation call in the child."""

import contextlib
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchsplit_core.isolation.sandbox import current_sandbox
from torchsplit_core.values import InputFault, InternalFault, Progress

RESOURCES = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CORE")


def echo(arguments: dict[str, Any], progress: Progress) -> Any:
    progress(0.5, "half")
    print("chatter on standard output")
    return {"got": arguments, "cwd": str(Path.cwd()), "files": [str(p) for p in Path().iterdir()]}


def environment(arguments: dict[str, Any], progress: Progress) -> dict[str, str]:
    return dict(os.environ)


def surroundings(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Where a child finds itself, without what differs from one to the next."""
    own = str(Path.cwd().parent)
    return {
        "torch": "torch" in sys.modules,
        "environment": {name: value.replace(own, "ROOM") for name, value in os.environ.items()},
        "path": list(dict.fromkeys(entry.replace(own, "ROOM") for entry in sys.path)),
        "descriptors": [number for number in range(1000) if _is_open(number)],
        "arguments": len(sys.argv),
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "folder": Path.cwd().name,
        "level": current_sandbox.level,
        "limits": [resource.getrlimit(getattr(resource, name)) for name in RESOURCES],
        "unbuffered": getattr(sys.stdout, "write_through", None),
    }


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def fault(arguments: dict[str, Any], progress: Progress) -> None:
    raise InputFault("somewhere", "has {'a': \"it's\"}", "The remedy.")


def internal(arguments: dict[str, Any], progress: Progress) -> None:
    raise InternalFault("a promise")


def error(arguments: dict[str, Any], progress: Progress) -> None:
    raise KeyError("missing thing")


def chained(arguments: dict[str, Any], progress: Progress) -> None:
    try:
        error(arguments, progress)
    except KeyError as why:
        raise RuntimeError("what failed because of it") from why


def leave(arguments: dict[str, Any], progress: Progress) -> None:
    sys.exit("farewell")


def crash(arguments: dict[str, Any], progress: Progress) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def forever(arguments: dict[str, Any], progress: Progress) -> None:
    """Starts a process with the mark, then never ends."""
    sleeper(arguments["mark"])
    progress(0.1, "started")
    while True:
        time.sleep(1)


def spin(arguments: dict[str, Any], progress: Progress) -> None:
    while True:
        pass


def hoard(arguments: dict[str, Any], progress: Progress) -> int:
    return len(bytearray(arguments["bytes"]))


def write(arguments: dict[str, Any], progress: Progress) -> None:
    Path("big").write_bytes(bytes(arguments["bytes"]))


def open_many(arguments: dict[str, Any], progress: Progress) -> None:
    [os.open("/dev/null", os.O_RDONLY) for _ in range(arguments["count"])]


def lie(arguments: dict[str, Any], progress: Progress) -> None:
    """Writes what is not in the agreed form to the answers' pipe."""
    os.write(int(sys.argv[1]), arguments["line"].encode() + b"\n")
    time.sleep(5)


def sleeper(mark: str, **options: Any) -> subprocess.Popen[bytes]:
    """A process that sleeps and can be found by its mark."""
    return subprocess.Popen([mark, "1000"], executable="/bin/sleep", **options)


def daemon(arguments: dict[str, Any], progress: Progress) -> str:
    """Answers, and leaves a process behind that holds the pipes open."""
    sleeper(arguments["mark"], close_fds=False)
    return "left one"


def pieces(arguments: dict[str, Any], progress: Progress) -> Iterator[list[int]]:
    """Parts, with progress between them; the last of them may fail."""
    for number in range(arguments["count"]):
        progress(number / arguments["count"], "a part")
        yield [number] * 50_000
    if arguments.get("fail"):
        raise InputFault("the last part", "is missing", "Mend it.")


def large(arguments: dict[str, Any], progress: Progress) -> list[int]:
    return list(range(300_000))


def hang_after_error(arguments: dict[str, Any], progress: Progress) -> None:
    """Raises while a thread of its own goes on for ever."""
    threading.Thread(target=time.sleep, args=(1000,)).start()
    raise ValueError("with a thread left")


def silent_after(arguments: dict[str, Any], progress: Progress) -> Iterator[int]:
    """Three parts, each well within the time a child may be silent, then a sleep that is not."""
    for number in range(3):
        yield number
        time.sleep(arguments["gap_s"])
    time.sleep(1000)


def read_elsewhere(arguments: dict[str, Any], progress: Progress) -> str:
    return Path(arguments["path"]).read_text()


def look_up(arguments: dict[str, Any], progress: Progress) -> None:
    """Ask for an address, as a download does."""
    socket.getaddrinfo("example.com", 80)


def daemons(arguments: dict[str, Any], progress: Progress) -> Iterator[str]:
    """Leaves processes behind in every way there is to leave a parent, then ends in the way that is asked for."""
    mark = arguments["mark"]
    sleeper(mark)
    sleeper(mark, start_new_session=True)
    if os.fork() == 0:  # a daemon by the book: a session of its own, and no parent
        os.setsid()
        if os.fork():
            os._exit(0)
        for descriptor in range(3, 64):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        sleeper(mark, start_new_session=True).wait()
        os._exit(0)
    while len(_marked(mark)) < 3:
        time.sleep(0.01)
    progress(0.5, "they run")
    yield "three of them"
    end = arguments["end"]
    if end == "fault":
        raise InputFault("here", "is wrong", "A remedy.")
    if end == "exit":
        os._exit(7)
    if end == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if end == "wait":
        time.sleep(1000)


def _marked(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
    return found


def crowd(arguments: dict[str, Any], progress: Progress) -> int:
    """So many processes, or threads, at once; 0.05 s apart where asked, for the count to see them come."""
    for _ in range(arguments["count"]):
        if arguments["threads"]:
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        elif os.fork() == 0:
            time.sleep(1000)
            os._exit(0)
    time.sleep(arguments["stay_s"])
    return int(arguments["count"])


def hoard_together(arguments: dict[str, Any], progress: Progress) -> int:
    """Memory of `processes` processes: each its own, or one region that all share; or files in memory."""
    size = int(arguments["bytes"])
    if arguments["kind"] == "shared":
        held = bytearray(size)
        for place in range(0, size, 4096):
            held[place] = 1
    for _ in range(arguments["processes"]):
        if os.fork() == 0:
            if arguments["kind"] == "own":
                own = mmap.mmap(-1, size)
                for place in range(0, size, 4096):
                    own[place] = 1
            if arguments["kind"] == "nameless":
                with open(os.memfd_create("hidden"), "wb", closefd=False) as file:
                    file.write(bytes(size))
            time.sleep(1000)
            os._exit(0)
    time.sleep(arguments["stay_s"])
    return size


def fill(arguments: dict[str, Any], progress: Progress) -> str:
    """Files of 1 MiB: in folders, in one that may not be listed, without a name; or very many empty ones."""
    kind = arguments["kind"]
    kept = []
    for number in range(arguments["count"]):
        folder = Path(f"folder{number}")
        folder.mkdir()
        if kind == "empty":
            for name in range(100):
                (folder / str(name)).touch()
            continue
        with (folder / "file").open("wb") as file:
            file.write(os.urandom(2**20))
            kept.append(os.dup(file.fileno()))
        if kind == "nameless":
            (folder / "file").unlink()
        if kind == "closed":
            folder.chmod(0)
    time.sleep(arguments["stay_s"])
    return "written"


def nest(arguments: dict[str, Any], progress: Progress) -> str:
    """Folders in folders, deeper than any path is long, the last with a mode that forbids everything."""
    for _ in range(arguments["levels"]):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    os.mkdir("closed", 0)
    os.symlink("/", "root")
    time.sleep(arguments["stay_s"])
    return "nested"


def say(arguments: dict[str, Any], progress: Progress) -> None:
    """Control characters on every way to a person."""
    progress(0.5, arguments["text"])
    os.write(1, arguments["text"].encode(errors="surrogatepass") + b"\n")
    if arguments["how"] == "fault":
        raise InputFault(*[arguments["text"]] * 3)
    if arguments["how"] == "error":
        raise ValueError(arguments["text"])
    os._exit(1)


def own_level(arguments: dict[str, Any], progress: Progress) -> str:
    return current_sandbox.level

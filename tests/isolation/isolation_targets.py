"""What the tests of isolation call in the child."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchsplit_core.values import InputFault, InternalFault, Progress


def echo(arguments: dict[str, Any], progress: Progress) -> Any:
    progress(0.5, "half")
    print("chatter on standard output")
    return {"got": arguments, "cwd": str(Path.cwd()), "files": [str(p) for p in Path().iterdir()]}


def environment(arguments: dict[str, Any], progress: Progress) -> dict[str, str]:
    return dict(os.environ)


def fault(arguments: dict[str, Any], progress: Progress) -> None:
    raise InputFault("somewhere", {"a": "it's"}, "the rule", "The remedy.")


def internal(arguments: dict[str, Any], progress: Progress) -> None:
    raise InternalFault("a promise")


def error(arguments: dict[str, Any], progress: Progress) -> None:
    raise KeyError("missing thing")


def leave(arguments: dict[str, Any], progress: Progress) -> None:
    sys.exit("farewell")


def crash(arguments: dict[str, Any], progress: Progress) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def forever(arguments: dict[str, Any], progress: Progress) -> None:
    """Leaves its own and a grandchild's process id behind, then never ends."""
    grandchild = subprocess.Popen(["sleep", "1000"])
    Path(arguments["pids"]).write_text(json.dumps([os.getpid(), grandchild.pid]))
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


def daemon(arguments: dict[str, Any], progress: Progress) -> int:
    """Answers, and leaves a process behind that holds the pipes open."""
    return subprocess.Popen(["sleep", "1000"], close_fds=False).pid


def pieces(arguments: dict[str, Any], progress: Progress) -> Iterator[list[int]]:
    """Parts, with progress between them; the last of them may fail."""
    for number in range(arguments["count"]):
        progress(number / arguments["count"], "a part")
        yield [number] * 50_000
    if arguments.get("fail"):
        raise InputFault("the last part", 7, "every part is there", "Mend it.")


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
        time.sleep(1.0)
    time.sleep(60)

"""Try the namespaces as a child would enter them; print {"refused": why}, empty if they work.

Run as `python -P -m torchsplit_core.isolation.sandbox.probe FOLDER`, an empty folder that the caller removes.
"""

from __future__ import annotations

import json
import os
import sys

from torchsplit_core.isolation.sandbox import namespaces
from torchsplit_core.isolation.sandbox.access import SYSTEM, SYSTEM_DEVICES
from torchsplit_core.values import system_reason


def main() -> None:
    """Enter namespaces, build a tree, check it, and print the answer."""
    read_end, write_end = os.pipe()
    try:
        namespaces.enter()
        init_pid = os.fork()
        if init_pid == 0:
            os.write(write_end, _try_tree(sys.argv[1]).encode())
            os._exit(0)
        os.waitpid(init_pid, 0)
        os.close(write_end)
        refused = os.read(read_end, 4096).decode(errors="replace") or "their first process died"
    except OSError as error:
        refused = system_reason(error)
    print(json.dumps({"refused": refused.strip()}))


def _try_tree(folder: str) -> str:
    """ " " if the tree was built, else why it was not."""
    try:
        namespaces.build_tree(folder, SYSTEM, (), SYSTEM_DEVICES, shared_bytes=2**20, tasks=None)
        others = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    except OSError as error:
        return system_reason(error)
    return f"processes outside are seen ({len(others)})" if others else " "


if __name__ == "__main__":
    main()

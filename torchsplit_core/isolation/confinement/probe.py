"""Try the namespaces as a child would enter them; print {"refused": why}, empty where they work.

Run as `python -P -m torchsplit_core.isolation.confinement.probe FOLDER`, an empty folder that the caller removes.
"""

from __future__ import annotations

import json
import os
import sys

from torchsplit_core.isolation.confinement import namespaces
from torchsplit_core.isolation.confinement.access import SYSTEM, SYSTEM_DEVICES
from torchsplit_core.values import system_reason


def main() -> None:
    """Enter, build a tree, look at it; the answer on standard output."""
    hearing, telling = os.pipe()
    try:
        namespaces.enter()
        first = os.fork()
        if first == 0:
            os.write(telling, _tried(sys.argv[1]).encode())
            os._exit(0)
        os.waitpid(first, 0)
        os.close(telling)
        refused = os.read(hearing, 4096).decode(errors="replace") or "their first process died"
    except OSError as error:
        refused = system_reason(error)
    print(json.dumps({"refused": refused.strip()}))


def _tried(folder: str) -> str:
    """ " " where the tree stands, else why it does not."""
    try:
        namespaces.build_tree(folder, SYSTEM, (), SYSTEM_DEVICES, shared_bytes=2**20, tasks=None)
        others = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    except OSError as error:
        return system_reason(error)
    return f"processes outside are seen ({len(others)})" if others else " "


if __name__ == "__main__":
    main()

"""What the server's process does beside the pages: it loads them ahead, and looks for garbage where nobody waits.

Streamlit would look for garbage after each run, also after those that only look how far a job is, and the next run
waits for it: longer than most runs take (`runner.postScriptGC` in .streamlit/config.toml is off).
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
import threading
import time
from pathlib import Path

from torchsplit_core import jobs

COLLECT_S = 30.0
"""Seconds between two looks for garbage of every age, at the end of a page's run; new garbage goes as it is made."""
DELAY_S = 1.0
"""After the first page: its browser draws it now, and would share the cores."""
PROGRAMS = ("app.main", "app.server")
_enabled, _started = threading.Event(), threading.Event()
_collected_at = time.monotonic()


def enable() -> None:
    """This process serves pages to browsers, so `start_once` has something to do."""
    _enabled.set()


def start_once() -> None:
    """Once, when a server's first page stands: have jobs' processes prepared, and every other page's modules loaded."""
    if _enabled.is_set() and not _started.is_set():
        _started.set()
        threading.Thread(target=_preload, daemon=True, name="loads ahead").start()


def _preload() -> None:
    time.sleep(DELAY_S)
    jobs.prepare()
    for module in pkgutil.walk_packages([str(Path(__file__).parent)], "app."):
        if module.name not in PROGRAMS:
            importlib.import_module(module.name)
    from torchsplit_core.jobs.quick_start import library_files

    library_files()
    # Modules are no garbage: from here on none of them is looked at again.
    gc.collect()
    gc.freeze()


def collect_garbage() -> None:
    """Look for garbage, unless that was done a moment ago."""
    global _collected_at
    if time.monotonic() - _collected_at > COLLECT_S:
        _collected_at = time.monotonic()
        gc.collect()

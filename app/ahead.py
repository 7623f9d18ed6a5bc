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

TIDY_S = 30.0
"""Seconds between two looks for garbage of every age, at the end of a page's run; new garbage goes as it is made."""
BEGIN_S = 1.0
"""After the first page: its browser draws it now, and would share the cores."""
PROGRAMS = ("app.main", "app.server")
_served, _began = threading.Event(), threading.Event()
_tidied = time.monotonic()


def serve() -> None:
    """This process serves pages to browsers: `begin` has something to begin."""
    _served.set()


def begin() -> None:
    """Once, when a server's first page stands: have jobs' processes prepared, and every other page's modules loaded."""
    if _served.is_set() and not _began.is_set():
        _began.set()
        threading.Thread(target=_load, daemon=True, name="loads ahead").start()


def _load() -> None:
    time.sleep(BEGIN_S)
    jobs.prepare()
    for module in pkgutil.walk_packages([str(Path(__file__).parent)], "app."):
        if module.name not in PROGRAMS:
            importlib.import_module(module.name)
    from torchsplit_core.jobs.quick_start import library_files

    library_files()
    # Modules are no garbage: from here on none of them is looked at again.
    gc.collect()
    gc.freeze()


def tidy() -> None:
    """Look for garbage, unless that was done a moment ago."""
    global _tidied
    if time.monotonic() - _tidied > TIDY_S:
        _tidied = time.monotonic()
        gc.collect()

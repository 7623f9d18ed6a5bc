"""What the server's process does beside the pages: it imports them ahead, and collects garbage now and then.

Streamlit would collect after each run, even of a fragment that only polls a job, and the next run would wait for that
longer than most runs take. So `runner.postScriptGC` in .streamlit/config.toml is off.
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
"""Seconds between two full collections, each at the end of a run; young garbage is collected as it arises."""
DELAY_S = 1.0
"""Seconds after the first page, whose browser draws it now and would share the cores."""
PROGRAMS = ("app.main", "app.server")
_enabled, _started = threading.Event(), threading.Event()
_collected_at = time.monotonic()


def enable() -> None:
    """Declare that this process serves pages to browsers, so that `start_once` preloads."""
    _enabled.set()


def start_once() -> None:
    """Once the server's first page is drawn, prepare the processes of jobs and import every other page's modules."""
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
    # Modules are no garbage: the collector skips them from now on.
    gc.collect()
    gc.freeze()


def collect_garbage() -> None:
    """Collect garbage, unless that was done within COLLECT_S."""
    global _collected_at
    if time.monotonic() - _collected_at > COLLECT_S:
        _collected_at = time.monotonic()
        gc.collect()

"""Locates what ships with the core but is not part of it: the dashboard, its pages, the samples, the guides.

In a checkout they lie beside the core. A wheel carries them in a folder of the core (setup.py copies them there), so
that `torchsplit_core` is the one name it puts into an environment.
"""

from __future__ import annotations

import importlib
import os
import site
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

FOLDER = "_bundle"
"""Of a wheel, in the core; a checkout has none."""
CORE = Path(__file__).resolve().parent


@cache
def root() -> Path:
    """The folder of `app`, `pages`, `sample_models`, `.streamlit`, `docs` and `examples`."""
    bundled = CORE / FOLDER
    return bundled if bundled.is_dir() else CORE.parent


def python_path() -> str:
    """PYTHONPATH for a Python that imports the core and what `root` holds; what stands there already comes last."""
    installed = {Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())}
    # Python finds these by itself, after its own modules. Before them, a package there could take a name of theirs.
    core = [] if CORE.parent in installed else [str(CORE.parent)]
    existing = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(dict.fromkeys([*core, str(root()), *existing]))


def sample_models() -> ModuleType:
    """The package of the samples, found wherever it lies."""
    if str(root()) not in sys.path:
        sys.path.append(str(root()))
    return importlib.import_module("sample_models")

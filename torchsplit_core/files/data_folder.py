"""Where a user's data is."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """TORCHSPLIT_HOME, or the user's data folder."""
    home = os.environ.get("TORCHSPLIT_HOME")
    if home:
        return Path(home)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "torchsplit"

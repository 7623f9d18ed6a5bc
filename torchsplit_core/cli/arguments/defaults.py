"""Defaults of a site: the fleet and the time limit, from the environment or a `torchsplit.toml`.

Options of the command line override `TORCHSPLIT_GPUS` and `TORCHSPLIT_TIME_LIMIT`, and these override the file: the one
that `TORCHSPLIT_CONFIG` names, else `torchsplit.toml` in the current folder.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from torchsplit_core.values import InputFault, suggestion
from torchsplit_core.values.errors import quoted

CONFIG_FILE = "torchsplit.toml"
KEYS = ("gpus", "time_limit")


def default_gpus() -> tuple[str, str] | None:
    """The fleet, and where it is set; None if it is not. Raises InputFault."""
    if setting := os.environ.get("TORCHSPLIT_GPUS"):
        return setting, "TORCHSPLIT_GPUS"
    where, table = _read_config()
    if "gpus" not in table:
        return None
    if not isinstance(table["gpus"], str) or not table["gpus"].strip():
        raise InputFault(
            f"{where}: gpus", f"is {quoted(table['gpus'])}, not a fleet", 'Write for example "2xA100-80GB".'
        )
    return table["gpus"], where


def default_time_limit() -> float | None:
    """The time limit in seconds; None if it is not set. Raises InputFault."""
    where = "TORCHSPLIT_TIME_LIMIT"
    given: object = os.environ.get(where)
    if not given:
        file, table = _read_config()
        where, given = f"{file}: time_limit", table.get("time_limit")
    if given is None:
        return None
    try:
        seconds = math.nan if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputFault(where, f"is {quoted(given)}, not seconds above 0", "Write for example 30.")
    return seconds


def _read_config() -> tuple[str, dict[str, Any]]:
    """The name and the table of the configuration file. Raises InputFault."""
    import tomllib

    configured = os.environ.get("TORCHSPLIT_CONFIG")
    path = Path(configured or CONFIG_FILE)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not configured:
            return CONFIG_FILE, {}
        raise InputFault(
            "TORCHSPLIT_CONFIG", f"there is no file {quoted(configured)}", "Check the path, or unset it."
        ) from None
    except OSError as error:
        raise InputFault(str(path), f"cannot be read: {error.strerror}", "Check the file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputFault(str(path), f"is not TOML: {error}", "Mend the line that it names.") from None
    for key in table:
        if key not in KEYS:
            raise InputFault(str(path), f"has the unknown key {quoted(key)}", suggestion(key, KEYS, "keys"))
    return str(path), table

"""Which of the three isolation levels this machine offers, probed once, and a description of each."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from torchsplit_core.bundle import python_path
from torchsplit_core.isolation.sandbox import landlock, seccomp
from torchsplit_core.isolation.sandbox.temp_dirs import private_temp_dir
from torchsplit_core.values import InputFault, quoted, suggestion

LEVEL_VARIABLE = "TORCHSPLIT_ISOLATION"
"""Environment variable: the level to use. If this machine does not offer it, that is a fault; none replaces it."""
LevelName = Literal["namespaces", "landlock", "limits"]
NAMES: tuple[LevelName, ...] = ("namespaces", "landlock", "limits")
PROBE_S = 30.0


@dataclass(frozen=True, slots=True)
class IsolationLevel:
    """What confines a model's code. `text` is a sentence for users: what is confined and what is not."""

    name: LevelName
    text: str
    landlock_abi: int
    sockets_held: bool


@dataclass(frozen=True, slots=True)
class Availability:
    """What the kernel lets this user do. `refused`: why there are no namespaces, empty if there are. `sockets_held`:
    whether it accepts a system-call filter, above all on sockets."""

    refused: str
    landlock_abi: int
    sockets_held: bool


def isolation_level() -> IsolationLevel:
    """The best level of this machine, or the one that TORCHSPLIT_ISOLATION names.

    Raises InputFault if the variable names no level, or one that this machine does not offer.
    """
    availability = probe_availability()
    wanted = os.environ.get(LEVEL_VARIABLE, "").strip()
    available = levels_in(availability)
    if not wanted:
        return _level(available[0], availability)
    for name in NAMES:
        if name == wanted:
            if name not in available:
                why = (
                    availability.refused
                    if name == "namespaces"
                    else "the kernel offers no Landlock to this process"
                )
                raise InputFault(
                    LEVEL_VARIABLE,
                    f"is {name}, which this machine does not offer: {why}",
                    f"Unset it, or ask for {available[0]}.",
                )
            return _level(name, availability)
    raise InputFault(
        LEVEL_VARIABLE,
        f"unknown level {quoted(wanted)}",
        f"{suggestion(wanted, NAMES, 'levels')} Unset it to get the best there is.",
    )


def available_levels() -> tuple[LevelName, ...]:
    """The levels this machine offers, best first."""
    return levels_in(probe_availability())


def levels_in(availability: Availability) -> tuple[LevelName, ...]:
    """The levels that are available, best first."""
    offered: dict[LevelName, bool] = {
        "namespaces": not availability.refused,
        "landlock": availability.landlock_abi > 0,
        "limits": True,
    }
    return tuple(name for name, is_offered in offered.items() if is_offered)


@functools.cache
def probe_availability() -> Availability:
    """Probe in a separate process, because a process cannot leave namespaces again."""
    if not sys.platform.startswith("linux"):
        return Availability("they are Linux's", 0, False)
    try:
        with private_temp_dir() as folder:
            completed = subprocess.run(
                [sys.executable, "-P", "-m", "torchsplit_core.isolation.sandbox.probe", str(folder)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_S,
                env={"PYTHONPATH": python_path(), "PATH": os.environ.get("PATH", "")},
                check=False,
            )
        report = json.loads(completed.stdout)
        refused = str(report["refused"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        refused = f"the trial of namespaces failed ({type(error).__name__})"
    return Availability(refused, landlock.abi(), seccomp.available())


def _level(name: LevelName, availability: Availability) -> IsolationLevel:
    text = {"namespaces": _describe_namespaces, "landlock": _describe_landlock, "limits": _describe_limits}[
        name
    ](availability)
    abi = availability.landlock_abi if name != "limits" else 0
    return IsolationLevel(name, text, abi, availability.sockets_held and name != "limits")


def _describe_namespaces(availability: Availability) -> str:
    held = " and Landlock" if availability.landlock_abi else ""
    more = "" if availability.sockets_held else "sockets to the host of a virtual machine (vsock), "
    return (
        f"The code of a model runs in namespaces{held}: it sees its own folder, Python and what it was given, has no "
        "network, sees no other process, and all that it starts ends with it. "
        f"Not held: {more}faults of the kernel and of GPU drivers, and what can be guessed from time and load."
    )


def _describe_landlock(availability: Availability) -> str:
    missing = landlock.missing_protections(availability.landlock_abi, sockets_held=availability.sockets_held)
    more = (
        f" This kernel's Landlock (ABI {availability.landlock_abi}) does not hold {', '.join(missing)}."
        if missing
        else ""
    )
    if availability.sockets_held:
        network, outside = ", has no network", ""
    else:
        network = ", opens no TCP connection" if availability.landlock_abi >= 4 else ""
        outside = "UDP, named sockets of other programs, "
    return (
        "The code of a model is held by Landlock: it reads and writes its own folder, Python and what it was "
        f"given{network}, and what it starts is ended with it. Not held: {outside}names, modes and times of your "
        "files, command lines of your processes, processes started faster than they can be ended, faults of the "
        f"kernel and of GPU drivers.{more} No namespaces: {availability.refused or 'not asked for'}."
    )


def _describe_limits(availability: Availability) -> str:
    why = f" No namespaces: {availability.refused}." if availability.refused else ""
    return (
        "Limits alone hold the code of a model: time, memory, processes and bytes of files, and what it starts is "
        "ended with it. It can read and change what you can, and use the network: only run what you would run "
        f"yourself.{why}{'' if availability.landlock_abi else ' No Landlock.'}"
    )

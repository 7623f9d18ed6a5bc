"""Replace every number of every example file by numbers that break arithmetic.

Either the file is read and its command answers, or there is one message (InputFault); anything else is a fault of the
program. `faults()` finds them; a test runs it on one leaf of each kind, `python -m benchmarks.nasty_numbers` on every
leaf.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchsplit_core import workflow
from torchsplit_core.deployment import FORMATS, deploy
from torchsplit_core.deployment.launch_commands import launch_commands
from torchsplit_core.files import read_file, read_text, write_text
from torchsplit_core.graph.preparation.prepare import prepare
from torchsplit_core.partitioning.solve import solve_partition
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.planning.request.fleet_text import parse_fleet
from torchsplit_core.values import InputFault

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TIME_LIMIT_S = 0.3
MARK = '"the number"'
"""Placeholder for the number in the text, since json.dumps would not write some of the numbers."""

NASTY = {
    "tiny": "1e-320",
    "small": "1e-10",
    "huge": "1e308",
    "infinite": "1e999",
    "minus zero": "-0.0",
    "minus one": "-1",
    "five thousand digits": "1" + "0" * 5000,
    "three thousand digits": "1" + "0" * 3000,
    "2^53": str(2**53),
    "2^63 - 1": str(2**63 - 1),
    "2^64": str(2**64),
    "not a number": "NaN",
    "true": "true",
    "a text": '"1"',
    "null": "null",
    "a list": "[1]",
}


@dataclass(frozen=True)
class Fault:
    """A result other than a value or an InputFault."""

    format: str
    leaf: str
    number: str
    error: str


def _quick(request: Any) -> Any:
    limit = min(request.solver.time_limit_s, TIME_LIMIT_S)
    return replace(request, solver=replace(request.solver, time_limit_s=limit))


def _requested(profile: Any) -> None:
    write_text(build_request([profile], parse_fleet("1xA100-80GB")))


ASKED = read_file(EXAMPLES / "placement_request.json")[1]
"""The request of the example placement."""

USES: Mapping[str, Callable[[Any], object]] = {
    "torchsplit.graph": prepare,
    "torchsplit.profile": _requested,
    "torchsplit.plan_request": lambda value: workflow.plan(_quick(value)),
    "torchsplit.plan": lambda value: deploy(value, FORMATS),
    "torchsplit.partition_request": lambda value: solve_partition(_quick(value)),
    "torchsplit.placement_request": lambda value: workflow.place(_quick(value)),
    "torchsplit.simulation_request": workflow.simulate,
    "torchsplit.placement": lambda value: launch_commands(ASKED, value),
}
"""Format → what its command does with the value; files of other formats are read and written again."""


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of all numbers."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from leaves(item, (*path, place))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def _kind(path: tuple[str | int, ...]) -> str:
    return re.sub(r"\.\d+", ".*", ".".join(map(str, path)))


def _with_mark(data: Any, path: tuple[str | int, ...]) -> str:
    changed = json.loads(json.dumps(data))
    place = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = json.loads(MARK)
    return json.dumps(changed)


def faults(file: Path, *, every_leaf: bool) -> Iterator[Fault | None]:
    """For each try, None if it ended as it should, else a Fault. Tries one leaf of each kind unless `every_leaf`."""
    data = json.loads(file.read_text())
    seen: set[str] = set()
    for path in leaves(data):
        if path == ("version",) or (_kind(path) in seen and not every_leaf):
            continue
        seen.add(_kind(path))
        text = _with_mark(data, path)
        for name, number in NASTY.items():
            yield _tried(data["format"], ".".join(map(str, path)), name, text.replace(MARK, number, 1))


def _tried(name: str, leaf: str, number: str, text: str) -> Fault | None:
    try:
        value = read_text(text)[1]
        write_text(value)
        USES.get(name, lambda _: None)(value)
    except InputFault as fault:
        if len(str(fault)) > 2000:
            return Fault(name, leaf, number, f"a message of {len(str(fault))} characters")
    except Exception as error:  # noqa: BLE001 - any exception is a fault
        return Fault(name, leaf, number, f"{type(error).__name__}: {str(error)[:200]}")
    return None


def main() -> int:
    """Try every leaf of every example; return 1 if there was a fault."""
    tries, found = 0, []
    for file in sorted(EXAMPLES.rglob("*.json")):
        for fault in faults(file, every_leaf=True):
            tries += 1
            if fault is not None:
                found.append(fault)
                print(f"{file.name}: {fault}", flush=True)
    print(f"{tries} tries, {len(found)} faults")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

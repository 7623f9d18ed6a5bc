"""States of hosts as arguments: what runs now."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from torchsplit_core import files
from torchsplit_core.files.contract import origin_of
from torchsplit_core.values import FleetEntry, HostState, InputFault, PlanRequest


def current_option(parser: argparse.ArgumentParser) -> None:
    """Add `--current`."""
    parser.add_argument(
        "--current",
        metavar="STATE",
        help="what runs on the fleet now: a host state (torchsplit capture), or an earlier plan outcome",
    )


def with_current(request: PlanRequest, options: argparse.Namespace) -> PlanRequest:
    """The request from the state of `--current`; prints a note if it is given. Raises InputFault."""
    if options.current is None:
        return request
    origin = origin_of(options.current)
    print(f"note: planned from {origin}, so this answers the request with current", file=sys.stderr)
    return replace(request, current=read_state_file(options.current))


def read_state_file(path: str) -> HostState:
    """A host state, or that of an earlier plan outcome. Raises InputFault."""
    from torchsplit_core.transition import read_state

    name, value = files.read_file(path)
    if name not in ("torchsplit.host_state", "torchsplit.plan"):
        raise InputFault(
            path,
            f"is a {name} file, not a state",
            "Pass a host state (torchsplit capture) or a plan outcome.",
        )
    return read_state(value, path)


def fleet_of(state: HostState) -> tuple[FleetEntry, ...]:
    """The GPUs of a state as a fleet: their ids, and the host before the last slash as node."""
    return tuple(FleetEntry(gpu.type, gpu.id, node=gpu.id.rpartition("/")[0] or None) for gpu in state.gpus)

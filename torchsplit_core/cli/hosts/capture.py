"""The command capture: the state of a host's GPUs, by the driver or from texts, and the program that a site runs."""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core import files
from torchsplit_core.cli.common import Command, Options, write_outcome
from torchsplit_core.values import HostState, InputFault
from torchsplit_core.values.errors import quoted

if TYPE_CHECKING:
    from torchsplit_core.hardware.host_state.from_texts import HostText


def add_capture_command(command: Command, output_options: Options) -> None:
    """Add capture to the command line through its `command(name, run)`."""
    parser = command("capture", _capture)
    parser.add_argument(
        "--smi", metavar="FILE", help="the output of nvidia-smi -L, in place of this host's driver"
    )
    parser.add_argument(
        "--lgi", metavar="FILE", help="the output of nvidia-smi mig -lgi (as root): the starts"
    )
    parser.add_argument("--mig-parted", metavar="FILE", help="the output of nvidia-mig-parted export")
    parser.add_argument(
        "--gpus",
        metavar="TYPE,…",
        help="types of the texts' GPUs in order (8xA100-80GB): no --smi, or unknown names",
    )
    parser.add_argument(
        "--host", metavar="NAME", help="in the GPUs' ids (default: this host's name, with texts none)"
    )
    parser.add_argument(
        "--skip-unknown", action="store_true", help="leave out GPUs that the catalogue does not have"
    )
    parser.add_argument(
        "--script",
        action="store_true",
        help="write instead a Python program that captures a host which has nvidia-smi and no TorchSplit",
    )
    output_options(parser)


def _capture(options: argparse.Namespace) -> int:
    if options.host is not None and (not options.host.strip() or not options.host.isprintable()):
        raise InputFault("--host", f"is {quoted(options.host)}, which names no host", "Give the host's name.")
    if options.script:
        given = [name for name in ("smi", "lgi", "mig_parted", "gpus") if getattr(options, name)]
        if given:
            option = "--" + given[0].replace("_", "-")
            raise InputFault("--script", f"is given with {option}", "Leave one of them out.")
        from torchsplit_core.hardware.host_state.products import site_program

        if options.output:
            files.replace_file(Path(options.output), site_program())
        else:
            sys.stdout.write(site_program())
        return 0
    state = _of_texts(options) if _has_texts(options) else _of_this_host(options)
    write_outcome(state, options)
    instances = sum(len(gpu.instances) for gpu in state.gpus)
    unknown = sum(item.tenants is None for gpu in state.gpus for item in gpu.instances)
    print(
        f"GPUs: {len(state.gpus)}, instances: {instances}, of them with unknown tenants: {unknown}",
        file=sys.stderr,
    )
    return 0


def _has_texts(options: argparse.Namespace) -> bool:
    return any((options.smi, options.lgi, options.mig_parted, options.gpus))


def _of_texts(options: argparse.Namespace) -> HostState:
    from torchsplit_core.hardware.host_state.from_texts import state_of_texts

    if not (options.smi or options.lgi or options.mig_parted):
        raise InputFault("--gpus", "is given without a text", "Add --lgi FILE or --mig-parted FILE.")
    types = None
    if options.gpus is not None:
        from torchsplit_core.planning.request.fleet_text import parse_fleet

        types = [entry.type for entry in parse_fleet(options.gpus) for _ in range(entry.count)]
    paths = (options.smi, options.lgi, options.mig_parted)
    texts = (None if path is None else _text(path) for path in paths)
    return state_of_texts(*texts, types=types, host=options.host, skip_unknown=options.skip_unknown)


def _text(path: str) -> HostText:
    """The listing in a file, or `-`: on standard input."""
    from torchsplit_core.files.contract import STANDARD_NAME, STANDARD_STREAM, standard_input
    from torchsplit_core.hardware.host_state.from_texts import LARGEST_TEXT_BYTES, decode_text, read_text_file

    if path == STANDARD_STREAM:
        return decode_text(standard_input(LARGEST_TEXT_BYTES), STANDARD_NAME)
    return read_text_file(path)


def _of_this_host(options: argparse.Namespace) -> HostState:
    from torchsplit_core.hardware import NvmlFault, open_nvml
    from torchsplit_core.hardware.host_state.from_driver import state_of_driver

    host = socket.gethostname() if options.host is None else options.host
    try:
        with open_nvml() as nvml:
            state, notes = state_of_driver(nvml, host, skip_unknown=options.skip_unknown)
    except NvmlFault as fault:
        remedy = "Run this on a host with GPUs, or name texts of one: --smi FILE --lgi FILE."
        raise InputFault("this host", f"has no driver to ask: {fault.words}", remedy) from fault
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return state

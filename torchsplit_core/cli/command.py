"""The command line: the workflow's functions on files.

Exit codes: 0 done; 1 our own fault; 2 the input is at fault; 3 infeasible, the outcome file
says why; 4 nothing found in the time given.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torchsplit_core import __version__, telemetry
from torchsplit_core.cli.app import add_app_command
from torchsplit_core.cli.arguments.parser import Parser
from torchsplit_core.cli.common import drop_output, readable_too, settled_streams
from torchsplit_core.cli.deploy import add_deploy_commands
from torchsplit_core.cli.evaluate import add_evaluate_command
from torchsplit_core.cli.partition import add_partition_command
from torchsplit_core.cli.place import add_place_command
from torchsplit_core.cli.plan import add_plan_commands
from torchsplit_core.cli.profile import add_profile_command
from torchsplit_core.cli.serving import add_serving_commands
from torchsplit_core.cli.simulate import add_simulate_command
from torchsplit_core.cli.sweep import add_sweep_command
from torchsplit_core.cli.tables import add_commands as add_table_commands
from torchsplit_core.cli.trace import add_trace_commands
from torchsplit_core.cli.training.estimates import add_training_commands
from torchsplit_core.cli.training.runs import add_train_command
from torchsplit_core.values import InputFault, last_cause


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    # numpy's small matrices are several times slower with threads that wait for a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with settled_streams():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        options = _parser().parse_args(arguments)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            telemetry.configure("torchsplit")
            with readable_too(getattr(options, "read", ())):
                status = int(options.run(options))
                # Here, where it can still be said that it could not be written.
                sys.stdout.flush()
                return status
    except InputFault as fault:
        print(f"torchsplit: {fault}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        drop_output()
        return 0
    except KeyboardInterrupt:
        print("torchsplit: stopped", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 - the edge of the program: one line, never a traceback
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            drop_output()
            where = error.filename or "standard output, or the folder for temporary files"
            told = f"{where}: cannot be written: {os.strerror(error.errno).lower()}"
            print(f"torchsplit: {told}. Make room, and run it again.", file=sys.stderr)
            return 2
        if os.environ.get("TORCHSPLIT_DEBUG"):
            traceback.print_exc()
        cause = last_cause(error)
        print(
            f"torchsplit: an internal fault ({type(cause).__name__}: {cause}). "
            "Run again with TORCHSPLIT_DEBUG=1 and report what it prints.",
            file=sys.stderr,
        )
        return 1


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """A warning of ours as one line; a library's warning to its developers is not the user's."""
    if issubclass(category, UserWarning):
        print(f"warning: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="torchsplit",
        description="Trace, profile, partition, plan and deploy PyTorch models on MIG-partitioned GPUs.",
        epilog="SOURCE is sample:NAME (sample:NAME@large for real dimensions), FILE.pt2 (read, never executed) "
        "or FILE.py:NAME (executed, needs --trust).",
    )
    parser.add_argument("--version", action="version", version=f"torchsplit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    def output(made: argparse.ArgumentParser) -> None:
        made.add_argument("-o", "--output", metavar="FILE", help="write here (default: standard output)")
        made.add_argument("--json", action="store_true", help="print the outcome to standard output")

    def trust(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--trust",
            action="store_true",
            help="execute the file: I trust it (isolated as far as this machine allows)",
        )
        made.add_argument(
            "--read",
            action="append",
            default=[],
            metavar="PATH",
            help="a file or folder that the model's code may read, weights for example; may be repeated",
        )

    add_trace_commands(command, trust, output)
    add_profile_command(command, trust, output)
    add_partition_command(command, trust, output)
    add_plan_commands(command, output)
    add_sweep_command(command)
    add_place_command(command, output)
    add_simulate_command(command, output)
    add_serving_commands(command, trust, output)
    add_deploy_commands(command)
    add_evaluate_command(command)
    add_table_commands(command)
    add_training_commands(command, trust, output)
    add_train_command(command)
    add_app_command(command)
    return parser

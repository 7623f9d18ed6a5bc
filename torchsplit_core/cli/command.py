"""The program `torchsplit`: its commands, and how faults end them.

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
from contextlib import nullcontext, redirect_stderr
from functools import partial
from importlib import import_module
from typing import Any

from torchsplit_core import __version__, extras, telemetry
from torchsplit_core.cli.arguments.outputs import output_option
from torchsplit_core.cli.arguments.parser import Parser
from torchsplit_core.cli.common import (
    Command,
    FaultFilter,
    Options,
    allow_reading,
    discard_stdout,
    tolerate_lost_stderr,
)
from torchsplit_core.values import InputFault, last_cause, system_reason


def _output_options(parser: argparse.ArgumentParser) -> None:
    output_option(parser)
    parser.add_argument("--json", action="store_true", help="print the outcome to standard output")


def _trust_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        action="store_true",
        help="execute the file: I trust it (isolated as far as this machine allows)",
    )
    parser.add_argument(
        "--read",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder that the model's code may read, weights for example; may be repeated",
    )


COMMANDS: tuple[tuple[str, tuple[Options, ...], dict[str, str]], ...] = (
    (
        "torchsplit_core.cli.trace:add_trace_commands",
        (_trust_options, _output_options),
        {
            "trace": "export a model to its dataflow graph",
            "draw": "draw a graph file as .svg, or as .dot for Graphviz",
        },
    ),
    (
        "torchsplit_core.cli.profile:add_profile_command",
        (_trust_options, _output_options),
        {"profile": "measure a model on this host and estimate it on every MIG slice"},
    ),
    (
        "torchsplit_core.cli.partition:add_partition_command",
        (_trust_options, _output_options),
        {"partition": "cut a model, or a costed graph, into stages"},
    ),
    (
        "torchsplit_core.cli.plan:add_plan_commands",
        (_output_options,),
        {
            "request": "make a plan request of profiles and a fleet",
            "plan": "choose layouts, slices and shares; the outcome is verified and carries its bound",
        },
    ),
    (
        "torchsplit_core.cli.sweep:add_sweep_command",
        (),
        {"sweep": "plan a request at every value of one parameter; a table of the outcomes"},
    ),
    (
        "torchsplit_core.cli.place:add_place_command",
        (_output_options,),
        {"place": "place a decoder's layers on particular GPUs, with the bound of the best"},
    ),
    (
        "torchsplit_core.cli.llm.size:add_size_command",
        (),
        {"size": "which GPUs, slices or groups serve an LLM at a rate within limits, and how many of them"},
    ),
    (
        "torchsplit_core.cli.llm.profile:add_profile_llm_command",
        (),
        {
            "profile-llm": "measure an LLM's engine on cores of this host: its rate within limits, as points of plans"
        },
    ),
    (
        "torchsplit_core.cli.simulate:add_simulate_command",
        (_output_options,),
        {"simulate": "response times, waits and utilisation of models under load"},
    ),
    (
        "torchsplit_core.cli.serving:add_serving_commands",
        (_trust_options, _output_options),
        {
            "serve": "serve a plan on this host until stopped (Open Inference Protocol v2)",
            "measure": "serve a plan, load it, and set measured beside simulated and planned",
        },
    ),
    (
        "torchsplit_core.cli.deploy:add_deploy_commands",
        (),
        {
            "deploy": "write the files that bring a plan onto GPUs and serve its models there",
            "route": "one address for models whose slices are servers of their own",
        },
    ),
    (
        "torchsplit_core.cli.transition:add_transition_command",
        (_output_options,),
        {
            "transition": "from what runs now to a plan: what stays, which steps, what each model loses meanwhile"
        },
    ),
    (
        "torchsplit_core.cli.hosts.capture:add_capture_command",
        (_output_options,),
        {"capture": "write what stands on a host's GPUs now: MIG instances, their starts, who uses them"},
    ),
    (
        "torchsplit_core.cli.hosts.apply:add_apply_command",
        (),
        {"apply": "change only what differs on this host's GPUs, step by step; nothing without --yes HOST"},
    ),
    (
        "torchsplit_core.cli.evaluate:add_evaluate_command",
        (),
        {
            "evaluate": "plan and simulate the evaluation's mixes in every regime, beside the usual rules; "
            "tables, pictures, a report"
        },
    ),
    (
        "torchsplit_core.cli.tables:add_table_commands",
        (),
        {
            "estimate": "predict rows of a table from measured rows, with 90-percent intervals",
            "import": "make profiles of a CSV table, Triton Model Analyzer or perf_analyzer -f",
            "export": "write the rows of profiles as one CSV table",
        },
    ),
    (
        "torchsplit_core.cli.job_history.command:add_history_command",
        (_output_options,),
        {
            "history": "demand over the day of a site's job history (Slurm, DCGM), as a table or in a plan request"
        },
    ),
    (
        "torchsplit_core.cli.day.windows:add_windows_command",
        (_output_options,),
        {"windows": "cut a trace of demand into windows of the day, in a plan request"},
    ),
    (
        "torchsplit_core.cli.training.estimates:add_training_commands",
        (_trust_options, _output_options),
        {
            "strategy": "find how to train a model on a fleet, without its GPUs",
            "estimate-training": "predict step time and peak memory of trainings without their GPUs",
        },
    ),
    (
        "torchsplit_core.cli.llm.estimates:add_estimate_serving_command",
        (),
        {"estimate-serving": "predict first tokens, time per token and responses of LLM serving from sizes"},
    ),
    (
        "torchsplit_core.cli.training.runs:add_train_command",
        (),
        {"train": "train a model by a strategy, in processes that survive each other"},
    ),
    (
        "torchsplit_core.cli.training.weights:add_weights_command",
        (),
        {"weights": "gather the weights of a training run into one safetensors file"},
    ),
    (
        "torchsplit_core.cli.spans.report:add_trace_report_command",
        (_output_options,),
        {
            "trace-report": "where the time of TorchSplit's work went: tree, critical path and totals of its spans"
        },
    ),
    ("torchsplit_core.cli.app:add_app_command", (), {"app": "start the dashboard"}),
    (
        "torchsplit_core.cli.command:add_completion_command",
        (),
        {"completion": "print what makes Tab complete commands and options in a shell"},
    ),
)
"""For each module: the function that declares its commands, the shared options it takes, and name → help.

A module is loaded when one of its commands is given: `torchsplit --help` loads none, a command only what it needs.
"""


_UNUSABLE = {
    errno.EACCES: "Check the path, and who may use its folder.",
    errno.ENAMETOOLONG: "Shorten the name.",
}
"""What even the question whether a path is there may meet → the remedy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # On a busy machine numpy's small matrices are several times slower with several threads, which wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with tolerate_lost_stderr():
        return _run_command(arguments)


def _run_command(arguments: Sequence[str] | None) -> int:
    try:
        parser = _parser()
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete

            argcomplete.autocomplete(parser)
        options = parser.parse_args(arguments)
        quiet = redirect_stderr(FaultFilter(sys.stderr)) if options.quiet else nullcontext()
        with quiet, warnings.catch_warnings():
            warnings.showwarning = _show_warning
            telemetry.configure("torchsplit")
            with allow_reading(getattr(options, "read", ())):
                status = int(options.run(options))
                # Flush here, where a failed write can still be reported.
                sys.stdout.flush()
                return status
    except InputFault as fault:
        return _print_fault(fault, arguments)
    except BrokenPipeError:
        discard_stdout()
        return 0
    except KeyboardInterrupt:
        print("torchsplit: stopped", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 - the edge of the program: one line, never a traceback
        if missing := extras.missing_package(error):
            return _print_fault(missing, arguments)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            discard_stdout()
            where = error.filename or "standard output, or the folder for temporary files"
            problem = f"{where}: cannot be written: {os.strerror(error.errno).lower()}"
            print(f"torchsplit: {problem}. Make room, and run it again.", file=sys.stderr)
            return 2
        if isinstance(error, OSError) and error.errno in _UNUSABLE and error.filename is not None:
            problem = f"cannot be used: {system_reason(error)}"
            return _print_fault(InputFault(str(error.filename), problem, _UNUSABLE[error.errno]), arguments)
        if os.environ.get("TORCHSPLIT_DEBUG"):
            traceback.print_exc()
        cause = last_cause(error)
        print(
            f"torchsplit: an internal fault ({type(cause).__name__}: {cause}). "
            "Run again with TORCHSPLIT_DEBUG=1 and report what it prints.",
            file=sys.stderr,
        )
        return 1


def _print_fault(fault: InputFault, arguments: Sequence[str] | None) -> int:
    text = f"torchsplit: {fault}"
    if isinstance(fault, extras.MissingPackage):
        text = fault.of_command((sys.argv[1:] if arguments is None else arguments)[0])
    print(text, file=sys.stderr)
    return 2


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a UserWarning as one line; ignore other categories, which address developers."""
    if issubclass(category, UserWarning):
        print(f"warning: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="torchsplit",
        description="Trace, profile, partition, plan and deploy PyTorch models on MIG-partitioned GPUs.",
        epilog="SOURCE is sample:NAME (sample:NAME@large for real dimensions), FILE.pt2 (read, never executed), "
        "FILE.py:NAME (executed, needs --trust), or RUN, RUN@step-N or RUN@best, the folder of a training run.",
    )
    parser.add_argument("--version", action="version", version=f"torchsplit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        subparser: argparse.ArgumentParser = commands.choices[name]
        subparser.set_defaults(run=run)
        subparser.add_argument(
            "-q", "--quiet", action="store_true", help="only warnings and faults on standard error"
        )
        return subparser

    for target, shared, texts in COMMANDS:
        for name, text in texts.items():
            declare = partial(_declare_options, target, command, shared)
            commands.add_parser(name, help=text, description=text, declare=declare)
    return parser


def _declare_options(target: str, command: Command, shared: Sequence[Options]) -> None:
    """Load the module of a command and add the options of its commands."""
    module, _, function = target.partition(":")
    getattr(import_module(module), function)(command, *shared)


def _completion(options: argparse.Namespace) -> int:
    """Print the shell's start-up code for Tab completion of commands and options."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["torchsplit"], shell=options.shell))
    return 0


def add_completion_command(command: Command) -> None:
    """Add completion to the command line through its `command(name, run)`."""
    parser = command("completion", _completion)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads it")

"""What the commands share: progress on standard error, output of outcomes, handling of lost streams."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torchsplit_core import files
from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted

if TYPE_CHECKING:
    from torchsplit_core.graph import TorchGraph
    from torchsplit_core.values.status import SolveStatus

Command = Callable[[str, Callable[[argparse.Namespace], int]], argparse.ArgumentParser]
"""From a command's name, and the function that runs it and returns its exit code, to the parser for its options."""

Options = Callable[[argparse.ArgumentParser], None]
"""Adds options that several commands share."""

EXIT_OF_STATUS: dict[SolveStatus, int] = {"optimal": 0, "feasible": 0, "infeasible": 3, "timeout": 4}
"""Exit codes of the commands that search."""


def engine_option(parser: argparse.ArgumentParser) -> None:
    """Add `--engine`: where the command does its work."""
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="ray: on a node of the Ray cluster that RAY_ADDRESS names, or of the one on this machine",
    )


class LineProgress:
    """Progress on standard error: one line that is rewritten on a terminal, nothing elsewhere."""

    def __init__(self) -> None:
        self.shown = False
        self.live = sys.stderr.isatty()
        self.last, self.note = (0.0, ""), ""

    def __call__(self, share: float, message: str) -> None:
        self.last = share, message
        if self.live:
            text = "; ".join(filter(None, (message, self.note)))
            print(f"\r\033[K{share:4.0%} {text}", end="", file=sys.stderr, flush=True)
            self.shown = True

    def add_note(self, note: str) -> None:
        """Show a note after the current and all later messages."""
        self.note = note
        self(*self.last)

    def end(self) -> None:
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def with_progress(work: Callable[[LineProgress], Any]) -> Any:
    progress = LineProgress()
    try:
        return work(progress)
    finally:
        progress.end()


def write_outcome(value: Any, options: argparse.Namespace, version: int | None = None) -> None:
    """Write to the -o file, and with --json or without -o to standard output; `version` None: the newest."""
    if options.output:
        files.write_file(value, options.output, version)
    if options.json or not options.output:
        sys.stdout.write(files.write_text(value, version))


def print_notes(graph: TorchGraph) -> None:
    """Print the notes of the trace."""
    for note in graph.notes:
        print(f"note: {note}", file=sys.stderr)


@contextmanager
def allow_reading(paths: Sequence[str]) -> Iterator[None]:
    """Allow a model's code to read these paths inside the block (--read). Raises InputFault for a missing path."""
    for path in paths:
        if os.pathsep in path:
            problem = f"the path {quoted(path)} has a {os.pathsep} in it, which cannot be passed on"
            raise InputFault("--read", problem, "Rename the file or folder.")
        if not Path(path).expanduser().exists():
            raise InputFault("--read", f"there is no file or folder {quoted(path)}", "Check the path.")
    if not paths:
        yield
        return
    from torchsplit_core.isolation.sandbox.access import READABLE

    previous = os.environ.get(READABLE)
    absolute = [str(Path(path).expanduser().absolute()) for path in paths]
    os.environ[READABLE] = os.pathsep.join([*([previous] if previous else []), *absolute])
    try:
        yield
    finally:
        os.environ.pop(READABLE)
        os.environ.update({READABLE: previous} if previous is not None else {})


class _LossyWriter(io.FileIO):
    """Discards data that cannot be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


class FaultFilter(io.TextIOBase):
    """Standard error under `--quiet`: passes only lines of warnings and faults."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._partial_line = stream, ""

    def write(self, text: str) -> int:
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        for line in lines:
            if line.startswith(("warning: ", "torchsplit: ")):
                print(line, file=self._stream)
        return len(text)

    def isatty(self) -> bool:
        return False


@contextmanager
def tolerate_lost_stderr() -> Iterator[None]:
    """Discard standard error that cannot be written (full disk, reader gone): a server continues without its log.
    Streams that were closed at the start discard all output.

    A standard error replaced by other code, such as a test, is left alone.
    """
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends, like the stream it replaces
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - likewise
    original = sys.__stderr__
    if original is None or sys.stderr is not original:
        yield
        return
    buffer = io.BufferedWriter(_LossyWriter(original.fileno(), "w", closefd=False))
    sys.stderr = io.TextIOWrapper(buffer, original.encoding, "backslashreplace", line_buffering=True)
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = original


def discard_stdout() -> None:
    """Discard the rest of standard output, now and when Python exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

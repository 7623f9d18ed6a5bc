"""What the commands share: progress on standard error, outcomes to a file or standard output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from torchsplit_core.files import write_file, write_text
from torchsplit_core.graph import TorchGraph


class LineProgress:
    """Progress on standard error: one line that is rewritten on a terminal, a line a step elsewhere."""

    def __init__(self) -> None:
        self.last = ""
        self.live = sys.stderr.isatty()

    def __call__(self, share: float, message: str) -> None:
        if self.live:
            print(f"\r\033[K{share:4.0%} {message}", end="", file=sys.stderr, flush=True)
        elif message != self.last:
            print(f"{share:4.0%} {message}", file=sys.stderr, flush=True)
        self.last = message

    def end(self) -> None:
        if self.live and self.last:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def with_progress(work: Callable[[LineProgress], Any]) -> Any:
    progress = LineProgress()
    try:
        return work(progress)
    finally:
        progress.end()


def hand_over(value: Any, options: argparse.Namespace) -> None:
    """To the -o file, and to standard output with --json or without -o."""
    if options.output:
        write_file(value, options.output)
    if options.json or not options.output:
        sys.stdout.write(write_text(value))


def tell_notes(graph: TorchGraph) -> None:
    """What the user must know of how the graph was made."""
    for note in graph.notes:
        print(f"note: {note}", file=sys.stderr)

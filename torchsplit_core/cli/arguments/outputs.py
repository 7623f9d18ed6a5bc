"""Options that name a file or folder to write; they are checked before any work is done."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted

STANDARD_STREAM = "-"
"""Stands for standard output, as in most commands."""


def output_option(
    parser: argparse.ArgumentParser, text: str = "write here (default, and -: standard output)", **more: Any
) -> None:
    """Add `-o FILE`; None means standard output."""
    parser.add_argument("-o", "--output", action=OutputFile, metavar="FILE", help=text, **more)


def output_or_tokens_option(parser: argparse.ArgumentParser, when: str) -> None:
    """Add `-o FILE`, and `--output FILE|N`: the file too, but `when` so (an option), the tokens of an answer."""
    parser.add_argument(
        "-o", action=OutputFile, dest="output", metavar="FILE", help="write here (default: standard output)"
    )
    parser.add_argument(
        "--output", dest="output_text", metavar="FILE|N", help=f"as -o; with {when}: tokens of an answer"
    )


def read_output_text(options: argparse.Namespace, as_tokens: bool) -> None:
    """Set `output_tokens` of the options to what --output has, or `output` to the file that it names."""
    text, options.output_tokens = options.output_text, None
    if text is None:
        return
    if not as_tokens:
        OutputFile(["--output"], "output")(None, options, text, "--output")
        return
    try:
        options.output_tokens = int(text)
    except ValueError:
        problem = f"is {quoted(text)}, not a whole number of tokens"
        raise InputFault(
            "--output", problem, "Write for example --output 200, and the file after -o."
        ) from None


def output_and_tokens_option(parser: argparse.ArgumentParser) -> None:
    """Add `-o FILE`, and `--output FILE|[NAME=]N`, repeatable: the file too, or the tokens of LLMs' answers."""
    parser.add_argument(
        "-o", action=OutputFile, dest="output", metavar="FILE", help="write here (default: standard output)"
    )
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        dest="output_texts",
        metavar="FILE|[NAME=]N",
        help="as -o; with --llm a number: mean tokens of an answer (default 256)",
    )


def read_output_texts(options: argparse.Namespace) -> None:
    """Leave of `output_texts` those that are numbers of tokens, and set `output` to the file that another names."""
    tokens = [text for text in options.output_texts if options.llm and text.rpartition("=")[2].isdigit()]
    for text in options.output_texts:
        if text not in tokens:
            OutputFile(["--output"], "output")(None, options, text, "--output")
    options.output_texts = tokens


class OutputFile(argparse.Action):
    """A file in an existing folder: folders of a mistyped path are not created. An optional `-o -` becomes None."""

    def __call__(
        self, parser: Any, namespace: Any, values: str | Sequence[Any] | None, option: str | None = None
    ) -> None:
        text = str(values)
        if text == STANDARD_STREAM and self.dest == "output" and not self.required:
            setattr(namespace, self.dest, None)
            return
        path = Path(text)
        if path.is_dir():
            raise InputFault(str(option), f"{quoted(text)} is a folder", "Name a file in it.")
        _check_parent(str(option), path)
        setattr(namespace, self.dest, text)


class OutputFileOrFolder(argparse.Action):
    """A file or folder, as the command needs; it may be new, but the folder that contains it must exist."""

    def __call__(
        self, parser: Any, namespace: Any, values: str | Sequence[Any] | None, option: str | None = None
    ) -> None:
        text = str(values)
        if text != STANDARD_STREAM:
            _check_parent(str(option), Path(text))
        setattr(namespace, self.dest, None if text == STANDARD_STREAM else text)


class OutputFolder(argparse.Action):
    """A folder that exists, or that can be created in an existing one."""

    def __call__(
        self, parser: Any, namespace: Any, values: str | Sequence[Any] | None, option: str | None = None
    ) -> None:
        path = Path(str(values))
        if path.exists() and not path.is_dir():
            raise InputFault(str(option), f"{quoted(values)} is a file", "Name a folder.")
        _check_parent(str(option), path)
        setattr(namespace, self.dest, str(values))


def _check_parent(option: str, path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        state = "is a file" if parent.exists() else "is not there"
        raise InputFault(
            option, f"the folder {quoted(str(path.parent))} {state}", "Check the path, or make it first."
        )

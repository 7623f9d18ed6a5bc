"""The command line: the workflow's functions on files."""

from torchsplit_core.cli.command import main

__all__ = ["main"]

"""The command line: runs the workflow's functions on files."""

from torchsplit_core.cli.command import main

__all__ = ["main"]

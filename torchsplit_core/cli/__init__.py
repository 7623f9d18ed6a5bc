"""The command line: runs the functions of `workflow` on files."""

from torchsplit_core.cli.command import main

__all__ = ["main"]

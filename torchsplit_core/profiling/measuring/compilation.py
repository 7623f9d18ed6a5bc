"""A model under torch.compile: its requirements, and its faults as one message each."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchsplit_core.isolation import is_out_of_memory
from torchsplit_core.values import InputFault

COMPILATION_RUNS = 3
"""First runs that do not count: one compiles; with CUDA graphs one warms up and one captures."""
COMPILERS = ("g++", "gcc", "clang++", "clang")


class CompileFault(InputFault):
    """The model cannot be compiled here."""


def require_compiler(torch_device: str) -> None:
    """Raise CompileFault if torch.compile lacks a tool; its own message would be pages long."""
    configured = os.environ.get("CXX") or os.environ.get("CC")
    if not any(shutil.which(name) for name in ((configured,) if configured else COMPILERS)):
        raise CompileFault(
            "torch.compile",
            f"finds no C++ compiler to build what it generates (looked for {configured or ', '.join(COMPILERS)})",
            "Install one (on Debian or Ubuntu: apt-get install g++), or measure without --compile.",
        )
    if torch_device == "cuda" and importlib.util.find_spec("triton") is None:
        raise CompileFault(
            "torch.compile",
            "finds no Triton, in which it writes what runs on a GPU",
            "Install the triton that your build of torch names, or measure without --compile.",
        )


def compile_model(model: Any, mode: str) -> Any:
    """The model, compiled for the shapes of its next call only; earlier compilations are dropped.

    Dynamic shapes cost speed, and after eight shapes torch.compile silently runs a model eagerly.
    """
    torch.compiler.reset()
    return torch.compile(model, mode=mode, dynamic=False)


@contextmanager
def raise_compile_faults(batch: int) -> Iterator[None]:
    """Turn torch.compile's own faults into one CompileFault each; the model's own pass through."""
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        if is_out_of_memory(error):
            raise
        # The first line has the cause; a C++ compiler's whole output may follow.
        first_line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CompileFault(
            f"torch.compile at batch {batch}",
            f"cannot compile the model: {first_line.strip()}",
            "Measure without --compile, or mend what it names (TORCH_LOGS=+dynamo tells more).",
        ) from error

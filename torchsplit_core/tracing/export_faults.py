"""What torch.export's errors mean to the one who wrote the model."""

from __future__ import annotations

import re

from torchsplit_core.model_source import Told, user_line
from torchsplit_core.tracing.naming import source_line
from torchsplit_core.values import InputFault

# (pattern in the error's class and text, rule, remedy), the first that fits; wording of torch 2.13.
MEANINGS = (
    (
        r"GuardOnDataDependentSymNode|[Dd]ata-dependent|data dependent|PendingUnbackedSymbol",
        "the model's path does not depend on the values in a tensor",
        "Use torch.where, or torch.cond for a branch on a tensor's value; say what always holds by torch._check.",
    ),
    (
        r"Unsupported input type",
        "the inputs are tensors, plain values, or tuples, lists, dicts and dataclasses of them",
        "Pass the tensors, and build other objects from them in forward.",
    ),
    (
        r"torch\.classes\.",
        "the model's weights are tensors",
        "Export the module as it was before torch.ao.quantization packed its weights, in float or bfloat16.",
    ),
    (
        r"UnsupportedOperatorException|has no fake|fake impl",
        "every operator can work out shapes without data",
        "Keep tensors dense instead of sparse or nested; for an operator of your own use torch.library.register_fake.",
    ),
    (
        r"\.numpy\(\) is not supported|data pointer|[Pp]ickle",
        "forward computes with torch alone",
        "Take NumPy, SciPy, pickling and copying out of forward, or make the call a torch.library.custom_op.",
    ),
)
OTHERWISE = (
    "torch.export can follow the model's code",
    "Take Python side effects and calls outside torch out of forward, or export another part of the model.",
)


class ExportFailure(Exception):
    """One attempt at an export failed for the reason in `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def fault_of_export(*failures: Exception) -> InputFault:
    """The fault behind failed attempts: the meaning of the first that has one."""
    for error in failures:
        text = f"{type(error).__name__}: {error}"
        for pattern, rule, remedy in MEANINGS:
            if re.search(pattern, text):
                return InputFault(_place(*failures), Told(_summary(error)), rule, remedy)
    return InputFault(_place(*failures), Told(_summary(failures[0])), *OTHERWISE)


def fault_of_fixed_batch(name: str, dimension: int, line: str) -> InputFault:
    """The fault of code that takes the example's batch for the only one; `line` is "file.py:12" or ""."""
    told = f"dimension {dimension} is fixed to the example's batch" + (f" at {line}" if line else "")
    return InputFault(
        f"input {name}",
        Told(told),
        "the model takes any batch size",
        "Use x.shape[0] instead of a number or len(x), and no loop over the batch.",
    )


def _place(*errors: Exception) -> str:
    """The line in the user's code, from the traceback or from the frames torch writes into its message."""
    for error in errors:
        line = user_line(error) or source_line(str(error))
        if line:
            return f"forward at {line}"
    return "forward"


def _summary(error: Exception) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"

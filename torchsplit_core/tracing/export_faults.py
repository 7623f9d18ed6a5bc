"""torch.export's errors in terms of the model's author."""

from __future__ import annotations

import re

from torchsplit_core.model_source import user_line
from torchsplit_core.tracing.naming import source_line
from torchsplit_core.values import InputFault, last_cause

# (pattern in the error's class and text, problem, remedy), first match wins; wording of torch 2.13.
ERROR_PATTERNS = (
    (
        r"GuardOnDataDependentSymNode|[Dd]ata-dependent|data dependent|PendingUnbackedSymbol",
        "takes a path that depends on the values in a tensor",
        "Use torch.where, or torch.cond for a branch on a tensor's value; say what always holds by torch._check.",
    ),
    (
        r"Unsupported input type",
        "has an input that is no tensor, plain value, or tuple, list, dict or dataclass of them",
        "Pass the tensors, and build other objects from them in forward.",
    ),
    (
        r"torch\.classes\.",
        "uses weights that are packed, not tensors",
        "Export the module as it was before torch.ao.quantization packed its weights, in float or bfloat16.",
    ),
    (
        r"UnsupportedOperatorException|has no fake|fake impl",
        "calls an operator that cannot work out shapes without data",
        "Keep tensors dense instead of sparse or nested; for an operator of your own use torch.library.register_fake.",
    ),
    (
        r"\.numpy\(\) is not supported|data pointer|[Pp]ickle",
        "computes outside torch",
        "Take NumPy, SciPy, pickling and copying out of forward, or make the call a torch.library.custom_op.",
    ),
)
UNKNOWN_ERROR = (
    "cannot be followed by torch.export",
    "Take Python side effects and calls outside torch out of forward, or export another part of the model.",
)


class ExportFailure(Exception):
    """An attempt at an export failed, because of `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def fault_of_export(*failures: Exception) -> InputFault:
    """The fault of failed attempts: that of the first known error."""
    for error in failures:
        text = f"{type(error).__name__}: {error} {last_cause(error)}"
        for pattern, problem, remedy in ERROR_PATTERNS:
            if re.search(pattern, text):
                return InputFault(_location(*failures), f"{problem} ({_summary(error)})", remedy)
    problem, remedy = UNKNOWN_ERROR
    return InputFault(_location(*failures), f"{problem} ({_summary(failures[0])})", remedy)


def fault_of_fixed_batch(name: str, dimension: int, line: str) -> InputFault:
    """The fault of code that assumes the example's batch size; `line` is "file.py:12" or ""."""
    return InputFault(
        f"input {name}",
        f"dimension {dimension} is fixed to the example's batch size" + (f" at {line}" if line else ""),
        "Use x.shape[0] instead of a number or len(x), and no loop over the batch.",
    )


def _location(*errors: Exception) -> str:
    """The line in the user's code, from the traceback or from the frames torch writes into its message."""
    for error in errors:
        line = user_line(error) or source_line(str(error))
        if line:
            return f"forward at {line}"
    return "forward"


def _summary(error: Exception) -> str:
    """The last cause, by its first meaningful line."""
    cause = last_cause(error)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0].removesuffix('.')}" if lines else type(cause).__name__

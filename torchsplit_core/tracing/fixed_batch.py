"""Which line of a model takes the example's batch for the only one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchsplit_core.model_source import is_user_file
from torchsplit_core.tracing.export_inputs import TRACED_BATCH

SHAPES = "torch.fx.experimental.symbolic_shapes"
"""The module, and its logger, in which torch gives a free size a value."""


@contextmanager
def record_fixing_lines() -> Iterator[list[str]]:
    """ "file.py:12" of each line at which an export inside gives a free size the traced batch, as they come.

    Only an export that runs the model's code tells (non-strict, draft): its lines stand on the stack.
    """
    log, handler = logging.getLogger(SHAPES), _FixingLineHandler()
    level, propagates, handlers = log.level, log.propagate, log.handlers
    # Nobody else asked for what the log says at this level.
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        log.handlers, log.propagate = handlers, propagates
        log.setLevel(level)


class _FixingLineHandler(logging.Handler):
    """Takes down where the model's code stands whenever a size is given the traced batch as its value."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.msg.startswith("set_replacement") or not isinstance(record.args, tuple):
            return
        symbol, value, *_ = map(str, record.args)
        if symbol.startswith("s") and value == str(TRACED_BATCH):
            self.lines.append(_user_line())


def _user_line() -> str:
    """The innermost line of the user's code on the stack."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        path = frame.f_code.co_filename
        if is_user_file(path):
            return f"{Path(path).name}:{frame.f_lineno}"
    return ""

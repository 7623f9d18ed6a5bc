"""The line of a model that assumes the example's batch size."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchsplit_core.model_source import is_user_file
from torchsplit_core.tracing.export_inputs import TRACED_BATCH

SHAPES = "torch.fx.experimental.symbolic_shapes"
"""The module, and its logger, in which torch fixes a free size."""


@contextmanager
def record_fixing_lines() -> Iterator[list[str]]:
    """ "file.py:12" of each line at which an export inside fixes a free size to the traced batch, in order.

    Only for exports that run the model's code (non-strict, draft): the line is on the stack.
    """
    log, handler = logging.getLogger(SHAPES), _FixingLineHandler()
    level, propagates, handlers = log.level, log.propagate, log.handlers
    # Nobody else uses this level of the log.
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        log.handlers, log.propagate = handlers, propagates
        log.setLevel(level)


class _FixingLineHandler(logging.Handler):
    """Records the line of the model's code whenever a size is fixed to the traced batch."""

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

"""A state of plain values as text in a checkpoint: of a schedule, a loader or a scaler."""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

import torch

from torchsplit_core.values import InputFault


def pack(state: Any) -> str:
    """Plain values as text: their size varies, and a checkpoint is loaded into what has its size."""
    stream = io.BytesIO()
    torch.save(state, stream)
    return base64.b64encode(stream.getvalue()).decode()


def unpack(text: Any, what: str) -> Any:
    """What `pack` was given. Raises InputFault for anything but plain values; nothing of it is executed."""
    try:
        return torch.load(io.BytesIO(base64.b64decode(text, validate=True)), weights_only=True)
    except (ValueError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputFault(
            what,
            "holds more than plain values, or was changed",
            "Remove this checkpoint: the run goes on from an earlier one, if it has one.",
        ) from error

"""The exchange that a run chose, in its folder: for the next start, and for the run's page."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torchsplit_core.files import replace_file
from torchsplit_core.training.communication.choice import ExchangeCandidate, TransferTimes
from torchsplit_core.training.run_folder import WATCH
from torchsplit_core.values.strategy.communication import CommunicationRequest, Hook

COMMUNICATION = "communication.json"
MOST_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class ExchangeKey:
    """What a choice holds for: with any other the run chooses again."""

    request: CommunicationRequest
    processes: int
    nodes: int
    backend: str
    gradient_bytes: int


@dataclass(frozen=True, slots=True)
class ExchangeRecord:
    """A choice with what it was made from.

    `before_s`, `after_s`: median backward pass with exchange by DDP's default buckets and by the choice, None if it was
    not measured. `reverted`: it was slower, and the run went back to the default.
    """

    key: ExchangeKey
    hook: Hook
    bucket_mib: float | None
    reason: str
    transfers: Mapping[Hook, TransferTimes] = field(default_factory=dict)
    candidates: tuple[ExchangeCandidate, ...] = ()
    before_s: float | None = None
    after_s: float | None = None
    reverted: bool = False


def save_exchange(run: Path, record: ExchangeRecord) -> None:
    """Write the choice; a failure is ignored, since the next start can choose again."""
    with contextlib.suppress(OSError):
        (run / WATCH).mkdir(exist_ok=True)
        replace_file(run / WATCH / COMMUNICATION, json.dumps(asdict(record), indent=1) + "\n")


def read_exchange(run: Path) -> ExchangeRecord | None:
    """The run's choice; None before there is one, and if the file is not what a run writes."""
    path = run / WATCH / COMMUNICATION
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        data: Any = path.read_bytes()
    except OSError:
        return None
    # Imported here: only a start that finds the file needs it.
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(ExchangeRecord).validate_json(data, strict=True)
    except ValidationError:
        return None

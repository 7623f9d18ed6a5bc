"""GPU counters that DCGM has and the driver does not: SM and memory activity, bytes over NVLink.

Read with `dcgmi dmon`, which queries the machine's DCGM service (nv-hostengine). Untested on hardware.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

FIELDS = {"SMACT": 1002, "DRAMA": 1005, "NVLTX": 1011, "NVLRX": 1012}
"""Columns of dmon and their field ids: DCGM_FI_PROF_SM_ACTIVE, _DRAM_ACTIVE, _NVLINK_TX_BYTES, _RX_BYTES
(docs.nvidia.com/datacenter/dcgm, field identifiers)."""
SAMPLES, EVERY_MS = 2, 500
"""Two samples, because the first after a pause may be empty: counters are averages since the previous sample."""
FRESH_S, STALE_S = 2.0, 15.0
"""Age in seconds after which figures are queried again, and after which they are no longer returned."""
LIMIT_S = 10.0
MOST_BYTES_PER_S = 1e14
"""DCGM's blank values (no data) are numbers far above any link's rate."""


@dataclass(frozen=True, slots=True)
class DcgmFigures:
    """DCGM's figures of a GPU; None if DCGM reports none.

    `sm_active`: share of time in which an SM had a warp, mean over SMs; `dram_active`: share of time in which data
    moved to or from the GPU's memory; both 0 to 1. The bytes are the sum over all links, including headers.
    """

    sm_active: float | None = None
    dram_active: float | None = None
    nvlink_sent_bytes_per_s: float | None = None
    nvlink_received_bytes_per_s: float | None = None


class DcgmSampler:
    """DCGM on this machine. A background thread queries it, because that takes a while; callers never wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._querying = False
        self._latest: tuple[float, Mapping[int, DcgmFigures]] = (float("-inf"), {})

    def latest(self) -> Mapping[int, DcgmFigures]:
        """The latest figures by GPU index; empty if there are none or they are too old."""
        with self._lock:
            age = time.monotonic() - self._latest[0]
            if age > FRESH_S and not self._querying:
                self._querying = True
                threading.Thread(target=self._query, daemon=True, name="dcgm").start()
            return self._latest[1] if age <= STALE_S else {}

    def _query(self) -> None:
        sampled = query_dcgm()
        with self._lock:
            self._latest, self._querying = (time.monotonic(), sampled), False


def query_dcgm() -> Mapping[int, DcgmFigures]:
    """Query DCGM now, which takes a second; empty if it is missing or does not answer."""
    program = shutil.which("dcgmi")
    if program is None:
        return {}
    fields = ",".join(map(str, FIELDS.values()))
    command = [program, "dmon", "-e", fields, "-d", str(EVERY_MS), "-c", str(SAMPLES)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return {}
    return parse_dmon(done.stdout)


def parse_dmon(text: str) -> Mapping[int, DcgmFigures]:
    """Parse the output of dmon, column names and rows such as `GPU 0  0.512  N/A …`; the last row of a GPU counts."""
    columns: list[str] = []
    by_gpu: dict[int, DcgmFigures] = {}
    for line in text.splitlines():
        words = line.split()
        if line.startswith("#Entity"):
            columns = words[1:]
        elif len(words) == 2 + len(columns) and words[0] == "GPU" and words[1].isdecimal():
            row = dict(zip(columns, words[2:], strict=True))
            by_gpu[int(words[1])] = DcgmFigures(
                _number(row.get("SMACT"), 1.0),
                _number(row.get("DRAMA"), 1.0),
                _number(row.get("NVLTX"), MOST_BYTES_PER_S),
                _number(row.get("NVLRX"), MOST_BYTES_PER_S),
            )
    return by_gpu


def _number(word: str | None, most: float) -> float | None:
    """The number in a cell; None if there is none or it is out of range."""
    try:
        value = float(word or "")
    except ValueError:
        return None
    return value if 0 <= value <= most else None

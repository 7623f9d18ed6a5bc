"""What DCGM counts on GPUs and the driver does not tell: SMs and memory at work, bytes over NVLink.

By `dcgmi dmon`, which asks the DCGM that runs on the machine (nv-hostengine). Untested on hardware.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

FIELDS = {"SMACT": 1002, "DRAMA": 1005, "NVLTX": 1011, "NVLRX": 1012}
"""Columns of dmon and the fields that they are of: DCGM_FI_PROF_SM_ACTIVE, _DRAM_ACTIVE, _NVLINK_TX_BYTES, _RX_BYTES
(docs.nvidia.com/datacenter/dcgm, field identifiers)."""
SAMPLES, EVERY_MS = 2, 500
"""The first sample after a pause may have nothing: counters are averages since the one before."""
FRESH_S, STALE_S = 2.0, 15.0
"""How old figures may be before they are asked for again, and before they are no longer told."""
LIMIT_S = 10.0
MOST_BYTES_PER_S = 1e14
"""DCGM's words for nothing (blank values) are numbers far above any link's."""


@dataclass(frozen=True, slots=True)
class DcgmFigures:
    """Of a GPU, each None where DCGM tells none.

    `sm_active`: the share of time in which an SM had a warp, mean of the SMs; `dram_active`: the share of time in which
    data moved to or from the GPU's memory; both 0 to 1. The bytes are those of the links together, headers included.
    """

    sm_active: float | None = None
    dram_active: float | None = None
    nvlink_sent_bytes_per_s: float | None = None
    nvlink_received_bytes_per_s: float | None = None


class DcgmSampler:
    """DCGM on this machine. It is asked in a thread beside, since its counters need a while; nobody waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._querying = False
        self._latest: tuple[float, Mapping[int, DcgmFigures]] = (float("-inf"), {})

    def latest(self) -> Mapping[int, DcgmFigures]:
        """The figures by GPU index: those that came last, none where there are none or they are old."""
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
    """Ask DCGM now, which takes a second; nothing where it is not there or does not answer."""
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
    """The last row of each GPU in what dmon prints: columns by name, then rows as `GPU 0  0.512  N/A …`."""
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
    """The number of a cell; None for none, and for one that cannot be."""
    try:
        value = float(word or "")
    except ValueError:
        return None
    return value if 0 <= value <= most else None

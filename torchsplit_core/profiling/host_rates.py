"""How fast this host computes and exchanges, measured once and saved: what estimates on its cores begin with."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from math import exp, log
from pathlib import Path

from torchsplit_core.files.host_measurements import save_measurement, saved_measurement
from torchsplit_core.hardware import discover_host
from torchsplit_core.values import InputFault

RATES_FILE = "host-rates.json"
METHOD_VERSION = 1
"""Of the probe: saved rates of another one are measured again."""
PROBE_LIMIT_S = 60.0
"""A probe takes about two seconds, and the start of torch in three processes."""

Curve = tuple[tuple[float, float], ...]
"""(size, rate) by rising size, both positive."""


@dataclass(frozen=True, slots=True)
class HostRates:
    """Speeds of `threads` cores of this host, single precision, by torch.

    `products`: FLOP/s of matrix products by their operations; `moved`: bytes/s through memory by the bytes that an
    operation reads and writes. `convolution`: FLOP/s of a convolution over those of a product as large.
    `operation_s`, `backward_operation_s`: seconds to start one operation, and the backward pass of one.
    `optimizer_s`: of AdamW for one weight tensor, beside its bytes. `exchange_s`: of a small all-reduce among two
    processes over Gloo; `exchange_bytes_per_s`: of a large one, by its bytes.
    """

    cpu: str
    threads: int
    products: Curve
    moved: Curve
    convolution: float
    operation_s: float
    backward_operation_s: float
    optimizer_s: float
    exchange_s: float
    exchange_bytes_per_s: float


def rate_at(curve: Curve, size: float) -> float:
    """The rate at a size: between the points on a line of the logarithms, beyond them that of the nearest."""
    sizes = [point[0] for point in curve]
    place = bisect_left(sizes, size)
    if place == 0:
        return curve[0][1]
    if place == len(curve):
        return curve[-1][1]
    (low, low_rate), (high, high_rate) = curve[place - 1], curve[place]
    part = log(size / low) / log(high / low)
    return exp((1.0 - part) * log(low_rate) + part * log(high_rate))


def saved_rates(root: Path, threads: int) -> HostRates | None:
    """The rates that were measured on this host with this version; None where none were. `root`: the store's folder."""
    try:
        rates = saved_measurement(root / RATES_FILE, _key(threads))["rates"]
        return HostRates(**{**rates, "products": _curve(rates["products"]), "moved": _curve(rates["moved"])})
    except (ValueError, KeyError, TypeError):
        return None


def host_rates(root: Path, threads: int) -> HostRates | None:
    """The saved rates of so many cores, or else those measured now and saved.

    None where this host has fewer cores, or torch is not installed. Raises InputFault where the probe fails.
    """
    if threads > len(os.sched_getaffinity(0)) or find_spec("torch") is None:
        return None
    rates = saved_rates(root, threads)
    if rates is None:
        rates = measure_rates(threads)
        save_measurement(root / RATES_FILE, _key(threads), {"kept": time.time(), "rates": asdict(rates)})
    return rates


def measure_rates(threads: int) -> HostRates:
    """Measure so many cores now, in a process of its own. Raises InputFault where that fails."""
    command = [sys.executable, "-m", "torchsplit_core.profiling.host_probe", str(threads)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip
        figures = json.loads(done.stdout.splitlines()[-1])
        curves = {"products": _curve(figures["products"]), "moved": _curve(figures["moved"])}
        return HostRates(**{"cpu": discover_host().cpu_name, "threads": threads, **figures, **curves})
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        raise InputFault(
            "this host", f"could not be measured: {type(error).__name__}", "Run it again."
        ) from error


def _curve(points: Sequence[Sequence[float]]) -> Curve:
    return tuple((float(size), float(rate)) for size, rate in points)


@cache
def _key(threads: int) -> str:
    """A hash of what the rates depend on."""
    facts = (discover_host().cpu_name, threads, platform.python_version(), torch_version(), METHOD_VERSION)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def torch_version() -> str:
    """Of the installed torch; empty where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return ""

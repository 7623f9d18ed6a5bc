"""The step of `make hardware` that shows whether SM limits hold: a matrix product under several limits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.hardware_steps import SLACK, Tell, table
from torchsplit_core.hardware import NvmlFault, choose_devices, gpu_state, open_nvml
from torchsplit_core.values import Device, InputFault

SIZE = 8192
"""Rows and columns of the matrices: the product fills every SM many times over."""
SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Shares of the SMs to request."""


@dataclass(frozen=True)
class Product:
    """A matrix product's speed on some SMs. `given` is None if the driver did not report the number."""

    asked: int
    given: int | None
    tflops: Mapping[str, float]
    """By dtype."""
    state: str = ""


def products(tell: Tell) -> tuple[str, ...]:
    """TFLOP/s of the whole GPU, then under green contexts, smallest first."""
    (whole,) = choose_devices("cuda")
    measured = [_product_in_a_process(whole)]
    total = measured[0].given or 0
    tell(product_table(measured))
    faults: list[str] = []
    for share in SHARES:
        count = max(8, round(share * total / 8) * 8)
        try:
            (device,) = choose_devices(f"sm:{count}@{whole.gpu_index}")
            measured.append(_product_in_a_process(device))
        except (InputFault, RuntimeError) as fault:
            faults.append(f"{count} SMs: {fault}")
        tell(product_table(measured))
    return (*faults, *product_faults(measured))


def product_table(measured: Sequence[Product]) -> str:
    """The table: the whole GPU first, then each row against what its SMs allow."""
    whole = measured[0]
    rows = []
    for one in measured:
        share = None if one.given is None or not whole.given else one.given / whole.given
        cells = [
            f"{one.asked}" if one is not whole else "all",
            "n/a" if one.given is None else f"{one.given}",
        ]
        for dtype, speed in one.tflops.items():
            cells.append(f"{speed:.1f}")
            cells.append("n/a" if share is None else f"{speed / (share * whole.tflops[dtype]):.2f}")
        rows.append((*cells, one.state))
    kinds = [name for dtype in whole.tflops for name in (f"{dtype}, TFLOP/s", "over its share")]
    return table(("SMs asked for", "SMs given", *kinds, "state after"), rows)


def product_faults(measured: Sequence[Product]) -> tuple[str, ...]:
    """Where a limit did not hold: more than SLACK × the share of the SMs given, or the number not reported."""
    whole, faults = measured[0], []
    if not whole.given:
        return ("torch does not tell the SMs of the whole GPU",)
    for one in measured[1:]:
        if one.given is None:
            faults.append(f"{one.asked} SMs: the driver did not tell how many it gave")
            continue
        for dtype, speed in one.tflops.items():
            most = SLACK * one.given / whole.given * whole.tflops[dtype]
            if speed > most:
                faults.append(
                    f"{one.given} SMs, {dtype}: {speed:.1f} TFLOP/s, at most {most:.1f} if the limit held"
                )
    return tuple(faults)


def _product_in_a_process(device: Device) -> Product:
    """Measure in a child process, as measurements do: remains of another context could lift the limit."""
    command = [sys.executable, "-m", "benchmarks.hardware_products", json.dumps(asdict(device))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1])
    found = json.loads(done.stdout.splitlines()[-1])
    return Product(device.sm_count or 0, found["given"], found["tflops"], _state(device))


def product_here(device: Mapping[str, Any], size: int = SIZE, runs: int = 7) -> dict[str, Any]:
    """TFLOP/s by dtype of products on an open device (median of the runs), and its number of SMs."""
    import torch

    from torchsplit_core.profiling.measuring.accelerator import open_device

    with open_device(device) as opened:
        tflops = {}
        for dtype in (torch.bfloat16, torch.float32):
            # Ones: with differing numbers the chip draws more power, and its clock falls the more SMs work.
            left = torch.ones(size, size, dtype=dtype, device=opened.torch_device)
            right = torch.ones(size, size, dtype=dtype, device=opened.torch_device)
            times = []
            for _ in range(runs):
                started = time.perf_counter()
                product = left @ right
                # Reading a number waits for the product.
                assert float(product[0, 0]) > 0
                times.append(time.perf_counter() - started)
            tflops[str(dtype).removeprefix("torch.")] = 2 * size**3 / sorted(times)[runs // 2] / 1e12
        return {"given": opened.facts.get("sm_count"), "tflops": tflops}


def _state(device: Device) -> str:
    """Clock, temperature and throttling right after the work."""
    try:
        with open_nvml() as nvml:
            state = gpu_state(nvml, device.physical)
    except NvmlFault:
        return "n/a"
    return state.words() if state else "n/a"


if __name__ == "__main__":
    print(json.dumps(product_here(json.loads(sys.argv[1]))))

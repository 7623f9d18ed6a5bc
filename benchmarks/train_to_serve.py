"""From a training run to answered requests on this machine: seconds of each step, and whether the figures agree.

    python -m benchmarks.train_to_serve [--steps 330] [--seconds 10]

Runs the commands of docs/guides/training-runs.md, "Use the model", one process each. *First answer*: from the end of
the run to the first request that the served model answers, including profile, request, plan and serve. The served
model's accuracy is measured over HTTP on the client's held-out samples and must equal that at the run's end. Ends with
1 where the accuracies differ, a request fails, or the weights are not equal to the bit to those of torch's converter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from sample_models import load
from torchsplit_core.checkpoints.trained_run import parse_run_source

ROOT = Path(__file__).resolve().parent.parent
STRATEGY = ROOT / "examples" / "training" / "digits.json"
PORT = 18411
ADDRESS = f"http://127.0.0.1:{PORT}/v2"
READY_S = 60.0
BATCH, HELD_OUT = 16, 360


def run(folder: Path, *words: str) -> float:
    """Run a command in `folder`; return its seconds."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "torchsplit_core", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - began


def ask(images: torch.Tensor) -> torch.Tensor:
    """The served model's scores."""
    body = {
        "inputs": [
            {
                "name": "images",
                "datatype": "FP32",
                "shape": list(images.shape),
                "data": images.flatten().tolist(),
            }
        ]
    }
    request = urllib.request.Request(
        f"{ADDRESS}/models/digits/infer", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        output: dict[str, Any] = json.load(answer)["outputs"][0]
    return torch.tensor(output["data"]).reshape(output["shape"])


def served_accuracy() -> float:
    """Share of held-out digits that the served model classifies correctly, asked in batches."""
    held_out = load("digits").get_validation_dataset()
    images, digits = held_out.tensors
    right = 0
    for first in range(0, len(digits), BATCH):
        scores = ask(images[first : first + BATCH])
        right += int((scores.argmax(-1) == digits[first : first + BATCH]).sum())
    return right / len(digits)


def main() -> int:
    """Print the table; return 1 if figures that must agree do not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=330)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demand = ("--gpus", "1xCPU-1c", "--demand", "digits=50")
        steps = (
            ("train, two processes", ("train", "sample:digits", "--strategy", str(STRATEGY), "-o", "digits",
                                      "--steps", str(options.steps))),
            ("weights", ("weights", "digits", "-o", "digits.safetensors")),
            ("profile on one core", ("profile", "digits", "--device", "cpu:1c", "-o", "digits.json")),
            ("request", ("request", "digits.json", *demand, "-o", "request.json")),
            ("plan", ("plan", "request.json", "-o", "plan.json")),
        )  # fmt: skip
        seconds = {title: run(folder, *words) for title, words in steps}
        trained = parse_run_source(str(folder / "digits"))
        began = time.perf_counter()
        server = subprocess.Popen(
            [sys.executable, "-m", "torchsplit_core", "serve", "plan.json", "--request", "request.json",
             "--port", str(PORT)],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while True:
                try:
                    ask(torch.zeros(1, 1, 8, 8))
                    break
                except OSError:
                    if time.perf_counter() - began > READY_S or server.poll() is not None:
                        raise
                    time.sleep(0.05)
            seconds["serve, to the first answer"] = time.perf_counter() - began
            served = served_accuracy()
        finally:
            server.terminate()
            server.wait()
        measure = (
            "measure",
            "plan.json",
            "--request",
            "request.json",
            "--duration-s",
            str(options.seconds),
            "-o",
            "m.json",
        )
        run(folder, *measure)
        (measured,) = json.loads((folder / "m.json").read_text())["models"]
        dcp_to_torch_save(trained.checkpoint, folder / "gathered.pt")
        gathered = torch.load(folder / "gathered.pt", weights_only=False)["model"]
        weights = load_file(folder / "digits.safetensors")
        metrics = trained.metrics()
        equal = gathered.keys() == weights.keys() and all(
            torch.equal(gathered[k], weights[k]) for k in gathered
        )
    first = sum(
        seconds[title] for title in ("profile on one core", "request", "plan", "serve, to the first answer")
    )
    reached = metrics["accuracy"]
    print("| step | s |\n|---|---:|")
    for title, spent in seconds.items():
        print(f"| {title} | {spent:.1f} |")
    print(f"| from the end of the run to the first answer | {first:.1f} |")
    simulated, responses = measured["simulated_ms"], measured["measured_ms"]
    print("\n| figure | predicted or trained | served here |\n|---|---:|---:|")
    print(f"| accuracy on {HELD_OUT} held-out samples | {reached:.4f} | {served:.4f} |")
    print(f"| requests/s | {measured['predicted_rps']:.1f} | {measured['measured_rps']:.1f} |")
    for name in ("p50", "p95"):
        low, high = measured["simulated_low_ms"][name], measured["simulated_high_ms"][name]
        print(f"| {name}, ms | {simulated[name]:.1f} ({low:.1f} to {high:.1f}) | {responses[name]:.1f} |")
    print(f"\nWeights equal to torch's converter to the bit: {'yes' if equal else 'no'}.")
    agrees = abs(reached - served) < 1 / HELD_OUT / 2
    return 0 if equal and agrees and not measured["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())

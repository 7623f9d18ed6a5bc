"""How the time of the main job divides among its stages, for each sample model at real dimensions.

Every stage runs as a user's would: trace and profile in their child processes, then partition,
request, plan and deploy in this one. Prints a Markdown table; times are shares of the whole.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sample_models
from torchsplit_core import workflow
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.planning.request.fleet_text import parse_fleet

STAGES = ("trace", "profile", "partition", "plan", "deploy")


def stage_times(source: str, fleet: str) -> dict[str, float]:
    """Seconds of each stage for one model."""
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = work()
        seconds[stage] = time.perf_counter() - begin
        return result

    graph = timed("trace", lambda: workflow.trace(source))
    _, profile = timed(
        "profile", lambda: workflow.profile(source, graph=graph, device="cpu", batch_sizes=(1, 2))
    )
    cuts = timed(
        "partition", lambda: workflow.partition(source, profile, graph=graph, stages=2, time_limit_s=20.0)
    )
    request = build_request([profile], parse_fleet(fleet), candidates=[cuts], time_limit_s=20.0)
    outcome = timed("plan", lambda: workflow.plan(request))
    with tempfile.TemporaryDirectory() as folder:
        timed("deploy", lambda: workflow.deploy(outcome, Path(folder)))
    return seconds


def _share(part: float) -> str:
    """A percentage that never rounds a nonzero share to zero."""
    return f"{part:.1%}" if part >= 0.0005 else "< 0.1%"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("small", "large"), default="large")
    parser.add_argument("--gpus", default="1xA100-80GB")
    parser.add_argument("--models", nargs="*", default=[sample.name for sample in sample_models.SAMPLES])
    options = parser.parse_args()
    print(f"| model ({options.size}) | {' | '.join(STAGES)} | whole, s |")
    print("|---" * (len(STAGES) + 2) + "|")
    for name in options.models:
        source = f"sample:{name}" + ("@large" if options.size == "large" else "")
        seconds = stage_times(source, options.gpus)
        whole = sum(seconds.values())
        shares = " | ".join(_share(seconds[stage] / whole) for stage in STAGES)
        print(f"| {name} | {shares} | {whole:.1f} |", flush=True)


if __name__ == "__main__":
    main()

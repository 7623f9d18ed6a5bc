"""Training strategies: seconds of the search, choices reckoned, and the ratio to a look at every choice.

Ends with 1 where a search and the look at every choice differ, or where no bound comes out.
"""

from __future__ import annotations

import argparse
import sys
import time

from torchsplit_core.strategy.search import search_strategy
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch, rank
from torchsplit_core.strategy.search.machines import read_fleet
from torchsplit_core.strategy.search.space import SearchSpace
from torchsplit_core.strategy.supported import Runnable, traits_of
from torchsplit_core.values.strategy.request import (
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    TransformerSizes,
)
from torchsplit_core.values.training import TrainingJob

GPT = TransformerSizes(30, 3072, 32, 32, 12288, 50257, 2048)
LLAMA_8B = TransformerSizes(32, 4096, 32, 8, 14336, 128256, 8192, gated=True, tied_embeddings=False)
LLAMA_70B = TransformerSizes(80, 8192, 64, 8, 28672, 128256, 8192, gated=True, tied_embeddings=False)
UNEQUAL = (
    StrategyNodes(2, 8, "H100-SXM5-80GB"),
    StrategyNodes(2, 8, "A100-80GB"),
    StrategyNodes(2, 8, "A100-40GB"),
    StrategyNodes(2, 8, "L40S-48GB"),
)
WANTED = 10


def equal(model: TransformerSizes, nodes: int, kind: str, batch: int, fix: StrategyFix) -> StrategyRequest:
    """A request for nodes of eight equal GPUs."""
    return StrategyRequest(model, (StrategyNodes(nodes, 8, kind),), TrainingJob(batch), fix, WANTED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args()
    searched = {
        "4B, 8 × 8 A100-80GB": equal(GPT, 8, "A100-80GB", 512, StrategyFix()),
        "70B, 64 × 8 H100": equal(LLAMA_70B, 64, "H100-SXM5-80GB", 1024, StrategyFix()),
        "8B, 64 cards of four kinds": StrategyRequest(LLAMA_8B, UNEQUAL, TrainingJob(512), top_k=WANTED),
        "70B, 64 cards of four kinds": StrategyRequest(LLAMA_70B, UNEQUAL, TrainingJob(512), top_k=WANTED),
    }
    compared = {
        "4B, 8 × 8 A100-80GB": searched["4B, 8 × 8 A100-80GB"],
        "70B, 64 × 8 H100, tensor 8": equal(LLAMA_70B, 64, "H100-SXM5-80GB", 1024, StrategyFix(tensor=8)),
    }
    if options.quick:
        del searched["8B, 64 cards of four kinds"], searched["70B, 64 cards of four kinds"]
        del compared["70B, 64 × 8 H100, tensor 8"]
    print("| request | seconds | choices considered | reckoned | best, s a step | bound | status |")
    print("|---|---|---|---|---|---|---|")
    faults = sum(_searched(name, request) for name, request in searched.items())
    print("\n| request | choices | search, s | every choice, s | ratio | same ten |")
    print("|---|---|---|---|---|---|")
    return 1 if faults + sum(_compared(name, request) for name, request in compared.items()) else 0


def _searched(name: str, request: StrategyRequest) -> int:
    started = time.perf_counter()
    outcome = search_strategy(request)
    seconds = time.perf_counter() - started
    reckoned = outcome.statistics["reckoned"]
    best = outcome.candidates[0].seconds_per_step
    bound = f"{outcome.bound_s:.4g}" if outcome.bound_s is not None else "n/a"
    print(
        f"| {name} | {seconds:.2f} | {outcome.considered:,} | {reckoned:,} | {best:.4g} | {bound} "
        f"| {outcome.status} |"
    )
    return outcome.bound_s is None


def _compared(name: str, request: StrategyRequest) -> int:
    (machine,) = read_fleet(request.fleet, request.training.precision)
    assert isinstance(request.model, TransformerSizes)
    runnable = Runnable(request.training.precision, traits_of(request.model), request.may_need)
    space = SearchSpace(request.model.transformer(), request.training, 8, request.fix, runnable)
    started = time.perf_counter()
    found = HomogeneousSearch(machine, space).best(machine.devices, WANTED)
    middle = time.perf_counter()
    search = HomogeneousSearch(machine, space)
    fitting = []
    count = 0
    for choices in space.choices(machine.devices):
        count += 1
        step = search.estimate(choices)
        if step.fits and search.host_bytes(choices) <= machine.host_bytes:
            fitting.append((choices, step))
    best = sorted(fitting, key=lambda one: rank(*one))[:WANTED]
    ended = time.perf_counter()
    ratio = (ended - middle) / (middle - started)
    same = best == found.best
    print(
        f"| {name} | {count:,} | {middle - started:.2f} | {ended - middle:.2f} | {ratio:.0f} "
        f"| {'yes' if same else 'no'} |"
    )
    return not same


if __name__ == "__main__":
    sys.exit(main())

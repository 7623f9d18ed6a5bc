"""The simulator against simpy and ciw on the same arrivals: microseconds a request, and equal waits.

Each simulator gets the same times of arrival and the same constant service. Ours runs all requests, the others
the first part of them (they take minutes for a million), and the mean response of that part must be equal to
ours. Medians of several turns, taken alternately, generation of arrivals apart. ciw serves no batches.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from torchsplit_core.simulation import simulate_one
from torchsplit_core.values import PoissonArrivals, Server, SimulatedModel

Responses = Callable[[list[float], "Case"], float]


class Case:
    """Arrivals/ms, servers, largest batch, and ms of a batch: fixed + each · size."""

    def __init__(self, name: str, rate: float, servers: int, batch: int, fixed: float, each: float) -> None:
        self.name, self.rate, self.servers, self.batch = name, rate, servers, batch
        self.fixed, self.each = fixed, each

    def time(self, size: int) -> float:
        return self.fixed + self.each * size


CASES = (
    Case("one server, batches of at most 8", 0.4, 1, 8, 4.0, 1.0),
    Case("three servers, batches of at most 8", 1.2, 3, 8, 4.0, 1.0),
    Case("four servers, no batches", 3.2, 4, 1, 1.0, 0.0),
)


def ours(times_s: list[float], case: Case) -> float:
    """Mean response in our simulator, ms."""
    model = SimulatedModel("m", ("whole",), PoissonArrivals(1.0))
    table = {1: case.time(1), case.batch: case.time(case.batch)}
    server = Server("s", "m", "whole", case.batch, table, case.servers)
    return float(simulate_one(model, (server,), times_s).mean())


def seconds_of(times_ms: list[float]) -> list[float]:
    """The arrivals in seconds, the unit of our simulator."""
    return [one / 1e3 for one in times_ms]


def with_simpy(times_ms: list[float], case: Case) -> float:
    """Mean response in simpy, ms: one process creates requests, one for each server takes batches."""
    import simpy

    environment = simpy.Environment()
    queue: list[float] = []
    idle: list[Any] = []
    total = 0.0

    def arrive() -> Any:
        for instant in times_ms:
            yield environment.timeout(instant - environment.now)
            queue.append(environment.now)
            if idle:
                idle.pop(0).succeed()

    def serve() -> Any:
        nonlocal total
        while True:
            if not queue:
                woken = environment.event()
                idle.append(woken)
                yield woken
                continue
            batch = queue[: case.batch]
            del queue[: case.batch]
            yield environment.timeout(case.time(len(batch)))
            total += sum(environment.now - one for one in batch)

    environment.process(arrive())
    for _ in range(case.servers):
        environment.process(serve())
    environment.run()
    return total / len(times_ms)


def with_ciw(times_ms: list[float], case: Case) -> float:
    """Mean response in ciw, ms, without batches."""
    import ciw

    between = [float(gap) for gap in np.diff(times_ms, prepend=0.0)]
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Sequential(between)],
        service_distributions=[ciw.dists.Deterministic(case.time(1))],
        number_of_servers=[case.servers],
    )
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(len(times_ms), method="Finish")
    records = simulation.get_all_records()
    return statistics.fmean(one.exit_date - one.arrival_date for one in records)


def main() -> int:
    """Print one row for each case and simulator; return 1 if two disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000, help="that ours simulates")
    parser.add_argument("--others", type=int, default=100_000, help="of them, that the others simulate")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    print("| case | simulator | requests | s | µs a request | of ours | mean response ms |")
    print("|---|---|---:|---:|---:|---:|---:|")
    faults = 0
    for case in CASES:
        gaps = np.random.default_rng(0).standard_exponential(options.requests) / case.rate
        times = np.cumsum(gaps).tolist()
        part = times[: options.others]
        runs: list[tuple[str, Responses, list[float]]] = [
            ("TorchSplit", ours, seconds_of(times)),
            ("TorchSplit", ours, seconds_of(part)),
            ("simpy", with_simpy, part),
        ]
        if case.batch == 1:
            runs.append(("ciw", with_ciw, part))
        seconds: list[list[float]] = [[] for _ in runs]
        means = [0.0 for _ in runs]
        for _ in range(options.turns):
            for place, (_, run, given) in enumerate(runs):
                began = time.process_time()
                means[place] = run(given, case)
                seconds[place].append(time.process_time() - began)
        base = statistics.median(seconds[0]) / len(times)
        for (name, _, given), spent, mean in zip(runs, seconds, means, strict=True):
            took = statistics.median(spent)
            each = took / len(given)
            figures = f"{took:.2f} | {each * 1e6:.2f} | {each / base:.1f} | {mean:.4f}"
            print(f"| {case.name} | {name} | {len(given):,} | {figures} |", flush=True)
        # Only the order of additions may differ.
        faults += any(abs(mean - means[1]) > 1e-6 * means[1] for mean in means[1:])
    print(f"\nFaults: {faults}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

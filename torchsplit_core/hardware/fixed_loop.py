"""Times the same work repeatedly on one core; imports only the standard library, so that it starts at once.

`python fixed_loop.py CORE SECONDS` prints a JSON list of pairs: a run's start in s after the first, its duration in ms.
"""

import json
import os
import sys
import time

ROUNDS = 10_000
"""Iterations of a run: some tenths of a millisecond, far shorter than the batches whose variation it explains."""


def main(core: int, seconds: float) -> None:
    """Repeat the loop on `core` for `seconds` and print the times."""
    os.sched_setaffinity(0, {core})
    runs: list[tuple[float, float]] = []
    first = end = time.perf_counter()
    while end - first < seconds:
        begin = end
        for _ in range(ROUNDS):
            pass
        end = time.perf_counter()
        runs.append((begin - first, 1e3 * (end - begin)))
    print(json.dumps(runs))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))

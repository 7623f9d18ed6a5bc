"""The same work over and over on one core, timed; loads nothing but the standard library, so it begins at once.

`python fixed_loop.py CORE SECONDS` prints a JSON list of pairs: seconds since the first run began, ms that it took.
"""

import json
import os
import sys
import time

ROUNDS = 10_000
"""Of a run: some tenths of a millisecond, far below the batches whose steadiness it is to tell of."""


def main(core: int, seconds: float) -> None:
    """Run it for so long."""
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

"""Run every benchmark and write what it printed, with its command, to docs/benchmarks.md."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BENCHMARKS = (
    (
        "Where the time of the main job goes",
        "benchmarks.stage_times",
        "Shares of the wall time per sample model at real dimensions; the whole in seconds.",
    ),
    (
        "Roofline estimates against measured A100 slices",
        "benchmarks.roofline_calibration",
        "The estimator's constants and its 90 % interval come from this comparison.",
    ),
)


def main() -> int:
    parts = [
        "# Benchmarks\n",
        "Written by `make bench` (`python -m benchmarks.run_all`). Times depend on the machine; ratios and shares "
        "are what to compare.\n",
        f"Last run: {platform.system()} {platform.machine()}, Python {platform.python_version()}.\n",
    ]
    failed = 0
    for title, module, about in BENCHMARKS:
        print(f"== {title}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", module], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
        )
        print(done.stdout)
        failed += done.returncode != 0
        printed = done.stdout.strip()
        if not printed.startswith("|"):
            printed = f"```\n{printed}\n```"
        parts.append(f"## {title}\n\n{about}\n\n`python -m {module}`\n\n{printed}\n")
    if failed:
        print(f"{failed} benchmark(s) failed; docs/benchmarks.md is left as it was", file=sys.stderr)
        return 1
    (ROOT / "docs" / "benchmarks.md").write_text("\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())

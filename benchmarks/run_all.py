"""Run every benchmark and write what it printed, with its command, to docs/benchmarks.md.

`--quick` runs each with small sizes, only to see that it works: it writes nothing.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from pathlib import Path

from benchmarks.sections import BENCHMARKS, Benchmark

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"


def run(benchmark: Benchmark, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run one benchmark as a separate command; its table is in `stdout`."""
    print(f"== {benchmark.title}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", benchmark.module, *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, flush=True)
    return done


def section(benchmark: Benchmark, printed: str) -> str:
    """The benchmark's section of the page: what it measures, the command, the output."""
    printed = printed.strip()
    if not printed.startswith("|"):
        printed = f"```\n{printed}\n```"
    return f"## {benchmark.title}\n\n{benchmark.about}\n\n`python -m {benchmark.module}`\n\n{printed}\n"


def kept(text: str) -> dict[str, str]:
    """Sections of the existing page, by title."""
    parts = text.split("\n## ")[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="these alone; the other sections stay as they are"
    )
    options = parser.parse_args()
    wanted = [f"benchmarks.{name}" for name in options.only or ()] or [one.module for one in BENCHMARKS]
    known = {one.module for one in BENCHMARKS}
    if not known.issuperset(wanted):
        parser.error(f"known are {', '.join(sorted(name.removeprefix('benchmarks.') for name in known))}")
    sections = kept(PAGE.read_text()) if PAGE.exists() else {}
    failed = 0
    for benchmark in BENCHMARKS:
        if benchmark.module not in wanted:
            continue
        done = run(benchmark, benchmark.quick if options.quick else ())
        if done.returncode:
            failed += 1
        else:
            sections[benchmark.title] = section(benchmark, done.stdout)
    if not options.quick:
        parts = [
            "# Benchmarks\n",
            "Written by `make bench` (`python -m benchmarks.run_all`; `--only NAME` for one section). Times depend on "
            "the machine; ratios and shares are what to compare.\n",
            f"Last run: {platform.system()} {platform.machine()}, Python {platform.python_version()}.\n",
            *(sections[one.title] for one in BENCHMARKS if one.title in sections),
        ]
        PAGE.write_text("\n".join(parts))
    if failed:
        print(f"{failed} benchmark(s) failed; their sections stay as they were", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long the whole test suite takes, at this commit and at others: wall time of the command that `make test` runs.

Run as `python -m benchmarks.suite_time [COMMIT ...]`, with nothing else on the machine; each commit is checked out
into a folder of its own and uses the packages that run this script.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = re.compile(r"^\t\$\(BIN\)/python -m pytest (.+)$", re.M)
"""A Makefile's first such command is that of `make test`."""


def suite(folder: Path, part: str) -> tuple[float, int, int]:
    """Seconds, cases and failures of the suite, or a part, in a folder. Raises SystemExit if pytest breaks off."""
    command = PYTEST.search((folder / "Makefile").read_text())
    if command is None:
        raise SystemExit(f"{folder}: its Makefile has no pytest command")
    # As in the Makefile: otherwise every command that a test starts would compile the package again.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *shlex.split(command[1]), "-p", "no:cacheprovider", part],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begun
    # With -q pytest prints one letter for each case, in lines that end with a percentage.
    letters = "".join(re.findall(r"(?m)^([.FEsxX]+)\s+\[\s*\d+%\]", done.stdout))
    if not letters or done.returncode not in (0, 1):
        raise SystemExit(
            f"{folder}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return seconds, len(letters), letters.count("F") + letters.count("E")


def main() -> int:
    """Print one row for each commit; return 1 if a suite fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="*", default=["HEAD"])
    parser.add_argument("--part", default="tests", help="a folder of tests instead of all")
    options = parser.parse_args()
    failed = 0
    print("| commit | s | cases | failed |\n|---|---|---|---|")
    for name in options.commits:
        asked = ["git", "-C", str(ROOT), "rev-parse", "--short", f"{name}^{{commit}}"]
        commit = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        with tempfile.TemporaryDirectory(prefix="suite-") as parent:
            folder = Path(parent) / "tree"
            git = ["git", "-C", str(ROOT), "worktree"]
            subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
            try:
                seconds, cases, failures = suite(folder, options.part)
            finally:
                subprocess.run([*git, "remove", "--force", str(folder)], check=True)
        failed += failures
        print(f"| {commit} | {seconds:.0f} | {cases} | {failures} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

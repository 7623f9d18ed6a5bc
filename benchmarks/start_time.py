"""What a short command costs beside Python itself: processor time of whole processes, as multiples of `python -c pass`.

Every turn runs each command once in each tree, one after the other; medians of the turns are divided. `--against` names
another tree of the project, such as a worktree of an earlier commit, to be measured in the same turns. Of the process
that forks jobs, and of one that plans as a job does without being forked, seconds of processor and memory (its resident
set, MiB) are printed too. Ends with 1 where this tree misses a goal.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from torchsplit_core.cli.command import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
NAMES = tuple(name for _, _, texts in COMMANDS for name in texts)
HELP_GOAL = 5.0
GOALS = {
    "plan examples/plan_request.json": 30.0,
    "request examples/profile.json --candidates examples/partition.json --gpus 1xA100-80GB": 25.0,
    "deploy examples/plan.json --format nvidia-smi": 25.0,
    "--version": HELP_GOAL,
    "--help": HELP_GOAL,
    **{f"{name} --help": HELP_GOAL for name in NAMES},
}
"""Goals, as multiples of a bare Python's time; commands that write get a folder to write to."""
FORKER = """
from pathlib import Path
from torchsplit_core.jobs.fork_server import ForkServer
forker = ForkServer()
forker.wait()
print(Path(f"/proc/{forker.process.pid}/stat").read_text())
print(Path(f"/proc/{forker.process.pid}/smaps_rollup").read_text())
forker.end()
"""
JOB = """
import torchsplit_core.jobs.plan
from torchsplit_core import files, workflow
workflow.plan(files.read_file("examples/plan_request.json")[1])
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds, user plus system; peak resident set, bytes."""

    cpu_s: float
    resident_bytes: int


def environment(tree: Path) -> dict[str, str]:
    """Environment of a process in a tree. Bytecode is always written, whatever this process's environment says."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(tree)}


def cost(tree: Path, arguments: Sequence[str]) -> Cost:
    """Cost of a Python process in a tree, with the children it waits for. Raises SystemExit if it fails."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{tree}: {' '.join(arguments)} ended with {process.returncode}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def forker(tree: Path) -> Cost:
    """Cost of the process that forks jobs, once it is ready."""
    asked = [sys.executable, "-c", FORKER]
    done = subprocess.run(asked, cwd=tree, env=environment(tree), check=True, capture_output=True, text=True)
    told = done.stdout
    # proc(5): utime and stime are fields 14 and 15; field 2 is in parentheses.
    ticks = told.partition(") ")[2].split()[11:13]
    resident = next(int(line.split()[1]) for line in told.splitlines() if line.startswith("Rss:"))
    return Cost(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), resident * 1024)


def measured(trees: Sequence[Path], turns: int) -> dict[tuple[Path, str], Cost]:
    """Median costs by (tree, what ran): "" for Python itself, the commands, "forker" and "job"."""
    found: dict[tuple[Path, str], list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        for turn in range(turns + 1):
            for tree in trees:
                runs = {"": ["-c", "pass"], "job": ["-c", JOB]}
                for command in GOALS:
                    runs[command] = ["-m", "torchsplit_core", *command.split()]
                    if not command.startswith("--") and not command.endswith("--help"):
                        runs[command] += ["-o", str(Path(folder) / command.partition(" ")[0])]
                costs = {}
                for name, arguments in runs.items():
                    try:
                        costs[name] = cost(tree, arguments)
                    except SystemExit:
                        # The other tree may lack a command.
                        if tree == ROOT:
                            raise
                costs["forker"] = forker(tree)
                # The first turn is left out: it compiles modules never imported before.
                for name, one in costs.items() if turn else ():
                    found.setdefault((tree, name), []).append(one)
            print(f"turn {turn} of {turns}", file=sys.stderr, flush=True)
    return {
        key: Cost(median(one.cpu_s for one in costs), int(median(one.resident_bytes for one in costs)))
        for key, costs in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="another tree, measured in the same turns"
    )
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    trees = [ROOT, *([options.against.resolve()] if options.against else [])]
    found = measured(trees, options.turns)

    def ratio(tree: Path, command: str) -> float:
        return found[tree, command].cpu_s / found[tree, ""].cpu_s

    def row(title: str, goal: str, cells: Sequence[str]) -> str:
        return f"| {title} | {goal} | {' | '.join(cells)} |"

    heads = ["this tree", *(["the other tree"] if options.against else [])]
    print(row("command", "at most", heads))
    print(row("---", "---:", ["---:"] * len(heads)))
    slowest = max(NAMES, key=lambda name: ratio(ROOT, f"{name} --help"))
    shown = [command for command in GOALS if command.partition(" ")[0] not in NAMES or "examples/" in command]
    for command in [*shown, f"{slowest} --help"]:
        title = f"`{command}`" + (f", the most of {len(NAMES)}" if command not in shown else "")
        cells = [f"{ratio(tree, command):.1f}" if (tree, command) in found else "n/a" for tree in trees]
        print(row(title, f"{GOALS[command]:g}", cells))
    print(row("the process that forks jobs, ready", "", _words(found, trees, "forker")))
    print(row("a plan's process where none forks it", "", _words(found, trees, "job")))
    print(row("`python -c pass`", "", _words(found, trees, "")))
    return 1 if any(ratio(ROOT, command) > goal for command, goal in GOALS.items()) else 0


def _words(found: dict[tuple[Path, str], Cost], trees: Sequence[Path], name: str) -> list[str]:
    costs = [found[tree, name] for tree in trees]
    return [f"{one.cpu_s:.3g} s, {one.resident_bytes / MIB:.0f} MiB" for one in costs]


if __name__ == "__main__":
    sys.exit(main())

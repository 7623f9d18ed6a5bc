"""Compares what users see of COMMIT and of this checkout: `python -m tools.compare_versions COMMIT`.

Both versions print every help text, write every schema, read and write every example, and run the commands that need
neither torch nor a clock on the examples. The earlier version fills a store, and both list its contents. Differences
are printed, and the exit code is then 1. Times, search statistics and module paths in the package may differ.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    "plan examples/plan_request.json",
    "plan examples/fleets/mixed_request.json",
    "simulate examples/plan.json --request examples/plan_request.json",
    "simulate examples/simulation_request.json",
    "deploy examples/plan.json --request examples/plan_request.json",
    "deploy examples/fleets/mixed_plan.json --request examples/fleets/mixed_request.json",
    "place examples/placement_request.json",
    "partition examples/partition_request.json",
    "request examples/profile.json --gpus 1xA100-80GB --candidates examples/partition.json",
    "import examples/profiles/measured.csv",
    "draw examples/graph.json",
    "strategy examples/strategy_request.json",
)
"""Each is run with `-o FILE`; the file and the printed text are compared."""

CHILD = """
import contextlib, io, sys
from pathlib import Path

from torchsplit_core.cli.command import COMMANDS, main
from torchsplit_core.files import FORMATS, read_file, schema_of, write_text
from torchsplit_core.workspace.store import Store

out, home, fill = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "fill"


def run(name, words):
    printed, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    (out / f"{name}.txt").write_text(f"{status}\\n{printed.getvalue()}\\n{complaints.getvalue()}")


for _, _, texts in COMMANDS:
    for command in texts:
        run(f"help {command}", [command, "--help"])
run("help", ["--help"])
for name in FORMATS:
    (out / f"schema {name}.json").write_text(str(schema_of(name)))
examples = [path for path in sorted(Path("examples").rglob("*.json"))]
for path in examples:
    (out / f"example {str(path).replace('/', ' ')}").write_text(write_text(read_file(path)[1]))
for line in sys.argv[4:]:
    command, *words = line.split()
    suffix = {"draw": ".svg"}.get(command, "")
    run(line.replace("/", " "), [command, *words, "-o", str(out / f"written {line.replace('/', ' ')}{suffix}")])
store = Store(home)
if fill:
    workspace = store.create("review")
    for path in examples:
        kind, value = read_file(path)
        with contextlib.suppress(ValueError):  # of a kind that no workspace holds
            workspace.put(kind.removeprefix("torchsplit."), path.stem, value)
    workspace.set_setting("scenario", "plan_request")
listed = []
for info in store.workspaces():
    workspace = store.open(info.id)
    listed.append(f"{workspace.name} {workspace.setting('scenario')}")
    for item in sorted(workspace.artifacts(), key=lambda item: (item.kind, item.name)):
        listed.append(f"{item.kind} {item.name} {write_text(workspace.get(item.kind, item.name))}")
(out / "stored.txt").write_text("\\n".join(listed))
"""

VARYING = (
    (re.compile(r"torchsplit_core[./][\w./]+"), "MODULE"),
    (
        re.compile(r'"(build_s|solve_s|verify_s|imported_at)": [^,\n}]+'),
        r'"\1": 0',
    ),
    (re.compile(r"\b\d+(\.\d+)? (ms|s)\b"), "TIME"),
)


def clean(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "OUT")
    # The statistics of a search describe its course, not its result.
    text = re.sub(r'"statistics": \{[^{}]*\}', '"statistics": {}', text)
    for pattern, instead in VARYING:
        text = pattern.sub(instead, text)
    return text


def shown(checkout: Path, out: Path, home: Path, mode: str) -> dict[str, str]:
    """File name -> text of each file that the version in `checkout` wrote."""
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(checkout), "COLUMNS": "100", "TORCHSPLIT_HOME": str(home)}
    command = [sys.executable, "-c", CHILD, str(out), str(home), mode, *COMMANDS]
    subprocess.run(command, cwd=checkout, env=environment, check=True)
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(out)): clean(path.read_text(encoding="utf-8", errors="replace"), out)
        for path in files
    }


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        folder = Path(name)
        earlier = folder / "earlier"
        subprocess.run(
            ["git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(earlier)], check=True
        )
        subprocess.run(["git", "checkout", "--quiet", sys.argv[1]], cwd=earlier, check=True)
        # Both get the same examples, since only the code is compared, not the examples.
        shutil.rmtree(earlier / "examples")
        shutil.copytree(ROOT / "examples", earlier / "examples")
        before = shown(earlier, folder / "before", folder / "home", "fill")
        after = shown(ROOT, folder / "after", folder / "home", "read")
    differing = 0
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        if lines := list(
            difflib.unified_diff(old, new, f"before: {name}", f"after: {name}", lineterm="", n=1)
        ):
            differing += 1
            print("\n".join(line[:300] for line in lines[:40]))
    print(f"{len(before)} texts of {sys.argv[1]} compared, {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())

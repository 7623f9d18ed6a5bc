"""Would the tests notice? Places of the rooms that decide are broken one at a time, each before its room's own tests.

A place is an operator, a comparison, a bound or a constant of a function, drawn with a seed; the change is the smallest
that alters what is computed (`<` to `<=`, `+` to `-`, `min` to `max`, `and` to `or`, `n` to `n + 1`, `not x` to `x`).
Each runs in a copy of the project, against `tests/ROOM`: first the tests named after the changed module, then those
that import it. A test that fails must pass again once the change is undone. A survivor that cannot alter any result
stands in data/equivalent_mutants.csv with the reason; the others need a test.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "planning": ("torchsplit_core/planning", ("verification",)),
    "planning/verification": ("torchsplit_core/planning/verification", ()),
    "placement": ("torchsplit_core/placement", ()),
    "simulation": ("torchsplit_core/simulation", ()),
    "latency_slo": ("torchsplit_core/latency_slo", ()),
    "serving": ("torchsplit_core/serving", ()),
    "strategy": ("torchsplit_core/strategy", ()),
    "training": ("torchsplit_core/training", ()),
    "workspace": ("torchsplit_core/workspace", ()),
    "isolation": ("torchsplit_core/isolation", ()),
}
"""Tests' folder -> the folder whose places are drawn, and subfolders of it that have tests to themselves."""
EQUIVALENT = Path(__file__).with_name("data") / "equivalent_mutants.csv"
LONGEST_S = 900.0
"""Limit of one room's tests: it catches a change that makes them run for ever."""

COMPARED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
COMPUTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*"}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    room: str
    path: str
    line: int
    """Counted from 1."""
    row: str
    """The source line before the change; it distinguishes places with the same text."""
    text: str
    """The replaced source, before the change."""
    changed: str
    source: str
    """The whole module after the change."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.path, self.row, self.text, self.changed


def mutants(room: str, path: Path) -> Iterator[Mutant]:
    """Every mutant of a module's functions, in source order."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    name = str(path.relative_to(ROOT))
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (inner for statement in function.body for inner in computed(statement)):
            old = ast.get_source_segment(text, node)
            new = replacement(node, text)
            if old is None or new is None or node.end_lineno != node.lineno:
                continue
            row = lines[node.lineno - 1].encode()
            fresh = row[: node.col_offset] + new.encode() + row[node.end_col_offset :]
            source = "".join([*lines[: node.lineno - 1], fresh.decode(), *lines[node.lineno :]])
            yield Mutant(room, name, node.lineno, row.decode().strip(), old, new, source)


def computed(statement: ast.AST) -> Iterator[ast.expr]:
    """Expressions of a statement that compute: not annotations, messages or inner functions (visited separately)."""
    if isinstance(
        statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr | ast.Raise
    ):
        return
    if isinstance(statement, ast.expr):
        yield statement
    for field, value in ast.iter_fields(statement):
        if field not in ("annotation", "returns", "slice") or isinstance(statement, ast.Subscript):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from computed(child)


def replacement(node: ast.expr, text: str) -> str | None:
    """The node's source after the smallest change that alters its result; None if there is none."""

    def source(part: ast.expr) -> str:
        written = ast.get_source_segment(text, part) or ""
        compound = isinstance(part, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.UnaryOp)
        return f"({written})" if compound else written

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return f"{source(node.left)} {COMPARED[type(node.ops[0])]} {source(node.comparators[0])}"
    if isinstance(node, ast.BinOp) and type(node.op) in COMPUTED and not is_path(node.right):
        return f"{source(node.left)} {COMPUTED[type(node.op)]} {source(node.right)}"
    if isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        return word.join(source(value) for value in node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return source(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLED:
        return CALLED[node.func.id] + source(node)[len(node.func.id) :]
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            return str(not node.value)
        if isinstance(node.value, int | float):
            return str(node.value + 1)
    return None


def is_path(part: ast.expr) -> bool:
    """Whether the operand is text, such as a path's member: any changed operator would raise at once."""
    return isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))


def draw(count: int, seed: int, rooms: list[str]) -> list[Mutant]:
    """Draw equally many places from each room, from its modules in proportion to their number of places."""
    chosen: list[Mutant] = []
    for number, room in enumerate(rooms):
        folder, apart = ROOMS[room]
        paths = [
            path
            for path in sorted((ROOT / folder).rglob("*.py"))
            if not any(path.is_relative_to(ROOT / folder / inner) for inner in apart)
        ]
        places = [mutant for path in paths for mutant in mutants(room, path)]
        share = count // len(rooms) + (number < count % len(rooms))
        chosen += random.Random(f"{seed} {room}").sample(places, min(share, len(places)))
    return chosen


def caught(mutant: Mutant, folder: Path) -> bool:
    """Whether the room's tests fail in a copy of the project that has the change.

    Raises SystemExit if the failing test also fails without the change, since it then proves nothing.
    """
    target = folder / mutant.path
    before = target.read_text(encoding="utf-8")
    stem = target.parent.name if target.stem == "__init__" else target.stem
    module = mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    tests = sorted(
        (folder / "tests" / mutant.room).rglob("test_*.py"),
        key=lambda path: (
            stem not in path.stem,
            module not in path.read_text(encoding="utf-8"),
            target.parent.name not in path.parts,
            path,
        ),
    )
    target.write_text(mutant.source, encoding="utf-8")
    try:
        if passes(folder, tests):
            return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        target.write_text(before, encoding="utf-8")
    if not passes(folder, [*tests, "--last-failed"]):
        raise SystemExit(f"{mutant.path}:{mutant.line}: what fails with the change fails without it, too")
    return True


def passes(folder: Path, arguments: Sequence[Path | str]) -> bool:
    """Run these tests up to the first failure; whether all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not repeated and not browser"]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=LONGEST_S,
        check=False,
    )
    return done.returncode == 0


def equivalents() -> dict[tuple[str, str, str, str], str]:
    with EQUIVALENT.open(encoding="utf-8", newline="") as rows:
        return {
            (row["path"], row["row"], row["text"], row["changed"]): row["reason"]
            for row in csv.DictReader(rows)
        }


def copied(folder: Path) -> Path:
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    for name in listed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument("--rooms", nargs="+", choices=list(ROOMS), default=list(ROOMS))
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    drawn = draw(options.count, options.seed, options.rooms)
    known = equivalents()
    counted = {room: [0, 0, 0] for room in options.rooms}
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as home:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.processes):
            copies.put(copied(Path(home) / str(number)))

        def tried(mutant: Mutant) -> bool:
            folder = copies.get()
            try:
                return caught(mutant, folder)
            finally:
                copies.put(folder)

        with ThreadPoolExecutor(options.processes) as threads:
            for mutant, noticed in zip(drawn, threads.map(tried, drawn), strict=True):
                same = not noticed and mutant.key in known
                counted[mutant.room][0 if noticed else 2 if same else 1] += 1
                words = "caught" if noticed else "equivalent" if same else "SURVIVED"
                where = f"{mutant.path}:{mutant.line}"
                print(f"{words:10} {where} {mutant.text} -> {mutant.changed}", file=sys.stderr, flush=True)
                if not noticed and not same:
                    survivors.append(f"{where} `{mutant.text}` -> `{mutant.changed}`")
    print("| room | places | caught | survived | equivalent |\n|---|---|---|---|---|")
    totals = [sum(column) for column in zip(*counted.values(), strict=True)]
    for room, (noticed_count, missed, equal) in [*counted.items(), ("all", tuple(totals))]:
        total = noticed_count + missed + equal
        print(f"| {room} | {total} | {noticed_count} | {missed} | {equal} |")
    share = totals[0] / max(1, totals[0] + totals[1])
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    print(f"\nCaught of those that are not equivalent: {share:.0%} (goal 90 %), of the source at {commit}.")
    for survivor in survivors:
        print(f"- {survivor}")
    return int(share < 0.9)


if __name__ == "__main__":
    sys.exit(main())

"""Prints every fault message in the code, for review: `python -m tools.list_messages [FOLDER_OR_FILE …]`.

One line per message: its place in the code, then `where: problem. remedy`, with the expressions of f-strings in
braces. `pytest --messages FILE` writes the messages that the tests trigger, with their values.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("torchsplit_core", "app", "pages", "sample_models")
FAULTS = ("InputFault", "StoreFault")
"""Exception classes with the arguments where, problem and remedy."""


@dataclass(frozen=True)
class Made:
    """One call that creates a fault; its parts as written in the code, "" for a missing one."""

    place: str
    where: str
    problem: str
    remedy: str
    arguments: int


def messages(*rooms: str) -> Iterator[Made]:
    """Every call of a class of FAULTS in the folders or files of these names, by default in ROOMS."""
    for room in rooms or ROOMS:
        path = ROOT / room
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FAULTS:
                    if any(isinstance(given, ast.Starred) for given in node.args):
                        continue  # copies the parts of another fault
                    parts = [*map(_words, node.args), "", "", ""]
                    place = f"{file.relative_to(ROOT)}:{node.lineno}"
                    yield Made(place, parts[0], parts[1], parts[2], len(node.args) + len(node.keywords))


def _words(node: ast.expr) -> str:
    """The text of an expression: string constants as they are, other expressions as code in braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else _words(part)
            for part in node.values
        )
    if isinstance(node, ast.IfExp):
        return f"{_words(node.body)} / {_words(node.orelse)}"
    return f"{{{ast.unparse(node)}}}"


if __name__ == "__main__":
    for made in messages(*sys.argv[1:]):
        print(f"{made.place}  {made.where}: {made.problem}. {made.remedy}")

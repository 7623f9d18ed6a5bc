"""Names that say nothing, and classes of one name in several rooms: as many as are left, and never more again."""

import ast
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

VAGUE = {"found": 0, "told": 0, "kept": 3, "one": 1, "own": 0, "here": 0}
"""Most places of the core and the dashboard that bind each name. Lower a figure when it falls; never raise one."""
VAGUE_IN_TESTS = {"found": 749, "told": 255, "kept": 92, "one": 605, "own": 100, "here": 24}
HOMONYMS = 18
"""Most public classes whose name a class of another room has too."""


def bound(tree: ast.AST) -> Counter[str]:
    """Names bound in a module: variables, parameters, attributes, functions and classes."""
    names = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names[node.attr] += 1
        elif isinstance(node, ast.arg):
            names[node.arg] += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] += 1
    return names


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def names_of(path: Path) -> tuple[Counter[str], tuple[str, ...]]:
    """The names that a file binds, and its public classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return bound(tree), tuple(name for name in classes if not name.startswith("_"))


@pytest.mark.parametrize(
    ("folders", "most"),
    [(("torchsplit_core", "app", "pages"), VAGUE), (("tests", "benchmarks"), VAGUE_IN_TESTS)],
)
def test_names_that_say_nothing_become_fewer(folders, most):
    names = Counter()
    for path in modules(*folders):
        names.update(names_of(path)[0])
    assert {name: names[name] for name in most if names[name] > most[name]} == {}


def test_every_way_to_bind_a_name_is_counted():
    text = "def found(told, *kept, own=0):\n    for one in [here := 1]:\n        self.found = one\n"
    assert bound(ast.parse(text)) == {"found": 2, "told": 1, "kept": 1, "own": 1, "one": 1, "here": 1}


def test_a_class_has_a_name_that_no_other_room_uses():
    rooms = defaultdict(set)
    for path in modules("torchsplit_core", "app"):
        room = path.relative_to(ROOT).parts[:2]
        for name in names_of(path)[1]:
            rooms[name].add(room)
    shared = {name: sorted(where) for name, where in rooms.items() if len(where) > 1}
    assert len(shared) <= HOMONYMS, shared

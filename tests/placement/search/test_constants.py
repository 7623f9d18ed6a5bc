"""Every number that the placement room has a name for says what it is."""

import ast

from tests.support.paths import ROOT

PLACEMENT = ROOT / "torchsplit_core" / "placement"


def constants(source: str) -> dict[str, str]:
    """The words below each assignment of numbers in a module, "" where there are none."""
    body = ast.parse(source).body
    found = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        numbers = [one.value for one in ast.walk(value) if isinstance(one, ast.Constant)] if value else []
        if not any(isinstance(number, int | float) for number in numbers):
            continue
        words = after.value if isinstance(after, ast.Expr) else None
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        found[ast.unparse(target)] = str(words.value) if isinstance(words, ast.Constant) else ""
    return found


def test_a_number_without_a_word_is_found():
    told = constants('A = 1\n"""One."""\nB, C = 2, 3.0\nD: float = 4\nE = "five"\n')
    assert told == {"A": "One.", "(B, C)": "", "D": ""}


def test_every_number_of_the_placement_room_has_its_word():
    named = {
        f"{path.relative_to(PLACEMENT)} {name}": words
        for path in sorted(PLACEMENT.rglob("*.py"))
        for name, words in constants(path.read_text(encoding="utf-8")).items()
    }
    assert len(named) > 50
    assert [name for name, words in named.items() if len(words.split()) < 2] == []

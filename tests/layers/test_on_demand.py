"""What packages offer on demand is what type checkers read, and no module of theirs takes a name's place."""

import ast
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from torchsplit_core.on_demand import on_demand

OFFERING = sorted(
    path
    for path in (ROOT / "torchsplit_core").rglob("__init__.py")
    if path.parent.name != "torchsplit_core" and "on_demand(" in path.read_text()
)


def offered(tree: ast.Module) -> dict[str, str]:
    """Name → module, of the table that `on_demand` is given."""
    (call,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "on_demand"
    )
    table = ast.literal_eval(call.args[1])
    return {name: module for module, names in table.items() for name in names.split()}


def declared(tree: ast.Module, package: str) -> dict[str, str]:
    """The same, of the imports under TYPE_CHECKING."""
    return {
        alias.name: (node.module or "").removeprefix(f"{package}.")
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def at_once(tree: ast.Module) -> set[str]:
    """Names of the package that it imports when it is loaded."""
    return {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name != "on_demand"
    }


def listed(tree: ast.Module) -> list[str]:
    (names,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "__all__"
    )
    return ast.literal_eval(names)


@pytest.mark.parametrize("path", OFFERING, ids=lambda path: path.parent.name)
def test_the_table_says_what_type_checkers_read(path):
    tree = ast.parse(path.read_text())
    found = offered(tree)
    assert found and found == declared(tree, ".".join(path.parent.relative_to(ROOT).parts))
    beside = {one.stem for one in path.parent.iterdir()}
    assert sorted(set(listed(tree)) - at_once(tree)) == sorted(found)
    assert not beside & set(found), "once loaded, the module would stand in the name's place"


def test_a_name_loads_its_module_alone_and_an_unknown_one_is_refused():
    program = (
        "import sys; from torchsplit_core.values import InputFault\n"
        "told = [name for name in sys.modules if name.startswith('torchsplit_core.values.')]\n"
        "assert told == ['torchsplit_core.values.errors'], told\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    load = on_demand("torchsplit_core.values", {"errors": "InputFault quoted"})
    assert load("quoted")("a") == "'a'"
    with pytest.raises(AttributeError, match=r"module 'torchsplit_core.values' has no attribute 'Plan'"):
        load("Plan")

"""The table of docs/reference/security.md names every place that unpickles or executes, and none that is gone."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

ROOMS = ("torchsplit_core", "app", "pages", "sample_models", "tools", "benchmarks")
OWN_COMMANDS = ("tools", "benchmarks")
"""Rooms of commands for developers, which start processes of fixed words."""
BARE = ("eval", "exec", "compile", "__import__")
WATCHED = re.compile(
    r"(?:^|\.)(?:import_module|exec_module|load_module|spec_from_file_location|run_module|run_path|CDLL|sympify"
    r"|parse_expr|lambdify|read_pickle|\w+_object(?:_list)?|_?Unpickler|elastic_launch|ray\.get)$"
    r"|^(?:subprocess\.\w+|os\.(?:system|popen|exec\w+|spawn\w+|posix_spawn\w*)"
    r"|(?:pickle|marshal|dill|cloudpickle|joblib|shelve|yaml)\.(?:\w*load\w*|open)"
    r"|(?:torch|torch\.jit|torch\.export|torch\.hub|dcp|np|numpy)\.load\w*)$"
)
IN_TEXTS = re.compile(r"\b(torch\.export\.load|torch\.load|exec_module|pickle\.loads?)\(")


def calls_of(text: str, *, own_commands: bool = False) -> Iterator[str]:
    """What of a module loads data that can name code, or starts something; also in texts that it writes as code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            yield from (
                f"{found[1]} in a text" for found in IN_TEXTS.finditer(node.value) if "`" not in node.value
            )
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if name in BARE or WATCHED.search(name):
            if not (own_commands and name.startswith("subprocess.")):
                yield re.sub(r"\(.*\)", "()", name)
        elif (
            last == "recv" and not node.args
        ):  # a socket's takes a number: this one is multiprocessing's, of pickles
            yield "recv"


def found() -> set[tuple[str, str]]:
    return {
        (str(path.relative_to(ROOT)), call)
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for call in calls_of(path.read_text(encoding="utf-8"), own_commands=room in OWN_COMMANDS)
    }


def named() -> set[tuple[str, str]]:
    """The pairs of the table's first two columns."""
    text = (ROOT / "docs" / "reference" / "security.md").read_text(encoding="utf-8")
    table = text.partition("\n## What unpickles or executes\n")[2].partition("\n## ")[0]
    pairs = set()
    for line in table.splitlines():
        if line.startswith("| `"):
            modules, calls, guard = (cell.strip() for cell in line.strip("|").split("|"))
            assert guard, line
            pairs |= {(one, call) for one in ticked(modules) for call in ticked(calls)}
    return pairs


def ticked(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_names_every_place_and_none_that_is_gone():
    calls, table = found(), named()
    assert calls - table == set(), "not in the table of docs/reference/security.md"
    assert table - calls == set(), "in the table of docs/reference/security.md, but gone"


@pytest.mark.parametrize("line", [
    "pickle.load(f)", "pickle.loads(b)", "pickle.Unpickler(f).load()", "_Unpickler(f)", "self.ray.get(x)",
    "torch.load(f)", "torch.export.load(f)", "elastic_launch(c, f)(t)",
    "eval(t)", "exec(t)", "__import__(n)", "importlib.import_module(n)", "dcp.load(s)",
    "spec.loader.exec_module(m)",
    "runpy.run_path(p)", "subprocess.run(c)", "os.system(c)", "np.load(f, allow_pickle=True)", "yaml.load(f)",
    "pipe.recv()", "dist.broadcast_object_list(x)", "sympy.sympify(t)", "marshal.loads(b)", "joblib.load(f)",
    "torch.jit.load(f)", "ctypes.CDLL(n)", "os.execve(a, b, c)", "code = '''\ntorch.export.load(f)\n'''",
])  # fmt: skip
def test_such_a_call_is_seen(line):
    assert list(calls_of(line))


def test_what_only_reads_is_not(tmp_path):
    lines = ("json.loads(t)", "re.compile(t)", "model.eval()", "sock.recv(9)", "store.load()", "yaml.dump(x)")
    assert not [line for line in lines if list(calls_of(line))]

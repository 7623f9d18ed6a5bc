"""Renames modules and names in the whole repository, as tables say: `python -m tools.rename TABLE…`.

A line of a table moves a module or a package, or renames a name at its definition and all references:

    module torchsplit_core/serving/wire -> torchsplit_core/serving/protocol
    name torchsplit_core/serving/worker_process.py:WorkerProcess.run.found -> reply
    name torchsplit_core/serving/worker_process.py:WorkerProcess.run.item@57 -> tensor

A language server finds the references (basedpyright, installed with pip). `@57` restricts a rename to the scope
(function, comprehension, lambda) that binds the name on line 57. Module names in strings and documents are replaced as
text, as are names in `setattr` and in the tables of `on_demand`. Names are renamed before modules are moved, so all
paths in a table are the old ones. A rename that would collide is reported and skipped. Run the formatter, mypy and the
tests afterwards.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

ROOT = Path(__file__).resolve().parents[1]
CODE = (
    "torchsplit_core",
    "app",
    "pages",
    "tests",
    "benchmarks",
    "tools",
    "sample_models",
    "examples",
    "setup.py",
)
TEXT = (
    ".py",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".json",
    ".ipynb",
    ".txt",
    ".in",
    ".cfg",
    "Makefile",
    "Dockerfile",
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef)
Position = tuple[int, int]
"""Line and column in characters, from 0."""


@dataclass(frozen=True, slots=True)
class Rename:
    path: str
    names: tuple[str, ...]
    """The names of the enclosing scopes, then the name itself."""
    line: int | None
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{'.'.join(self.names)}{f'@{self.line}' if self.line else ''} -> {self.new}"


def parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def tracked() -> list[str]:
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def read_table(path: Path) -> tuple[list[Rename], dict[str, str]]:
    renames, moves = [], {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.split("#")[0].strip()
        if not text:
            continue
        matched = re.fullmatch(r"(module|name)\s+(\S+)\s*->\s*(\S+)", text)
        if not matched:
            print(f"{path}:{number}: not understood: {line}")
            continue
        kind, old, new = matched.groups()
        if kind == "module":
            moves[old] = new
        else:
            file, _, names = old.partition(":")
            names, _, at = names.partition("@")
            renames.append(Rename(file, tuple(names.split(".")), int(at) if at else None, new))
    # A name is addressed by its enclosing scopes, so inner names are renamed first.
    renames.sort(key=lambda rename: (rename.line is None, -len(rename.names)))
    return renames, moves


class LanguageServer:
    """Finds references with basedpyright's `textDocument/rename`."""

    def __init__(self) -> None:
        command = [str(Path(sys.executable).with_name("basedpyright-langserver")), "--stdio"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        self._number = 0
        self._open: dict[str, int] = {}
        folder = {"uri": ROOT.as_uri(), "name": "root"}
        self._call("initialize", {
            "processId": None, "rootUri": ROOT.as_uri(), "workspaceFolders": [folder],
            "capabilities": {"workspace": {"configuration": True, "workspaceFolders": True}},
        })  # fmt: skip
        self._notify("initialized", {})

    def rename(self, path: str, position: Position, new: str) -> dict[str, list[dict[str, Any]]]:
        """Path -> the edits of a rename, which are not applied here."""
        uri = (ROOT / path).as_uri()
        if path not in self._open:
            self._open[path] = 1
            text = (ROOT / path).read_text(encoding="utf-8")
            document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
            self._notify("textDocument/didOpen", {"textDocument": document})
        where = {"line": position[0], "character": position[1]}
        edit = self._call(
            "textDocument/rename", {"textDocument": {"uri": uri}, "position": where, "newName": new}
        )
        edits: dict[str, list[dict[str, Any]]] = {}
        for target, changes in ((edit or {}).get("changes") or {}).items():
            edits[str(Path(unquote(urlparse(target).path)).relative_to(ROOT))] = changes
        for change in (edit or {}).get("documentChanges") or ():
            edits[str(Path(unquote(urlparse(change["textDocument"]["uri"]).path)).relative_to(ROOT))] = (
                change["edits"]
            )
        return edits

    def changed(self, paths: list[str]) -> None:
        for path in paths:
            if path in self._open:
                self._open[path] += 1
                document = {"uri": (ROOT / path).as_uri(), "version": self._open[path]}
                text = (ROOT / path).read_text(encoding="utf-8")
                self._notify(
                    "textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]}
                )
        events = [{"uri": (ROOT / path).as_uri(), "type": 2} for path in paths]
        self._notify("workspace/didChangeWatchedFiles", {"changes": events})

    def close(self) -> None:
        self._process.kill()

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _notify(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def _call(self, method: str, params: Any) -> Any:
        self._number += 1
        number = self._number
        self._send({"id": number, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" in message and "id" in message:
                self._send({"id": message["id"], "result": self._settings(message)})
            elif message.get("id") == number and "method" not in message:
                if "error" in message:
                    print(f"  the language server says: {message['error'].get('message')}")
                return message.get("result")

    def _settings(self, message: dict[str, Any]) -> Any:
        if message["method"] != "workspace/configuration":
            return None
        analysis = {"diagnosticMode": "openFilesOnly", "typeCheckingMode": "off", "autoSearchPaths": True}
        python = {"pythonPath": sys.executable, "analysis": analysis}
        settings = {"python": python, "basedpyright": {"analysis": analysis}}
        answers: list[Any] = []
        for item in message["params"]["items"]:
            value: Any = settings
            for key in (item.get("section") or "").split("."):
                value = value.get(key, {}) if key else value
            answers.append(value)
        return answers

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            key, _, value = line.partition(b":")
            if key.lower() == b"content-length":
                length = int(value)
        return json.loads(self._process.stdout.read(length))


def bindings(path: str, rename: Rename, line: int | None) -> list[Position]:
    """Positions at which the rename's scope binds the name."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    name = rename.names[-1]
    positions: list[Position] = []
    for scope in scopes_around(path, rename):
        if line is None:
            nodes = within(scope)
        else:
            nodes = smallest_scope(scope, name, line, lines)
        positions += [position for node in nodes if (position := binding(node, name, lines))]
        if isinstance(scope, ast.ClassDef) and line is None:
            positions += [
                (node.lineno - 1, column(lines, node.end_lineno, node.end_col_offset) - len(name))
                for node in ast.walk(scope)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name
                and isinstance(node.value, ast.Name) and node.value.id == "self" and node.end_lineno == node.lineno
            ]  # fmt: skip
    return sorted(set(positions))


def within(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, with comprehensions and lambdas, but only the heads of nested functions and classes."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if isinstance(child, SCOPES):
            for decorator in child.decorator_list:
                yield from within(decorator)
            if isinstance(child, FUNCTIONS):
                for default in (*child.args.defaults, *child.args.kw_defaults):
                    if default is not None:
                        yield from within(default)
        else:
            yield from within(child)


def smallest_scope(scope: ast.AST, name: str, line: int, lines: list[str]) -> list[ast.AST]:
    """Nodes of the innermost comprehension, lambda or function that binds the name on that line."""
    best: list[ast.AST] = []
    size = None
    own = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
    for node in [scope, *(inner for inner in within(scope) if isinstance(inner, own))]:
        inside = list(within(node))
        bound = [
            position
            for inner in inside
            if (position := binding(inner, name, lines)) and position[0] == line - 1
        ]
        if bound and (size is None or len(inside) < size):
            best, size = inside, len(inside)
    return best


def binding(node: ast.AST, name: str, lines: list[str]) -> Position | None:
    if isinstance(node, SCOPES) and node.name == name:
        head = re.compile(rf"(?:def|class)\s+({name})\b")
        for number in range(node.lineno - 1, len(lines)):
            if matched := head.search(lines[number]):
                return number, matched.start(1)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
        return node.lineno - 1, column(lines, node.lineno, node.col_offset)
    if isinstance(node, ast.arg) and node.arg == name:
        return node.lineno - 1, column(lines, node.lineno, node.col_offset)
    if isinstance(node, ast.ExceptHandler) and node.name == name:
        matched = re.search(rf"\bas\s+({name})\b", lines[node.lineno - 1])
        return (node.lineno - 1, matched.start(1)) if matched else None
    if isinstance(node, ast.alias) and node.asname == name:
        return node.lineno - 1, column(lines, node.end_lineno, node.end_col_offset) - len(name)
    if isinstance(node, ast.MatchAs) and node.name == name:
        return node.lineno - 1, column(lines, node.end_lineno, node.end_col_offset) - len(name)
    return None


def column(lines: list[str], line: int | None, bytes_before: int | None) -> int:
    assert line is not None and bytes_before is not None
    return len(lines[line - 1].encode()[:bytes_before].decode())


def identifiers(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, SCOPES):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
    return names


def scopes_around(path: str, rename: Rename) -> list[ast.AST]:
    """The scopes that bind the name: module, classes or functions; several if one is defined repeatedly."""
    scopes: list[ast.AST] = [parsed(path)]
    for name in rename.names[:-1]:
        inner = (node for scope in scopes for node in within(scope))
        scopes = [node for node in inner if isinstance(node, SCOPES) and node.name == name]
    return scopes


def taken_names(path: str, rename: Rename, scopes: list[ast.AST]) -> set[str]:
    """Names with which the new one would collide: in the function, the class or the module."""
    if rename.line is not None:
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        inner = [smallest_scope(scope, rename.names[-1], rename.line, lines) for scope in scopes]
        return {name for nodes in inner for node in nodes for name in identifiers(node)}
    if all(isinstance(scope, ast.ClassDef) for scope in scopes):
        nodes = [node for scope in scopes for node in within(scope)]
        return {node.name for node in nodes if isinstance(node, SCOPES)} | {
            node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
    # A variable may have its function's name, unless the function calls itself.
    return {name for scope in scopes for node in ast.iter_child_nodes(scope) for name in identifiers(node)}


def apply(edits: dict[str, list[dict[str, Any]]]) -> None:
    for path, changes in edits.items():
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines(keepends=True)
        spots = [(change["range"]["start"], change["range"]["end"], change) for change in changes]
        for start, end, change in sorted(
            spots, key=lambda spot: (spot[0]["line"], spot[0]["character"]), reverse=True
        ):
            assert start["line"] == end["line"], (path, change)
            units = lines[start["line"]].encode("utf-16-le")
            before, after = units[: 2 * start["character"]], units[2 * end["character"] :]
            lines[start["line"]] = (before + change["newText"].encode("utf-16-le") + after).decode(
                "utf-16-le"
            )
        (ROOT / path).write_text("".join(lines), encoding="utf-8")


def dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def named_in_strings(rename: Rename, edited: set[str]) -> list[str]:
    """Rename strings: in `setattr` of a module or class, in `on_demand`'s tables, in module:function. Returns paths."""
    old, new, changed = rename.names[-1], rename.new, []
    full = re.compile(rf"\b{re.escape(dotted(rename.path))}([.:]){old}\b")
    for path in tracked():
        if not path.startswith(CODE) or not path.endswith((".py", ".md", ".json", ".ipynb")):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        if old not in text:
            continue
        fresh = full.sub(rf"{dotted(rename.path)}\g<1>{new}", text) if len(rename.names) == 1 else text
        if path.endswith(".py") and (f'"{old}"' in fresh or "on_demand(" in fresh):
            fresh = in_calls(path, fresh, rename, edited)
        if fresh != text:
            (ROOT / path).write_text(fresh, encoding="utf-8")
            changed.append(path)
    return changed


def in_calls(path: str, text: str, rename: Rename, edited: set[str]) -> str:
    old, new = rename.names[-1], rename.new
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
    spots: list[ast.Constant] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("setattr", "getattr", "delattr", "hasattr", "object") and len(node.args) > 1:
            owner, name = node.args[:2]
            if isinstance(name, ast.Constant) and name.value == old:
                head, *rest = ast.unparse(owner).split(".")
                target = ".".join([aliases.get(head, head), *rest])
                modules = {dotted(file) for file in edited}
                if target in modules or (len(rename.names) > 1 and target.split(".")[-1] == rename.names[-2]):
                    spots.append(name)
                else:
                    print(f"  look: {path}:{node.lineno} {ast.unparse(node)[:90]}")
        elif called == "on_demand" and path in edited:
            spots += [
                inner for inner in ast.walk(node)
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and old in inner.value.split()
            ]  # fmt: skip
    for spot in spots:
        for number in range(spot.lineno - 1, spot.end_lineno or spot.lineno):
            lines[number] = re.sub(rf"(?<=[\"' ]){old}(?=[\"' ])", new, lines[number])
    return "".join(lines)


def move_modules(moves: dict[str, str]) -> None:
    """Move the files, then update every import and every mention of them."""
    files: dict[str, str] = {}
    packages = sorted((old for old in moves if not old.endswith(".py")), key=len)
    for path in tracked():
        target = path
        if path in moves:
            target = moves[path]
        else:
            around = [old for old in packages if path.startswith(f"{old}/")]
            if around:
                target = moves[around[-1]] + path[len(around[-1]) :]
        if target != path:
            files[path] = target
    paths = {**moves, **files}
    names = {dotted(old): dotted(new) for old, new in paths.items() if old in moves or old.endswith(".py")}
    staged = []
    for number, (old, new) in enumerate(files.items()):
        holding = ROOT / f".moving-{number}"
        (ROOT / old).rename(holding)
        staged.append((holding, ROOT / new))
    for holding, target in staged:
        target.parent.mkdir(parents=True, exist_ok=True)
        holding.rename(target)
    for folder in sorted({(ROOT / old).parent for old in files}, key=lambda path: -len(path.parts)):
        for cache in folder.glob("__pycache__"):
            subprocess.run(["rm", "-rf", str(cache)], check=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    core = "torchsplit_core/"
    short = {old.removeprefix(core): new.removeprefix(core) for old, new in paths.items()}
    spelled = {**names, **paths, **{old: new for old, new in short.items() if "/" in old}}
    longest_first = "|".join(re.escape(old) for old in sorted(spelled, key=len, reverse=True))
    mention = re.compile(rf"(?<![\w./])({longest_first})(?!\w)")
    for path in tracked():
        if not path.endswith(TEXT) or path.startswith("docs/schemas"):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        fresh = mention.sub(lambda matched: spelled[matched[1]], text)
        if path.endswith(".py"):
            fresh = imported_modules(path, fresh, text, names)
        if path.endswith("__init__.py") and "on_demand(" in fresh:
            before = {new: old for old, new in files.items()}.get(path, path)
            fresh = on_demand_modules(fresh, dotted(before), dotted(path), names)
        if fresh != text:
            (ROOT / path).write_text(fresh, encoding="utf-8")


def imported_modules(path: str, fresh: str, before: str, names: dict[str, str]) -> str:
    """Update `from package import module` for moved modules, and the module's name in the code below."""
    lines = fresh.splitlines(keepends=True)
    old_tree = ast.parse(before)
    imports = [node for node in ast.walk(old_tree) if isinstance(node, ast.ImportFrom)]
    for node in sorted(imports, key=lambda node: -node.lineno):
        moved = [alias for alias in node.names if f"{node.module}.{alias.name}" in names]
        if not moved:
            continue
        groups: dict[str, list[str]] = {}
        for alias in node.names:
            target = names.get(f"{node.module}.{alias.name}")
            module = names.get(node.module or "", node.module or "")
            name, suffix = alias.name, f" as {alias.asname}" if alias.asname else ""
            if target:
                module, _, name = target.rpartition(".")
                if name != alias.name and not alias.asname:
                    if name in identifiers(old_tree):
                        print(f"  {path}:{node.lineno}: {name} is bound there: kept as {alias.name}")
                        suffix = f" as {alias.name}"
                    else:
                        lines = rename_module_name(lines, alias.name, name, path)
            groups.setdefault(module, []).append(name + suffix)
        indent = " " * node.col_offset
        statements = [
            f"{indent}from {module} import {', '.join(sorted(group))}\n" for module, group in groups.items()
        ]
        # Keep the number of lines, since tables may name lines; the formatter removes the empty ones.
        end = node.end_lineno or node.lineno
        empty = ["\n"] * (end - node.lineno + 1 - len(statements))
        lines[node.lineno - 1 : end] = ["".join(statements), *[""] * (end - node.lineno - len(empty)), *empty]
    return "".join(lines)


def on_demand_modules(text: str, before: str, package: str, names: dict[str, str]) -> str:
    """Update the modules in a package's `on_demand` table, which are relative to the package."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        for key in node.keys if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and f"{before}.{key.value}" in names:
                moved = names[f"{before}.{key.value}"].removeprefix(f"{package}.")
                lines[key.lineno - 1] = lines[key.lineno - 1].replace(f'"{key.value}":', f'"{moved}":')
    return "".join(lines)


def rename_module_name(lines: list[str], old: str, new: str, path: str) -> list[str]:
    tree = ast.parse("".join(lines))
    spots = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == old:
            if isinstance(node.ctx, ast.Store):
                print(f"  look: {path}:{node.lineno} binds {old}, which is also a module's name")
            spots.append((node.lineno - 1, node.col_offset))
        elif isinstance(node, ast.arg) and node.arg == old:
            print(f"  look: {path}:{node.lineno} binds {old}, which is also a module's name")
    for number, start in sorted(spots, reverse=True):
        raw = lines[number].encode()
        lines[number] = (raw[:start] + new.encode() + raw[start + len(old.encode()) :]).decode()
    return lines


def main() -> None:
    server = LanguageServer()
    for table in sys.argv[1:]:
        renames, moves = read_table(Path(table))
        done = 0
        for rename in renames:
            if not (ROOT / rename.path).is_file():
                print(f"no such file: {rename}")
                continue
            scopes = scopes_around(rename.path, rename)
            local = rename.line is not None or any(isinstance(scope, FUNCTIONS) for scope in scopes)
            if not bindings(rename.path, rename, rename.line):
                print(f"not found: {rename}")
                continue
            if rename.new in taken_names(rename.path, rename, scopes):
                print(f"collides: {rename}")
                continue
            line, edited = rename.line, set()
            for _ in range(40):
                positions = bindings(rename.path, rename, line)
                if not positions:
                    break
                edits = server.rename(rename.path, positions[0], rename.new)
                if not edits:
                    print(f"not renamed: {rename}")
                    break
                if not local and len(rename.names) == 1:
                    for path in edits:
                        if path != rename.path and rename.new in identifiers(parsed(path)):
                            print(f"  look: {path} has a {rename.new} already")
                apply(edits)
                server.changed(list(edits))
                edited |= set(edits)
            if not edited:
                continue
            if not local:
                server.changed(named_in_strings(rename, edited))
            done += 1
        print(f"{table}: {done} of {len(renames)} names renamed, {len(moves)} modules moved")
        if moves:
            move_modules(moves)
            server.close()
            server = LanguageServer()
    server.close()


if __name__ == "__main__":
    main()

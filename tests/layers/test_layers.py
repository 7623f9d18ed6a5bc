"""Imports run downward only, and the heavy packages stay in their rooms."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

LAYERS = (
    ("on_demand",),
    ("values", "bundle"),
    ("extras",),
    ("graph", "hardware", "isolation", "solver", "curves", "telemetry"),
    ("files", "drawing"),
    ("checkpoints", "llm"),
    ("model_source",),
    ("tables", "tracing", "profiling", "partitioning", "planning", "placement", "simulation", "transition"),
    ("deployment", "latency_slo", "serving_estimates", "sizing", "strategy", "pictures"),
    ("engine_plans", "day_plans"),
    ("apply", "evaluation"),
    ("workspace",),
    ("stages", "training"),
    ("serving",),
    ("workflow",),
    ("jobs", "cli", "api"),
    ("__main__", "app"),
    ("pages",),
)
LAYER = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}
SAME_LAYER_ALLOWED = {("telemetry", "isolation")}
NAMED_IN_WRITTEN_FILES = {("deployment", "torchsplit_core.serving.ray_app")}
"""What a written file names for the cluster to import: text here, no import."""
APP_LAYERS = (
    ("format",),
    ("charts", "components"),
    ("session",),
    ("shell",),
    ("explorer",),
    # The pages: what two of them need stands below.
    ("models", "models/cuts", "models/graph", "models/profile", "placements", "plans", "trainings", "runs",
     "host", "evaluation", "workspace"),
    # What brings several of them together: the page of one thing with its tabs, the overview.
    ("overview", "object_pages"),
    ("login", "preload", "fragment_messages"),
    ("main", "server"),
)  # fmt: skip
"""The rooms of the app; a folder within one that is not named here belongs to it."""
APP_LAYER = {room: floor for floor, rooms in enumerate(APP_LAYERS) for room in rooms}
MOST_MODULES = 16
FLAT = {"pages"}
"""A page's file is its address, and Streamlit takes no address with a slash."""
"""In one folder: more is a room with several purposes."""
ONLY_IN = {
    "torch": {
        "tracing", "profiling", "partitioning", "checkpoints", "model_source", "deployment", "serving",
        "stages", "training", "sample_models",
    },
    "pyomo": {"solver"},
    "highspy": {"solver"},
    "streamlit": {"app", "pages"},
    "plotly": {"app"},
    "fast_sugiyama": {"drawing"},
    "networkx": {"partitioning"},
    "opentelemetry": {"telemetry"},
    "starlette": {"serving", "app"},
    "transformers": {"serving"},
    "tokenizers": {"serving"},
    "httptools": {"serving"},
    "uvloop": {"serving"},
    "orjson": {"serving"},
    "prometheus_client": {"serving", "training"},
    "ray": {"serving", "training"},
}  # fmt: skip

FUNCTION = re.compile(r"torchsplit_core(\.\w+)+:\w+")


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "torchsplit_core" else parts[0]


def sources() -> list[Path]:
    found = [
        path
        for folder in ("torchsplit_core", "app", "pages", "sample_models")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != ROOT / "torchsplit_core" / "__init__.py"
    ]
    assert len(found) > 40
    return found


@functools.cache
def told(text: str) -> tuple[ast.Import | ast.ImportFrom | ast.Constant, ...]:
    """What a module imports, and the functions that it names: read once for all tests."""
    return tuple(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        # A function that a child process or a job calls by its name.
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and FUNCTION.fullmatch(node.value))
    )


def imports(path: Path) -> list[str]:
    names = []
    for node in told(path.read_text()):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: absolute imports only"
            names.append(node.module or "")
            names += [
                f"{node.module}.{alias.name}" for alias in node.names if node.module == "torchsplit_core"
            ]
        else:
            names.append(str(node.value).partition(":")[0])
    return names


def faults(path: Path) -> list[str]:
    room = room_of(path)
    found = []
    for name in imports(path):
        parts = name.split(".")
        target = None
        if parts[0] == "torchsplit_core" and len(parts) > 1 and parts[1] in LAYER:
            target = parts[1]
        elif parts[0] in ("app", "pages"):
            target = parts[0]
        if room == "sample_models":
            if parts[0] == "torchsplit_core" and target != "values":
                found.append(f"{path}: sample_models may import values alone, not {name}")
            continue
        if target and target != room:
            down = LAYER[target] < LAYER[room] or (room, target) in SAME_LAYER_ALLOWED
            if not down and (room, name) not in NAMED_IN_WRITTEN_FILES:
                found.append(f"{path}: {room} may not import {name}")
        if parts[0] in ONLY_IN and room not in ONLY_IN[parts[0]]:
            found.append(f"{path}: {parts[0]} is not for {room}")
    if (
        room == "app"
        and "charts" not in path.relative_to(ROOT).parts
        and any(name.split(".")[0] == "plotly" for name in imports(path))
    ):
        found.append(f"{path}: plotly only in app/charts")
    if "charts" in path.relative_to(ROOT).parts and any(
        name.split(".")[0] == "streamlit" for name in imports(path)
    ):
        found.append(f"{path}: charts know no streamlit")
    return found


def test_every_room_has_a_layer():
    rooms = {room_of(path) for path in sources()}
    assert rooms - {"sample_models"} <= set(LAYER)


def test_a_folder_is_a_room_not_a_prefix():
    crowded, prefixed = [], []
    for folder in {path.parent for path in sources()}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        if len(modules) > MOST_MODULES and str(folder.relative_to(ROOT)) not in FLAT:
            crowded.append(f"{folder.relative_to(ROOT)}: {len(modules)} modules")
        prefixed += [
            str(path.relative_to(ROOT)) for path in modules if path.stem.startswith(f"{folder.name}_")
        ]
    assert (crowded, prefixed) == ([], [])


def test_imports_run_downward():
    assert [fault for path in sources() for fault in faults(path)] == []


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_of(module: str, modules: dict[str, Path]) -> str:
    """The folder of a module within its package, or the module itself where it stands in the package's root."""
    path = modules[module]
    folder = path.parent.relative_to(ROOT / module.partition(".")[0])
    return str(folder) if folder.parts else path.stem


def within(folder: str) -> list[str]:
    """The folders around a folder."""
    return [str(parent) for parent in Path(folder).parents]


def arrows(package: str) -> tuple[dict[str, Path], dict[str, set[str]]]:
    """A package's modules by name, and of each those of them it imports: anywhere in it, for types alone too."""
    modules = {module_of(path): path for path in sources() if path.is_relative_to(ROOT / package)}
    found = {}
    for name, path in modules.items():
        found[name] = set()
        for node in told(path.read_text()):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                # `from package import module` is an arrow to the module, not to its package.
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found[name] |= {name if name in modules else node.module or "" for name in names}
        found[name] &= set(modules)
    return modules, found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of names of which each leads to each other one."""
    reached = {}
    for name in graph:
        seen, queue = set(), [name]
        while queue:
            fresh = graph.get(queue.pop(), set()) - seen
            seen |= fresh
            queue += fresh
        reached[name] = seen
    found = []
    for name, seen in reached.items():
        circle = {other for other in seen if name in reached.get(other, ())} | {name}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


@pytest.mark.parametrize(("package", "least", "one"), [
    ("torchsplit_core", 500, "torchsplit_core.values"), ("app", 200, "app.shell.frame"),
])  # fmt: skip
def test_no_modules_import_each_other_in_a_circle(package, least, one):
    modules, graph = arrows(package)
    assert sum(map(len, graph.values())) > least and one in modules
    assert circles(graph) == []


@pytest.mark.parametrize("package", ["torchsplit_core", "app"])
def test_no_folders_import_each_other_in_a_circle(package):
    modules, graph = arrows(package)
    folders = {}
    for name, targets in graph.items():
        own = folder_of(name, modules)
        folders.setdefault(own, set()).update(folder_of(target, modules) for target in targets)
    for own, others in folders.items():
        # A folder and those within it are one room: what stands in it uses them, and they use what stands beside them.
        folders[own] = {
            other for other in others if own not in (other, *within(other)) and other not in within(own)
        }
    assert circles(folders) == []


def app_room(module: str) -> str:
    """The room of the app that a module belongs to: the innermost of those named."""
    place = f"{module.removeprefix('app.').replace('.', '/')}/"
    return max((room for room in APP_LAYER if place.startswith(f"{room}/")), key=len)


def upward(graph: dict[str, set[str]]) -> list[str]:
    """The imports within the app that do not go down, nor stay in one room."""
    return [
        f"{module} may not import {other}"
        for module, others in graph.items()
        for other in sorted(others)
        if app_room(module) != app_room(other) and APP_LAYER[app_room(other)] >= APP_LAYER[app_room(module)]
    ]


def test_the_app_imports_downward_and_no_page_another():
    modules, graph = arrows("app")
    assert {app_room(module) for module in modules if module != "app"} == set(APP_LAYER)
    assert upward(graph) == []


def test_an_import_of_another_page_is_found():
    graph = {
        "app.plans.sweep.tab": {"app.plans.summary", "app.shell.frame", "app.models.graph.tables"},
        "app.models.page": {"app.models.upload", "app.models.graph.page"},
        "app.shell.frame": {"app.session.trust", "app.explorer.mount"},
        "app.charts.cuts": {"app.components.picture"},
    }
    assert [fault.partition(" may not import ")[::2] for fault in upward(graph)] == [
        ("app.plans.sweep.tab", "app.models.graph.tables"),
        ("app.models.page", "app.models.graph.page"),
        ("app.shell.frame", "app.explorer.mount"),
        ("app.charts.cuts", "app.components.picture"),
    ]


def test_the_search_for_circles_finds_one(tmp_path, monkeypatch):
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d", "a"}}) == [{"b", "c"}]
    folder = tmp_path / "torchsplit_core" / "planning"
    folder.mkdir(parents=True)
    for number in range(41):
        (folder / f"m{number}.py").write_text("")
    (folder / "m1.py").write_text("def f():\n    from torchsplit_core.planning import m2\n")
    (folder / "m2.py").write_text("from torchsplit_core.planning.m1 import f\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert circles(arrows("torchsplit_core")[1]) == [
        {"torchsplit_core.planning.m1", "torchsplit_core.planning.m2"}
    ]


def test_the_check_itself_finds_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    bad = tmp_path / "torchsplit_core" / "planning" / "bad.py"
    bad.parent.mkdir(parents=True)
    bad.write_text(
        "import torch\nfrom torchsplit_core.profiling import x\nF = 'torchsplit_core.tracing.export:export_program'\n"
    )
    assert len(faults(bad)) == 3


def test_planning_starts_without_torch():
    program = (
        "import sys, torchsplit_core, torchsplit_core.values, torchsplit_core.planning, torchsplit_core.workflow, "
        "torchsplit_core.cli; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_public_names_resolve():
    import torchsplit_core

    for name in torchsplit_core.__all__:
        assert getattr(torchsplit_core, name) is not None

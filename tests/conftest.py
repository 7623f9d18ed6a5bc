"""What holds for every test: a store of its own, children that find the tests, and marks that cannot be forgotten."""

import contextlib
import gc
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from tests.support.isolation.warm import WarmSubprocess
from tests.support.paths import NO_TORCH, ROOT
from torchsplit_core.hardware.clock_stability import measure_cores
from torchsplit_core.isolation import launch
from torchsplit_core.values import InputFault

# Read when numpy and torch are loaded. The workers share the cores: threads that spin while they wait for each
# other take time from the other worker, several times what they save.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
# What a test starts finds the targets that lie among the tests.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

# The same examples each time, however long this machine takes for each.
settings.register_profile(
    "any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

IMPORTS = re.compile(r'\A"""(?s:.*?)"""\n(?:(?:from|import|    |\)|#).*\n|\n)*')
LOADS_TORCH = re.compile(r"^import torch\b", re.M)
MARKED = re.compile(r"^pytestmark = pytest\.mark\.(torch|browser|slow)$", re.M)


class TheRealTorch:
    """The tests' own process finds torch beside the stand-in for its children."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        return PathFinder.find_spec(name, [entry for entry in sys.path if entry != str(NO_TORCH)])


sys.meta_path.insert(0, TheRealTorch())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--messages", metavar="FILE", help="append every message of a fault that a test meets")


def pytest_configure(config: pytest.Config) -> None:
    """With --messages every fault of this process leaves its message in the file, to be read by eye."""
    file = config.getoption("--messages")
    if not file:
        return
    made = InputFault.__init__

    def told(self, where, problem, remedy):
        made(self, where, problem, remedy)
        with Path(file).open("a", encoding="utf-8") as out:
            out.write(f"{self}\n")

    InputFault.__init__ = told  # type: ignore[method-assign]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test-fast` does not even import a module of which it takes no test: that alone would load torch."""
    if "not torch" not in config.option.markexpr or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    marks = set(MARKED.findall(text))
    if (imports := IMPORTS.match(text)) and LOADS_TORCH.search(imports[0]):
        marks.add("torch")
    return any(f"not {mark}" in config.option.markexpr for mark in marks) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """What is loaded while tests are collected stays to the end, so nobody looks through it for garbage again and
    again: two fifths of the time of the collection, and more at every test that makes many objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A module that imports torch is marked by that."""
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item.module, "torch"):
            item.add_marker(pytest.mark.torch)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """What a test and its fixtures of any scope start: with the mark, confined children that find torch loaded;
    without one, a stand-in for torch that fails."""
    with contextlib.ExitStack() as around:
        if item.get_closest_marker("torch"):
            around.enter_context(mock.patch.object(launch, "subprocess", WarmSubprocess))
        elif not item.get_closest_marker("browser"):
            around.enter_context(_stand_in())
        return (yield)


@contextlib.contextmanager
def _stand_in() -> Iterator[None]:
    before = os.environ["PYTHONPATH"]
    os.environ["PYTHONPATH"] = os.pathsep.join((str(NO_TORCH), before))
    sys.path.insert(0, str(NO_TORCH))
    try:
        yield
    finally:
        sys.path.remove(str(NO_TORCH))
        os.environ["PYTHONPATH"] = before


@pytest.fixture(autouse=True, scope="session")
def cores_looked_at_briefly() -> Iterator[None]:
    """How steady this machine's cores are is shown by no test, and looking for two seconds takes them from others."""
    with mock.patch.object(measure_cores, "__defaults__", (0.2,)):
        yield


@pytest.fixture(autouse=True, scope="session")
def no_wait_for_the_disk() -> Iterator[None]:
    """What this process writes need not survive a power cut: the test of one follows the calls."""
    with mock.patch("os.fsync", lambda handle: None):
        yield


@pytest.fixture(autouse=True, scope="session")
def own_store() -> Iterator[None]:
    """A store and a folder of locks for this process and the commands its tests start: nothing of the user's is read
    or written, and the servers of tests that run side by side may share cores."""
    folder = tempfile.mkdtemp(prefix="torchsplit-tests-")
    with mock.patch.dict(os.environ, TORCHSPLIT_HOME=f"{folder}/store", XDG_RUNTIME_DIR=folder):
        yield
    shutil.rmtree(folder, ignore_errors=True)

"""A loop for tests that are coroutines; models in a file, and a server of the one that doubles."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving.doubling import MODELS
from tests.support.serving.plans import Placed, cpu_plan
from tests.support.serving.running import Running, running
from torchsplit_core.serving.llm_frontend import app as llm_frontend
from torchsplit_core.serving.router import app as router
from torchsplit_core.serving.router import backend
from torchsplit_core.serving.settings import ServeSettings


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in a loop of its own, and fails after a minute."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run():
        # In the task of the test itself: some tests end all others.
        async with asyncio.timeout(60):
            await pyfuncitem.obj(**given)

    asyncio.run(run())
    return True


@pytest.fixture(autouse=True)
def _patient(monkeypatch) -> None:
    """Servers of this process are there, however long it is before they are heard."""
    for module, name in ((llm_frontend, "CONNECT_S"), (backend, "CONNECT_S"), (router, "READY_S")):
        monkeypatch.setattr(module, name, 60.0)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return path


@pytest.fixture
def gate(file) -> Iterator[Path]:
    """Rows that begin with 300 wait until this file is there."""
    path = file.with_name("gate")
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def doubling(file) -> Iterator[Running]:
    plan = cpu_plan([Placed("double")], {"double": f"{file}:Client"}, max_wait_ms={"double": 20.0})
    # A worker that is started again may take long on a busy machine.
    with running(plan, ServeSettings(trust=True, queue_limit=50, deadline_s=120)) as server:
        yield server

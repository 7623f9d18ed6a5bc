"""Models in a file, and a server of the one that doubles."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving.doubling import MODELS
from tests.support.serving.plans import Placed, cpu_plan
from tests.support.serving.running import Running, running
from torchsplit_core.serving.settings import ServeSettings


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return path


@pytest.fixture
def doubling(file: Path) -> Iterator[Running]:
    plan = cpu_plan([Placed("double")], {"double": f"{file}:Client"}, max_wait_ms={"double": 20.0})
    with running(plan, ServeSettings(trust=True, queue_limit=50, deadline_s=20)) as server:
        yield server

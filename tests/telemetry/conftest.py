"""Every test of telemetry begins and ends with it off, whatever the environment of the test run says."""

from collections.abc import Iterator

import pytest

from torchsplit_core import telemetry
from torchsplit_core.telemetry import settings


@pytest.fixture(autouse=True)
def telemetry_off(monkeypatch) -> Iterator[None]:
    for name in (settings.MODE, settings.FOLDER, settings.ENDPOINT, settings.TRACES_ENDPOINT):
        monkeypatch.delenv(name, raising=False)
    yield
    telemetry.shutdown()

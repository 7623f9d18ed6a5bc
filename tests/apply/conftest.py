"""A fake nvidia-smi, and locks of each test's own."""

import pytest

from tests.support.deployment.helpers import FakeHost, install_fake


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def fake_host(tmp_path) -> FakeHost:
    return install_fake(tmp_path)

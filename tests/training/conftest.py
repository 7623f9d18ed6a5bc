"""What several modules compare with."""

from __future__ import annotations

import pytest

from tests.support.training.runs import client_file, losses, run, strategy


@pytest.fixture(scope="session")
def undisturbed_plainly(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of six steps of one process that nothing happens to, without dropout: those of any number."""
    folder = tmp_path_factory.mktemp("undisturbed_plainly")
    run(client_file(folder), folder / "run", strategy(optimizer="adamw", micro_batch=4), 1)
    return losses(folder / "run")

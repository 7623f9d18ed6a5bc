"""Jobs of a test module's own: known to the test, and to the processes that it starts.

A module that wants them has a table `KINDS` as jobs/job_kinds.py has, and uses `own_jobs`.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from torchsplit_core.jobs import job_kinds, runner

if TYPE_CHECKING:
    from types import ModuleType

    import pytest

VARIABLE = "TEST_JOBS"
"""Tells the child which module's jobs it is to know."""


def own_jobs(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Have the jobs in `module.KINDS` be started and run like any other, until the test ends."""
    monkeypatch.setattr(job_kinds, "JOBS", job_kinds.JOBS | module.KINDS)
    monkeypatch.setattr(runner, "CHILD_MODULE", "tests.support.workspace.job_child")
    monkeypatch.setenv(VARIABLE, module.__name__)


if __name__ == "__main__":
    job_kinds.JOBS |= importlib.import_module(os.environ[VARIABLE]).KINDS
    runner.main()

"""Fixtures of the deployment tests; what they are made of stands in deployment_helpers."""

import sys

import pytest

from tests.support.deployment.helpers import FAKE, MIXED, FakeHost, plan_of, planned_gpu
from torchsplit_core.values import PlanOutcome


@pytest.fixture
def mixed_plan() -> PlanOutcome:
    """Two hosts: two GPUs cut alike, one whole, one not used."""
    return plan_of(
        planned_gpu("node0/gpu0", "A100-80GB", MIXED),
        planned_gpu("node0/gpu1", "A100-80GB", ()),
        planned_gpu("node0/gpu2", "A100-80GB", MIXED),
        planned_gpu("node1/gpu0", "H100-SXM5-80GB", [("7g.80gb", 0, "clip")]),
    )


@pytest.fixture
def fake_host(tmp_path) -> FakeHost:
    program = tmp_path / "nvidia-smi"
    # -S -E: no site packages; the fake needs none and starts several times faster.
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE}" "$@"\n')
    program.chmod(0o755)
    return FakeHost(tmp_path)

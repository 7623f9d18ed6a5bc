"""Fixtures of the deployment tests; what they are made of stands in deployment_helpers."""

import pytest

from tests.support.deployment.helpers import MIXED, FakeHost, install_fake, plan_of, planned_gpu
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
    return install_fake(tmp_path)

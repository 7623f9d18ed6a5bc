"""Names in a cluster are labels, unique, whatever models are called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.deployment.helpers import plan_of, planned_gpu
from tests.support.deployment.kubernetes import RFC_1123, deployments, tenants
from torchsplit_core.deployment.safe_text import dns_labels

HOSTILE = ["Bert", "bert", "bert!", "${x}", "{{ x }}", "a: b # ---", "é" * 200, "ümlaut", "- x", "null"]


@pytest.mark.slow
def test_hostile_and_colliding_names_stay_apart():
    slices = [planned_gpu(f"gpu{i}", "A100-80GB", [("7g.80gb", 0, name)]) for i, name in enumerate(HOSTILE)]
    plan = plan_of(*slices)
    found = deployments(plan)
    assert [tenants(plan, document)[0].model for document in found] == HOSTILE
    assert len({document["metadata"]["name"] for document in found}) == len(HOSTILE)


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), max_size=8))
def test_cluster_names_are_labels_unique_and_independent_of_order(keys):
    names = dns_labels({key: key for key in keys})
    assert all(RFC_1123.fullmatch(name) and len(name) <= 46 for name in names.values())
    assert len(set(names.values())) == len(names)
    assert dns_labels({key: key for key in reversed(keys)}) == names

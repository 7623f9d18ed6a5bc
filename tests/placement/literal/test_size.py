"""The size of the literal program, counted before it is built."""

from dataclasses import replace
from math import inf

import pytest

from tests.support.placement.requests import random_request, tiny
from torchsplit_core.placement.literal.formulation import list_allocations, list_connections
from torchsplit_core.placement.literal.size import literal_size
from torchsplit_core.placement.literal.solve import solve_literal
from torchsplit_core.placement.model.segments import SegmentModel, build_instance
from torchsplit_core.values import InputFault


def test_the_published_case_has_the_published_size():
    size = literal_size(build_instance(SegmentModel(tiny(2))))
    assert size is not None and size.exact
    assert (size.allocations, size.connections, size.variables) == (100, 420, 1041)


def test_the_size_is_that_of_the_program_that_would_be_built():
    for seed in range(60):
        request = random_request(seed, "tokens_per_s", "equal")
        if seed % 2:
            links = tuple(tuple(max(link, 1e-6) for link in row) for row in request.bandwidth_gib_per_s)
            request = replace(request, bandwidth_gib_per_s=links)
        instance = build_instance(SegmentModel(request))
        allocations = list_allocations(instance)
        connections = list_connections(instance, allocations, inf)
        size = literal_size(instance)
        assert size is not None and size.allocations == len(allocations), seed
        assert size.connections == len(connections) if size.exact else size.connections >= len(connections)


def test_a_large_program_is_refused_with_its_size():
    gpus = tuple(replace(tiny().gpus[0], id=number) for number in range(40))
    request = tiny(3, gpus=gpus, bandwidth_gib_per_s=((1.0,) * 40,) * 40)
    with pytest.raises(InputFault, match=r"would have 107,000 allocations, 912,680,600 connections"):
        solve_literal(build_instance(SegmentModel(request)), time_limit_s=60.0)

"""A saved program for tests that change it."""

from pathlib import Path

import pytest

import sample_models


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    import torch

    client = sample_models.load("diamond")
    free = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(client.get_model(), client.get_example_inputs(2), dynamic_shapes=free)
    path = tmp_path_factory.mktemp("saved") / "diamond.pt2"
    torch.export.save(program, path)
    return path

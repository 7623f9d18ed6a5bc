"""The models that the accuracy of serving is measured with."""

from __future__ import annotations

import pytest
import torch

from benchmarks import served_models


@pytest.mark.parametrize("name", ["BertClient", "ClipClient", "FastPitchClient", "OcrClient"])
def test_a_served_model_answers_each_row_of_its_batch(name: str) -> None:
    client = getattr(served_models, name)()
    with torch.no_grad():
        found = client.get_model()(*client.get_example_inputs(2))
    outputs = found if isinstance(found, tuple) else (found,)
    assert all(one.shape[0] == 2 for one in outputs)

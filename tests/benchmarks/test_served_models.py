"""The models that the accuracy of serving is measured with."""

import pytest
import torch

from benchmarks import p95_coverage, served_models


@pytest.mark.parametrize("name", [*p95_coverage.MODELS.values(), *p95_coverage.TUNED.values()])
def test_a_served_model_answers_each_row_of_its_batch(name):
    client = getattr(served_models, name)()
    with torch.no_grad():
        found = client.get_model()(*client.get_example_inputs(2))
    outputs = found if isinstance(found, tuple) else (found,)
    assert all(output.shape[0] == 2 for output in outputs)


def test_coverage_is_told_with_its_own_interval_and_the_width():
    results = [p95_coverage.Result(number > 0, 2.0 + number, 1.1, 0.0) for number in range(10)]
    told = p95_coverage.coverage("All", results)
    # Clopper and Pearson, 9 of 10.
    assert told.startswith("All: 9 of 10 inside, 90% (95 % interval 55% to 100%)") and "6.50" in told
    assert p95_coverage.coverage("Quiet", []) == "Quiet: no case."
    assert p95_coverage.spread(results) == pytest.approx(0.0953, abs=1e-4)

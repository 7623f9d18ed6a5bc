"""The interval of a mean, against SciPy's Student's t."""

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from torchsplit_core.simulation.output_statistics import half_width


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10, 11, 30, 101, 1000, 10_000])
def test_half_widths_are_those_of_students_t(count):
    values = np.random.default_rng(count).normal(size=count).tolist()
    wanted = stdtrit(count - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(count)
    assert half_width(values) == pytest.approx(wanted, rel=1e-12)


def test_one_replication_has_none():
    assert half_width([3.0]) is None

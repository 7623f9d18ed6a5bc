"""What the tests share to run many seeds: every instance runs, and a failure names its own."""

import inspect
import re

import pytest

from tests.support.paths import ROOT
from tests.support.seeds import BLOCK, KEPT_BLOCK, in_blocks, repeated


def blocks_of(test):
    (mark,) = test.pytestmark
    return mark.args[1]


def test_every_instance_is_in_one_block():
    @in_blocks("seed", range(2 * BLOCK + 1))
    def test(seed, kind):
        seen.append((seed, kind))

    seen = []
    assert list(inspect.signature(test).parameters) == ["block", "kind"]
    assert [len(block) for block in blocks_of(test)] == [BLOCK, BLOCK, 1]
    for block in blocks_of(test):
        test(block=block, kind="a")
    assert seen == [(seed, "a") for seed in range(2 * BLOCK + 1)]


def test_kept_blocks_are_small():
    @in_blocks("seed", range(2 * KEPT_BLOCK + BLOCK + 1), kept=2)
    def test(seed):
        pass

    *small, whole, rest = blocks_of(test)
    assert [len(block) for block in small] == [KEPT_BLOCK] * 2
    assert [len(block.values[0]) for block in (whole, rest)] == [BLOCK, 1]


def test_a_failure_names_its_instance():
    @in_blocks("make, seed", [(str, 3), (int, 7)])
    def test(make, seed):
        assert seed != 7

    with pytest.raises(AssertionError) as raised:
        test(block=blocks_of(test)[0])
    assert raised.value.__notes__ == ["with make = int, seed = 7"]


def test_all_but_the_first_instances_repeat_the_property():
    @repeated(("name", "number"), [("a", 1), ("b", 2), ("c", 3)], kept=2)
    def test(name, number):
        pass

    first, second, third = blocks_of(test)
    assert (first, second) == (("a", 1), ("b", 2))
    assert third.values == ("c", 3) and [mark.name for mark in third.marks] == ["repeated"]


def test_continuous_integration_runs_what_repeats_too():
    chosen = re.findall(r"-m (\"[^\"]+\"|\w+)$", (ROOT / "Makefile").read_text(), re.M)
    assert chosen[:2] == ['"not repeated"', "repeated"]
    assert (ROOT / ".ci" / "run").read_text().split()[-4:] == ["make", "test", "make", "test-repeated"]

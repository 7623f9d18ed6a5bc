"""What of a strategy is carried out, by whom: every row of the table refuses something, and names what it refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from torchsplit_core.strategy.supported import EXPORT, LIMITS, RUNNERS, TRAIN, ModelTraits, Runnable, refusals
from torchsplit_core.values.training import ParallelConfig

DECODER = ModelTraits(experts=4, kv_heads=2)


def every_choice() -> list[ParallelConfig]:
    counts = product((1, 4), (1, 2, 4), (1, 4), (1, 2), (1, 2), (1, 2))
    states = product(("none", "zero1", "fsdp", "hsdp"), ("none", "optimizer", "parameters"))
    ways = list(states)
    return [
        ParallelConfig(data, tensor, pipeline, context, expert, 1, interleave, shard, offload=offload)  # type: ignore[arg-type]
        for data, tensor, pipeline, context, expert, interleave in counts
        for shard, offload in ways
    ]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.choice}: {limit.why}")
def test_every_row_refuses_something_that_no_row_before_it_of_its_runner_does(limit) -> None:
    others = [row for row in LIMITS if row is not limit]
    models = (DECODER, ModelTraits(traced=True), ModelTraits())
    for precision, model, choices, runner in product(
        ("fp32", "fp16", "fp8"), models, every_choice(), limit.runners
    ):
        alone = limit.applies(choices, model, precision) and not any(
            runner in row.runners and row.applies(choices, model, precision) for row in others
        )
        if alone:
            (refusal,) = refusals(choices, precision, runner, model)
            assert refusal.choice == limit.choice and refusal.remedy == limit.remedy
            assert "{" not in refusal.why
            return
    raise AssertionError("another row refuses all that it refuses")


def test_a_choice_runs_where_all_the_runners_carry_it_out() -> None:
    three = ParallelConfig(data=2, pipeline=2, tensor=2)
    mixture = ModelTraits(experts=2, kv_heads=2)
    assert Runnable("bf16", mixture, (), TRAIN).includes(three)
    assert not Runnable("bf16", mixture, (), EXPORT).includes(three)
    assert not Runnable("bf16", mixture).includes(three)
    assert Runnable("bf16", mixture).includes(replace(three, tensor=1, expert=2))
    assert not Runnable("fp16", mixture, (), TRAIN).includes(three)


def test_what_a_request_may_need_is_no_limit() -> None:
    choices = ParallelConfig(data=2, context=2, offload="optimizer")
    assert not Runnable("bf16", DECODER, ("context",)).includes(choices)
    assert Runnable("bf16", DECODER, ("context", "offload")).includes(choices)
    assert Runnable("bf16", DECODER).anything().includes(choices)
    assert set(RUNNERS) == {*TRAIN, *EXPORT}


def test_storages_of_a_shape_are_those_that_run() -> None:
    for runnable in (Runnable("bf16", DECODER), Runnable("bf16", ModelTraits(kv_heads=2), ("shard",), TRAIN)):
        for choices in every_choice():
            assert ((choices.shard, choices.offload) in runnable.storages(choices)) == runnable.includes(
                choices
            )

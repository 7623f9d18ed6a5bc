"""Samples from worker processes, and from loaders whose samples have no number: the steps of a plain loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.seeds import repeated
from tests.support.training.plain_loop import Recipe
from tests.support.training.plain_loop import run_around as run_numbered
from tests.support.training.plain_loop import run_plain as run_numbered_plain
from tests.support.training.runs import client_file, losses, run, strategy
from tests.support.training.streams import Reading, run_around, run_plain
from torchsplit_core.training import RunFolder
from torchsplit_core.values import InputFault

WHOLE = Reading()
"""Eleven samples in batches of 2, two of them a step: steps of 4, 4 and 3, the last batch of which has one."""


def samples(folder: Path) -> list[int]:
    return [line["samples"] for line in RunFolder(folder).steps()]


@repeated("workers", [0, 2])
def test_a_stream_is_read_as_by_a_plain_loop_to_the_bit_also_past_its_end(
    workers: int, tmp_path: Path
) -> None:
    reading = replace(WHOLE, workers=workers)
    wanted = run_plain(reading, tmp_path)
    weights = run_around(reading, tmp_path)
    assert samples(tmp_path / "run") == [4, 4, 3, 4, 4, 3, 4]
    assert losses(tmp_path / "run") == wanted["losses"]
    assert all(torch.equal(weights[name], value) for name, value in wanted["weights"].items())


@pytest.mark.parametrize("stateful", [True, False])
@repeated("stop", [3, 2, 4])
def test_a_run_over_a_stream_goes_on_where_it_was(stop: int, stateful: bool, tmp_path: Path) -> None:
    """Also where the data ended with the last step; without a state by reading again."""
    reading = replace(WHOLE, stateful=stateful)
    wanted = run_plain(reading, tmp_path)
    run_around(replace(reading, steps=stop), tmp_path)
    run_around(reading, tmp_path)
    assert losses(tmp_path / "run") == wanted["losses"]


def test_a_stream_of_workers_goes_on_where_it_was(tmp_path: Path) -> None:
    reading = replace(WHOLE, workers=2, dropout=0.0)
    wanted = run_plain(reading, tmp_path)
    run_around(replace(reading, steps=4), tmp_path)
    run_around(reading, tmp_path)
    assert losses(tmp_path / "run") == wanted["losses"]


@repeated("counts", [(11, 4), (12, 12), (3, 10)])
def test_ranks_whose_parts_end_apart_weigh_each_sample_alike(counts: tuple[int, int], tmp_path: Path) -> None:
    reading = replace(WHOLE, counts=counts, dropout=0.0)
    wanted = run_plain(reading, tmp_path)
    run_around(replace(reading, steps=3), tmp_path)
    run_around(reading, tmp_path)
    assert losses(tmp_path / "run") == pytest.approx(wanted["losses"], abs=1e-6)


@repeated(
    ("changed", "words"),
    [
        ({"class_name": "Elsewhere"}, "is of another data set: its class was 'Part' and is 'Elsewhere'"),
        ({"fingerprint": "b"}, "is of another data set: its fingerprint was 'a' and is 'b'"),
        ({"class_name": "Unlike"}, "is of another data set: loading it raised KeyError: 'offset'"),
        ({"workers": 1}, "is of another data set: its number of workers was 0 and is 1"),
        ({"counts": (11, 11), "passes": 1}, "is of 1 data ranks, but the run has 2 now"),
    ],
    kept=3,
)
def test_a_state_of_another_loader_is_refused(changed: dict[str, object], words: str, tmp_path: Path) -> None:
    run_around(replace(WHOLE, steps=4), tmp_path)
    refused = run_around(replace(WHOLE, **changed), tmp_path)
    assert isinstance(refused, str) and refused.startswith("the loader's state: ") and words in refused
    assert len(losses(tmp_path / "run")) == 4


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"counts": (0,)}, "the data: gives no batches"),
        ({"steps": None}, "--steps: is missing, and the data has no length"),
    ],
)
def test_a_stream_that_makes_no_step(changed: dict[str, object], words: str, tmp_path: Path) -> None:
    refused = run_around(replace(WHOLE, **changed), tmp_path)
    assert isinstance(refused, str) and words in refused


def test_batches_that_make_no_step_of_the_strategy(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(
        """{"format": "torchsplit.strategy_request", "version": 1,
 "model": {"kind": "source", "source": "client.py:client"},
 "fleet": [{"nodes": 1, "gpus_per_node": 1, "type": "CPU-2c"}],
 "training": {"global_batch": 8, "precision": "fp32"}, "fix": {"micro_batch": 4}}"""
    )
    refused = run_around(replace(WHOLE, batch=3, strategy=str(path)), tmp_path)
    assert isinstance(refused, str)
    assert "the loader: has batches of 3 samples, which do not make the 8 samples of a step" in refused


@repeated("processes", [1, 2])
def test_workers_fetch_what_the_rank_would(processes: int, tmp_path: Path) -> None:
    recipe = Recipe(samples=19, passes=4, accumulate=4, dropout=0.2 if processes == 1 else 0.0, workers=2)
    wanted = run_numbered_plain(recipe, tmp_path)
    run_numbered(replace(recipe, steps=4), tmp_path, processes, shard="")
    run_numbered(recipe, tmp_path, processes, shard="")
    if processes == 1:
        assert losses(tmp_path / "run") == wanted["losses"]
    assert losses(tmp_path / "run") == pytest.approx(wanted["losses"], abs=1e-6)


def test_a_client_is_trained_with_workers_whose_fault_is_one_message(tmp_path: Path) -> None:
    source, plan = client_file(tmp_path), strategy(optimizer="adamw", micro_batch=2)
    for workers in (0, 2):
        run(source, tmp_path / f"run-{workers}", plan, 2, workers=workers)
    assert losses(tmp_path / "run-0") == losses(tmp_path / "run-2")
    broken = client_file(tmp_path, "broken", **{"raise": 9})
    with pytest.raises(InputFault, match=r"the data: .*sample 9 is unreadable"):
        run(broken, tmp_path / "run-3", plan, 2, workers=1)
    with pytest.raises(InputFault, match="--workers: is 2, but the stages of a pipeline fetch"):
        run(source, tmp_path / "run-4", strategy(micro_batch=2, pipeline=2), 2, workers=2)


def test_a_client_with_a_loader_of_its_own_trains_on_its_stream(tmp_path: Path) -> None:
    source, plan = client_file(tmp_path, stream=10), strategy(micro_batch=2)
    run(source, tmp_path / "one", plan, 1, steps=5)
    assert samples(tmp_path / "one") == [8, 2, 8, 2, 8]
    run(source, tmp_path / "two", plan, 2, steps=4)
    run(source, tmp_path / "two", plan, 2, steps=6, resume=True)
    assert samples(tmp_path / "two") == [8, 2, 8, 2, 8, 2]
    for options, words in (
        ({"shares": (3.0, 1.0)}, "--shares: is 3,1, but"),
        ({"balance": True}, "--balance: is"),
    ):
        with pytest.raises(InputFault, match=words):
            run(source, tmp_path / "shares", plan, 2, **options)
    with pytest.raises(
        InputFault, match="the strategy's pipeline: is 2, but the samples of the data have no number"
    ):
        run(source, tmp_path / "stages", strategy(micro_batch=2, pipeline=2), 2)

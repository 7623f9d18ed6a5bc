"""Runs that exchange gradients in every way: the same losses where nothing is lost, and what a restart takes up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.ports import free_port
from tests.support.seeds import repeated
from tests.support.training.runs import beside, client_file, events, losses, run, strategy
from torchsplit_core.training import RunFolder
from torchsplit_core.training.communication.exchange import MIN_STEPS
from torchsplit_core.training.communication.record import read_exchange
from torchsplit_core.training.monitor.run_reader import RunReader
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.communication import CommunicationRequest
from torchsplit_core.values.strategy.run import ElasticNodes

assert torch.distributed.is_available()
MODEL: dict[str, Any] = {"width": 128, "blocks": 4}
"""Gradients of 2 MiB, more than DDP's first bucket."""
PLAN = strategy(optimizer="adamw", micro_batch=4)
STEPS = MIN_STEPS


def trained(folder: Path, processes: int, **given: Any) -> list[float]:
    source = client_file(folder, **MODEL)
    run(source, folder / "run", PLAN, processes, **{"steps": STEPS, "checkpoint_every": 10, **given})
    return losses(folder / "run")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return trained(tmp_path_factory.mktemp("alone"), 1, steps=STEPS + 4)


@pytest.mark.repeated
def test_a_run_measures_chooses_and_goes_on_by_its_choice(alone: list[float], tmp_path: Path) -> None:
    assert trained(tmp_path, 2) == pytest.approx(alone[:STEPS], abs=1e-6)
    record = read_exchange(tmp_path / "run")
    assert record is not None and record.key.processes == 2 and record.before_s
    assert record.key.gradient_bytes > 2**21 and {item.hook for item in record.candidates} == {"all_reduce"}
    times = record.transfers["all_reduce"]
    assert len(times.sizes) == len(times.seconds) == len(times.processor_s) >= 1 and min(times.seconds) > 0
    said = events(tmp_path / "run", "communication")
    assert "compression was not allowed" in said[0]["words"] and "of gradients take" in said[0]["words"]
    lines = RunFolder(tmp_path / "run").steps()
    assert all(
        set(line["communication_s"]) == {"all_reduce_exposed", "all_reduce_overlapped", "agreement"}
        for line in lines
    )
    assert all(seconds >= 0 for line in lines for seconds in line["communication_s"].values())
    assert sum(line["communication_s"]["all_reduce_exposed"] for line in lines) > 0
    path = tmp_path / "run" / "watch" / "communication.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bucket_mib": 0.5}))
    source = f"{tmp_path}/client/client.py:client"
    run(source, tmp_path / "run", PLAN, 2, steps=STEPS + 4, resume=True)
    assert "buckets of 0.5 MiB, as chosen before" in events(tmp_path / "run", "communication")[-1]["words"]
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=1e-6)


@repeated(
    ("request_", "words", "near"),
    [
        (CommunicationRequest(hook="ddp"), None, 1e-6),
        (
            CommunicationRequest(hook="all_reduce", bucket_mib=0.25),
            "a plain all-reduce in buckets of 0.25 MiB",
            1e-6,
        ),
        (CommunicationRequest(hook="bf16", bucket_mib=1.0), "rounded to bf16 in buckets of 1 MiB", 2e-2),
        (CommunicationRequest(hook="fp16", bucket_mib=1.0), "rounded to fp16 in buckets of 1 MiB", 2e-2),
        (
            CommunicationRequest(hook="hierarchical", bucket_mib=1.0),
            "a plain all-reduce in buckets of 1 MiB",
            1e-6,
        ),
    ],
    kept=1,
)
def test_a_fixed_exchange_trains_as_one_process(
    request_: CommunicationRequest, words: str | None, near: float, alone: list[float], tmp_path: Path
) -> None:
    measured = trained(tmp_path, 2, steps=8, communication=request_)
    assert measured == pytest.approx(alone[:8], abs=near * max(alone[:8]))
    said = events(tmp_path / "run", "communication")
    assert (
        (said[-1]["words"].startswith(("a plain", "an all-reduce")) and words in said[-1]["words"])
        if words
        else not said
    )
    if request_.hook in ("bf16", "fp16"):
        assert measured != pytest.approx(alone[:8], abs=1e-9), "rounded gradients are others"
    assert not (tmp_path / "run" / "watch" / "communication.json").exists(), "nothing was measured"


POWERSGD = CommunicationRequest(hook="powersgd", bucket_mib=1.0, powersgd_rank=2)


def test_powersgd_keeps_what_it_has_not_sent_in_checkpoints(tmp_path: Path) -> None:
    trained(tmp_path, 2, steps=8, checkpoint_every=4, communication=POWERSGD)
    from torch.distributed.checkpoint import FileSystemReader

    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000008"
    stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    names = {name for name in stored if name.startswith("exchange.")}
    assert {name for name in names if name.endswith("blocks.0.up.weight")} == {
        f"exchange.{rank} of 2.blocks.0.up.weight" for rank in (0, 1)
    }


@pytest.mark.repeated
def test_powersgd_goes_on_with_what_it_has_not_sent_and_says_where_it_cannot(tmp_path: Path) -> None:
    trained(tmp_path, 2, steps=8, checkpoint_every=4, communication=POWERSGD)
    source = f"{tmp_path}/client/client.py:client"
    run(source, tmp_path / "run", PLAN, 2, steps=12, resume=True, communication=POWERSGD)
    assert not [
        event for event in events(tmp_path / "run", "communication") if "begins at zero" in event["words"]
    ]
    run(source, tmp_path / "run", PLAN, 4, steps=14, resume=True, communication=POWERSGD)
    said = events(tmp_path / "run", "communication")[-1]["words"]
    assert said.startswith("the error feedback of PowerSGD begins at zero: the checkpoint of step 12")


@pytest.mark.repeated
def test_two_nodes_of_two_ranks_exchange_within_and_then_between(alone: list[float], tmp_path: Path) -> None:
    source = client_file(tmp_path, **MODEL)
    address = f"127.0.0.1:{free_port()}"
    for folder, request_ in (
        ("fixed", CommunicationRequest(hook="hierarchical", bucket_mib=1.0)),
        ("chosen", CommunicationRequest()),
    ):
        how: dict[str, Any] = {"steps": STEPS, "checkpoint_every": 100, "communication": request_}
        nodes = [ElasticNodes(2, 2, address, name) for name in ("a", "b")]
        other = beside(run, source, tmp_path / folder, PLAN, 2, nodes=nodes[1], **how)
        run(source, tmp_path / folder, PLAN, 2, nodes=nodes[0], **how)
        other.join()
        assert losses(tmp_path / folder) == pytest.approx(alone[:STEPS], abs=1e-6)
    said = events(tmp_path / "fixed", "communication")[0]["words"]
    assert said.startswith("an all-reduce within each node, then between the nodes in buckets of 1 MiB")
    record = read_exchange(tmp_path / "chosen")
    assert (
        record is not None and record.key.nodes == 2 and {*record.transfers} == {"all_reduce", "hierarchical"}
    )


@pytest.mark.parametrize(
    ("choices", "request_", "problem"),
    [
        (
            {"shard": "fsdp"},
            CommunicationRequest(hook="bf16"),
            r"communication\.hook: is bf16, but with shard fsdp",
        ),
        ({"tensor": 2}, CommunicationRequest(bucket_mib=4.0), r"bucket_mib: is 4\.0, but with tensor 2"),
        ({"pipeline": 2}, CommunicationRequest(hook="powersgd"), r"hook: is powersgd, but with pipeline 2"),
        ({}, CommunicationRequest(hook="ddp", bucket_mib=4.0), r"hook is fixed to ddp"),
    ],
)
def test_an_exchange_that_ddp_does_not_make_is_refused_before_anything_starts(
    choices: dict[str, Any], request_: CommunicationRequest, problem: str, tmp_path: Path
) -> None:
    plan = strategy(micro_batch=4, **choices)
    with pytest.raises(InputFault, match=problem):
        run(client_file(tmp_path, **MODEL), tmp_path / "run", plan, 2, communication=request_)
    assert not (tmp_path / "run").exists()


def test_a_backend_that_sums_no_rounded_gradients_is_said(tmp_path: Path) -> None:
    source = client_file(tmp_path, **MODEL, no_rounding=True)
    with pytest.raises(
        InputFault, match=r"communication\.hook: is bf16, which the backend gloo .* does not sum"
    ):
        run(source, tmp_path / "run", PLAN, 2, communication=CommunicationRequest(hook="bf16"))


@pytest.mark.repeated
def test_where_a_backend_may_sum_rounded_gradients_and_cannot_the_others_are_left(tmp_path: Path) -> None:
    source = client_file(tmp_path, **MODEL, no_rounding=True)
    run(source, tmp_path / "allowed", PLAN, 2, steps=STEPS, communication=CommunicationRequest(("bf16",)))
    record = read_exchange(tmp_path / "allowed")
    assert record is not None and {*record.transfers} == {"all_reduce"}


@pytest.mark.repeated
def test_where_ddp_does_not_exchange_a_permission_changes_nothing(alone: list[float], tmp_path: Path) -> None:
    plan = strategy(optimizer="adamw", micro_batch=4, shard="fsdp")
    request_ = CommunicationRequest(("bf16",))
    run(client_file(tmp_path, **MODEL), tmp_path / "run", plan, 2, steps=4, communication=request_)
    assert losses(tmp_path / "run") == pytest.approx(alone[:4], abs=1e-6)
    assert not events(tmp_path / "run", "communication")
    assert {*RunFolder(tmp_path / "run").steps()[-1]["communication_s"]} == {"agreement"}


@pytest.mark.repeated
def test_an_exchange_that_was_slower_is_left_again(tmp_path: Path) -> None:
    """A client whose exchanges wait from the choice on."""
    source = client_file(tmp_path, **MODEL, slow_small_buckets=0.1)
    run(source, tmp_path / "run", PLAN, 2, steps=24, checkpoint_every=100)
    record = read_exchange(tmp_path / "run")
    assert record is not None and record.reverted and (record.hook, record.bucket_mib) == ("all_reduce", None)
    assert record.after_s is not None and record.before_s is not None and record.after_s > record.before_s
    assert "goes back to these" in events(tmp_path / "run", "communication")[-1]["words"]


def test_under_zero1_the_new_weights_are_broadcasts(alone: list[float], tmp_path: Path) -> None:
    source = client_file(tmp_path, **MODEL)
    run(source, tmp_path / "run", strategy(optimizer="adamw", micro_batch=4, shard="zero1"), 2, steps=6)
    assert losses(tmp_path / "run") == pytest.approx(alone[:6], abs=1e-6)
    line = RunFolder(tmp_path / "run").steps()[-1]
    assert line["communication_s"]["broadcast"] > 0
    ranks = RunReader(tmp_path / "run").view().ranks
    assert all((rank.communication_s or {})["broadcast"] > 0 for rank in ranks)

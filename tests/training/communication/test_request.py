"""What a request may say of the exchange of gradients, as text and in a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core import files
from torchsplit_core.strategy.search.solve import search_strategy
from torchsplit_core.training import communication_of
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.communication import (
    CommunicationRequest,
    check_communication,
    format_communication,
    parse_communication,
)
from torchsplit_core.values.strategy.request import TransformerSizes


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("lossy=bf16", CommunicationRequest(("bf16",))),
        ("lossy=bf16+powersgd,powersgd_rank=2", CommunicationRequest(("bf16", "powersgd"), powersgd_rank=2)),
        ("hook=powersgd, bucket_mib=8", CommunicationRequest(hook="powersgd", bucket_mib=8.0)),
        ("hook=bf16,lossy=bf16", CommunicationRequest(("bf16",), hook="bf16")),
        ("hook=ddp", CommunicationRequest(hook="ddp")),
    ],
)
def test_a_text_and_its_request(text: str, request_: CommunicationRequest) -> None:
    assert parse_communication(text) == request_
    assert parse_communication(format_communication(request_)) == request_


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("hook=bf61", "communication.hook", "is 'bf61', which is no way"),
        ("lossy=all_reduce", "communication.lossy", "has 'all_reduce', which is no compression"),
        ("hook=powersgd,powersgd_rank=0", "communication.powersgd_rank", "is 0, below the least value 1"),
        ("hook=powersgd,powersgd_rank=1000", "communication.powersgd_rank", "above the largest value 256"),
        ("hook=powersgd,powersgd_rank=two", "--communication", "powersgd_rank 'two', not a whole number"),
        ("bucket_mib=0", "communication.bucket_mib", "is 0.0, not a size above 0"),
        ("bucket_mib=nan", "communication.bucket_mib", "not a size above 0"),
        ("hook=all_reduce,lossy=bf16", "communication.lossy", "allows bf16, but hook is fixed to all_reduce"),
        ("hook=ddp,bucket_mib=4", "communication.bucket_mib", "hook is fixed to ddp"),
        (
            "lossy=bf16,powersgd_rank=2",
            "communication.powersgd_rank",
            "neither hook nor lossy names powersgd",
        ),
        ("buckets=4", "--communication", "has 'buckets', which is no setting"),
        ("hook", "--communication", "gives hook no value"),
        ("hook=ddp,hook=bf16", "--communication", "has hook twice"),
        ("", "--communication", "has '', which is no setting"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(text: str, where: str, problem: str) -> None:
    with pytest.raises(InputFault) as fault:
        parse_communication(text)
    assert fault.value.where == where and problem in fault.value.problem and fault.value.remedy


def test_an_unknown_name_has_the_nearest_as_its_remedy() -> None:
    with pytest.raises(InputFault, match="powersgd"):
        check_communication(CommunicationRequest(hook="power"))  # type: ignore[arg-type]


REQUEST = {
    "format": "torchsplit.strategy_request",
    "version": 1,
    "model": {"kind": "source", "source": "client.py:client"},
    "fleet": [{"nodes": 1, "gpus_per_node": 2, "type": "CPU-2c"}],
    "training": {"global_batch": 8, "precision": "fp32"},
}


def test_a_file_says_it_and_the_option_goes_before(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps({**REQUEST, "communication": {"lossy": ["bf16"]}}))
    request = files.read_file(path)[1]
    assert communication_of(request, None) == CommunicationRequest(("bf16",))
    assert communication_of(request, "hook=ddp") == CommunicationRequest(hook="ddp")
    assert json.loads(files.write_text(request))["communication"]["lossy"] == ["bf16"]
    path.write_text(json.dumps(REQUEST))
    request = files.read_file(path)[1]
    assert communication_of(
        request, None
    ) == CommunicationRequest() and "communication" not in files.write_text(request)
    for entry, place in (
        ({"lossy": ["int8"]}, "communication.lossy"),
        ({"hook": "powersgd", "powersgd_rank": 0}, "communication.powersgd_rank"),
        ({"compress": True}, "communication"),
    ):
        path.write_text(json.dumps({**REQUEST, "communication": entry}))
        with pytest.raises(InputFault, match=place):
            files.read_file(path)
    path.write_text(json.dumps({**REQUEST, "communication": {"hook": "ddp", "bucket_mib": 4}}))
    with pytest.raises(InputFault, match="hook is fixed to ddp"):
        communication_of(files.read_file(path)[1], None)
    path.write_text((ROOT / "examples" / "training" / "two_ranks.json").read_text())
    transformer = TransformerSizes(2, 64, 2, 2, 128, 100, 32)
    contradictory = replace(
        files.read_file(path)[1],
        model=transformer,
        communication=CommunicationRequest(hook="ddp", bucket_mib=4.0),
    )
    with pytest.raises(InputFault, match="hook is fixed to ddp"):
        search_strategy(contradictory)

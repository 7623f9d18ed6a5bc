"""A strategy as a file: equal in loss to one process, only what it needs, and what no file is written for."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from torchsplit_core.strategy.export.script import TracedBlocks, script
from torchsplit_core.strategy.search import search_strategy
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.outcome import StrategyCandidate
from torchsplit_core.values.strategy.request import (
    Choice,
    SourceSizes,
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    TransformerSizes,
)
from torchsplit_core.values.training import TrainingJob

GATED = TransformerSizes(4, 32, 4, 2, 64, 100, 16, gated=True)
PLAIN = replace(GATED, gated=False, tied_embeddings=False)
ALONE = {"data": 4, "tensor": 1, "pipeline": 1, "context": 1, "micro_batch": 1, "recompute": "none"}
BERT = TracedBlocks(("encoder.layer.0", "encoder.layer.1"), ("encoder.layer.1",))


def asked(model: TransformerSizes = GATED, precision: str = "fp32", **fix: object) -> StrategyRequest:
    return StrategyRequest(
        model,
        (StrategyNodes(1, 4, "A100-40GB"),),
        TrainingJob(8, precision),  # type: ignore[arg-type]
        StrategyFix(**{**ALONE, "offload": "none", **fix}),  # type: ignore[arg-type]
        1,
        may_need=get_args(Choice),
    )


def best(request: StrategyRequest) -> StrategyCandidate:
    return search_strategy(request).candidates[0]


def text(request: StrategyRequest) -> str:
    return script(request, best(request))


def of_source(request: StrategyRequest, source: str = "sample:bert") -> str:
    """The same choices for a traced model."""
    return script(replace(request, model=SourceSizes(source)), best(request), BERT, trust=True)


CASES = {
    "tensor, sequence parallel, selective": lambda: text(
        asked(data=2, tensor=2, sequence_parallel=True, micro_batch=2, shard="none", recompute="selective")
    ),
    "pipeline of chunks over tensor": lambda: text(
        asked(data=1, tensor=2, pipeline=2, interleave=2, shard="none", sequence_parallel=False)
    ),
    "sharded, offloaded, run again, in half precision": lambda: text(
        asked(PLAIN, "bf16", shard="fsdp", offload="parameters", recompute="full")
    ),
    "optimizer sharded, accumulation": lambda: text(asked(PLAIN, shard="zero1")),
    "a traced model in a pipeline": lambda: of_source(
        asked(data=2, pipeline=2, interleave=1, shard="none", recompute="full")
    ),
}
MIXED = ["pipeline of chunks over tensor", "sharded, offloaded, run again, in half precision"]
"""Two that have most of it: stages, tensors and chunks; shards, offload, recomputation and half precision."""


@pytest.mark.torch
@repeated("names", [MIXED, sorted(CASES.keys() - {*MIXED})], ids=["mixed", "others"])
def test_every_division_has_the_loss_of_one_process(names: list[str], tmp_path: Path) -> None:
    runs: list[str] = []
    for place, make in enumerate(CASES[name] for name in names):
        file = tmp_path / f"case{place}.py"
        file.write_text(make())
        runs += ["1", str(file), "4", str(file)]
    command = [sys.executable, "-m", "tests.support.gloo", "3", *runs]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(told) == 2 * len(names)
    for name, one, four in zip(names, told[::2], told[1::2], strict=True):
        assert not any([*one[0], *four[0]]), f"{name}: {one[1]} {four[1]}"
        losses = [[float(loss) for loss in re.findall(r"loss (\S+)", run[1])] for run in (one, four)]
        assert len(losses[0]) == 3 and losses[0][0] > losses[0][2], name
        assert losses[1] == pytest.approx(losses[0], abs=2e-4), name


@pytest.mark.parametrize("name", CASES)
def test_a_file_imports_what_it_uses_and_no_more(name: str) -> None:
    tree = ast.parse(CASES[name]())
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    } - {"annotations"}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert imported <= used
    wanted = {"fully_shard", "parallelize_module", "checkpoint_wrapper", "DistributedDataParallel", "pytree"}
    assert used & wanted <= imported


def test_a_path_with_quotes_ends_no_text(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s """ a\\n'
    folder.mkdir()
    (folder / "model.py").write_text("")
    written = of_source(asked(shard="fsdp"), f"{folder / 'model.py'}:Client")
    constants = [node.value for node in ast.walk(ast.parse(written)) if isinstance(node, ast.Constant)]
    assert str(folder / "model.py") in constants


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: text(asked(data=2, context=2)), "candidate.context"),
        (lambda: text(asked(shard="none", offload="optimizer")), "candidate.offload"),
        (lambda: text(asked(precision="fp16")), "candidate.precision"),
        (lambda: text(asked(data=1, tensor=4)), "candidate.tensor"),
        (lambda: text(asked(data=2, tensor=2, shard="zero1")), "candidate.shard"),
        (lambda: text(asked(replace(GATED, experts=2))), "candidate.expert"),
    ],
)
def test_what_the_file_would_not_do_is_refused_with_its_reason(make: object, where: str) -> None:
    with pytest.raises(InputFault) as fault:
        make()  # type: ignore[operator]
    assert fault.value.where == where

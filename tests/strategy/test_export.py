"""A strategy as a file: equal in loss to one process, only what it needs, and what no file is written for."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from tests.support.gloo import run_files
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
MIXTURE = replace(GATED, experts=4, experts_per_token=2)
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


def within_nodes_of_two(request: StrategyRequest) -> str:
    """The best candidate with HSDP, which the search has on several nodes alone, for processes of one machine."""
    written = script(request, replace(best(request), shard="hsdp"))
    assert 'int(os.environ.get("LOCAL_WORLD_SIZE", 1))' in written
    return written.replace('int(os.environ.get("LOCAL_WORLD_SIZE", 1))', "2")


def in_large_steps(request: StrategyRequest) -> str:
    """The best candidate with plain SGD: the first steps of Adam hide a factor of the gradients."""
    written = text(replace(request, training=replace(request.training, optimizer="sgd")))
    assert "RATE = 0, 1e-4" in written
    return written.replace("RATE = 0, 1e-4", "RATE = 0, 1.0")


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
    "tensor, optimizer sharded": lambda: text(
        asked(data=2, tensor=2, shard="zero1", sequence_parallel=False)
    ),
    "tensor, sharded within nodes of two": lambda: within_nodes_of_two(
        asked(data=2, tensor=2, shard="fsdp", sequence_parallel=False)
    ),
    "context, sharded": lambda: text(asked(data=2, context=2, shard="fsdp", recompute="full")),
    "context, optimizer sharded": lambda: text(asked(data=2, context=2, shard="zero1")),
    "context over tensor and sequence parallel": lambda: text(
        asked(data=1, context=2, tensor=2, sequence_parallel=True, shard="none")
    ),
    "context in a pipeline": lambda: text(asked(data=1, context=2, pipeline=2, interleave=1, shard="none")),
    "experts of every copy": lambda: text(asked(MIXTURE, expert=1, shard="zero1")),
    "experts over two of four copies": lambda: text(asked(MIXTURE, expert=2, shard="none", micro_batch=2)),
    "experts sharded over two copies": lambda: text(asked(MIXTURE, expert=2, shard="fsdp", recompute="full")),
    "experts sharded, selective": lambda: text(asked(MIXTURE, expert=2, shard="fsdp", recompute="selective")),
    "experts over all copies, kept between passes": lambda: in_large_steps(
        asked(replace(MIXTURE, gated=False), expert=4, shard="zero2")
    ),
    "experts and context": lambda: text(asked(MIXTURE, data=2, context=2, expert=2, shard="none")),
    "experts in a pipeline": lambda: text(
        asked(MIXTURE, data=2, pipeline=2, interleave=1, expert=2, shard="none")
    ),
    "experts, optimizer sharded": lambda: text(asked(MIXTURE, expert=2, shard="zero1")),
    "experts in a pipeline, optimizer sharded": lambda: text(
        asked(MIXTURE, data=2, pipeline=2, interleave=1, expert=2, shard="zero1")
    ),
    "a traced model in a pipeline": lambda: of_source(
        asked(data=2, pipeline=2, interleave=1, shard="none", recompute="full")
    ),
}
MIXED = ["pipeline of chunks over tensor", "sharded, offloaded, run again, in half precision"]
"""Two that have most of it: stages, tensors and chunks; shards, offload, recomputation and half precision."""


COMPILED_ON_TWO = [
    asked(PLAIN, "bf16", data=2, shard="fsdp", offload="parameters", recompute="full"),
    asked(data=1, context=2, shard="fsdp", recompute="full"),
]
COMPILED = [
    asked(PLAIN, "bf16", shard="fsdp", offload="parameters", recompute="full"),
    asked(shard="zero1", recompute="selective"),
    asked(data=2, pipeline=2, interleave=1, shard="none"),
    asked(data=2, context=2, shard="fsdp", recompute="full"),
    asked(data=2, context=2, shard="none", recompute="selective"),
    asked(data=1, context=2, pipeline=2, interleave=1, shard="none"),
]


@pytest.mark.torch
@repeated(
    "names",
    [MIXED[:1], MIXED[1:], sorted(CASES.keys() - {*MIXED})],
    kept=0,
    ids=["staged", "sharded", "others"],
)
def test_every_division_has_the_loss_of_one_process(names: list[str], tmp_path: Path) -> None:
    written = [CASES[name]() for name in names]
    check_equal_losses([(text, text) for text in written], names, tmp_path)


@pytest.mark.torch
@repeated("requests", [COMPILED_ON_TWO, COMPILED], kept=0, ids=["two", "four"])
def test_compiled_layers_have_the_loss_of_one_process_that_does_not_compile(
    requests: list[StrategyRequest], tmp_path: Path
) -> None:
    """By the tracers of torch.compile alone, without the compiler behind them, which a GPU has."""
    pairs = []
    for request in requests:
        plain = text(request)
        compiled = plain.replace("COMPILE = torch.cuda.is_available()", "COMPILE = True")
        traced = compiled.replace(".compile()", '.compile(backend="aot_eager")')
        assert plain != compiled != traced
        pairs.append((plain, traced))
    processes = 2 if requests is COMPILED_ON_TWO else 4
    check_equal_losses(pairs, [str(request.fix) for request in requests], tmp_path, processes)


ATTENDS = """
    functional = torch.nn.functional
    calls, attention = [], functional.scaled_dot_product_attention

    def attend_otherwise(*args, **named):
        calls.append(torch.compiler.is_compiling())
        return attention(*args, **named)

    functional.scaled_dot_product_attention = attend_otherwise
    device, mesh = start()
    model = Decoder()
    for layer in model.layers:
        layer.compile(backend="aot_eager")
    for _ in range(3):
        loss_of(model(part(batch(0, 2, device)[0])), part(batch(0, 2, device)[1])).backward()
    print("calls", len(calls), "compiled", sum(calls))
"""


@pytest.mark.torch
@pytest.mark.repeated
def test_compiled_layers_with_divided_sequences_attend_by_what_takes_the_place_of_torchs(
    tmp_path: Path,
) -> None:
    """As the ring does on GPUs: a call that was compiled would not reach it again."""
    plain = text(asked(data=2, context=2, shard="none"))
    file = tmp_path / "train.py"
    file.write_text(re.sub(r"    options = argparse(.|\n)*", ATTENDS.lstrip("\n"), plain))
    (alone,) = run_files([(1, file)], steps=1)
    assert alone.codes == [0] and alone.text.splitlines()[-1] == "calls 12 compiled 0", alone.text


@pytest.mark.repeated
@pytest.mark.torch
def test_a_file_runs_without_torchrun(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(text(asked(shard="fsdp", micro_batch=2)))
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(
        [sys.executable, str(file), "--steps", "2"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    losses = [float(loss) for loss in re.findall(r"^step \d loss (\S+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 2 and losses[1] < losses[0]


def check_equal_losses(
    pairs: list[tuple[str, str]], names: list[str], folder: Path, processes: int = 4
) -> None:
    """Of each pair the first file on one process and the second on several."""
    files: list[tuple[int, Path]] = []
    for place, pair in enumerate(pairs):
        for count, content in zip((1, processes), pair, strict=True):
            file = folder / f"case{place}_{count}.py"
            file.write_text(content)
            files.append((count, file))
    ended = run_files(files, steps=3)
    for name, one, several in zip(names, ended[::2], ended[1::2], strict=True):
        assert not any([*one.codes, *several.codes]), f"{name}: {one.text} {several.text}"
        losses = [[float(loss) for loss in re.findall(r"loss (\S+)", run.text)] for run in (one, several)]
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
        (lambda: text(asked(shard="none", offload="optimizer")), "candidate.offload"),
        (lambda: text(asked(precision="fp16")), "candidate.precision"),
        (lambda: text(asked(data=1, tensor=4)), "candidate.tensor"),
        (lambda: text(asked(MIXTURE, data=2, tensor=2, shard="fsdp")), "candidate.tensor"),
    ],
)
def test_what_the_file_would_not_do_is_refused_with_its_reason(make: object, where: str) -> None:
    with pytest.raises(InputFault) as fault:
        make()  # type: ignore[operator]
    assert fault.value.where == where

"""The table of what runs: every cell that says yes does on Gloo processes, with the losses of one process."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.gloo import run_files
from tests.support.paths import ROOT
from tests.support.seeds import repeated
from torchsplit_core.cli.command import main
from torchsplit_core.strategy.export.script import script
from torchsplit_core.strategy.search import search_strategy
from torchsplit_core.strategy.search.space import SearchSpace
from torchsplit_core.strategy.supported import LIMITS, ModelTraits, Runnable, refusals
from torchsplit_core.values.strategy.request import (
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    TransformerSizes,
)
from torchsplit_core.values.training import ParallelConfig, TrainingJob
from torchsplit_core.workflow.capabilities import COMBINATIONS, capability_table

pytestmark = pytest.mark.torch
DECODER = f"{ROOT / 'tests' / 'support' / 'training' / 'decoder.py'}"
TINY = TransformerSizes(4, 32, 4, 2, 64, 100, 16)
PLAIN = ModelTraits(kv_heads=2)
CLOSE = {"bf16": 3e-2, "fp16": 0.2}
"""Half precision rounds otherwise where sums are of other parts; in fp16 the first steps change nothing while the scale
of the loss falls."""
TRAINED = [name for name, cell in COMBINATIONS.items() if not refusals(*cell, "train", PLAIN)]
EXPORTED = [name for name, cell in COMBINATIONS.items() if not refusals(*cell, "export", PLAIN)]


def test_the_guide_and_the_command_have_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    table = capability_table(ModelTraits())
    guide = (ROOT / "docs" / "guides" / "training.md").read_text()
    assert table in guide, f"put this table into the guide:\n{table}"
    assert main(["strategy", str(ROOT / "examples" / "strategy_request.json"), "--explain"]) == 0
    assert capsys.readouterr().out == table
    assert capability_table(ModelTraits(experts=8)) != table


def test_every_limit_of_a_plain_decoder_is_a_cell_that_says_no() -> None:
    space = SearchSpace(
        TINY.transformer(), TrainingJob(8, "fp32"), 2, StrategyFix(), Runnable("fp32", PLAIN, ()).anything()
    )
    cells = COMBINATIONS.values()
    for limit in LIMITS:
        reached = any(limit.applies(choices, PLAIN, "fp32") for choices in space.choices(4))
        shown = any(limit.applies(choices, PLAIN, precision) for choices, precision in cells)
        # Where heads of the keys must be repeated depends on the sizes.
        assert shown or not reached or "heads of the keys" in limit.why, limit.why


def _parted(cells: list[str], first: int) -> list[list[str]]:
    """The cells in parts of four, which share the runs of one process; the part at `first` comes first."""
    return [
        cells[first : first + 2],
        cells[:first],
        *(cells[k : k + 4] for k in range(first + 2, len(cells), 4)),
    ]


@repeated("names", _parted(TRAINED, 4), ids="-".join, kept=0)
def test_what_is_said_to_be_trained_is_and_its_checkpoint_goes_on_alone(
    names: list[str], tmp_path: Path
) -> None:
    from tests.support.training.runs import client_file, losses, run
    from torchsplit_core.values.strategy.run import RunStrategy

    whole = ParallelConfig(micro_batch=8)
    blocks = client_file(tmp_path, samples=44, blocks=4)
    alone: dict[str, list[float]] = {}
    for place, name in enumerate(names):
        choices, precision = COMBINATIONS[name]
        source = blocks
        if choices.context > 1 or choices.expert > 1:
            source = f"{DECODER}:{'mixture' if choices.expert > 1 else 'client'}"
        if source not in alone:
            plan = RunStrategy(whole, TrainingJob(8, "fp32", "adamw"))
            run(source, tmp_path / f"alone{place}", plan, 1, steps=6)
            alone[source] = losses(tmp_path / f"alone{place}")
        job, folder = TrainingJob(8, precision, "adamw"), tmp_path / str(place)
        run(source, folder, RunStrategy(choices, job), choices.devices, steps=4, checkpoint_every=4)
        run(source, folder, RunStrategy(whole, job), 1, steps=6, resume=True)
        assert losses(folder) == pytest.approx(alone[source], abs=CLOSE.get(precision, 1e-5)), name


@repeated("names", [EXPORTED[:2], EXPORTED[2:]], kept=0, ids=["two", "others"])
def test_what_is_said_to_be_exported_runs_as_a_file(names: list[str], tmp_path: Path) -> None:
    request = StrategyRequest(
        TINY, (StrategyNodes(1, 4, "A100-40GB"),), TrainingJob(8, "fp32"), StrategyFix(), 1
    )
    candidate = search_strategy(request).candidates[0]
    files: list[tuple[int, Path]] = []
    for place, name in enumerate(names):
        choices, precision = COMBINATIONS[name]
        file = tmp_path / f"cell{place}.py"
        sizes = TINY if choices.expert == 1 else replace(TINY, experts=4, experts_per_token=2)
        asked = replace(request, model=sizes, training=TrainingJob(8, precision))
        fields = {field: getattr(choices, field) for field in choices.__dataclass_fields__}
        file.write_text(script(asked, replace(candidate, **fields, devices=choices.devices)))
        files += [(1, file), (choices.devices, file)]
    ended = run_files(files, steps=3)
    for name, alone, several in zip(names, ended[::2], ended[1::2], strict=True):
        assert not any([*alone.codes, *several.codes]), f"{name}: {alone.text} {several.text}"
        losses = [[float(loss) for loss in re.findall(r"loss (\S+)", run.text)] for run in (alone, several)]
        close = CLOSE.get(COMBINATIONS[name][1], 2e-4)
        assert len(losses[0]) == 3 and losses[1] == pytest.approx(losses[0], abs=close), name

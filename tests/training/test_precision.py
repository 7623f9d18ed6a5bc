"""Half precision with a scaled loss, activations on the host, traces of steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests.support.seeds import repeated
from tests.support.training.plain_loop import Recipe, run_around, run_plain
from tests.support.training.runs import client_file, events, losses, run, strategy
from torchsplit_core.training import RunFolder
from torchsplit_core.training.parallelize import apply_activation_offload
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunOptions, parse_trace_steps

HALF = Recipe(precision="fp16", overflow=9, clip_norm=0.5, schedule="one cycle")
"""The second step has a sample whose gradients overflow."""


def figures(folder: Path, name: str) -> list[float | None]:
    return [line.get(name) for line in RunFolder(folder).steps()]


def test_fp16_scales_the_loss_as_a_plain_loop_does_to_the_bit_also_when_it_goes_on(tmp_path: Path) -> None:
    wanted = run_plain(HALF, tmp_path)
    run_around(replace(HALF, steps=4), tmp_path)
    weights = run_around(HALF, tmp_path)
    assert losses(tmp_path / "run") == wanted["losses"]
    assert figures(tmp_path / "run", "loss_scale") == wanted["scales"]
    assert len(set(wanted["scales"])) > 1
    assert all(torch.equal(weights[name], value) for name, value in wanted["weights"].items())
    # A norm that is no number is left out.
    norms = figures(tmp_path / "run", "gradient_norm")
    assert norms[1] is None and norms[0] == wanted["norms"][0]


@pytest.mark.repeated
def test_fp16_on_two_processes_leaves_out_the_same_steps_on_both(tmp_path: Path) -> None:
    """A rank's gradients are twice those of one process, so that they overflow earlier; the ranks decide alike."""
    for shard in ("none", "zero1"):
        run_around(HALF, tmp_path, 2, shard, run=shard)
    scales = figures(tmp_path / "none", "loss_scale")
    assert scales == figures(tmp_path / "zero1", "loss_scale") and 65536 > scales[-1] > 1024
    assert losses(tmp_path / "none") == pytest.approx(losses(tmp_path / "zero1"), abs=1e-6)
    assert losses(tmp_path / "none")[0] == pytest.approx(run_plain(HALF, tmp_path)["losses"][0], rel=1e-3)
    # What overflows changes no weight: the third step has the loss of the first weights.
    assert losses(tmp_path / "none")[-1] < losses(tmp_path / "none")[2]


def test_gradients_that_are_no_numbers_at_any_scale_stop_the_run(tmp_path: Path) -> None:
    source = client_file(tmp_path, nan_gradients=True)
    with pytest.raises(
        InputFault, match=r"the gradient of step 3\d, rank 0: is nan or inf; nothing of that step"
    ):
        run(source, tmp_path / "run", strategy(precision="fp16", micro_batch=8), 1, steps=60)


@repeated("processes", [1, 2])
def test_activations_on_the_host_change_no_bit(processes: int, tmp_path: Path) -> None:
    recipe = Recipe(offload=True, dropout=0.2 if processes == 1 else 0.0)
    wanted = run_plain(recipe, tmp_path)
    run_around(recipe, tmp_path, processes, "none" if processes == 1 else "fsdp")
    if processes == 1:
        assert losses(tmp_path / "run") == wanted["losses"]
    assert losses(tmp_path / "run") == pytest.approx(wanted["losses"], abs=1e-6)


def test_what_a_forward_pass_saves_goes_through_the_host() -> None:
    model = torch.nn.Linear(3, 2)
    with mock.patch("torch.autograd.graph.save_on_cpu", wraps=torch.autograd.graph.save_on_cpu) as saved:
        apply_activation_offload(model, "cpu")
        model(torch.ones(1, 3)).sum().backward()
    saved.assert_called_once_with(pin_memory=False)
    assert model.weight.grad is not None


def test_activations_of_stages_stay_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(InputFault, match="--offload-activations: is given, but the strategy has 2 stages"):
        run(
            client_file(tmp_path), tmp_path / "run", strategy(micro_batch=4, pipeline=2), 2, offload_activations=True
        )  # fmt: skip


def test_steps_that_are_asked_for_are_traced_by_their_names(tmp_path: Path) -> None:
    run_around(Recipe(trace=(3, 4)), tmp_path, 2)
    for rank in (0, 1):
        path = tmp_path / "run" / "traces" / f"steps-3-4-rank-{rank}.json"
        names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
        assert {name for name in names if str(name).startswith("step ")} == {"step 3", "step 4"}
        assert "aten::addmm" in names
    traced = events(tmp_path / "run", "traced")
    assert sorted(event["rank"] for event in traced) == [0, 1]
    assert traced[0]["words"].startswith("steps 3 to 4: traces/steps-3-4-rank-")


def test_a_run_that_ends_before_its_traced_steps_do_writes_what_it_has(tmp_path: Path) -> None:
    run(client_file(tmp_path), tmp_path / "run", strategy(micro_batch=8), 1, steps=3, trace_steps=(3, 9))
    names = (tmp_path / "run" / "traces" / "steps-3-9-rank-0.json").read_text()
    assert '"step 3"' in names


@pytest.mark.parametrize("text", ["5:4", "0:2", "x", "1:y"])
def test_steps_to_trace_that_are_none(text: str) -> None:
    with pytest.raises(InputFault, match="--trace-steps"):
        RunOptions(trace_steps=parse_trace_steps(text))

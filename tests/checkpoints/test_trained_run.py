"""A step of a run is a model like any other: it is traced, gathered to the bit, and named in every fault."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from tests.support.training.runs import client_file, events, run, strategy
from torchsplit_core.checkpoints import weights as checkpoint_weights
from torchsplit_core.checkpoints.store import read_manifest
from torchsplit_core.checkpoints.trained_run import parse_run_source, read_validation
from torchsplit_core.checkpoints.weights import save_weights
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file
from torchsplit_core.model_source import load_client, load_trainable, open_model, parse_source
from torchsplit_core.planning.request.build import model_name
from torchsplit_core.values import InputFault
from torchsplit_core.workflow import partition, profile, trace

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


EXAMPLE = read_file(str(ROOT / "examples" / "profile.json"))[1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return client_file(tmp_path_factory.mktemp("client"), blocks=4)


@pytest.fixture(scope="module")
def trained(source: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps whose weights lie sharded in the checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run(source, folder, strategy(optimizer="adamw", shard="fsdp", micro_batch=4), 2, steps=4)
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "tiny"))


def gathered(checkpoint: Path, tmp_path: Path) -> dict[str, torch.Tensor]:
    """What torch's own converter makes of a checkpoint."""
    dcp_to_torch_save(checkpoint, tmp_path / "gathered.pt")
    state: dict[str, torch.Tensor] = torch.load(tmp_path / "gathered.pt", weights_only=False)["model"]
    return state


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


DIVISIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, {"shard": "fsdp", "micro_batch": 4}),
    "pipeline": (2, {"pipeline": 2, "micro_batch": 2}),
    "zero1": (2, {"shard": "zero1", "micro_batch": 4}),
    "tensor and fsdp": (4, {"tensor": 2, "shard": "fsdp", "micro_batch": 4}),
}


@repeated("name", DIVISIONS, kept=0)
def test_weights_are_gathered_to_the_bit_from_every_division(name: str, source: str, tmp_path: Path) -> None:
    processes, choices = DIVISIONS[name]
    run(source, tmp_path / "run", strategy(optimizer="adamw", **choices), processes, steps=2)
    step = parse_run_source(str(tmp_path / "run"))
    manifest = save_weights(step, tmp_path / "model.safetensors")
    saved = load_file(tmp_path / "model.safetensors")
    assert same(saved, gathered(step.checkpoint, tmp_path))
    model = open_model(load_client(step.text, trust=True))
    assert same(saved, dict(model.state_dict())) and not model.training
    assert manifest.parameters == sum(tensor.numel() for tensor in saved.values())
    untrained = open_model(load_trainable(source, trust=True)).state_dict()
    assert not same(saved, dict(untrained))


def test_a_run_is_its_newest_step_and_every_step_is_a_model_of_its_own(trained: Path) -> None:
    newest = parse_source(str(trained), trust=True)
    assert newest.text == f"{trained}@step-4" and newest.display_name == "tiny@step-4"
    earlier, later = (
        open_model(load_client(f"{trained}@step-{step}", trust=True)).state_dict() for step in (2, 4)
    )
    assert not same(dict(earlier), dict(later))


@pytest.mark.repeated
def test_a_trained_model_is_traced_profiled_and_cut_as_the_step_that_it_is(trained: Path) -> None:
    """Its client only trains: what it is called with is taken from its data."""
    traced = trace(f"{trained}@step-2", trust=True)
    graph, measured = profile(str(trained), device="cpu", batch_sizes=[1], trust=True)
    assert measured.source == f"{trained}@step-4" and model_name(measured) == "tiny"
    assert any(row.basis == "measured" for row in measured.rows)
    assert graph.architecture_hash == traced.architecture_hash
    cut = partition(str(trained), measured, graph=graph, stages=2, time_limit_s=2)
    assert cut.source == measured.source


@pytest.mark.parametrize(
    ("text", "name"),
    [("runs/digits@step-440", "digits"), ("run:digits-2@step-9", "digits-2"), ("a@b@step-1", "a@b")],
)
def test_a_plan_calls_a_run_by_its_folder(text: str, name: str) -> None:
    assert model_name(replace(EXAMPLE, source=text, name=None)) == name


def test_a_run_goes_on_from_anothers_weights(trained: Path, tmp_path: Path) -> None:
    run(f"{trained}@step-4", tmp_path / "further", strategy(optimizer="adamw"), 1, steps=1)
    further = parse_source(f"{tmp_path / 'further'}", trust=True)
    assert further.base is not None and further.base.text == f"{trained}@step-4"
    assert not same(
        dict(open_model(load_client(further.text, trust=True)).state_dict()),
        dict(open_model(load_client(f"{trained}@step-4", trust=True)).state_dict()),
    )


def test_the_command_writes_weights_and_what_they_are(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "tiny.safetensors"
    assert main(["weights", f"{trained}@step-2", "-o", str(target), "--json"]) == 0
    printed = capsys.readouterr()
    manifest = json.loads((tmp_path / "tiny.safetensors.json").read_text())
    assert manifest == json.loads(printed.out)
    checkpoint = read_manifest(trained / "checkpoints" / "step-00000002")
    line = json.loads((trained / "metrics.jsonl").read_text().splitlines()[1])
    assert manifest["format"] == "torchsplit.weights" and manifest["bytes"] == target.stat().st_size
    assert (manifest["step"], manifest["loss"], manifest["samples_seen"]) == (2, line["loss"], 16)
    assert manifest["strategy"]["shard"] == "fsdp" and manifest["model_sha256"] == checkpoint.model_sha256
    assert "tiny@step-2" in printed.err
    assert main(["weights", str(trained), "-o", str(tmp_path / "model.bin")]) == 2
    assert "not a .safetensors file" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.safetensors", "tiny.safetensors.json"]


def test_a_workspaces_name_for_a_run_is_no_source_elsewhere() -> None:
    with pytest.raises(
        InputFault, match=r"run:tiny@step-4: .*no such run. Only its dashboard's workspace knows"
    ):
        parse_source("run:tiny@step-4")


def test_without_trust_the_file_behind_a_run_is_not_executed(trained: Path) -> None:
    with pytest.raises(InputFault, match=r"tiny@step-4: client.py:client: is Python code .* not trusted"):
        parse_source(str(trained))


def break_metadata(run: Path) -> None:
    path = run / "checkpoints" / "step-00000004" / ".metadata"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


FAULTS: dict[str, tuple[Any, str]] = {
    "no run": (lambda run: shutil.rmtree(run), r"cannot be read: no such run. Give the folder"),
    "another folder": (lambda run: (run / "run.json").unlink(), r"is not a training run: it holds no run.json"),
    "no checkpoint": (
        lambda run: shutil.rmtree(run / "checkpoints"), r"tiny: has no complete checkpoint yet. Wait",
    ),
    "a deleted step": (
        lambda run: shutil.rmtree(run / "checkpoints" / "step-00000004"),
        r"tiny: has no checkpoint of step 4: it holds step 2. Use tiny@step-2",
    ),
    "no JSON": (lambda run: (run / "run.json").write_text("["), r"tiny: run.json: cannot be read: it is not"),
    "endless JSON": (
        lambda run: (run / "run.json").write_text("[" * 2**20 + " " * 2**20), r"tiny: run.json: cannot be read",
    ),
    "a loop of its own": (
        lambda run: (run / "run.json").write_text('{"source": "Tiny"}'), r"trained by a loop of its own",
    ),
    "another content": (break_metadata, r"checkpoint step-00000004: .metadata has another content"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_that_cannot_be_used_says_why(name: str, copy: Path) -> None:
    damage, words = FAULTS[name]
    damage(copy)
    with pytest.raises(InputFault, match=words):
        open_model(load_client(f"{copy}@step-4", trust=True))


def test_the_weights_of_another_model_are_refused(trained: Path, tmp_path: Path) -> None:
    """The code has changed since: fewer blocks, then wider ones."""
    facts = json.loads((trained / "run.json").read_text())
    for change, words in (
        ({"blocks": 2}, "that has no 'blocks.2"),
        ({"width": 4}, "of shape"),
        ({"blocks": 6}, "lacks"),
    ):
        folder = tmp_path / str(change)
        shutil.copytree(trained, folder)
        other = client_file(tmp_path / "clients", str(len(words)), **{"blocks": 4, **change})
        (folder / "run.json").write_text(json.dumps({**facts, "source": other}))
        with pytest.raises(InputFault, match=words):
            open_model(load_client(str(folder), trust=True))


def test_a_full_disk_is_said_before_anything_is_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(checkpoint_weights.shutil, "disk_usage", lambda path: full)
    with pytest.raises(InputFault, match=r"needs [\d,]+ bytes, and the disk has 100"):
        save_weights(parse_run_source(f"{trained}@step-4"), tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.repeated
def test_the_end_of_a_run_is_measured_on_held_out_samples(tmp_path: Path) -> None:
    plan = strategy(64, optimizer="adamw", micro_batch=64)
    summary = run("sample:digits", tmp_path / "digits", plan, 1, steps=66, checkpoint_every=66)
    validation = read_validation(tmp_path / "digits")
    assert validation is not None and (validation.step, validation.samples) == (66, 360)
    assert summary.metrics == validation.metrics and 0.5 < validation.metrics["accuracy"] <= 1.0
    (event,) = events(tmp_path / "digits", "validated")
    assert f"accuracy {validation.metrics['accuracy']:.4g} on 360 held-out samples" == event["words"]
    # The same figure by hand, of the model as any user loads it.
    client = load_client(str(tmp_path / "digits"))
    held_out = client.get_validation_dataset()  # type: ignore[attr-defined]
    images = torch.stack([held_out[index][0][0] for index in range(360)])
    digits = torch.stack([held_out[index][1] for index in range(360)])
    with torch.inference_mode():
        right = (open_model(client)(images).argmax(-1) == digits).sum().item()
    assert right == round(360 * validation.metrics["accuracy"])


@pytest.mark.repeated
def test_figures_that_fail_leave_the_run_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        "from sample_models.digits import DigitsClient\n"
        "class Client(DigitsClient):\n"
        "    def get_metrics(self, outputs, targets):\n"
        "        return {'accuracy': float('nan')}\n"
    )
    summary = run(f"{file}:Client", tmp_path / "run", strategy(64, micro_batch=64), 1, steps=1)
    assert summary.step == 1 and summary.metrics == {}
    (event,) = events(tmp_path / "run", "validation_failed")
    assert "gives nan for accuracy" in event["words"]
    assert parse_run_source(str(tmp_path / "run")).step == 1

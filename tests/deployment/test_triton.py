"""Model repositories through Triton's own protobuf."""

import subprocess
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from tests.support.deployment.asked import Asked, asked
from tests.support.deployment.helpers import plan_of, planned_gpu, tenant
from torchsplit_core.deployment.formats.triton import ENTRY, protobuf_text
from torchsplit_core.values import InputFault, PlanOutcome


def configs(found: Asked) -> dict[str, Any]:
    """Every configuration by its path, read by Triton's protobuf, which knows every field and enumeration."""
    parsed = {}
    for name, text in found.texts("triton").items():
        if name.endswith("config.pbtxt"):
            config = text_format.Parse(text, model_config_pb2.ModelConfig())
            _, repository, model, _ = name.split("/")
            assert config.name == model
            assert model_config_pb2.ModelConfig.FromString(config.SerializeToString()) == config
            parsed[f"{repository}/{model}"] = config
    return parsed


def cut_plan() -> PlanOutcome:
    """Two stages of bert, the second on two kinds of slices with batches of 8 and 4; ocr beside the first."""
    slices = (
        (
            "3g.40gb",
            0,
            (
                tenant("bert", variant="cut", stage="s0", share=0.5, throughput_rps=60.0),
                tenant("ocr", share=0.5),
            ),
        ),
        ("2g.20gb", 4, tenant("bert", variant="cut", stage="s1", processes=2)),
        ("1g.10gb", 6, tenant("bert", variant="cut", stage="s1", batch_size=4)),
    )
    return plan_of(planned_gpu("n0/gpu0", "A100-80GB", slices))


def test_each_kind_of_server_has_its_own_models_and_batches():
    configurations = configs(asked(cut_plan()))
    parts = {name: one for name, one in configurations.items() if not name.startswith(f"{ENTRY}/")}
    assert sorted(name.partition("/")[2] for name in parts) == ["bert-s0", "bert-s1", "bert-s1", "ocr"]
    assert len({name.partition("/")[0] for name in parts}) == 3
    for name, config in parts.items():
        assert config.backend == "python"
        assert config.parameters["part"].string_value.startswith("/srv/models/")
        assert config.HasField("dynamic_batching")
        assert all(size <= config.max_batch_size for size in config.dynamic_batching.preferred_batch_size)
        (group,) = config.instance_group
        assert group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
        assert group.count == (2 if "2g-20gb" in name else 1)
        # The batch is no dimension of its own in Triton.
        assert [list(one.dims) for one in config.input] == [[16]]
    assert sorted(config.max_batch_size for config in parts.values()) == [4, 8, 8, 8]


def test_stages_meet_in_an_ensemble_whose_steps_ask_the_servers_that_have_them():
    configurations = configs(asked(cut_plan()))
    ensemble = configurations[f"{ENTRY}/bert"]
    assert ensemble.platform == "ensemble"
    # No step refuses what the ensemble takes.
    assert ensemble.max_batch_size == 4
    known = {one.name for one in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        part = configurations[f"{ENTRY}/{step.model_name}"]
        assert set(step.input_map) == {one.name for one in part.input}
        assert set(step.output_map) == {one.name for one in part.output}
        assert set(step.input_map.values()) <= known
        known |= set(step.output_map.values())
    assert [one.name for one in ensemble.output] == ["output_0"]
    assert {one.name for one in ensemble.output} <= known
    second = configurations[f"{ENTRY}/bert-s1"]
    assert (
        second.parameters["servers"].string_value == '[["http://n0:8002", 120.0], ["http://n0:8003", 120.0]]'
    )
    assert second.max_batch_size == 4


def test_a_value_that_an_ensemble_cannot_give_is_said():
    deployment = asked(cut_plan())
    manifest = deployment.manifests["bert", "cut"]
    twice = replace(manifest, outputs=manifest.outputs * 2)
    deployment.manifests["bert", "cut"] = twice
    with pytest.raises(InputFault, match="ensemble"):
        deployment.texts("triton")
    assert deployment.texts("kubernetes")


def test_a_dtype_that_the_protocol_has_not_got_is_named():
    deployment = asked(cut_plan())
    manifest = deployment.manifests["ocr", "whole"]
    (part,) = manifest.stages
    odd = replace(part, inputs=(replace(part.inputs[0], dtype="complex64"),))
    deployment.manifests["ocr", "whole"] = replace(manifest, stages=(odd,))
    with pytest.raises(InputFault, match="complex64"):
        deployment.texts("triton")


def test_the_scripts_start_a_server_for_each_slice_and_change_nothing_until_told():
    texts = asked(cut_plan()).texts("triton")
    script = texts["triton/start/n0/start.sh"]
    assert script.count("\nstart ") == 4
    for text in (script, texts["triton/start/n0/find-slices.sh"]):
        assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    unset = subprocess.run(["bash", "-c", script, "start.sh"], capture_output=True, text=True)
    assert unset.returncode != 0 and "find-slices.sh" in unset.stderr


def test_cores_have_no_gpu():
    slices = (("2c", 2, tenant("a")),)
    deployment = asked(plan_of(planned_gpu("cpu0", "CPU-4c", slices)))
    (config,) = configs(deployment).values()
    (group,) = config.instance_group
    assert group.kind == model_config_pb2.ModelInstanceGroup.KIND_CPU
    script = deployment.texts("triton")["triton/start/start.sh"]
    assert "--cpuset-cpus 2-3" in script and "--gpus" not in script.split("start() {")[1].split("}")[1]


@given(st.text())
def test_any_text_comes_back_from_the_protobuf(text):
    clean = text.encode("utf-8", "replace").decode()
    made = protobuf_text({"name": clean, "parameters": [{"key": clean, "value": {"string_value": clean}}]})
    config = text_format.Parse(made, model_config_pb2.ModelConfig())
    assert config.name == clean
    assert config.parameters[clean].string_value == clean


def test_hostile_names_are_folders_of_no_consequence():
    evil = '../../x"; rm -rf / #'
    deployment = asked(plan_of(planned_gpu("gpu0", "A100-80GB", [("7g.80gb", 0, evil)])))
    (name,) = configs(deployment)
    assert ".." not in name

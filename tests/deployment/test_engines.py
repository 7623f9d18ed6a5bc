"""Engines of LLMs as vLLM servers, in every format, beside models that TorchSplit serves."""

import json
import re
import shlex
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import yaml
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.serve.schema import ServeDeploySchema

from tests.support.deployment.engines import SIZES, engine_tenant, with_engines
from tests.support.deployment.helpers import plan_of, planned_gpu
from tests.support.serving.llm_plans import llm_plan
from torchsplit_core.deployment import custom_images, deploy
from torchsplit_core.deployment.vllm import IMAGE
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault
from torchsplit_core.values.plan.llm import LlmEngineOptions

COMPOSE = json.loads(
    files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
)
MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def options(words: list[str]) -> dict[str, str]:
    """What vLLM is told after the model: each option with its value."""
    names, values = words[::2], words[1::2]
    assert all(name.startswith("--") for name in names) and len(names) == len(values) == len(set(names))
    return {name.removeprefix("--"): value for name, value in zip(names, values, strict=True)}


def services() -> dict[str, Any]:
    document = yaml.safe_load(with_engines().texts("compose")["compose/n/compose.yaml"])
    jsonschema.Draft202012Validator(COMPOSE).validate(document)
    return {
        name: one for name, one in document["services"].items() if one.get("entrypoint") == ["vllm", "serve"]
    }


def test_an_engine_on_a_group_is_one_container_with_all_its_gpus():
    by_size = {options(one["command"][1:])["tensor-parallel-size"]: one for one in services().values()}
    assert set(by_size) == {"1", "2"}
    counts = {}
    for size, one in by_size.items():
        (device,) = one["deploy"]["resources"]["reservations"]["devices"]
        counts[size] = len(set(device["device_ids"]))
        assert one["image"] == IMAGE and re.fullmatch(r"vllm/vllm-openai:v\d+\.\d+\.\d+", IMAGE)
        assert "/health" in one["healthcheck"]["test"][-1]
        assert int(one["healthcheck"]["start_period"].removesuffix("s")) >= 600
        assert one["environment"]["HF_TOKEN"] is None
    assert counts == {"1": 1, "2": 2}
    assert by_size["1"]["shm_size"] == "1gb" and by_size["2"]["shm_size"] == "8gb"
    script = with_engines().texts("compose")["compose/n/find-slices.sh"]
    assert re.search(r"(?m)^slice \S+ 0/3g\.40gb/0$", script)
    assert re.search(r"(?m)^slice (\S+) 2//0$\nslice \1-1 3//0 \1$", script)


def test_vllm_is_told_what_the_plan_reckons_with():
    limits = LlmEngineOptions(96, 4096, 0.85, 4096)
    fields = {
        "served-model-name": "chat", "port": "8000", "tensor-parallel-size": "1", "max-num-seqs": "96",
        "max-num-batched-tokens": "4096", "gpu-memory-utilization": "0.85", "max-model-len": "4096",
        "dtype": "bfloat16",
    }  # fmt: skip
    assert words(engine=limits) == [MODEL, fields]
    quantised = replace(SIZES, dtype="fp8", kv_dtype="fp8")
    options = words(quantised, engine=limits)[1]
    assert "dtype" not in options and options["kv-cache-dtype"] == "fp8"
    # Only measured points: neither sizes nor types are known, the engine's own longest sequence counts.
    options = words(None)[1]
    assert "dtype" not in options and options["max-model-len"] == "8192"


def words(config=SIZES, **changes: Any) -> list[Any]:
    """The model and the options of the engine on a slice."""
    document = yaml.safe_load(
        with_engines(config=config, **changes).texts("compose")["compose/n/compose.yaml"]
    )
    commands = [one["command"] for one in document["services"].values() if "entrypoint" in one]
    (first, *rest) = next(command for command in commands if "1" in command)
    return [first, options(rest)]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (None, "SET-ME/chat"),
        ("library:llm", "SET-ME/chat"),
        ("./llama", "SET-ME/chat"),
        ("/data/llama", "/data/llama"),
    ],
)
def test_a_model_without_a_name_is_a_placeholder_and_a_folder_is_mounted(source, named):
    texts = with_engines(source).texts("compose", "systemd", "slurm", "kubernetes")
    project = yaml.safe_load(texts["compose/n/compose.yaml"])
    engines = [one for one in project["services"].values() if "entrypoint" in one]
    assert {one["command"][0] for one in engines} == {named}
    runs = [text for name, text in texts.items() if name.startswith("systemd/n/containers/")]
    pods = yaml.safe_load_all(texts["kubernetes/deployments.yaml"])
    mounts = [
        mount["mountPath"]
        for pod in pods
        for mount in pod["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    ]
    if named == source:
        assert all(one["volumes"][0]["source"] == source for one in engines)
        assert all(f"--volume {source}:{source}:ro" in text for text in runs)
        assert texts["slurm/n/serve.sbatch"].count(f"--bind {source}:{source}:ro") == 2
        assert mounts.count(source) == 2
    else:
        assert 'PLACEHOLDER: no model that vLLM loads is known for "chat"' in texts["compose/n/compose.yaml"]
        assert all("PLACEHOLDER" in text for text in runs) and "volumes" not in engines[0]


def test_docker_and_slurm_start_the_same_engines():
    texts = with_engines().texts("systemd", "slurm")
    runs = [text for name, text in texts.items() if name.startswith("systemd/n/containers/")]
    assert len(runs) == 2
    sizes = []
    for text in runs:
        command = shlex.split(text.partition("exec ")[2].replace("\\\n", " "))
        at = command.index(IMAGE)
        assert command[at + 1] == "serve" and command[at + 2] == MODEL
        assert command[command.index("--entrypoint") + 1] == "vllm"
        size = options(command[at + 3 :])["tensor-parallel-size"]
        assert command[command.index("--shm-size") + 1] == {"1": "1g", "2": "8g"}[size]
        sizes.append(size)
    assert sorted(sizes) == ["1", "2"]
    job = texts["slurm/n/serve.sbatch"]
    assert "#SBATCH --gres=gpu:1g.10gb:1,gpu:2g.20gb:1,gpu:3g.40gb:1,gpu:h100:2" in job.replace(
        "h100_sxm5", "h100"
    )
    steps = re.findall(
        r"srun .*--gres=gpu:(\S+) --cpus-per-task=(\d+) \\\n.*\n  apptainer exec --nv (.*) &", job
    )
    assert {(gres.rpartition(":")[2], cores) for gres, cores, _ in steps} == {("1", "3"), ("2", "4")}
    ports = [options(shlex.split(line)[4:])["port"] for _, _, line in steps]
    assert len(set(ports)) == 2 and "8000" not in ports


def test_gpus_of_a_group_lose_mig_beside_gpus_that_are_cut():
    texts = with_engines().texts("mig-parted", "nvidia-smi")
    (entries,) = yaml.safe_load(texts["mig-parted.yaml"])["mig-configs"].values()
    assert entries == [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"1g.10gb": 1, "3g.40gb": 1}},
        {"devices": [1], "mig-enabled": True, "mig-devices": {"2g.20gb": 1}},
        {"devices": [2, 3], "mig-enabled": False},
    ]
    script = texts["apply-mig-n.sh"]
    assert "leave_whole 2\n" in script and "leave_whole 3\n" in script and "cut_gpu 0 " in script


def test_triton_leaves_engines_out_and_says_so():
    texts = with_engines().texts("triton")
    assert "- triton: what runs in an image of its own, an engine of an LLM too" in texts["README.md"]
    assert not any(IMAGE in text for name, text in texts.items() if name.startswith("triton"))
    plan, request = engines_alone()
    with pytest.raises(InputFault, match="leaves out all"):
        deploy(plan, ["triton"], request)


def engines_alone():
    alone = plan_of(planned_gpu("gpu0", "H100-SXM5-80GB", [("3g.40gb", 0, engine_tenant("chat"))]))
    request = replace(with_engines().request, models=with_engines().request.models[:1])
    return replace(alone, request_sha256=request_hash(request)), request


def test_ray_has_engines_as_replicas_of_its_llm_application_each_on_a_node_with_its_gpus():
    texts = with_engines().texts("ray-serve")
    document = yaml.safe_load(texts["ray-serve/serve.yaml"])
    ServeDeploySchema.model_validate(document)
    models, engines = document["applications"]
    assert (models["route_prefix"], engines["route_prefix"]) == ("/", "/llm")
    assert [one["name"] for one in models["deployments"]] and "chat" not in json.dumps(models)
    configs = [LLMConfig(**one) for one in engines["args"]["llm_configs"]]
    assert [one.model_id for one in configs] == ["chat", "chat-on-2-gpus"]
    script = texts["ray-serve/n/start.sh"]
    for one, gpus in zip(configs, (1, 2), strict=True):
        assert one.model_loading_config.model_source == MODEL and one.deployment_config == {"num_replicas": 1}
        assert one.engine_kwargs["tensor_parallel_size"] == gpus and one.engine_kwargs["max_num_seqs"] == 96
        (resource,) = set(one.placement_group_config["bundle_per_worker"]) - {"GPU"}
        (node,) = re.findall(rf'(?m)^node {resource} (\d+) \d+ CUDA_VISIBLE_DEVICES="(.*)"$', script)
        assert int(node[0]) == gpus == node[1].count("${SLICE_") and node[1].count(",") == gpus - 1
        known = set(re.findall(r"(?m)^slice (\S+)", texts["ray-serve/n/find-slices.sh"]))
        names = re.findall(r"\$\{SLICE_(\w+):", node[1])
        assert set(names) <= {name.upper().replace("-", "_") for name in known}
    assert "ray[serve,llm]==" in texts["README.md"] and "`chat-on-2-gpus`" in texts["README.md"]
    assert "Left out" not in texts["README.md"]


def test_ray_serves_engines_alone_at_the_root():
    plan, request = engines_alone()
    texts = {file.name: file.text for file in deploy(plan, ["ray-serve"], request)}
    (only,) = yaml.safe_load(texts["ray-serve/serve.yaml"])["applications"]
    assert only["route_prefix"] == "/" and not any(name.startswith("image/") for name in texts)


def test_the_readme_says_what_is_not_modelled_and_that_nothing_ran():
    text = with_engines().texts("compose")["README.md"]
    section = text.partition("## Engines of LLMs")[2].partition("\n## ")[0]
    for words_ in (
        "speculative decoding",
        "LoRA",
        "prefill apart from decode",
        "several nodes",
        "Untested on hardware",
    ):
        assert words_ in " ".join(section.split())


def test_another_image_still_gets_the_arguments_and_a_command_replaces_them():
    case = with_engines()

    def commands(**images: dict[str, str]) -> list[tuple[str, list[str]]]:
        made = deploy(
            case.plan, ["compose"], case.request, case.manifests, custom_images(case.request, **images)
        )
        (text,) = (file.text for file in made if file.name == "compose/n/compose.yaml")
        return [
            (one["image"], one["command"])
            for one in yaml.safe_load(text)["services"].values()
            if one.get("image") == "mirror/vllm:1"
        ]

    mirror = {"chat": "mirror/vllm:1"}
    assert [command[0] for _, command in commands(images=mirror)] == [MODEL, MODEL]
    answers = commands(images=mirror, commands={"chat": "serve it"})
    assert [command for _, command in answers] == [["serve", "it"]] * 2


def test_a_group_over_two_hosts_is_refused():
    case = with_engines()
    gpus = tuple(replace(gpu, id=gpu.id.replace("n/gpu3", "m/gpu3")) for gpu in case.plan.gpus)
    with pytest.raises(InputFault, match="takes 2 GPUs, of which n has 1"):
        case._replace(plan=replace(case.plan, gpus=gpus)).files("compose")


def test_engines_on_cores_are_served_and_not_deployed():
    plan, request = llm_plan("decoder")
    with pytest.raises(InputFault, match=r'engines of LLMs on cores \("chat"\)') as fault:
        deploy(plan, ("compose",), request)
    assert "torchsplit serve" in fault.value.remedy

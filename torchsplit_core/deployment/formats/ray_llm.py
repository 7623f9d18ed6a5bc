"""The engines of LLMs as an application of Ray Serve LLM, which runs vLLM. Untested on hardware.

Engines of one model with equal options are replicas of one deployment, on whatever slices they stand: vLLM sizes its
KV cache by the memory that it sees. Each has a Ray node that sees its slice, or all GPUs of its group, and offers the
resource that only these replicas ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchsplit_core.deployment.custom_images import ImageContainer
from torchsplit_core.deployment.formats.slice_ids import slice_variables
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.safe_text import dns_labels
from torchsplit_core.deployment.vllm import UNKNOWN_MODEL, model_id, options
from torchsplit_core.deployment.workload import Workload

IMPORT_PATH = "ray.serve.llm:build_openai_app"
PREFIX = "/llm"
"""Of the engines' addresses, beside models that TorchSplit serves: /llm/v1/chat/completions."""


def engines(workload: Workload) -> tuple[ImageContainer, ...]:
    """The engines that Ray Serve LLM can run: those without a command of their own."""
    return tuple(container for container in workload.containers if container.is_vllm)


def served_names(workload: Workload) -> dict[tuple[str, int], str]:
    """The name under which clients ask for a model's engines on so many GPUs each: the model's own, but for a second
    number of GPUs, since engines of one name are alike.
    """
    names: dict[tuple[str, int], str] = {}
    models: set[str] = set()
    for container in engines(workload):
        key = (container.tenant.model, len(container.gpus))
        if key not in names:
            names[key] = key[0] if key[0] not in models else f"{key[0]}-on-{key[1]}-gpus"
            models.add(key[0])
    return names


def engine_application(workload: Workload, *, alone: bool) -> Mapping[str, object] | None:
    """The application of serve.yaml; None without engines. `alone`: nothing else is at this address."""
    configs = []
    labels = _resources(workload)
    for (model, gpus), name in served_names(workload).items():
        members = [item for item in engines(workload) if (item.tenant.model, len(item.gpus)) == (model, gpus)]
        spec, tenant = members[0].image.llm, members[0].tenant
        assert spec is not None
        arguments = {key.replace("-", "_"): value for key, value in options(spec, tenant).items()}
        source = model_id(spec) or UNKNOWN_MODEL.format(name=spec.name)
        configs.append(
            {
                "model_loading_config": {"model_id": name, "model_source": source},
                "engine_kwargs": arguments,
                "deployment_config": {"num_replicas": len(members)},
                # One Ray node holds all workers of an engine.
                "placement_group_config": {
                    "bundle_per_worker": {"GPU": 1, labels[model, gpus]: 1},
                    "strategy": "STRICT_PACK",
                },
            }
        )
    if not configs:
        return None
    return {
        "name": f"torchsplit-{workload.plan}-llm",
        "route_prefix": "/" if alone else PREFIX,
        "import_path": IMPORT_PATH,
        "args": {"llm_configs": configs},
    }


def engine_nodes(workload: Workload, host: Host) -> Iterator[str]:
    """A call of start.sh's `node` for each engine of a host."""
    labels = _resources(workload)
    for container in workload.containers_of(host):
        if container.is_vllm:
            uuids = ",".join(
                f"${{{name}:?run find-slices.sh > slices.env first}}" for name in slice_variables(container)
            )
            gpus = len(container.gpus)
            label = labels[container.tenant.model, gpus]
            yield f'node {label} {gpus} {container.busy_cores} CUDA_VISIBLE_DEVICES="{uuids}"'


def _resources(workload: Workload) -> dict[tuple[str, int], str]:
    """The Ray resource of each name that clients ask for."""
    return dns_labels({key: ("engine", name) for key, name in served_names(workload).items()})

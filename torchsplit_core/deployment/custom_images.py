"""Models that run in the user's own images: an image and a command instead of a source that TorchSplit runs.

Such a model is a container for each tenant, on the tenant's slice. Its protocol is unknown, so no route includes it:
clients reach it at its own port, on Kubernetes at its Service.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torchsplit_core.deployment.hosts import Host, HostGpu, core_range
from torchsplit_core.deployment.safe_text import dns_labels
from torchsplit_core.deployment.vllm import ENTRY_POINT, IMAGE, arguments, cores, model_folder, model_id
from torchsplit_core.values import (
    InputFault,
    PlanModel,
    PlannedSlice,
    PlanRequest,
    Tenant,
    quoted,
    suggestion,
)

PLACEHOLDER = "registry.invalid/{label}:set-me"
"""An image that no registry can have: .invalid is reserved for names that never resolve (RFC 2606)."""
PORT = 8000
"""The default port of a container (`TORCHSPLIT_PORT`)."""

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")


@dataclass(frozen=True, slots=True)
class CustomImage:
    """A model's image. `command`: what follows the image in `docker run`; empty for the image's default.

    `placeholder`: no image is known; of an LLM, no model that its engines could load. `llm`: its tenants are engines,
    which vLLM serves unless there is a command.
    """

    image: str
    command: tuple[str, ...] = ()
    placeholder: bool = False
    llm: PlanModel | None = None

    @property
    def is_vllm(self) -> bool:
        """Whether vLLM serves it as an engine."""
        return self.llm is not None and not self.command


@dataclass(frozen=True, slots=True)
class ImageContainer:
    """A tenant on its slice, run by a custom image.

    `label` is unique; `kind` is shared by all that run the same on slices of one kind; `serves` by all that serve the
    same model and stage. `further_gpus`: those of an engine on several.
    """

    label: str
    kind: str
    serves: str
    image: CustomImage
    tenant: Tenant
    host: Host
    gpu: HostGpu
    slice: PlannedSlice
    port: int
    further_gpus: tuple[HostGpu, ...] = ()

    @property
    def gpus(self) -> tuple[HostGpu, ...]:
        """Its GPU, and the others that its engine takes."""
        return (self.gpu, *self.further_gpus)

    @property
    def is_vllm(self) -> bool:
        """Whether it is an engine that vLLM serves."""
        return self.image.is_vllm

    @property
    def entry_point(self) -> tuple[str, ...]:
        """What the container runs in place of the image's entry point; empty for that."""
        return ENTRY_POINT if self.is_vllm else ()

    def command(self, port: int = PORT) -> tuple[str, ...]:
        """What follows the image, or the entry point."""
        if self.is_vllm and self.image.llm is not None:
            return arguments(self.image.llm, self.tenant, port)
        return self.image.command

    @property
    def folder(self) -> str | None:
        """The folder of the model that vLLM loads, for the container at the same path; None of one by name."""
        return model_folder(self.image.llm) if self.is_vllm and self.image.llm is not None else None

    @property
    def shared_memory_gib(self) -> int:
        """GPUs that share layers exchange them through it where they have no link of their own."""
        return 1 if len(self.gpus) == 1 else 8

    @property
    def busy_cores(self) -> int:
        """Cores that a scheduler has to give it."""
        return cores(self.tenant) if self.is_vllm else self.tenant.processes

    @property
    def cores(self) -> str | None:
        """Its cores of the host in Docker's syntax, None on a GPU."""
        return core_range(self.host, self.gpu, self.slice)

    @property
    def has_whole_slice(self) -> bool:
        """Whether it has the whole slice."""
        return len(self.slice.tenants) == 1

    def environment(self, port: int = PORT) -> dict[str, str]:
        """Environment variables that describe the plan to it."""
        return {
            "TORCHSPLIT_MODEL": self.tenant.model,
            "TORCHSPLIT_STAGE": self.tenant.stage,
            "TORCHSPLIT_BATCH_SIZE": str(self.tenant.batch_size),
            "TORCHSPLIT_PROCESSES": str(self.tenant.processes),
            "TORCHSPLIT_SHARE": f"{self.tenant.share:.6g}",
            "TORCHSPLIT_PORT": str(port),
        }


def has_source(model: PlanModel) -> bool:
    """Whether TorchSplit can run the model: libraries and imports are figures without a model."""
    return model.source is not None and not model.source.startswith(("library:", "import:"))


def custom_images(
    request: PlanRequest, images: Mapping[str, str] | None = None, commands: Mapping[str, str] | None = None
) -> dict[str, CustomImage]:
    """The models with custom images: those given one, and, with a placeholder, those without a source.

    Raises InputFault for an unknown model, and an invalid image or command.
    """
    images, commands = images or {}, commands or {}
    names = [model.name for model in request.models]
    for option, given in (("image", images), ("command", commands)):
        for name in given:
            if name not in names:
                raise InputFault(option, f"unknown model {quoted(name)}", suggestion(name, names, "models"))
    labels = dns_labels({name: (name,) for name in names})
    chosen = {}
    for model in request.models:
        image, command = images.get(model.name), commands.get(model.name)
        if image is None and command is None and has_source(model) and model.llm is None:
            continue
        if image is not None and _IMAGE.fullmatch(image) is None:
            raise InputFault(
                f"image of {model.name}",
                f"is {quoted(image)}, not the name of an image",
                "Write it as docker pull takes it: registry/name:tag.",
            )
        if model.llm is not None:
            words = _split_command(model.name, command)
            unknown = not words and model_id(model) is None
            chosen[model.name] = CustomImage(image or IMAGE, words, unknown, model)
            continue
        chosen[model.name] = CustomImage(
            image or PLACEHOLDER.format(label=labels[model.name]),
            _split_command(model.name, command),
            image is None,
        )
    return chosen


def _split_command(name: str, command: str | None) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command or ""))
    except ValueError as error:
        raise InputFault(
            f"command of {name}", f"is {quoted(command)}: {str(error).lower()}", "Close the quotes."
        ) from None


def build_containers(
    hosts: tuple[Host, ...],
    images: Mapping[str, CustomImage],
    used_labels: set[str],
    next_port: Callable[[Host], int],
) -> tuple[ImageContainer, ...]:
    """A container for each tenant of such a model; `used_labels` are taken, `next_port` gives the next port."""
    tenants = [
        (host, gpu, item, number, tenant)
        for host in hosts
        for gpu in host.gpus
        for item in gpu.slices
        for number, tenant in enumerate(item.tenants)
        if tenant.model in images and _is_first(host, gpu, tenant)
    ]
    serves = dns_labels(
        {
            (tenant.model, tenant.stage): (tenant.model, *_stage_words(tenant))
            for _host, _gpu, _item, _number, tenant in tenants
        }
    )
    for key, label in serves.items():
        while serves[key] in used_labels:
            serves[key] = label = f"{label}-image"
    labels = dns_labels(
        {
            (host.name, gpu.id, item.start, number): (
                host.name or "", f"gpu{gpu.index}" if not gpu.is_cpu else "cpu", item.profile or "whole",
                f"at{item.start}", tenant.model, *_stage_words(tenant),
            )
            for host, gpu, item, number, tenant in tenants
        }
    )  # fmt: skip
    kinds = dns_labels(
        {_kind_key(gpu, item, tenant): ("image", serves[tenant.model, tenant.stage], item.profile or "whole", gpu.type,
                                     *_size_words(tenant))
         for _host, gpu, item, _number, tenant in tenants}
    )  # fmt: skip
    return tuple(
        ImageContainer(
            labels[host.name, gpu.id, item.start, number],
            kinds[_kind_key(gpu, item, tenant)],
            serves[tenant.model, tenant.stage],
            images[tenant.model],
            tenant,
            host,
            gpu,
            item,
            next_port(host),
            tuple(other for other in _together(host, tenant) if other is not gpu),
        )
        for host, gpu, item, number, tenant in tenants
    )


def _together(host: Host, tenant: Tenant) -> tuple[HostGpu, ...]:
    """The GPUs of a tenant's engine on several; none of another."""
    group = None if tenant.engine is None else tenant.engine.group
    if group is None:
        return ()
    members = tuple(
        gpu
        for gpu in host.gpus
        if any(t.engine is not None and t.engine.group == group for item in gpu.slices for t in item.tenants)
    )
    if len(members) != tenant.gpus:
        raise InputFault(
            "plan gpus",
            f"the engine of {tenant.model} takes {tenant.gpus} GPUs, of which {host.display_name} has {len(members)}",
            "Give the GPUs of one node the same host before the slash of their ids.",
        )
    return members


def _is_first(host: Host, gpu: HostGpu, tenant: Tenant) -> bool:
    """Whether a container starts here: on the first of the GPUs of an engine."""
    together = _together(host, tenant)
    return not together or together[0] is gpu


def _size_words(tenant: Tenant) -> tuple[str, ...]:
    if tenant.engine is not None:
        return (f"tp{tenant.gpus}",)
    return (f"b{tenant.batch_size}", f"p{tenant.processes}")


def _stage_words(tenant: Tenant) -> tuple[str, ...]:
    return () if tenant.stage == tenant.variant else (tenant.stage,)


def _kind_key(gpu: HostGpu, item: PlannedSlice, tenant: Tenant) -> tuple[object, ...]:
    return (
        gpu.type,
        item.profile,
        tenant.model,
        tenant.stage,
        tenant.batch_size,
        tenant.processes,
        round(tenant.share, 6),
        len(item.tenants) == 1,
        None if tenant.engine is None else replace(tenant.engine, group=None),
    )

"""README.md of a deployment: what each file is, what applying does and disrupts, and the plan."""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.mig_parted import config_labels
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.names import markdown, one_line
from torchsplit_core.planning.sureness.words import model_words, tenant_words
from torchsplit_core.values import PlannedSlice, PlanOutcome, Tenant, profile_words

_HOW = {
    "mig-parted": """\
## mig-parted.yaml

For [nvidia-mig-parted](https://github.com/NVIDIA/mig-parted), on the host itself:

```
nvidia-mig-parted assert -f mig-parted.yaml -c LABEL   # changes nothing: is it like this already?
nvidia-mig-parted apply  -f mig-parted.yaml -c LABEL
```

{labels}

mig-parted chooses the starts of the slices itself: their profiles and counts will be those of
the plan, their positions may differ. Its `--valid-config` does not check that a layout can
exist; that was checked here when the file was written.
""",
    "nvidia-smi": """\
## {scripts}

Without an argument a script shows the present state, the planned one and the commands between
them, and changes nothing. With `--apply` it runs them: MIG mode on where it is off, existing
instances removed (compute instances first), the planned ones created at their planned starts,
and read back. It refuses a GPU that has running processes or does not offer a planned profile,
and leaves alone a GPU that is as planned. Copy each script to its host and run it as root.
""",
    "kubernetes": """\
## kubernetes/

For the NVIDIA GPU operator with `mig.strategy=mixed`:

1. `kubectl apply -n gpu-operator -f kubernetes/mig-config.yaml`, and set the operator's
   `migManager.config.name` to `torchsplit-mig-config`.
2. `bash kubernetes/label-nodes.sh` shows the labels, `--apply` sets them. The operator then stops
   the GPU pods of these nodes, cuts the GPUs, and sets `nvidia.com/mig.config.state` to `success`.
3. `sed 's|TORCHSPLIT_IMAGE|registry/image:tag|' kubernetes/deployments.yaml | kubectl apply -f -`

The image is yours: it reads `TORCHSPLIT_MODEL`, `TORCHSPLIT_VARIANT`, `TORCHSPLIT_STAGE`,
`TORCHSPLIT_BATCH_SIZE`, `TORCHSPLIT_PROCESSES` and `TORCHSPLIT_SHARE`, or, where tenants share a
slice, `TORCHSPLIT_TENANTS` (a JSON list). The scheduler takes any free slice of the profile on
the plan's nodes: models that the plan puts on one GPU may land on different ones, and it
enforces no share of a slice. GPUs of different types on one node have slices of the same name in
part (`1g.10gb` of an A100 and of an H100): Kubernetes does not tell those apart.
""",
}


def summary_file(
    plan: PlanOutcome, hosts: tuple[Host, ...], formats: tuple[str, ...], files: tuple[DeploymentFile, ...]
) -> DeploymentFile:
    """What a person reads before applying anything."""
    unused = [gpu.id for gpu in plan.gpus if not gpu.slices]
    proof = "proven optimal" if plan.status == "optimal" else "feasible, and a better one was not ruled out"
    parts = [
        f"# Deployment of plan {plan.request_sha256[:12]}",
        f"The plan is {proof}. **Nothing here was tested on hardware**: read each file, try it on one"
        " host first.",
        "## Before you apply anything",
        "- Applying **removes all existing MIG instances** of the GPUs below that differ from the plan,"
        " and with them whatever runs there.\n"
        "- Turning MIG mode on may need a reset of the GPU or a reboot of the host.\n"
        "- MIG instances **do not survive a reboot**: apply again after one.\n"
        + (
            f"- Not touched, because the plan does not use them: {', '.join(map(_code, unused))}.\n"
            if unused
            else ""
        )
        + "- A GPU's number is its index in `nvidia-smi -L`: the number its id ends in where all ids of"
        " the host end in different ones (`node0/gpu3`), else its place in the plan.",
        "## Files",
        _table(("file", "what it is"), [(f"`{file.name}`", _purpose(file.name)) for file in files]),
        "## Slices",
        _slices(hosts),
        "## What each model gets",
        _models(plan),
    ]
    labels = "\n".join(
        f"- {_code(host.shown)}: `LABEL` is `{label}`"
        for host, label in zip(hosts, config_labels(hosts), strict=True)
    )
    scripts = ", ".join(file.name for file in files if file.name.startswith("apply-mig"))
    parts += [
        _HOW[name].replace("{labels}", labels).replace("{scripts}", scripts).rstrip() for name in formats
    ]
    return DeploymentFile("README.md", "\n\n".join(part.rstrip() for part in parts) + "\n")


def _purpose(name: str) -> str:
    if name == "mig-parted.yaml":
        return "MIG layout for nvidia-mig-parted"
    if name == "kubernetes/mig-config.yaml":
        return "the same layout as a ConfigMap for the GPU operator"
    if name == "kubernetes/label-nodes.sh":
        return "labels the nodes so that the operator cuts them; changes nothing without `--apply`"
    if name == "kubernetes/deployments.yaml":
        return "the workloads, one Deployment for each model, stage and profile"
    return "cuts one host's GPUs with nvidia-smi; changes nothing without `--apply`"


def _slices(hosts: tuple[Host, ...]) -> str:
    rows = [
        (
            markdown(host.shown),
            "n/a" if gpu.cores else str(gpu.index),
            gpu.type,
            profile_words(item.profile),
            str(item.start),
            *_tenants(item),
        )
        for host in hosts
        for gpu in host.gpus
        for item in sorted(gpu.slices, key=lambda item: item.start)
    ]
    return _table(("host", "GPU", "type", "profile", "start", "tenants", "throughput"), rows)


def _tenants(item: PlannedSlice) -> tuple[str, str]:
    """Who uses the slice, and what each gives."""
    if not item.tenants:
        return "free", "none"
    return "; ".join(map(_tenant, item.tenants)), "; ".join(map(tenant_words, item.tenants))


def _tenant(tenant: Tenant) -> str:
    share = "" if tenant.share == 1 else f", {tenant.share:.3g} of the slice"
    processes = "1 process" if tenant.processes == 1 else f"{tenant.processes} processes"
    return f"{markdown(tenant.model)} {markdown(tenant.stage)}, batch {tenant.batch_size}, {processes}{share}"


def _models(plan: PlanOutcome) -> str:
    gets = model_words(plan)
    rows = [
        (
            markdown(model.name),
            "none" if model.variant is None else markdown(model.variant),
            gets[model.name],
            f"{model.normalised:.4g}",
            "n/a" if model.latency_ms is None else f"{model.latency_ms:.4g}",
        )
        for model in plan.models
    ]
    head = ("model", "variant", "throughput", "per weight · demand", "p95 service time (ms)")
    return _table(head, rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    """As code: ASCII without backticks, so that nothing can leave it."""
    return "`" + one_line(text)[1:-1].replace("`", "'") + "`"

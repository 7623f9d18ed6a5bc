"""README.md of a deployment: what each file is, what applying does and disrupts, and the plan."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch

from torchsplit_core.deployment.allocator import ClusterForecast, forecast_cluster
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.mig_parted import config_labels
from torchsplit_core.deployment.formats.ray_llm import served_names
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.image import RAY, image_name
from torchsplit_core.deployment.safe_text import markdown, one_line
from torchsplit_core.deployment.vllm import NOT_MODELLED
from torchsplit_core.deployment.workload import Workload
from torchsplit_core.planning.confidence.formatting import format_models, format_tenant
from torchsplit_core.values import InternalFault, PlannedSlice, PlanOutcome, Tenant, profile_words

_INSTRUCTIONS = {
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

Not tried on a cluster. To cut the nodes, by the GPU operator with `mig.strategy=mixed`:

1. `kubectl apply -n gpu-operator -f kubernetes/mig-config.yaml`, and set the operator's `migManager.config.name` to
   `torchsplit-mig-config`. The operator merges such a file with nothing and uses it on every node. So it has what the
   operator would generate too (`all-…`, for GPU types whose PCI ids are known); add other configurations of yours.
2. End what runs on the GPUs of a node: `kubectl cordon NODE`, then delete its pods that use them. The operator does
   not stop your pods, and does not cut a GPU that is in use: `nvidia.com/mig.config.state` turns `failed`.
3. `bash kubernetes/label-nodes.sh` shows the labels, `nvidia.com/mig.config=LABEL`, and `--apply` sets them. On that
   node the operator ends and starts its device plugin, GPU feature discovery, DCGM, DCGM exporter and validators, and
   DaemonSets that select `nvidia.com/gpu.deploy.client`. The DRA driver finds slices only as it starts: delete its
   kubelet plugin's pod on the node afterwards. Once the state is `success`, `kubectl uncordon NODE`.

{labels}

To run the models, build the image, where there is one, and push it to your registry; set its name there, and those of
images that stand as placeholders, as `newName` in `kubernetes/kustomization.yaml`. Then `kubectl apply -k kubernetes/`.

A model is at its Service, `http://model-NAME:8000/v2/models/…`; requests for a cut model go to the router, which
leads them through the Services of its parts. A pod is ready once its models are warm; on its end it leaves its
Services first and answers what it has taken. The component `models-volume` takes the parts from a volume claim
instead of the image.

By the device plugin a pod gets any free slice of the profile on the plan's nodes: models that the plan puts on one GPU
may land on different ones. GPUs of different types on one node have slices of the same name in part (`1g.10gb` of an
A100 and of an H100): the device plugin does not tell those apart. Cores are a pod's own only where the kubelet's CPU
manager is `static`; elsewhere pods on cores may meet on the same ones.
{dra}""",
    "ray-serve": """\
## ray-serve/

Each slice gets a Ray node that sees nothing else and offers a resource of its kind; a replica asks for that.
In the folder `image` as the hosts have it (in the image built with `--target ray`: `/srv`):

1. On each host once the GPUs are cut: `bash find-slices.sh > slices.env`, then `bash start.sh` to see, `--apply` to
   start; on every host but the head with `RAY_ADDRESS=HEAD:6379`.
2. On the head: `serve deploy serve.yaml`. All models are at port 8000.

Several processes of one tenant are replicas on one slice: start CUDA's MPS daemon there, or they take turns. Tenants
that share a slice are placed together by parts of its resource; Ray does not hold them to their shares.
{ray_llm}""",
    "triton": """\
## triton/

A repository for each kind of server, read by Triton's Python backend (image built with `--target triton`). On each
host once the GPUs are cut, in its folder of `triton/start`: `bash find-slices.sh > slices.env`, then `bash start.sh`
to see, `--apply` to start a container for each slice. {triton}

Triton's names of models are plain: {names}. Several processes are instances in one server, without MPS. Tenants that
share a slice are in one server; Triton does not hold them to their shares.
""",
    "compose": """\
## compose/

On each host once the GPUs are cut, in its folder: `bash find-slices.sh > .env`, `docker compose build`,
`docker compose up -d`. Models that TorchSplit serves are at port 8000 of every host, each server at a port of its own
from 8001. The NVIDIA container toolkit gives each container its one slice by UUID; a server on cores has a `cpuset`.
""",
    "systemd": """\
## systemd/

On each host, with its folder's files: the folder `image` at `/opt/torchsplit` with a virtual environment `venv` in it
(`pip install -r requirements.txt`), `servers/`, `containers/`, `routes.json` and the two scripts in `/etc/torchsplit`,
`units/` in `/etc/systemd/system`; what is not written is not needed. Once the GPUs are cut `mkdir -p
/etc/torchsplit/slices && bash find-slices.sh --units /etc/torchsplit/slices`, then `systemctl daemon-reload &&
systemctl enable --now torchsplit.target`. All models that TorchSplit serves are at port 8000. A reboot takes the
slices; `systemctl enable torchsplit-mig.service` cuts and finds them at every boot, before the servers start.
""",
    "slurm": """\
## slurm/

`gres.conf` is for slurmd of the nodes, the lines of `nodes.conf` for slurm.conf. Then in each host's folder
`sbatch --export=ALL,TORCHSPLIT_ROOT=/shared/image serve.sbatch`: a step for each slice, and all models that
TorchSplit serves at port 8000 of the node. Slurm gives a step any free slice of its profile on the node.
""",
}

_DRA = """
### Dynamic Resource Allocation

`components: [dra]` in `kubernetes/kustomization.yaml`, before other components, replaces the Deployments of the device
plugin: each GPU is one ResourceClaim with all its slices as named requests on one parent GPU, and the pod of each slice
names its request. So models that the plan puts on one GPU stay together, on the plan's host where it has a name. It
needs Kubernetes 1.34, NVIDIA's DRA driver with GPU resources switched on (`gpuResourcesEnabledOverride=true` in Helm),
and on these nodes no device plugin (label `nvidia.com/gpu.deploy.device-plugin=false`). Product names select the GPU
type: compare them with `kubectl get resourceslices -o yaml`.

With dynamic MIG, which is alpha, off by default and needs 1.36 or the gate `DRAPartitionableDevices`, the driver makes
the slices, and steps 1 to 3 fall away: do not cut such nodes yourself, and switch MIG mode on beforehand on an A100 or
A30.

To come over from the device plugin, `kubectl apply -f kubernetes/dra/device-classes.yaml` (1.35, gate
`DRAExtendedResource`): pods that ask for `nvidia.com/mig-…` then get their slices from the DRA driver, each by a claim
of its own. Only one class may stand for such a name. Change to the component afterwards.

### As your cluster would place it

Pods of this plan that would find no slice, by a model of the scheduler's allocator: it takes the first device that
fits, in the order in which the driver publishes them, and reconsiders only within one claim. Over random orders of
arrival, with nothing else on these GPUs:

{placement}
"""
_NOT_LANDING = """
Some claims can take the slices of another GPU of the host that has theirs and more. If pods stay pending, delete the
pods of such claims and start those of the GPUs with more slices first.
"""

_IMAGE = """\
## image/

What every workload runs: the product's source, the models' parts (`models/`), a plan for each kind of server, pins of
what these need. `docker build -t {image} image`, with `--target ray` or `--target triton` for those two. The parts
are .pt2 files, so no model code is needed; loading one executes what it holds. A server
(`bash entrypoint.sh` with `TORCHSPLIT_SERVER=KIND`) runs `torchsplit serve` on its one slice; where tenants share the
slice it keeps their shares by turns. It speaks Open Inference Protocol v2 and has `/metrics`.

{servers}"""


REMOVES = (
    "Applying cuts every GPU below anew that is not cut as planned: all MIG instances on it are removed, even those "
    "that the plan has too, so whatever runs there has to end first. A GPU that is already cut as planned is left "
    "alone, and so is one that is not listed."
)
"""What applying ends, for the README and the page: by mig-parted and the nvidia-smi scripts, GPU by GPU."""

_OWN_IMAGES = """\
## Images of your own

These models run in images that are not written here; each tenant of the plan is a container on its slice.

{images}

A container listens at `TORCHSPLIT_PORT` (8000; under Slurm a port of its own on the node), and is told
`TORCHSPLIT_MODEL`, `TORCHSPLIT_STAGE`, `TORCHSPLIT_BATCH_SIZE`, `TORCHSPLIT_PROCESSES` and `TORCHSPLIT_SHARE`; it
batches and keeps its share by itself. The command follows the image as in `docker run IMAGE COMMAND`. No router leads
to it, since it may speak anything: it is at its Service on Kubernetes, else at its port of the host, from 8001. Under
systemd Docker runs it, under Slurm Apptainer (`docker://IMAGE`).
"""


_RAY_LLM = """
Engines of LLMs are an application of Ray Serve LLM, at `/llm/v1` beside other models, else at `/v1`. It runs vLLM
itself, so the hosts need `pip install '{ray}'` and no container. Engines of a model are replicas under its name; those
on another number of GPUs each have a name of their own: {names}.
"""


_ENGINES = """\
## Engines of LLMs

{models} run on vLLM ({image}), a container for each engine, which speaks the OpenAI protocol (`/v1/chat/completions`)
and has its figures for Prometheus at `/metrics`. An engine on several GPUs without MIG is one container that takes all
of them. A Service, or a balancer of yours, has to spread requests over a model's engines: the plan reckons with the
engine that has the fewest. The plan leaves out {left_out}. Untested on hardware.
"""


def _engines(workload: Workload) -> str:
    """The section about engines; empty without any."""
    models = dict.fromkeys(markdown(c.tenant.model) for c in workload.containers if c.is_vllm)
    if not models:
        return ""
    images = dict.fromkeys(_code(c.image.image) for c in workload.containers if c.is_vllm)
    return _ENGINES.format(models=", ".join(models), image=", ".join(images), left_out=NOT_MODELLED)


def _ray_llm(workload: Workload) -> str:
    """What Ray needs for engines of LLMs; empty without any."""
    names = list(map(_code, served_names(workload).values()))
    return _RAY_LLM.format(ray=RAY.replace("[serve]", "[serve,llm]"), names=", ".join(names)) if names else ""


def _image_table(workload: Workload) -> str:
    rows = {
        container.tenant.model: (
            markdown(container.tenant.model),
            _code(container.image.image)
            + (" **PLACEHOLDER: set it**" if container.image.placeholder else ""),
            _code(shlex.join((*container.entry_point, *container.command())))
            if container.command()
            else "the image's own",
            str(sum(other.tenant.model == container.tenant.model for other in workload.containers)),
        )
        for container in workload.containers
    }
    return _table(("model", "image", "command", "containers"), tuple(rows.values()))


def readme_file(
    plan: PlanOutcome,
    hosts: tuple[Host, ...],
    formats: tuple[str, ...],
    files: tuple[DeploymentFile, ...],
    workload: Workload | None = None,
    omissions: Mapping[str, str] | None = None,
    verdict: str = "",
) -> DeploymentFile:
    """What a person reads before applying anything.

    `omissions`: what a format leaves out of the plan; `verdict`: the plan's verdict.
    """
    unused = [gpu.id for gpu in plan.gpus if not gpu.slices]
    proof = "proven optimal" if plan.status == "optimal" else "feasible, and a better one was not ruled out"
    parts = [
        f"# Deployment of plan {plan.request_sha256[:12]}",
        *([markdown(verdict)] if verdict else ()),
        f"The plan is {proof}. **Nothing here was tested on hardware**: read each file, try it on one"
        " host first.",
        "## Before you apply anything",
        f"- **{REMOVES}**\n"
        + (
            "- On Kubernetes the operator restarts its own GPU pods of a node that it cuts. It does not stop yours: "
            "they have to end first.\n"
            if "kubernetes" in formats
            else ""
        )
        + "- Turning MIG mode on may need a reset of the GPU or a reboot of the host.\n"
        "- MIG instances **do not survive a reboot**: apply again after one.\n"
        + (
            f"- Not touched, because the plan does not use them: {', '.join(map(_code, unused))}.\n"
            if unused
            else ""
        )
        + "- A GPU's number is its index in `nvidia-smi -L`: the number its id ends in where all ids of"
        " the host end in different ones (`node0/gpu3`), else its place in the plan.",
        "## Files",
        _table(("file", "what it is"), _file_rows(files)),
        "## Slices",
        _slice_table(hosts),
        "## What each model gets",
        _model_table(plan),
    ]
    labels = "\n".join(
        f"- {_code(host.display_name)}: `LABEL` is `{label}`"
        for host, label in zip(hosts, config_labels(hosts), strict=True)
    )
    forecasts = forecast_cluster(hosts) if "kubernetes" in formats else ()
    scripts = ", ".join(file.name for file in files if file.name.startswith("apply-mig"))
    fields = {"labels": labels, "scripts": scripts, "dra": _dra(forecasts), **_workload_fields(workload)}
    if workload is not None and workload.kinds:
        parts.append(_substitute(_IMAGE, fields))
    if workload is not None and workload.containers:
        parts.append(_OWN_IMAGES.replace("{images}", _image_table(workload)))
        parts += filter(None, [_engines(workload)])
    if omissions:
        parts.append(
            "## Left out\n\n"
            + "\n".join(f"- {name}: {markdown(omitted)}." for name, omitted in omissions.items())
        )
    parts += [_substitute(_INSTRUCTIONS[name], fields) for name in formats]
    return DeploymentFile("README.md", "\n\n".join(part.rstrip() for part in parts) + "\n")


def _dra(forecasts: Sequence[ClusterForecast]) -> str:
    """What to do with the files of DRA, and what they are for; empty without GPUs."""
    if not forecasts:
        return ""
    table = _table(
        ("how slices are made", "a claim for each pod", "the claims of these files"),
        [(forecast.way, str(forecast.by_pod), str(forecast.by_gpu)) for forecast in forecasts],
    )
    text = _DRA.replace("{placement}", table)
    return text + _NOT_LANDING if any(forecast.by_gpu.most for forecast in forecasts) else text


def _substitute(text: str, fields: Mapping[str, str]) -> str:
    for key, value in fields.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def _workload_fields(workload: Workload | None) -> dict[str, str]:
    """Values for the sections on workloads."""
    if workload is None:
        return {}
    cut = [route for route in workload.routes if len(route.steps) > 1]
    servers = _table(
        ("kind of server", "slices", "models and stages"),
        [
            (
                f"`{kind.label}`",
                str(sum(server.kind is kind for server in workload.servers)),
                "; ".join(map(_format_tenant, kind.tenants)),
            )
            for kind in workload.kinds
        ],
    )
    ensemble_note = (
        "An ensemble runs inside one server and a server sees one slice: so the stages of cut models meet in the "
        "repository `entry`, at port 8000 of the first host, whose steps ask the servers that have them."
    )
    return {
        "image": image_name(workload),
        "servers": servers,
        "triton": ensemble_note if cut else "",
        "ray_llm": _ray_llm(workload),
        "names": ", ".join(f"{_code(route.model)} is `{route.label}`" for route in workload.routes),
    }


_PURPOSES = (
    ("mig-parted.yaml", "MIG layout for nvidia-mig-parted"),
    ("apply-mig*.sh", "cuts one host's GPUs with nvidia-smi; changes nothing without `--apply`"),
    ("kubernetes/mig-config.yaml", "the same layout as a ConfigMap for the GPU operator"),
    (
        "kubernetes/label-nodes.sh",
        "labels the nodes so that the operator cuts them; changes nothing without `--apply`",
    ),
    ("kubernetes/deployments.yaml", "the workloads, one Deployment for each kind of server"),
    ("kubernetes/servers.yaml", "the plan that each kind of server runs"),
    ("kubernetes/services.yaml", "a Service for each model and each part of a cut one"),
    ("kubernetes/router.yaml", "leads requests for cut models through their parts"),
    ("kubernetes/kustomization.yaml", "what `kubectl apply -k` applies, and the image's name"),
    ("kubernetes/models-volume/*", "a component: the parts from a volume claim"),
    (
        "kubernetes/dra/kustomization.yaml",
        "a component: slices by ResourceClaims instead of the device plugin",
    ),
    ("kubernetes/dra/claims.yaml", "a ResourceClaim for each GPU, with every slice as a named request"),
    ("kubernetes/dra/deployments.yaml", "a Deployment for each slice, whose pod names its request"),
    (
        "kubernetes/dra/device-classes.yaml",
        "the device plugin's resource names by DRA, for pods that use them",
    ),
    ("*/find-slices.sh", "finds the UUIDs of one host's slices; changes nothing on a GPU"),
    ("ray-serve/serve.yaml", "the application for `serve deploy`"),
    ("*/start.sh", "starts one host's servers; shows the commands without `--apply`"),
    ("triton/*/config.pbtxt", "a model's configuration"),
    ("triton/*/model.py", "runs a part, or asks those that have it"),
    ("triton/*/README", "keeps the version's folder"),
    ("*/compose.yaml", "one host's containers"),
    ("*/routes.json", "where requests for each model go, for `torchsplit route`"),
    ("systemd/*/containers/*.sh", "runs one container of an image of yours"),
    ("systemd/containers/*.sh", "runs one container of an image of yours"),
    ("systemd/*apply-mig.sh", "cuts this host's GPUs for the unit below; changes nothing without `--apply`"),
    (
        "systemd/*torchsplit-mig.service",
        "cuts the GPUs and finds the slices at every boot, where it is enabled",
    ),
    ("systemd/*.service", "a unit"),
    ("systemd/*.target", "all units of one host"),
    ("systemd/*/cores.conf", "the cores of one server"),
    ("systemd/*.env", "what one server is"),
    ("slurm/gres.conf", "how slurmd finds the slices"),
    ("slurm/nodes.conf", "what the nodes offer, for slurm.conf"),
    ("*/serve.sbatch", "the job that serves on one host"),
    ("image/Dockerfile", "the image of every workload"),
    ("image/.dockerignore", "what the image leaves out"),
    ("image/entrypoint.sh", "what a container, unit or step runs"),
    ("image/requirements.txt", "the pins of what serving needs"),
    ("image/servers/*", "the plan and request of one kind of server"),
    ("image/ray-serve/*", "what the Ray Serve application reads"),
    ("image/ray_application.py", "what Ray imports"),
)

MOST_LISTED = 60
"""Files listed by name; above, one of each purpose."""


def _file_rows(files: Sequence[DeploymentFile]) -> list[tuple[str, str]]:
    """Each file with its purpose; of many, the first of each purpose, with their number."""
    purposes = {file.name: _purpose(file.name) for file in files}
    if len(purposes) <= MOST_LISTED:
        return [(f"`{name}`", purpose) for name, purpose in purposes.items()]
    count = Counter(purposes.values())
    first: dict[str, str] = {}
    for name, purpose in purposes.items():
        first.setdefault(purpose, name)
    return [
        (f"`{name}`" + (f" and {count[purpose] - 1} more" if count[purpose] > 1 else ""), purpose)
        for purpose, name in first.items()
    ]


def _purpose(name: str) -> str:
    description = next((purpose for pattern, purpose in _PURPOSES if fnmatch(name, pattern)), None)
    if description is None:
        raise InternalFault(f"nothing says what the deployment file {name} is")
    return description


def _slice_table(hosts: tuple[Host, ...]) -> str:
    rows = [
        (
            markdown(host.display_name),
            "n/a" if gpu.is_cpu else str(gpu.index),
            gpu.type,
            profile_words(item.profile),
            str(item.start),
            *_format_tenants(item),
        )
        for host in hosts
        for gpu in host.gpus
        for item in sorted(gpu.slices, key=lambda item: item.start)
    ]
    return _table(("host", "GPU", "type", "profile", "start", "tenants", "throughput"), rows)


def _format_tenants(item: PlannedSlice) -> tuple[str, str]:
    """The tenants of the slice, and what each gives."""
    if not item.tenants:
        return "free", "none"
    return "; ".join(map(_format_tenant, item.tenants)), "; ".join(map(format_tenant, item.tenants))


def _format_tenant(tenant: Tenant) -> str:
    share = "" if tenant.share == 1 else f", {tenant.share:.3g} of the slice"
    processes = "1 process" if tenant.processes == 1 else f"{tenant.processes} processes"
    return f"{markdown(tenant.model)} {markdown(tenant.stage)}, batch {tenant.batch_size}, {processes}{share}"


def _model_table(plan: PlanOutcome) -> str:
    throughput = format_models(plan)
    rows = [
        (
            markdown(model.name),
            "none" if model.variant is None else markdown(model.variant),
            throughput[model.name],
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
    """As code: ASCII without backticks, which could end it."""
    return "`" + one_line(text)[1:-1].replace("`", "'") + "`"

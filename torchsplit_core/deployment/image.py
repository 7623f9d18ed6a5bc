"""The image of every workload: Dockerfile, entry point, pinned requirements of serving.

Its context is a self-contained folder: the product's source, the models' parts, a plan for each server kind. Formats
without containers (systemd, Slurm) start the same entry point in that folder.
"""

from __future__ import annotations

import platform
from importlib.metadata import version

from torchsplit_core import extras
from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.server_plans import server_files
from torchsplit_core.deployment.workload import ROUTER_PORT, Workload

ROOT = "image"
"""The folder of the context among the files."""
IMAGE = "torchsplit-serve:{plan}"
"""The tag that compose builds and Kubernetes pulls, in the user's registry."""
USER = 10001
"""An unused user id: the server needs no privileges."""

SERVING = (
    "torch", "numpy", "pydantic", "PyYAML", "httptools", "uvloop", "orjson", "prometheus-client", "nvidia-ml-py",
    "networkx", "opentelemetry-sdk", "scipy", "pyomo", "highspy",
)  # fmt: skip
"""Packages that `serve`, its workers and `route` import, besides their dependencies; a test checks completeness."""

RAY = "ray[serve]==2.60.0"
"""The version with which the tests start the application."""
TRITON = "nvcr.io/nvidia/tritonserver:25.09-pyt-python-py3"
"""Triton with its Python backend. The tag depends on the driver: another may be needed."""

_DOCKERFILE = """\
# The server of plan {plan}. Not tested on hardware.
#
#   docker build -t {image} {root}                    the server (default)
#   docker build -t {image}-ray --target ray {root}       the same with Ray Serve
#   docker build -t {image}-triton --target triton {root} Triton with the models' parts and torch
#
# The driver's libraries, nvidia-cuda-mps-control among them, come from the NVIDIA container toolkit.

FROM {triton} AS triton
COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir $(grep -E '^(torch|numpy|httptools|orjson)==' /tmp/requirements.txt)
COPY torchsplit_core /srv/torchsplit_core
ENV PYTHONPATH=/srv

FROM python:{python}-slim AS serve
WORKDIR /srv
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
ENV PYTHONUNBUFFERED=1 PYTHONPATH=/srv NVIDIA_DRIVER_CAPABILITIES=compute,utility
EXPOSE {port}
USER {user}
ENTRYPOINT ["bash", "/srv/entrypoint.sh"]

FROM serve AS ray
USER root
RUN pip install --no-cache-dir '{ray}'
USER {user}
ENTRYPOINT []
CMD ["bash"]

# The last one is what is built without --target.
FROM serve
"""

_ENTRYPOINT = """\
#!/usr/bin/env bash
# What one container, unit or job step of plan {plan} runs. Not tested on hardware.
#
#   TORCHSPLIT_SERVER=KIND  serves servers/KIND on the one device that is visible
#   TORCHSPLIT_ROUTES=FILE  answers for all models: leads requests to those servers
#   TORCHSPLIT_PORT         default {port}
#   TORCHSPLIT_MPS=1        several processes on a GPU: starts CUDA's MPS daemon before them
#
# SIGTERM drains: the server takes the signal itself (exec), answers what it has taken, and ends.
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
export PYTHONPATH="$PWD"
port=${{TORCHSPLIT_PORT:-{port}}}

if [[ -n ${{TORCHSPLIT_ROUTES:-}} ]]; then
  exec python -m torchsplit_core route "$TORCHSPLIT_ROUTES" --host 0.0.0.0 --port "$port"
fi

server=${{TORCHSPLIT_SERVER:?the kind of server: a folder of servers/}}
if [[ ${{TORCHSPLIT_MPS:-0}} == 1 ]]; then
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
  CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
  nvidia-cuda-mps-control -d
fi
# --trust: the models' parts are .pt2 files of this folder, and running one executes what it holds.
exec python -m torchsplit_core serve "servers/$server/plan.json" --request "servers/$server/request.json" \\
  --host 0.0.0.0 --port "$port" --trust
"""

_IGNORED = """\
# What stands here besides the image's own files stays out of it.
*
!requirements.txt
!entrypoint.sh
!torchsplit_core
!models
!servers
!ray-serve
!ray_application.py
**/__pycache__
"""


def image_name(workload: Workload) -> str:
    """The image's name and tag: each plan has its own image."""
    return IMAGE.format(plan=workload.plan)


def image_files(workload: Workload) -> tuple[DeploymentFile, ...]:
    """The texts of the context. The product's source and the models' parts are copied beside them."""
    fields = {
        "plan": workload.plan,
        "image": image_name(workload),
        "root": ROOT,
        "triton": TRITON,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "port": ROUTER_PORT,
        "user": USER,
        "ray": RAY,
    }
    return (
        DeploymentFile(f"{ROOT}/Dockerfile", _DOCKERFILE.format(**fields)),
        DeploymentFile(f"{ROOT}/.dockerignore", _IGNORED),
        DeploymentFile(f"{ROOT}/entrypoint.sh", _ENTRYPOINT.format(**fields), executable=True),
        DeploymentFile(f"{ROOT}/requirements.txt", requirements()),
        *server_files(workload, f"{ROOT}/servers"),
    )


def requirements() -> str:
    """Pinned requirements of serving, by the installed versions that wrote the parts. Raises MissingPackage."""
    extras.require_extra("deploy")
    # A local version (+cpu, +cu128) says where a build is from; the pin takes the platform's default build.
    return "".join(f"{name}=={version(name).partition('+')[0]}\n" for name in SERVING)

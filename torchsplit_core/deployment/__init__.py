"""From a plan to the files that make it real: those that cut GPUs, and the workloads that run its models there.

Nothing here touches a GPU or runs a model. Every file is written from the plan (and, for workloads, its request and
the models' written parts), after the plan's slices were checked against the catalogue; the scripts change nothing
unless told to.
"""

from torchsplit_core.deployment.beforehand import made_up
from torchsplit_core.deployment.deploy import (
    FORMATS,
    LAYOUT_FORMATS,
    WORKLOAD_FORMATS,
    deploy,
    models_to_write,
)
from torchsplit_core.deployment.files import DeploymentFile, write_deployment, zipped
from torchsplit_core.deployment.image import ROOT as IMAGE_ROOT
from torchsplit_core.deployment.own_images import OwnImage, has_source, left_out, own_images
from torchsplit_core.deployment.servers import part_folders
from torchsplit_core.deployment.summary import REMOVES

__all__ = [
    "FORMATS",
    "IMAGE_ROOT",
    "LAYOUT_FORMATS",
    "REMOVES",
    "WORKLOAD_FORMATS",
    "DeploymentFile",
    "OwnImage",
    "deploy",
    "has_source",
    "left_out",
    "made_up",
    "models_to_write",
    "own_images",
    "part_folders",
    "write_deployment",
    "zipped",
]

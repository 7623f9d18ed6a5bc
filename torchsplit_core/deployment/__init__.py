"""From a plan to its deployment files: layout formats that cut GPUs, and workloads that run its models there.

Nothing here touches a GPU or runs a model. Every file is written from the plan (workloads also from its request and the
models' written parts), after the plan's slices were checked against the catalogue; scripts change nothing by default.
"""

from torchsplit_core.deployment.allocator import ClusterForecast, forecast_cluster, placed_plan
from torchsplit_core.deployment.custom_images import CustomImage, custom_images, has_source
from torchsplit_core.deployment.deploy import (
    FORMATS,
    LAYOUT_FORMATS,
    WORKLOAD_FORMATS,
    deploy,
    models_to_write,
    omitted_by,
)
from torchsplit_core.deployment.files import DeploymentFile, write_deployment, zip_files
from torchsplit_core.deployment.hosts import group_by_host
from torchsplit_core.deployment.image import ROOT as IMAGE_ROOT
from torchsplit_core.deployment.placeholder_parts import placeholder_manifest
from torchsplit_core.deployment.readme import REMOVES
from torchsplit_core.deployment.workload import part_folders

__all__ = [
    "FORMATS",
    "IMAGE_ROOT",
    "LAYOUT_FORMATS",
    "REMOVES",
    "WORKLOAD_FORMATS",
    "ClusterForecast",
    "CustomImage",
    "DeploymentFile",
    "custom_images",
    "deploy",
    "forecast_cluster",
    "group_by_host",
    "has_source",
    "models_to_write",
    "omitted_by",
    "part_folders",
    "placed_plan",
    "placeholder_manifest",
    "write_deployment",
    "zip_files",
]

"""From a plan to the files that make it real: mig-parted, nvidia-smi, Kubernetes.

Nothing here touches a GPU. Every file is written from the plan alone, after the plan's
slices were checked against the catalogue; the scripts change nothing unless told to.
"""

from torchsplit_core.deployment.deploy import FORMATS, deploy
from torchsplit_core.deployment.files import DeploymentFile, write_deployment

__all__ = ["FORMATS", "DeploymentFile", "deploy", "write_deployment"]

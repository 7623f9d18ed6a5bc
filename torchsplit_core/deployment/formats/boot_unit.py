"""A systemd unit that cuts a host's GPUs again at every boot, which MIG instances do not survive, and its script."""

from __future__ import annotations

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.formats.nvidia_smi import mig_script
from torchsplit_core.deployment.hosts import Host

SETTINGS = "/etc/torchsplit"
"""Where the files of a host are installed."""
UNIT = "torchsplit-mig.service"

_UNIT = f"""\
# The MIG instances of plan {{plan}} at boot, before the servers on them. Not tested on hardware.
[Unit]
Description=TorchSplit: MIG instances of plan {{plan}}
After=nvidia-persistenced.service
Before=docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/bash {SETTINGS}/apply-mig.sh --apply
{{finds}}
[Install]
WantedBy=multi-user.target
"""

_FINDS = f"""\
# UUIDs may change with every cut.
ExecStart=/bin/mkdir -p {SETTINGS}/slices
ExecStart=/bin/bash {SETTINGS}/find-slices.sh --units {SETTINGS}/slices
"""


def boot_files(plan: str, host: Host, units: str, scripts: str, *, finds: bool) -> tuple[DeploymentFile, ...]:
    """The unit in the folder `units`, `apply-mig.sh` in `scripts` (each with its /, or empty).

    `plan`: its short hash. `finds`: the unit also runs find-slices.sh, for units that read UUIDs.
    """
    unit = _UNIT.format(plan=plan, finds=_FINDS if finds else "")
    return (
        DeploymentFile(f"{units}{UNIT}", unit),
        mig_script(plan, host, f"{scripts}apply-mig.sh", tenants=False),
    )

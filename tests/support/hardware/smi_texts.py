"""What nvidia-smi prints of a host: lines as in public transcripts, made of a replayed listing, and a fake of it."""

import sys
from pathlib import Path

from torchsplit_core.hardware.replay import ReplayNvml

FRAME = "+-------------------------------------------------------+"
HEADING = (
    FRAME,
    "| GPU instances:                                        |",
    "| GPU   Name             Profile  Instance   Placement  |",
    "|                          ID       ID       Start:Size |",
    "|=======================================================|",
)
NO_DEVICES, NO_INSTANCES = "No MIG-enabled devices found.\n", "No GPU instances found: Not Found\n"


def list_text(nvml: ReplayNvml) -> str:
    """`nvidia-smi -L`."""
    lines = []
    for index in range(nvml.gpu_count()):
        gpu = nvml.gpu(index)
        lines.append(f"GPU {index}: {gpu.name} (UUID: {gpu.uuid})")
        for number, device in enumerate(nvml.mig_devices(index)):
            lines.append(f"  MIG {device.profile:<11} Device  {number}: (UUID: {device.uuid})")
    return "\n".join(lines) + "\n"


def instances_text(nvml: ReplayNvml) -> str:
    """`nvidia-smi mig -lgi`, as root."""
    modes = [nvml.gpu(index).mig_current for index in range(nvml.gpu_count())]
    lines = list(HEADING)
    for index in range(nvml.gpu_count()):
        for item in nvml.gpu_instances(index) if modes[index] else ():
            at = f"{item.start}:{item.size}"
            lines += [
                f"|{index:>4}  MIG {item.profile:<12} {item.profile_id:>5} {item.id:>8} {at:>12}     |",
                FRAME,
            ]
    if len(lines) > len(HEADING):
        return "\n".join(lines) + "\n"
    return NO_INSTANCES if any(modes) else NO_DEVICES


def xml_text(nvml: ReplayNvml) -> str:
    """What is read of `nvidia-smi -q -x`."""
    gpus = []
    for index in range(nvml.gpu_count()):
        processes = "".join(
            f"<process_info><gpu_instance_id>{'N/A' if item.gpu_instance_id is None else item.gpu_instance_id}"
            f"</gpu_instance_id><pid>{item.pid}</pid><type>C</type></process_info>"
            for item in nvml.placed_processes(index)
        )
        gpus.append(f"<gpu><uuid>{nvml.gpu(index).uuid}</uuid><processes>{processes}</processes></gpu>")
    return f'<?xml version="1.0" ?>\n<nvidia_smi_log>{"".join(gpus)}</nvidia_smi_log>\n'


def install_fake(folder: Path, nvml: ReplayNvml, *, xml: bool = True, is_root: bool = True) -> None:
    """An nvidia-smi in `folder` that answers for the listing what the program for sites asks."""
    mode = {None: "[N/A]", True: "Enabled", False: "Disabled"}
    gpus = [nvml.gpu(index) for index in range(nvml.gpu_count())]
    query = "".join(
        f"{gpu.index}, {gpu.uuid}, {gpu.name}, {gpu.pci_device_id}, {mode[gpu.mig_current]}\n" for gpu in gpus
    )
    apps = "".join(f"{pid}, {gpu.uuid}\n" for gpu in gpus for pid in nvml.processes(gpu.index))
    lgi = instances_text(nvml) if is_root else "Insufficient Permissions\n"
    answers = {
        "-L": (0, list_text(nvml)),
        "mig -lgi": (0 if lgi.startswith("+") else 6 if is_root else 4, lgi),
        "--query-gpu=index,uuid,name,pci.device_id,mig.mode.current --format=csv,noheader": (0, query),
        "--query-compute-apps=pid,gpu_uuid --format=csv,noheader": (0, apps),
        "-q -x": (0, xml_text(nvml)) if xml else (2, "Invalid combination of input arguments.\n"),
    }
    program = folder / "nvidia-smi"
    program.write_text(
        f"#!{sys.executable} -S\nimport sys\n"
        f"code, text = {answers!r}.get(' '.join(sys.argv[1:]), (2, 'unknown'))\n"
        "sys.stdout.write(text)\nsys.exit(code)\n"
    )
    program.chmod(0o755)

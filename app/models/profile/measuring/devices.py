"""Devices to measure on, and what each is; slices that do not exist yet, and the commands that would make them."""

from __future__ import annotations

import html
from collections.abc import Sequence

import streamlit as st

from app.components import saving
from app.format.html import table_html
from app.shell import frame, widgets
from torchsplit_core import hardware
from torchsplit_core.hardware import HostGpu, HostReport, catalogue, plain_profiles
from torchsplit_core.pictures.numbers import short
from torchsplit_core.values import Device, SlicesToMake

CONSENT = "I own this GPU: cut it for the measurement and restore it after"


def measurable_devices(host: HostReport) -> tuple[Device, ...]:
    """The devices to measure on: those that exist, then slices that SMs of a whole GPU can emulate."""
    present = hardware.available_devices(host)
    emulated = [
        device
        for whole in present
        if whole.kind == "cuda" and whole.gpu_type in catalogue()
        for profile in plain_profiles(catalogue()[whole.gpu_type])
        if profile.sm_count is not None and profile.sm_count < (whole.sm_count or 0)
        for device in hardware.choose_devices(f"sm:{profile.name}@{whole.gpu_index}", host)
    ]
    return tuple({device.id: device for device in (*present, *emulated)}.values())


def label(device: Device) -> str:
    """The label of a device in a choice."""
    if device.kind == "cpu":
        return "CPU" if device.profile is None else f"CPU · {device.profile}"
    if device.kind == "cuda":
        return f"GPU {device.gpu_index} · {device.gpu_type}"
    if device.kind == "mig":
        return f"GPU {device.gpu_index} · MIG {device.profile} · {(device.uuid or '')[4:8]}"
    return f"GPU {device.gpu_index} · {device.sm_count} SMs as {device.profile}"


def describe_device(device: Device) -> str:
    """What a device is, in words."""
    if device.kind == "cpu":
        return f"processor: {device.name}"
    if device.kind == "cuda":
        return f"whole GPU: {device.name}"
    if device.kind == "mig":
        return f"MIG instance {device.profile} of {device.gpu_type}"
    return f"emulated: {device.name}, with its memory bandwidth undivided"


def choose(host: HostReport) -> tuple[Device, ...]:
    """The choice of devices."""
    known = {device.id: device for device in measurable_devices(host)}
    labels = {name: label(device) for name, device in known.items()}
    chosen = widgets.multi_choice(
        "Devices", list(known), list(known)[:1], "profile-measure-devices", words=labels.__getitem__, help=host.message
    )  # fmt: skip
    return tuple(known[name] for name in chosen)


def devices_table(devices: Sequence[Device]) -> None:
    """A row for each device: what it is, SMs, memory, and the basis of measurements there."""
    if not devices:
        return
    rows = [
        f'<tr><td class="name">{html.escape(label(device))}</td><td>{html.escape(describe_device(device))}</td>'
        f'<td class="n">{short(device.sm_count)}</td><td class="n">{short(device.memory_gib, "GiB")}</td>'
        f"<td>{device.basis}</td></tr>"
        for device in devices
    ]
    head = '<th>device</th><th>what it is</th><th class="n">SMs</th><th class="n">memory</th><th>basis</th>'
    saving.exportable_table(table_html(head, rows), "Devices", "devices", key="measure-devices")


def missing_slices(host: HostReport) -> SlicesToMake | None:
    """Slices that a GPU here could be cut into: their commands, and the consent to make and remove them."""
    cuttable = {
        f"GPU {gpu.index} · {gpu.name}": gpu
        for gpu in host.gpus
        if gpu.mig_enabled is not None and gpu.gpu_type is not None
    }
    if not cuttable:
        return None
    with st.expander("Slices that do not exist yet"):
        name = widgets.single_choice("GPU", list(cuttable), next(iter(cuttable)), "profile-slices-gpu")
        gpu = cuttable[name]
        profiles = [slice_profile.name for slice_profile in plain_profiles(catalogue()[str(gpu.gpu_type)])]
        hint = "Choose slices"
        wanted = widgets.multi_choice("Slices", profiles, (), "profile-slices-wanted", placeholder=hint)
        st.caption(
            "Make slices yourself with these commands, then reload this page: they are offered as devices. "
            "Untested on hardware."
        )
        for command in commands(gpu, wanted or profiles[:1]):
            with frame.fault_boundary():
                st.code("\n".join(command), language="bash", wrap_lines=True)
        consent = st.checkbox(
            CONSENT,
            key="profile-slices-consent",
            disabled=not wanted,
            help="Each slice is made, measured and removed, one after the other; then the former instances are made "
            "again and read back. It needs an administrator's rights, MIG mode on, and a GPU that nothing uses. "
            "It ran on replayed listings alone: untested on hardware.",
        )
    return SlicesToMake(gpu.index, tuple(wanted), consent) if wanted and consent else None


def commands(gpu: HostGpu, wanted: Sequence[str]) -> list[tuple[str, ...]]:
    """The commands for each wanted slice, one after the other: they need not fit on the GPU together."""
    return [hardware.slice_commands(gpu, [profile]) for profile in wanted]

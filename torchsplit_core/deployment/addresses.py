"""Folders and addresses of hosts, for formats with files for each host."""

from __future__ import annotations

import re

from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.safe_text import dns_labels
from torchsplit_core.values import InputFault, quoted

NODE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*"
"""A DNS subdomain (RFC 1123), as node names are; also a valid regular expression in bash."""
LONGEST_NODE = 253


def is_node(name: str) -> bool:
    """Whether a text is a DNS subdomain."""
    return len(name) <= LONGEST_NODE and re.fullmatch(NODE, name) is not None


def check_nodes(hosts: tuple[Host, ...], format_name: str) -> None:
    """Raise InputFault for a host whose name is no valid machine name."""
    for host in hosts:
        if host.name is not None and not is_node(host.name):
            raise InputFault(
                "plan gpus id",
                f"host {quoted(host.name)} is no node name that {format_name} takes (RFC 1123: lower-case "
                "letters, digits, hyphens and dots, at most 63 characters between dots and 253 in all)",
                "Give GPUs the ids NODE/gpu0, or choose another --format.",
            )


def check_addresses(hosts: tuple[Host, ...], format_name: str) -> None:
    """Raise InputFault if several hosts must reach each other and one has no reachable name."""
    if len(hosts) == 1:
        return
    check_nodes(hosts, format_name)
    if any(host.name is None for host in hosts):
        raise InputFault(
            "plan gpus id",
            f"{quoted(next(gpu.id for host in hosts if host.name is None for gpu in host.gpus))} names no host, "
            f"and the plan has several, which in {format_name} reach each other by name",
            "Give GPUs the ids NODE/gpu0.",
        )


def host_folders(root: str, hosts: tuple[Host, ...]) -> dict[str | None, str]:
    """ROOT for a single host without a name, ROOT/HOST for each named one."""
    names = dns_labels({host.name: (host.name,) for host in hosts if host.name is not None})
    return {host.name: root if host.name is None else f"{root}/{names[host.name]}" for host in hosts}

"""Names by which a server is asked for."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from torchsplit_core.values.errors import InputFault, quoted

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""The names by which a program on this machine asks for it."""
ANY = "*"
"""Every host."""
_LABEL = re.compile(r"[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?")


def allowed_hosts(address: str, named: Sequence[str]) -> tuple[str, ...]:
    """The hosts that a request may ask for: loopback names, the address itself, those named.

    On an address that other machines reach, without a name: any, for its names are not known.
    """
    if ANY in named or (not named and not is_loopback(address)):
        return (ANY,)
    own_address = () if address in ("0.0.0.0", "::", "") else (address.lower(),)
    return tuple(dict.fromkeys((*LOOPBACK, *own_address, *named)))


def is_loopback(name: str) -> bool:
    """Whether a name or address means this machine alone."""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(text: str, option: str = "--host") -> str:
    """A host name in lower case, or an IP address without brackets. Raises InputFault for anything else."""
    name = text.strip().lower().rstrip(".")
    try:
        return str(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    labels = name.split(".")
    # Digits and dots alone, but no address: a slip of the pen.
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise InputFault(
            option,
            f"is {quoted(text)}, not a host name or IP address",
            "Give one without a scheme, a port or a path, for example plan.example.com (other letters as xn--…).",
        )
    return name

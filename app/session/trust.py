"""Whether this server may execute what a user uploads, and what the app tells the user about it."""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping

import streamlit as st

from torchsplit_core.isolation import isolation_level
from torchsplit_core.isolation.trust_policy import ALLOWED, EXECUTION_VARIABLE, execution_refused
from torchsplit_core.isolation.trust_policy import REFUSED as REFUSED_WORD
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.values import InputFault

TRUST_LABEL = "I trust this file: it will be executed on this machine"
TRUST_LABEL_MANY = "I trust these files: they will be executed on this machine"
REFUSED = (
    "This server listens on an address other machines can reach, so it executes nothing that was uploaded: "
    "a .pt2 file is read and estimated, a .py file cannot be traced. The person who runs it can start it with "
    "`torchsplit app --allow-execution`. The sample models work all the same."
)


UNCONFINED = (
    "The ranks of a run talk to each other over sockets and write its folder, so its model is not confined: it can do "
    "what you can do on this machine."
)


def configure_jobs() -> None:
    """Tell jobs by the environment whether they may execute uploads, where the command line did not."""
    os.environ.setdefault(
        EXECUTION_VARIABLE, ALLOWED if _loopback(st.get_option("server.address")) else REFUSED_WORD
    )


def describe_trust() -> str:
    """What ticking the box means on this machine: what code runs, and how this machine isolates it."""
    try:
        isolation = isolation_level().text
    except InputFault as fault:
        isolation = str(fault)
    return (
        "Tracing a Python file, or measuring an uploaded model, runs the code in it, in a child process with limits "
        f"and without this session's environment. {isolation}"
    )


def is_refused() -> bool:
    """Whether the server executes no uploads: the command line says so, or others can reach the server."""
    configure_jobs()
    return execution_refused()


def trust_box(contents: Mapping[str, str], key: str, *, confined: bool = True) -> bool:
    """Draw the box that trusts files, by name and SHA-256; return whether the user ticked it and may.

    The user trusts contents: where one changes, the box is a new one without a tick. `confined`: this machine isolates
    what runs.
    """
    digests = ", ".join(f"{name} ({digest[:12]})" for name, digest in sorted(contents.items()))
    together = hashlib.sha256("".join(sorted(contents.values())).encode()).hexdigest()
    label = TRUST_LABEL if len(contents) == 1 else TRUST_LABEL_MANY
    isolation = f"isolation: {_level_name()}" if confined else "with your rights, not confined"
    ticked = st.checkbox(
        f"{label} ({isolation})",
        disabled=is_refused(),
        help=f"{describe_trust() if confined else UNCONFINED} What is trusted, by the start of its SHA-256: "
        f"{escape_markdown(digests)}.",
        key=f"{key}-{together[:16]}",
    )
    return ticked and not is_refused()


def _level_name() -> str:
    try:
        return isolation_level().name
    except InputFault:
        return "not available, so nothing will run"


def _loopback(address: str | None) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False

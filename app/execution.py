"""Whether this server may execute what a user uploads, and what the user is told."""

from __future__ import annotations

import ipaddress
import os

import streamlit as st

TRUST_LABEL = "I trust this file: it will be executed on this machine"
TRUST_TEXT = (
    "Tracing a Python file, or measuring an uploaded model, runs the code in it. It runs in a child process "
    "with limits on time, memory and files and without this session's environment. That is a limit, not a "
    "sandbox: only run what you would run yourself."
)
REFUSED = (
    "This server listens on an address other machines can reach, so it executes nothing that was uploaded: "
    "a .pt2 file is read and estimated, a .py file cannot be traced. The person who runs it can start it with "
    "`torchsplit app --allow-execution`. The sample models work all the same."
)


def refused() -> bool:
    """True where nothing uploaded may be executed: the command line said so, or others can reach the server."""
    told = os.environ.get("TORCHSPLIT_EXECUTION")
    if told in ("allowed", "refused"):
        return told == "refused"
    return not _loopback(st.get_option("server.address"))


def _loopback(address: str | None) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False

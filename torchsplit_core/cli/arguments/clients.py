"""Options of the commands that serve clients: access, and limits of requests."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from torchsplit_core.serving.settings import AccessSettings, RequestLimits
from torchsplit_core.values import InputFault, system_reason
from torchsplit_core.values.limits import check_number
from torchsplit_core.values.serving.hosts import ANY, allowed_hosts, host_name

TOKEN_VARIABLE = "TORCHSPLIT_TOKEN"
SHORTEST_TOKEN = 16
MIB, KIB = 2**20, 2**10
DEFAULT_LIMITS = RequestLimits()
_COUNTS = (
    ("connections", "open at once; an idle one gives way to a new one", 1),
    ("requests", "at work at once, then 503", 1),
    ("head_bytes", "of a request's line and headers, then 431", KIB),
    ("body_bytes", "of a body, packed or unpacked, then 413", MIB),
    ("json_bytes", "of the JSON in a body, then 413; less where the model's rows cannot need it", MIB),
    ("held_bytes", "of the bodies of all requests not answered yet, then 503", MIB),
)
_SECONDS = (
    ("head_s", "--head-timeout-s", "for a request's head, then 408"),
    ("body_s", "--body-timeout-s", "for its body, then 408"),
    ("send_s", "--send-timeout-s", "in which a client takes nothing of its answer, then it is cut off"),
    ("idle_s", "--keep-alive-s", "without a request, then the connection is closed"),
)


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `access_of` and `limits_of` read."""
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help=f"a name by which clients ask for it, others are refused; {ANY}: any. Default: this machine's own "
        "names on a loopback address, any elsewhere",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"its first line is what clients show (Authorization: Bearer …); or the variable {TOKEN_VARIABLE}",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="speak TLS with this certificate (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key (PEM)")
    group = parser.add_argument_group("limits")
    for name, text, unit in _COUNTS:
        value = getattr(DEFAULT_LIMITS, name) // unit
        group.add_argument(
            _option(name, unit), type=int, default=value, metavar="N", help=f"{text} (default {value})"
        )
    for name, option, text in _SECONDS:
        value = getattr(DEFAULT_LIMITS, name)
        group.add_argument(option, type=float, default=value, metavar="S", help=f"{text} (default {value:g})")


def _option(name: str, unit: int) -> str:
    words = {MIB: name.replace("bytes", "mib"), KIB: name.replace("bytes", "kib")}.get(unit, name)
    return f"--max-{words.replace('_', '-')}"


def _option_value(options: argparse.Namespace, option: str) -> Any:
    return getattr(options, option[2:].replace("-", "_"))


def limits_of(options: argparse.Namespace) -> RequestLimits:
    """The limits that the options set. Raises InputFault for a number out of range."""
    limits: dict[str, float] = {}
    for name, _, unit in _COUNTS:
        option = _option(name, unit)
        value = _option_value(options, option)
        most = 2**40 // unit if unit > 1 else 1_000_000
        if not 1 <= value <= most:
            raise InputFault(
                option,
                f"is {value}, outside 1 to {most}",
                f"Give, for example, {getattr(DEFAULT_LIMITS, name) // unit}.",
            )
        limits[name] = value * unit
    for name, option, _ in _SECONDS:
        limits[name] = _option_value(options, option)
        check_number(option, limits[name], positive=True)
    return RequestLimits(**limits)  # type: ignore[arg-type]


def access_of(options: argparse.Namespace) -> AccessSettings:
    """The access that the options allow. Raises InputFault for an invalid host name or token."""
    names = [name if name == ANY else host_name(name, "--allowed-host") for name in options.allowed_host]
    hosts = allowed_hosts(options.host, names)
    return AccessSettings(hosts, _token(options.token_file), options.tls_cert, options.tls_key)


def _token(path: str | None) -> str | None:
    where = "--token-file"
    if path is not None:
        try:
            with Path(path).open(encoding="ascii") as file:
                token = file.readline(4096).strip()
        except OSError as error:
            problem = f"{path} cannot be read: {system_reason(error)}"
            raise InputFault(where, problem, "Check the path.") from error
        except UnicodeDecodeError:
            token = ""
    elif TOKEN_VARIABLE in os.environ:
        where, token = TOKEN_VARIABLE, os.environ[TOKEN_VARIABLE].strip()
    else:
        return None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        problem = f"holds no token: {SHORTEST_TOKEN} or more letters, digits and marks without a space"
        remedy = "Make one with: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
        raise InputFault(where, problem, remedy)
    return token

"""Access to a server: accepted host names, origins and token."""

from __future__ import annotations

import hmac
import re
import ssl
from urllib.parse import urlsplit

from torchsplit_core.serving.protocol.http_server import Request
from torchsplit_core.serving.protocol.tensors import RequestFault
from torchsplit_core.serving.settings import AccessSettings
from torchsplit_core.values import InputFault, quoted, system_reason
from torchsplit_core.values.serving.hosts import ANY

HEALTH = ("/v2/health/live", "/v2/health/ready")
"""Paths without a token, for an orchestrator's probes."""
_HOST = re.compile(rb"(\[[0-9A-Za-z:.]+\]|[-0-9A-Za-z._]+)(:\d*)?")
"""A name or address with or without a port; urlsplit is too lenient with ports and brackets."""


class AccessGuard:
    """Checks the head of a request against the access settings."""

    def __init__(self, access: AccessSettings) -> None:
        self._any = ANY in access.hosts
        self._hosts = frozenset(access.hosts)
        self._token = None if access.token is None else access.token.encode()
        self._accepted_hosts: set[bytes] = set()

    @property
    def has_token(self) -> bool:
        """Whether a token is required."""
        return self._token is not None

    def check(self, request: Request) -> None:
        """Raises RequestFault if access is denied."""
        headers = request.headers
        host = headers.get(b"host", b"")
        if not self._any and host not in self._accepted_hosts:
            self._check_host(host)
        if (origin := headers.get(b"origin")) is not None and origin.partition(b"://")[2] != host:
            problem = (
                f"comes from the web page {quoted(origin.decode('latin-1'))}, which is not this server's"
            )
            raise RequestFault("the request", problem, "Ask from a program.", 403, "origin")
        if self._token is not None and request.path not in HEALTH:
            self._check_token(headers.get(b"authorization", b""))

    def _check_host(self, host: bytes) -> None:
        try:
            parsed = urlsplit(f"//{host.decode('ascii')}")
            name = (parsed.hostname or "").rstrip(".") if _HOST.fullmatch(host) else ""
        except ValueError:
            name = ""
        if name not in self._hosts:
            problem = (
                f"asks for the host {quoted(host.decode('latin-1'))}, which this server does not answer to"
            )
            remedy = "Ask by its own address, or serve with --allowed-host NAME."
            raise RequestFault("the request", problem, remedy, 403, "host")
        if len(self._accepted_hosts) < 64:  # one name can come with many ports
            self._accepted_hosts.add(host)

    def _check_token(self, header: bytes) -> None:
        kind, _, token = header.partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token or b""):
            remedy = "Send the header Authorization: Bearer TOKEN."
            headers = {"www-authenticate": "Bearer"}
            problem = "shows no token that this server takes" if header else "shows no token"
            raise RequestFault("the request", problem, remedy, 401, "token", headers)


def load_tls_context(access: AccessSettings) -> ssl.SSLContext | None:
    """The TLS context, if certificate and key are given. Raises InputFault for invalid files."""
    if access.certificate is None and access.key is None:
        return None
    if access.certificate is None or access.key is None:
        missing = "--tls-key" if access.key is None else "--tls-cert"
        raise InputFault(missing, "is missing", "Give the certificate and its key, both in PEM.")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(access.certificate, access.key, password=_no_password)
    except (OSError, ValueError) as error:
        # An SSLError is an OSError with a number of OpenSSL's own.
        reason = str(error) if isinstance(error, ssl.SSLError | ValueError) else system_reason(error)
        problem = f"and {access.key} are no certificate and key in PEM: {reason}"
        raise InputFault(
            f"--tls-cert {access.certificate}", problem, "Give the pair that belongs together."
        ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key is locked with a password")

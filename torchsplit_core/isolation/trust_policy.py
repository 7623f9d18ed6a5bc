"""Whether uploaded files may be executed here, and which content was trusted.

The server's start decides (`TORCHSPLIT_EXECUTION`), and every process it starts inherits that. It is checked where a
job starts, again inside the job, and once more in the child that would load the file. Trust applies to a content, so a
job's parameters name its SHA-256; a file of the same name with other content is not trusted.
"""

from __future__ import annotations

import os
from typing import Any

from torchsplit_core.values import InputFault, quoted

EXECUTION_VARIABLE = "TORCHSPLIT_EXECUTION"
ALLOWED, REFUSED = "allowed", "refused"
TRUSTED_KEY = "trusted_sha256"
"""The job parameter, at any depth, that names the content its user trusted."""
_LEGACY_TRUST_KEY = "trust"
"""The parameter of earlier versions' jobs: true, whatever the content."""


def execution_refused() -> bool:
    """Whether this process must not execute uploads."""
    return os.environ.get(EXECUTION_VARIABLE) == REFUSED


def execution_for_jobs() -> str:
    """The policy that a job gets: allowed only if this server was told so; the default is refused."""
    return ALLOWED if os.environ.get(EXECUTION_VARIABLE) == ALLOWED else REFUSED


def without_trust(parameters: Any) -> Any:
    """The parameters of a job (JSON) without any that grant trust."""
    if isinstance(parameters, dict):
        return {
            key: without_trust(value)
            for key, value in parameters.items()
            if key not in (TRUSTED_KEY, _LEGACY_TRUST_KEY)
        }
    if isinstance(parameters, list | tuple):
        return [without_trust(value) for value in parameters]
    return parameters


def requests_trust(parameters: Any) -> bool:
    """Whether a job with these parameters would execute an upload."""
    if isinstance(parameters, dict):
        return any(
            (key in (TRUSTED_KEY, _LEGACY_TRUST_KEY) and bool(value)) or requests_trust(value)
            for key, value in parameters.items()
        )
    return isinstance(parameters, list | tuple) and any(map(requests_trust, parameters))


def is_trusted(upload: str, digest: str, trusted: str | None, *, any_content: bool) -> bool:
    """Whether the upload with the content `digest` may be executed by a job whose user trusted the content `trusted`.

    `any_content`: the user trusted it in an earlier version, whatever its content. Raises InputFault if only that, or a
    content other than the present one, was trusted.
    """
    if execution_refused():
        return False
    if trusted is None and not any_content:
        return False
    if trusted == digest:
        return True
    raise InputFault(
        "upload",
        f"{quoted(upload)} is not the file that was trusted: it was replaced since, or trusted in an earlier version",
        "Look at the file, tick the box and start the work anew.",
    )


def require_execution_allowed(what: str) -> None:
    """Raise InputFault if this process must not execute uploads."""
    if execution_refused():
        raise InputFault(
            "model source",
            f"{quoted(what)} would be executed, and this server executes nothing that was uploaded",
            "Pass a .pt2, which is only read, or have the server started with --allow-execution.",
        )

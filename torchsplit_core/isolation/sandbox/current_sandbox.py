"""The isolation of this process: the level's name ("" if not confined) and how long setting it up took."""

from __future__ import annotations

import errno
import socket

level = ""
setup_s = 0.0
"""Seconds from the first to the last call that set the isolation up."""


def remedy_for(error: BaseException) -> str:
    """What a user can do if the isolation, not the code, caused this error; "" if it did not."""
    if level not in ("namespaces", "landlock"):
        return ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror) or (
            isinstance(cause, OSError)
            and cause.errno in (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN)
        ):
            return (
                "The code of a model has no network: fetch what it needs beforehand, and name it by --read PATH "
                "(TORCHSPLIT_READABLE for the dashboard)."
            )
        if isinstance(cause, OSError) and cause.errno in (
            errno.EACCES, errno.EPERM, errno.ENOENT, errno.EROFS, errno.EXDEV,
        ):  # fmt: skip
            return (
                "The code of a model reaches its own folder alone, and only the .py files of one that holds your "
                "home, the store or temporary files: name any other file that it reads by --read PATH "
                "(TORCHSPLIT_READABLE for the dashboard) and open it by its absolute path; it writes to its working "
                "folder."
            )
        cause = cause.__cause__ or cause.__context__
    return ""

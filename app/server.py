"""The dashboard's server: `python -m app.server ADDRESS PORT HOST…`; the pages are those of app/main.py.

Streamlit looks at the Host of a websocket alone. A page of another name whose address was pointed
here (DNS rebinding) would still get every file, so here the same rule holds for all requests, and no
other site may show the dashboard in a frame of its own (clickjacking). Where a login is required, it is
required of uploads and downloads too, which Streamlit answers without a run of the app.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Not public, and so pinned with Streamlit: both doors must go by one rule.
from streamlit.web.server.starlette.starlette_websocket import is_host_allowed

from app import login, preload

HEADERS = {
    "X-Frame-Options": "SAMEORIGIN",
    "Content-Security-Policy": "frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
}
CONTENT = ("/media/", "/_stcore/upload_file/", "/_stcore/metrics")
"""What Streamlit serves or takes outside a run; everything else it serves is the same for all dashboards."""
POLICY_VIOLATION = 1008  # RFC 6455, section 7.4.1; before a websocket is open, a server answers 403


class Guard:
    """Refuses hosts outside server.allowedHosts (403), CONTENT before a login (401); sets HEADERS on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if is_host_allowed(Headers(scope=scope).get("host")):
            await self._named(scope, receive, guarded)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            text = "403: this dashboard does not answer to that host name. "
            text += "Whoever runs it can name it: torchsplit app --host NAME\n"
            await PlainTextResponse(text, status_code=403)(scope, receive, guarded)

    async def _named(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that names this server."""
        content = scope["type"] == "http" and any(part in scope["path"] for part in CONTENT)
        if content and not login.is_request_admitted(HTTPConnection(scope).cookies):
            refused = PlainTextResponse("401: log in to this dashboard first.\n", status_code=401)
            await refused(scope, receive, send)
        else:
            await self.app(scope, receive, send)


@contextlib.asynccontextmanager
async def _announced(_: st.App) -> AsyncIterator[None]:
    """Announce the login before the first request, when Streamlit knows its options and secrets."""
    login.announce()
    yield


app = st.App(Path(__file__).with_name("main.py"), middleware=[Middleware(Guard)], lifespan=_announced)


def main() -> None:
    """Serve until a signal comes; Ctrl-C ends it without a traceback."""
    address, port, *hosts = sys.argv[1:]
    settings = {
        "server.address": address,
        "server.port": int(port),
        "server.headless": True,
        "server.allowedHosts": hosts,
    }
    preload.enable()
    with contextlib.suppress(KeyboardInterrupt):
        app.run(config=settings)


if __name__ == "__main__":
    main()

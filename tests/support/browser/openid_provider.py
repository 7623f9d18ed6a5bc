"""An OpenID provider on loopback: one account, which it confirms at once, without asking for a password."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID, CLIENT_SECRET = "torchsplit-test", "a-client-secret"
ID_TOKEN_S = 3600


class Provider:
    """What the provider knows: its key, the account to confirm, codes given out and the requests it saw."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "test", "use": "sig"})
        self.account: dict[str, Any] = {
            "sub": "1", "name": "Ann", "email": "Ann@Example.com", "email_verified": True,
        }  # fmt: skip
        self.nonces: dict[str, str] = {}
        self.seen: list[str] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.answer(self, parse_qs(urlsplit(self.path).query))

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                provider.answer(self, parse_qs(self.rfile.read(length).decode()))

            def log_message(self, format: str, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def discovery(self) -> str:
        return f"{self.issuer}/.well-known/openid-configuration"

    def answer(self, handler: BaseHTTPRequestHandler, asked: dict[str, list[str]]) -> None:
        path = urlsplit(handler.path).path
        self.seen.append(path)
        if path == "/authorize":
            assert asked["client_id"] == [CLIENT_ID]
            code = f"code-{len(self.nonces)}"
            self.nonces[code] = asked["nonce"][0]
            answer = urlencode({"code": code, "state": asked["state"][0]})
            return _redirect(handler, f"{asked['redirect_uri'][0]}?{answer}")
        if path == "/end":
            return _redirect(handler, asked["post_logout_redirect_uri"][0])
        documents: dict[str, Callable[[], Any]] = {
            "/.well-known/openid-configuration": self._discovery_document,
            "/jwks": lambda: {"keys": [self.key.as_dict(private=False)]},
            "/token": lambda: self._tokens(asked["code"][0]),
            "/userinfo": lambda: self.account,
        }
        return _json(handler, documents[path]())

    def _discovery_document(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/jwks",
            "end_session_endpoint": f"{self.issuer}/end",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }

    def _tokens(self, code: str) -> dict[str, Any]:
        now = int(time.time())
        claims = {
            **self.account, "iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + ID_TOKEN_S,
            "nonce": self.nonces.pop(code),
        }  # fmt: skip
        signed = jwt.encode({"alg": "RS256", "kid": "test"}, claims, self.key)
        return {
            "access_token": "access", "token_type": "Bearer", "expires_in": ID_TOKEN_S, "id_token": signed,
        }  # fmt: skip


@contextmanager
def running_provider() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
        thread.join()


def _redirect(handler: BaseHTTPRequestHandler, where: str) -> None:
    handler.send_response(302)
    handler.send_header("Location", where)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _json(handler: BaseHTTPRequestHandler, document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)

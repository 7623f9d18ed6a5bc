"""The address of an OpenAI-compatible endpoint, and the requests that are sent to it."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted

DEFAULT_TIMEOUT_S = 120.0
"""Longest time without a byte of an answer."""
_PATHS = {"/chat/completions": True, "/completions": False}


@dataclass(frozen=True, slots=True)
class LlmEndpoint:
    """An endpoint of one model. `base` ends in /v1; `chat`: messages in place of a bare prompt; `key`: bearer token.

    `fixed`: the user said which of the two is asked. `timeout_s` is the longest time without a byte of an answer.
    """

    scheme: str
    host: str
    port: int
    base: str
    model: str
    chat: bool = False
    fixed: bool = False
    key: str = field(default="", repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def url(self) -> str:
        """The address up to /v1, without a key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base}"

    @property
    def path(self) -> str:
        """The path that completes prompts."""
        return f"{self.base}/chat/completions" if self.chat else f"{self.base}/completions"

    def tls(self) -> ssl.SSLContext | None:
        """What checks the server's certificate, for https."""
        return ssl.create_default_context() if self.scheme == "https" else None

    def head(self, method: str, path: str, length: int = 0) -> bytes:
        """The head of a request with a body of `length` bytes of JSON."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {path} HTTP/1.1", f"host: {host}:{self.port}"]
        if self.key:
            lines.append(f"authorization: Bearer {self.key}")
        if method == "POST":
            lines += [
                "accept: text/event-stream",
                "content-type: application/json",
                f"content-length: {length}",
            ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def body(self, prompt: str | Sequence[int], output_tokens: int, *, until_length: bool = True) -> bytes:
        """A streamed completion of a text, or of token ids where the endpoint takes them.

        `until_length` asks for exactly `output_tokens` (ignore_eos and min_tokens, which vLLM, SGLang and others take
        and OpenAI's own service refuses).
        """
        content: dict[str, object] = {"model": self.model}
        if self.chat:
            content["messages"] = [{"role": "user", "content": prompt}]
        else:
            content["prompt"] = prompt
        content |= {"max_tokens": output_tokens, "temperature": 0, "stream": True}
        content["stream_options"] = {"include_usage": True}
        if until_length:
            content |= {"ignore_eos": True, "min_tokens": output_tokens}
        return json.dumps(content, separators=(",", ":")).encode()


def parse_endpoint(
    url: str,
    model: str,
    *,
    chat: bool = False,
    key_env: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> LlmEndpoint:
    """The endpoint at a URL: of the server, of its /v1, or of /v1/completions or /v1/chat/completions.

    `key_env` names the environment variable that has the key. Raises InputFault.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise InputFault("--endpoint", f"{quoted(url)} is no URL: {error}", _EXAMPLE) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputFault("--endpoint", f"{quoted(url)} is no http or https URL", _EXAMPLE)
    if parts.username or parts.password:
        problem = f"the URL of {parts.hostname} has a user or a password in it"
        raise InputFault("--endpoint", problem, "Put the key into an environment variable: --key-env NAME.")
    if parts.query or parts.fragment:
        raise InputFault("--endpoint", f"{quoted(url)} has a query or a fragment", _EXAMPLE)
    if not url.isascii() or not url.strip().isprintable() or " " in url.strip():
        problem = f"{quoted(url)} has a space, a control character or a letter beyond ASCII"
        raise InputFault("--endpoint", problem, _EXAMPLE)
    path, fixed = parts.path.rstrip("/"), chat
    for ending, is_chat in _PATHS.items():
        if path.endswith(ending):
            path, chat, fixed = path.removesuffix(ending), is_chat, True
            break
    else:
        path = path if path.rpartition("/")[2].startswith("v") and path[-1:].isdigit() else f"{path}/v1"
    default = 443 if parts.scheme == "https" else 80
    key = "" if key_env is None else _key(key_env)
    return LlmEndpoint(
        parts.scheme, parts.hostname, port or default, path, model, chat, fixed, key, timeout_s
    )


_EXAMPLE = "Write for example --endpoint http://127.0.0.1:8000."


def _key(name: str) -> str:
    key = os.environ.get(name)
    if not key:
        state = "is empty" if key == "" else "is not set"
        raise InputFault(
            "--key-env", f"the environment variable {quoted(name)} {state}", f"Set {name} to the key."
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        problem = (
            f"the environment variable {quoted(name)} has what no key has: a space, a line break or the like"
        )
        raise InputFault("--key-env", problem, f"Set {name} to the key alone.")
    return key

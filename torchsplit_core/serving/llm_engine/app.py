"""The OpenAI-compatible endpoint of an engine: /v1/completions, /v1/chat/completions, /v1/models, and its steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.serving.protocol.access_guard import AccessGuard
from torchsplit_core.serving.protocol.http_server import Request, check_method, json_response
from torchsplit_core.serving.protocol.tensors import RequestFault
from torchsplit_core.serving.settings import AccessSettings
from torchsplit_core.values import suggestion
from torchsplit_core.values.errors import json_words, quoted
from torchsplit_core.values.serving.hosts import allowed_hosts

EVENTS = (("content-type", "text/event-stream"), ("cache-control", "no-cache"))
MOST_BODY_BYTES = 8 * 2**20
DEFAULT_TOKENS = 16
"""max_tokens of a completion that names none, as OpenAI has it; a chat goes on to the end of its context."""
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
_GET = ("/v1/models", "/version", "/health", "/torchsplit/engine", "/torchsplit/steps")


class TokenEngine(Protocol):
    """What the endpoint asks of an engine; `batching.ContinuousBatch` is one."""

    @property
    def alive(self) -> bool: ...

    def submit(
        self,
        prompt: Sequence[int],
        tokens: int,
        until_length: bool,
        on_tokens: Callable[[list[int], bool, str], None],
    ) -> str: ...

    def cancel(self, name: str) -> None: ...

    def take_steps(self) -> list[LoggedStep]: ...


@dataclass(frozen=True, slots=True)
class ServedText:
    """Text to tokens and back, and the vocabulary's size; `longest`: prompt and output together."""

    encode: Callable[[str], list[int]]
    writer: Callable[[], Any]
    vocabulary: int
    longest: int


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked request."""

    prompt: list[int]
    tokens: int
    until_length: bool
    stream: bool
    usage: bool
    chat: bool


class LlmApp:
    """Handles the requests of an `HttpServer`."""

    def __init__(
        self, engine: TokenEngine, text: ServedText, settings: LlmEngineSettings, version: str
    ) -> None:
        self.engine, self.text, self.settings, self.version = engine, text, settings, version
        self.created = int(time.time())
        self.guard = AccessGuard(AccessSettings(hosts=allowed_hosts(settings.host, ())))

    def admit(self, request: Request) -> int:
        """Largest body in bytes. Raises RequestFault for a foreign host or page, and an unknown path."""
        self.guard.check(request)
        if request.path in (COMPLETIONS, CHATS):
            return MOST_BODY_BYTES
        if request.path in _GET:
            return 0
        raise RequestFault(request.path, "is no path of this server", f"Ask {COMPLETIONS} or {CHATS}.", 404)

    def refused(self, request: Request | None, fault: RequestFault) -> None:
        """Nothing is counted."""

    def handle(self, request: Request) -> None:
        """Answer, or begin an answer that the engine's tokens go on with."""
        if request.path in (COMPLETIONS, CHATS):
            check_method(request, "POST")
            Completion(self, request, self.read(request)).begin()
            return
        check_method(request, "GET")
        request.reply(json_response(self._document(request.path)))

    def _document(self, path: str) -> Any:
        settings = self.settings
        if path == "/v1/models":
            entry = {
                "id": settings.name,
                "object": "model",
                "created": self.created,
                "owned_by": "transformers",
            }
            return {"object": "list", "data": [entry | {"max_model_len": self.text.longest}]}
        if path == "/version":
            return {"version": self.version}
        if path == "/torchsplit/engine":
            names = ("max_num_seqs", "max_num_batched_tokens", "kv_blocks", "block_tokens")
            return {name: getattr(settings, name) for name in names} | {"max_model_len": self.text.longest}
        if path == "/torchsplit/steps":
            return {"steps": [asdict(step) for step in self.engine.take_steps()]}
        if not self.engine.alive:
            raise RequestFault("the engine", "has stopped", "Start it again.", 503)
        return {"status": "ok"}

    def read(self, request: Request) -> CompletionRequest:
        """The request in a body. Raises RequestFault."""
        content = json_body(request)
        model = content.get("model", self.settings.name)
        if model != self.settings.name:
            problem = f"is {json_words(model)}, which is not served here"
            raise RequestFault("model", problem, suggestion(model, [self.settings.name], "models"), 404)
        _check_greedy(content)
        chat = request.path == CHATS
        prompt = self._messages(content.get("messages")) if chat else self._prompt(content.get("prompt"))
        if not prompt:
            raise RequestFault("prompt", "has no token", "Send a text.")
        room = self.text.longest - len(prompt)
        name = "max_completion_tokens" if content.get("max_completion_tokens") is not None else "max_tokens"
        tokens = content.get(name)
        if tokens is None:
            tokens = room if chat else min(DEFAULT_TOKENS, room)
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
            raise RequestFault(
                name, f"is {json_words(tokens)}, not a whole number above 0", "Send a number of 1 or more."
            )
        if tokens > room:
            problem = (
                f"is {tokens}, and the prompt has {len(prompt)} tokens: together more than the "
                f"{self.text.longest} that this engine holds"
            )
            raise RequestFault(name, problem, "Send a shorter prompt, or ask for fewer tokens.")
        options = content.get("stream_options")
        usage = isinstance(options, dict) and options.get("include_usage") is True
        until_length = content.get("ignore_eos") is True
        return CompletionRequest(prompt, tokens, until_length, content.get("stream") is True, usage, chat)

    def _prompt(self, prompt: Any) -> list[int]:
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self.text.encode(prompt)
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            if all(0 <= token < self.text.vocabulary for token in prompt):
                return prompt
            problem = f"has a token outside 0 to {self.text.vocabulary - 1}"
            raise RequestFault("prompt", problem, "Send tokens of this model's vocabulary, or a text.")
        problem = f"is {json_words(prompt)}, neither a text nor a list of tokens"
        raise RequestFault("prompt", problem, "Send one text, or the tokens of one.")

    def _messages(self, messages: Any) -> list[int]:
        if not isinstance(messages, list) or not all(
            isinstance(message, dict) and isinstance(message.get("content"), str) for message in messages
        ):
            problem = f"is {json_words(messages)}, not a list of messages with a text as content"
            raise RequestFault("messages", problem, "Send role and content of each message.")
        lines = [f"{message.get('role', 'user')}: {message['content']}\n" for message in messages]
        return self.text.encode("".join([*lines, "assistant: "]))


def json_body(request: Request) -> dict[str, Any]:
    """The JSON object in a body. Raises RequestFault."""
    try:
        content = json.loads(bytes(request.body))
    except (ValueError, RecursionError):
        raise RequestFault("the request", "has a body that is not JSON", "Send JSON.") from None
    if not isinstance(content, dict):
        raise RequestFault("the request", f"is {json_words(content)}, not an object", "Send an object.")
    return content


def _check_greedy(content: Mapping[str, Any]) -> None:
    """Raises RequestFault for what this engine does not do: it decodes greedily, one answer, to its length or end."""
    temperature = content.get("temperature")
    if temperature not in (None, 0):
        problem = f"is {json_words(temperature)}, and this engine takes the likeliest token"
        raise RequestFault("temperature", problem, "Send 0, or leave it out.")
    for name, plain in (
        ("n", 1),
        ("best_of", 1),
        ("logprobs", False),
        ("echo", False),
        ("stop", None),
        ("tools", None),
    ):
        if content.get(name) not in (None, plain, [], ""):
            problem = f"is {quoted(content[name])}, which this engine does not offer"
            raise RequestFault(name, problem, "Leave it out.")


class Completion:
    """One answer as its tokens come from the engine."""

    def __init__(self, app: LlmApp, request: Request, asked: CompletionRequest) -> None:
        self._app, self._request, self._asked = app, request, asked
        self._writer = app.text.writer()
        self._texts: list[str] = []
        self._tokens = 0
        self._began = False
        self._name = ""
        self._base = {
            "id": "",
            "object": ("chat.completion.chunk" if asked.stream else "chat.completion")
            if asked.chat
            else "text_completion",
            "created": int(time.time()),
            "model": app.settings.name,
        }

    def begin(self) -> None:
        """Hand the prompt to the engine."""
        asked = self._asked
        self._request.gone = self._leave
        self._name = self._app.engine.submit(asked.prompt, asked.tokens, asked.until_length, self._on_tokens)
        self._base["id"] = f"{'chatcmpl' if asked.chat else 'cmpl'}-{self._name}"

    def _leave(self) -> None:
        self._app.engine.cancel(self._name)

    def _on_tokens(self, tokens: list[int], last: bool, error: str) -> None:
        text = "".join(map(self._writer.write, tokens))
        self._tokens += len(tokens)
        if error:
            self._fail(error)
        elif self._asked.stream:
            self._stream(text, bool(tokens), last)
        else:
            self._texts.append(text)
            if last:
                self._request.reply(json_response(self._whole()))

    def _fail(self, error: str) -> None:
        fault = RequestFault("the engine", f"gave no answer: {error}", "Ask again.", 503)
        if not self._began:
            self._request.fail(fault)
            return
        content = {"error": {"message": str(fault), "type": "server_error", "code": 503}}
        self._request.write(_event(content))
        self._request.end_stream()

    def _stream(self, text: str, has_tokens: bool, last: bool) -> None:
        events = []
        if not self._began:
            self._request.begin_stream(EVENTS)
            self._began = True
            if self._asked.chat:
                events.append(
                    _event(self._base | {"choices": [_delta({"role": "assistant", "content": ""})]})
                )
        if has_tokens or last:
            events.append(_event(self._base | {"choices": [self._choice(text, last)]}))
        if last:
            if self._asked.usage:
                events.append(_event(self._base | {"choices": [], "usage": self._usage()}))
            events.append(b"data: [DONE]\n\n")
        self._request.write(b"".join(events))
        if last:
            self._request.end_stream()

    def _choice(self, text: str, last: bool) -> dict[str, Any]:
        finish = self._finish() if last else None
        if self._asked.chat:
            return _delta({"content": text}, finish)
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}

    def _finish(self) -> str:
        return "length" if self._tokens >= self._asked.tokens else "stop"

    def _usage(self) -> dict[str, int]:
        prompt = len(self._asked.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._tokens,
            "total_tokens": prompt + self._tokens,
        }

    def _whole(self) -> dict[str, Any]:
        text, finish = "".join(self._texts), self._finish()
        said = {"message": {"role": "assistant", "content": text}} if self._asked.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        return self._base | {"choices": [choice], "usage": self._usage()}


def _delta(said: Mapping[str, str], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": dict(said), "finish_reason": finish}


def _event(content: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(content, separators=(",", ":")).encode()

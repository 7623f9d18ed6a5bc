"""The endpoint of an engine, with an engine that gives known tokens: what it takes, streams and refuses."""

import asyncio
import json
import socket

import pytest

from tests.support.serving.token_engines import SETTINGS, TEXT, Alphabet
from torchsplit_core.serving.llm_endpoint.address import parse_endpoint
from torchsplit_core.serving.llm_endpoint.client import EndpointClient
from torchsplit_core.serving.llm_endpoint.probe import probe
from torchsplit_core.serving.llm_engine.app import LlmApp
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings, check_engine_settings
from torchsplit_core.serving.protocol.http_server import HttpServer
from torchsplit_core.serving.settings import RequestLimits
from torchsplit_core.values import InputFault


def served(engine, ask):
    """What `ask(endpoint URL)` returns of a server of this engine."""

    async def run():
        listener = socket.create_server(("127.0.0.1", 0))
        app = LlmApp(engine, TEXT, SETTINGS, "9.9")
        async with HttpServer(app, RequestLimits()).run(listener, 1):
            return await ask(f"http://127.0.0.1:{listener.getsockname()[1]}")

    return asyncio.run(run())


def answered(engine, *bodies, path="/v1/completions"):
    """Heads and bodies of answers, each to a body, over one connection."""

    async def ask(url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        answers = []
        for content in bodies:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            writer.write(
                b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b"
                % (path.encode(), len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if b"chunked" in head:
                answers.append((head, await reader.readuntil(b"\r\n0\r\n\r\n")))
            else:
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                answers.append((head, await reader.readexactly(length)))
        writer.close()
        return answers

    return served(engine, ask)


def events(streamed):
    """The events of a body in chunks."""
    lines = streamed.decode().split("\r\n")
    text = "".join(lines[1::2])
    return [event.removeprefix("data: ") for event in text.split("\n\n") if event]


def test_a_streamed_completion_ends_with_its_usage():
    engine = Alphabet()
    body = {
        "model": "tiny",
        "prompt": "hi",
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    ((head, streamed),) = answered(engine, body)
    assert b"200 OK" in head and b"content-type: text/event-stream" in head
    *contents, done = events(streamed)
    assert done == "[DONE]"
    contents = [json.loads(content) for content in contents]
    assert [content["choices"][0]["text"] for content in contents[:-1]] == ["a", "b", "c"]
    assert [content["choices"][0]["finish_reason"] for content in contents[:-1]] == [None, None, "length"]
    assert contents[-1]["choices"] == []
    assert contents[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert len({content["id"] for content in contents}) == 1
    assert engine.asked == [(list(b"hi"), 3, False)]


def test_a_chat_has_its_role_first_and_goes_on_to_its_end():
    engine = Alphabet(stops_after=2)
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    ((_, streamed),) = answered(engine, {"messages": messages, "stream": True}, path="/v1/chat/completions")
    deltas = [json.loads(content)["choices"][0] for content in events(streamed)[:-1]]
    assert [choice["delta"] for choice in deltas] == [
        {"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"},
    ]  # fmt: skip
    assert deltas[-1]["finish_reason"] == "stop"
    prompt, tokens, _ = engine.asked[0]
    assert bytes(prompt) == b"system: be\nuser: hi\nassistant: " and tokens == 100 - len(prompt)


def test_answers_without_a_stream_and_the_next_on_the_same_connection():
    engine = Alphabet()
    answer = answered(
        engine,
        {"prompt": [104, 105], "max_tokens": 4},
        {"prompt": "x", "max_tokens": 2, "stream": True},
        {"prompt": ["x"], "ignore_eos": True},
    )
    whole = json.loads(answer[0][1])
    assert whole["choices"][0] == {"index": 0, "text": "abcd", "logprobs": None, "finish_reason": "length"}
    assert whole["usage"]["total_tokens"] == 6 and whole["object"] == "text_completion"
    assert events(answer[1][1])[-1] == "[DONE]"
    # As OpenAI's: sixteen tokens where none are named.
    assert json.loads(answer[2][1])["usage"]["completion_tokens"] == 16 and engine.asked[2][2] is True
    chat = answered(
        engine, {"messages": [{"content": "x"}], "max_completion_tokens": 2}, path="/v1/chat/completions"
    )
    assert json.loads(chat[0][1])["choices"][0]["message"] == {"role": "assistant", "content": "ab"}


@pytest.mark.parametrize(("body", "status", "words"), [
    (b"{", 400, "has a body that is not JSON"), ([], 400, "is a list, not an object"),
    ({"model": "tny", "prompt": "x"}, 404, "Did you mean tiny?"), ({}, 400, "prompt: is null, neither a text"),
    ({"prompt": ""}, 400, "prompt: has no token"), ({"prompt": [256]}, 400, "a token outside 0 to 255"),
    ({"prompt": ["a", "b"]}, 400, "neither a text nor a list of tokens"), ({"prompt": [True]}, 400, "neither a text"),
    ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens: is 0"), ({"prompt": "x", "max_tokens": "5"}, 400, "is '5'"),
    ({"prompt": "x", "max_tokens": 100}, 400, "together more than the 100 that this engine holds"),
    ({"prompt": "x" * 100}, 400, "max_tokens: is 0"), ({"prompt": "x", "temperature": 1}, 400, "takes the likeliest"),
    ({"prompt": "x", "n": 2}, 400, "n: is 2, which"), ({"prompt": "x", "stop": "y"}, 400, "stop: is 'y', which"),
])  # fmt: skip
def test_what_is_no_request_is_said(body, status, words):
    engine = Alphabet()
    ((head, answer),) = answered(engine, body)
    assert f"HTTP/1.1 {status} ".encode() in head and words in json.loads(answer)["error"]
    assert engine.asked == []


def test_messages_that_are_none_and_paths_that_are_none():
    ((_, answer),) = answered(Alphabet(), {"messages": [{"content": 3}]}, path="/v1/chat/completions")
    assert "not a list of messages" in json.loads(answer)["error"]
    ((head, answer),) = answered(Alphabet(), {}, path="/v1/embeddings")
    assert b" 404 " in head and "is no path of this server" in json.loads(answer)["error"]
    ((head, _),) = answered(Alphabet(), b"", path="/v1/models")
    assert b" 405 " in head


def test_pages_and_names_of_others_are_refused():
    async def ask(url):
        client = EndpointClient(parse_endpoint(url, "tiny"))
        client.endpoint = Disguised(client.endpoint)
        return await client.fetch("/health")

    class Disguised:
        def __init__(self, endpoint):
            self.endpoint = endpoint

        def __getattr__(self, name):
            return getattr(self.endpoint, name)

        def head(self, method, path):
            return self.endpoint.head(method, path).replace(b"127.0.0.1", b"evil.example")

    status, body = served(Alphabet(), ask)
    assert status == 403 and b"evil.example" in body


def test_an_engine_that_fails_is_said_before_and_within_a_stream():
    body = {"prompt": "x", "max_tokens": 5, "stream": True}
    ((head, answer),) = answered(Alphabet("no memory"), body)
    assert b" 503 " in head and "gave no answer: no memory" in json.loads(answer)["error"]
    ((_, streamed),) = answered(Alphabet("no memory", fails_after=2), body)
    *_, last = events(streamed)
    assert "no memory" in json.loads(last)["error"]["message"]


def test_a_client_that_leaves_is_cancelled():
    engine = Alphabet()
    asked = []
    engine.submit = lambda prompt, *_: asked.append(prompt) or "r1"

    async def ask(url):
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        body = json.dumps({"prompt": "x"}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        while not asked:
            await asyncio.sleep(0.01)
        writer.close()
        while not engine.cancelled:
            await asyncio.sleep(0.01)

    served(engine, ask)
    assert engine.cancelled == ["r1"]


def test_the_client_of_measure_understands_it():
    async def ask(url):
        client = EndpointClient(parse_endpoint(url, "tiny"))
        facts = await probe(client, 24, 4)
        answers = [await client.complete(client.endpoint.body("abc", 5), 5) for _ in range(2)]
        health, _ = await client.fetch("/health")
        client.close()
        return facts, answers, health

    facts, answers, health = served(Alphabet(), ask)
    assert (facts.words, facts.until_length, facts.notes, health) == (4, True, (), 200)
    assert facts.settings == {
        "max_model_len": "100", "engine": "transformers 9.9", "max_num_seqs": "32", "max_num_batched_tokens": "512",
        "kv_blocks": "1024", "block_tokens": "16",
    }  # fmt: skip
    for answer in answers:
        assert (answer.problem, answer.prompt_tokens, answer.output_tokens) == ("", 3, 5)
        assert len(answer.token_times_s) == 5


def test_an_engine_that_stopped_is_not_healthy():
    engine = Alphabet()
    engine.alive = False

    async def ask(url):
        client = EndpointClient(parse_endpoint(url, "tiny"))
        status, body = await client.fetch("/health")
        client.close()
        return status, body

    status, body = served(engine, ask)
    assert status == 503 and b"has stopped" in body


@pytest.mark.parametrize(("settings", "words"), [
    ({"max_num_seqs": 0}, "max_num_seqs: is 0"), ({"kv_blocks": 1}, "kv_blocks: is 1"),
    ({"block_tokens": 2}, "block_tokens: is 2"), ({"kv_blocks": 1 << 30}, "kv_blocks: is 1073741824, a cache of"),
    ({"dtype": "int3"}, "dtype: is 'int3'"), ({"threads": 0}, "threads: is 0"),
    ({"max_model_len": 1}, "max_model_len: is 1"), ({"name": "a\nb"}, "name: is 'a\\nb'"),
])  # fmt: skip
def test_settings_of_no_engine(settings, words):
    with pytest.raises(InputFault) as answer:
        check_engine_settings(LlmEngineSettings(**{"source": "x", "name": "y"} | settings))
    assert words in str(answer.value)

"""One endpoint over a plan's engines: who gets a request, what passes, and what is said when an engine is lost."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack, ExitStack

import pytest

from tests.support.serving.token_engines import TEXT, Alphabet
from torchsplit_core.serving.llm_endpoint.address import LlmEndpoint
from torchsplit_core.serving.llm_endpoint.client import EndpointClient
from torchsplit_core.serving.llm_engine.app import LlmApp
from torchsplit_core.serving.llm_engine.process import LlmEngineProcess
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.serving.llm_frontend.app import LlmFrontend, PlanApplication
from torchsplit_core.serving.llm_frontend.engine_pool import StartedEngine
from torchsplit_core.serving.plan import ServedEngine
from torchsplit_core.serving.protocol.access_guard import AccessGuard
from torchsplit_core.serving.protocol.http_server import HttpServer, json_response
from torchsplit_core.serving.protocol.tensors import RequestFault
from torchsplit_core.serving.settings import AccessSettings, RequestLimits

TOKEN = "sixteen letters or more"


class Patient(Alphabet):
    """Answers when it is let."""

    def __init__(self):
        super().__init__()
        self.let, self.seen = asyncio.Event(), 0

    def submit(self, prompt, tokens, until_length, on_tokens):
        async def wait():
            await self.let.wait()
            Alphabet.submit(self, prompt, tokens, until_length, on_tokens)

        self.waiting, self.seen = asyncio.ensure_future(wait()), self.seen + 1
        return f"p{self.seen}"


class Batches:
    """The application of batch models: it has every path, and counts refusals."""

    def __init__(self):
        self.refusals = 0

    def admit(self, request):
        return 0

    def handle(self, request):
        request.reply(json_response({"batch": request.path}))

    def refused(self, request, fault):
        self.refusals += 1


class Served:
    """Engines by model behind the endpoint, in this event loop."""

    def __init__(self, engines, token=None):
        self.engines, self.token, self.stack = engines, token, AsyncExitStack()

    async def __aenter__(self):
        guard = AccessGuard(AccessSettings(token=self.token))
        self.seen = []
        observe = lambda model, status, seconds: self.seen.append((model, status))  # noqa: E731
        self.front = LlmFrontend([model for model, _ in self.engines], guard, observe)
        self.closing = []
        for number, (model, engine) in enumerate(self.engines):
            settings = LlmEngineSettings("config.json", model)
            url, stack = await self._serve(LlmApp(engine, TEXT, settings, "9.9"))
            self.closing.append(stack)
            served = ServedEngine(f"cpu0/1c@{number}", f"cpu0/1c@{number}", settings)
            self.front.add([StartedEngine(served, LlmEngineProcess(url, 0), 100 + number, ExitStack())])
        self.batches = Batches()
        self.url, _ = await self._serve(PlanApplication(self.batches, self.front))
        return self

    async def __aexit__(self, *error):
        await self.stack.aclose()

    async def _serve(self, application):
        listener = socket.create_server(("127.0.0.1", 0))
        stack = await self.stack.enter_async_context(AsyncExitStack())
        await stack.enter_async_context(HttpServer(application, RequestLimits()).run(listener, 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}", stack

    def client(self, model="chat", key=""):
        port = int(self.url.rpartition(":")[2])
        return EndpointClient(LlmEndpoint("http", "127.0.0.1", port, "/v1", model, key=key))

    async def complete(self, model="chat", tokens=3):
        client = self.client(model)
        answer = await client.complete(client.endpoint.body("hi", tokens), tokens)
        client.close()
        return answer

    async def get(self, path, key=""):
        client = self.client(key=key)
        status, body = await client.fetch(path)
        client.close()
        return status, json.loads(body)


def run(test, *engines, token=None):
    async def within():
        made = [(model, make()) for model, make in engines]
        async with Served(made, token) as served:
            return await test(served, *(engine for _, engine in made))

    return asyncio.run(within())


async def until(holds):
    while not holds():
        await asyncio.sleep(0.005)


def test_a_request_goes_to_the_engine_with_the_fewest_and_of_equals_to_the_first():
    async def ask(served, first, second):
        tasks = []
        for asked in ((1, 0), (1, 1), (2, 1)):
            tasks.append(asyncio.create_task(served.complete()))
            await until(lambda asked=asked: (first.seen, second.seen) == asked)
        second.let.set()
        await tasks[1]
        tasks.append(asyncio.create_task(served.complete()))
        await until(lambda: second.seen == 2)
        first.let.set()
        return await asyncio.gather(*tasks)

    answers = run(ask, ("chat", Patient), ("chat", Patient))
    assert [answer.problem for answer in answers] == [""] * 4
    assert {len(answer.token_times_s) for answer in answers} == {3}


def test_models_are_told_apart_by_name_and_listed():
    async def ask(served, chat, code):
        answers = [await served.complete("code"), await served.complete("chat")]
        unknown = await served.complete("chta")
        assert (len(chat.asked), len(code.asked)) == (1, 1)
        return answers, unknown, await served.get("/v1/models")

    answers, unknown, (status, models) = run(ask, ("chat", Alphabet), ("code", Alphabet))
    assert [(answer.problem, answer.prompt_tokens, answer.output_tokens) for answer in answers] == [
        ("", 2, 3)
    ] * 2
    assert "Did you mean chat?" in unknown.problem and unknown.status == 404
    assert status == 200 and [(entry["id"], entry["max_model_len"]) for entry in models["data"]] == [
        ("chat", 100), ("code", 101),
    ]  # fmt: skip


async def posted(served, body, path="/v1/completions"):
    """Head and body of the answer to a request that need not stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    answered = await reader.readuntil(b"\r\n\r\n")
    length = int(answered.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    text = await reader.readexactly(length)
    writer.close()
    return int(answered.split()[1]), json.loads(text)


@pytest.mark.parametrize(("body", "status", "words"), [
    (b"{", 400, "has a body that is not JSON"), ([], 400, "is a list, not an object"),
    ({"prompt": "x"}, 404, "model: is missing"), ({"model": 3, "prompt": "x"}, 404, "model: is 3, which is not served"),
    ({"model": "chat", "prompt": ""}, 400, "prompt: has no token"),
])  # fmt: skip
def test_what_is_no_request_is_said(body, status, words):
    answered, content = run(lambda served, *_: posted(served, body), ("chat", Alphabet), ("code", Alphabet))
    assert answered == status and words in content["error"]


def test_an_only_model_needs_no_name_and_chats_pass_whole():
    async def ask(served, engine):
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        return await posted(served, {"prompt": "x", "max_tokens": 4}), await posted(
            served, chat, "/v1/chat/completions"
        )

    (status, whole), (_, chat) = run(ask, ("chat", Alphabet))
    assert status == 200 and whole["choices"][0]["text"] == "abcd" and whole["usage"]["total_tokens"] == 5
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": "ab"}


def test_an_engine_that_is_lost_gets_nothing_and_the_last_one_is_missed(capsys):
    async def ask(served, first, second):
        lost = []
        served.front.on_lost = lost.append
        await served.closing[0].aclose()
        over = await served.complete()
        state = [served.front.ready, (await served.get("/health"))[0], lost == served.front.links[:1]]
        await served.closing[1].aclose()
        none = await served.complete()
        return (
            over,
            len(second.asked),
            state,
            none,
            await served.get("/health"),
            await served.get("/v2/health/ready"),
        )

    over, asked, state, none, health, ready = run(ask, ("chat", Alphabet), ("chat", Alphabet))
    assert (over.problem, asked, state) == ("", 1, [True, 200, True])
    assert none.status == 503 and "chat: has no engine left" in none.problem
    assert health[0] == 503 and ready == (503, {"ready": False})
    assert "the engine of chat on cpu0/1c@0 is lost" in capsys.readouterr().err


def test_an_engine_that_fails_within_an_answer_is_said_and_a_client_that_leaves_is_cancelled():
    class Failing(Alphabet):
        def __init__(self):
            super().__init__("no memory", fails_after=2)

    async def ask(served, failing, patient):
        failed = await served.complete("bad")
        leaving = asyncio.create_task(served.complete("slow"))
        await until(lambda: patient.seen)
        leaving.cancel()
        await until(lambda: patient.cancelled)
        patient.waiting.cancel()
        await until(lambda: not any(link.in_flight for link in served.front.links))
        return failed, served.seen

    failed, seen = run(ask, ("bad", Failing), ("slow", Patient))
    assert "no memory" in failed.problem and len(failed.token_times_s) == 2
    # A stream that says in its own words what went wrong was passed whole.
    assert seen == [("bad", 200), ("slow", 499)]


def test_an_engine_that_hangs_up_is_not_asked_for_ever():
    async def ask(served, engine):
        async def hang_up(reader, writer):
            hung_up.append(await reader.read(10))
            writer.close()

        hung_up = []
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        link = served.front.links[0]
        link._port = server.sockets[0].getsockname()[1]
        answer = await served.complete()
        server.close()
        return answer, len(hung_up), served.seen

    answer, asked, seen = run(ask, ("chat", Alphabet))
    assert answer.status == 503 and "closed the connection without an answer" in answer.problem
    assert (asked, seen) == (2, [("chat", 503)])


def test_what_drains_takes_no_more_and_finishes_what_it_has():
    async def ask(served, engine):
        running = asyncio.create_task(served.complete())
        await until(lambda: engine.seen)
        draining = asyncio.create_task(served.front.drain(60.0))
        await until(lambda: served.front.draining)
        refused = await served.complete()
        engine.let.set()
        await draining
        return (await running).problem, refused

    problem, refused = run(ask, ("chat", Patient))
    assert problem == "" and refused.status == 503 and "is draining" in refused.problem


def test_steps_are_for_who_shows_a_token_and_carry_the_ids_of_the_plan():
    class Stepping(Alphabet):
        def take_steps(self):
            return [LoggedStep(1.0, 2.0, 3, 4, 5, 6.0, 7, 8)]

    async def ask(served, *_):
        return await served.get("/torchsplit/steps", served.token or "")

    status, content = run(ask, ("chat", Stepping), ("chat", Stepping), token=TOKEN)
    assert status == 200 and list(content) == ["cpu0/1c@0", "cpu0/1c@1"]
    assert LoggedStep(**content["cpu0/1c@1"][0]) == LoggedStep(1.0, 2.0, 3, 4, 5, 6.0, 7, 8)
    status, content = run(ask, ("chat", Stepping))
    assert status == 403 and "without one" in content["error"]


def test_batch_models_have_every_other_path():
    async def ask(served, engine):
        served.front.links[0].lost = True
        loading = await served.get("/v2/health/ready")
        served.front.links[0].lost = False
        served_by = [await served.get(path) for path in ("/v2/models/bert", "/v2/health/ready")]
        unknown = await served.get("/v1/embeddings")
        return loading, served_by, unknown, served.batches.refusals

    loading, served_by, unknown, refusals = run(ask, ("chat", Alphabet))
    assert loading == (503, {"ready": False})
    assert [content["batch"] for _, content in served_by] == ["/v2/models/bert", "/v2/health/ready"]
    assert unknown[0] == 404 and "Ask /v1/completions" in unknown[1]["error"] and refusals == 1


def test_before_its_engines_run_a_model_is_not_ready():
    front = LlmFrontend(["chat"], AccessGuard(AccessSettings()))
    assert not front.ready
    with pytest.raises(RequestFault, match="chat: is not ready yet"):
        front.fewest("chat")

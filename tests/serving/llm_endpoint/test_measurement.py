"""An endpoint measured over HTTP, and everything that one can answer in place of a stream."""

import asyncio

import pytest

from tests.support.serving.stub_endpoint import BAD, GOOD, KEY, stub_endpoint
from torchsplit_core.serving.llm_endpoint.address import parse_endpoint
from torchsplit_core.serving.llm_endpoint.client import EndpointClient
from torchsplit_core.serving.llm_endpoint.measurement import EndpointLoad, measure_endpoint
from torchsplit_core.serving.llm_endpoint.open_loop import load_stage
from torchsplit_core.serving.llm_endpoint.probe import cache_settings, probe
from torchsplit_core.serving.llm_endpoint.prompts import WORDS, PromptMaker, words_for
from torchsplit_core.values import DeterministicArrivals, InputFault, PoissonArrivals, TraceArrivals

SAID = {
    "closes": "gives no answer: the connection was closed without an answer",
    "closes-in-head": "gives no answer: the connection ended before the answer did, after no events with output",
    "no-stream": "answered without streaming (application/json)",
    "half-line": "gives no answer: its stream ended within an event, after no events with output",
    "cut": "gives no answer: the connection ended before the answer did, after an event with output",
    "no-json": "gives no answer: its stream has an event that is not JSON: '{nonsense'",
    "no-object": "gives no answer: its stream has an event that is no object: '[1]'",
    "error-event": "gives no answer: its stream says: out of memory",
    "zero-tokens": "gives no answer: its answer has no token",
    "empty-stream": "gives no answer: its stream ended before the answer was finished, after no events with output",
    "endless": "gives no answer: its stream goes on past 72 events, and 4 tokens were asked for",
    "huge-line": "gives no answer: its stream has an event of more than 262144 bytes",
    "stalls": "stalled: no byte came for 0.5 s, after no events with output",
    "stalls-midway": "stalled: no byte came for 0.5 s, after an event with output",
    "answers-400": "answered 400: a stub says 400",
    "answers-401": "answered 401: a stub says 401",
    "answers-404": "answered 404: a stub says 404",
    "answers-429": "answered 429: a stub says 429",
    "answers-500": "answered 500: a stub says 500",
    "no-http": "gives no answer: what it sends is not HTTP: Expected HTTP/, RTSP/ or ICE/",
    "usage-zero": "gives no answer: its answer has 0 tokens by its own count",
}
FIT = ("no-usage", "refuses-ignore-eos")
"""Bad ones that can be measured all the same."""


def endpoint_of(stub, model=GOOD, **more):
    # No other model keeps silent for long, but this machine may.
    timeout_s = 0.5 if "stalls" in model else 60.0
    return parse_endpoint(stub.url, model, timeout_s=timeout_s, **more)


def load_of(rate=200.0, requests=8, prompt=20, output=4, stages=1):
    arrivals = DeterministicArrivals(rate)
    return EndpointLoad((load_stage(arrivals, rate, 1.0, requests, 0),) * stages, prompt, output)


def measured(stub, model=GOOD, *, load=None, settings=None, **more):
    return measure_endpoint(endpoint_of(stub, model, **more), load or load_of(), settings or {}, "here")


@pytest.fixture(scope="module")
def stub():
    with stub_endpoint() as running:
        yield running


def test_every_bad_answer_has_its_sentence():
    assert set(SAID) | set(FIT) == set(BAD)


@pytest.mark.parametrize("model", SAID)
def test_an_endpoint_that_cannot_be_measured_is_said_in_one_line(stub, model):
    with pytest.raises(InputFault) as fault:
        measured(stub, model)
    assert fault.value.where == "--endpoint"
    assert fault.value.problem == f"{stub.url}/v1 {SAID[model]}"
    assert "\n" not in str(fault.value)


def test_a_wrong_name_is_answered_with_the_endpoints_own(stub):
    with pytest.raises(InputFault, match=r"--model: .* has no model 'god'\. Did you mean good"):
        measured(stub, "god")


def test_nobody_there_and_a_name_that_is_none():
    with stub_endpoint() as gone:
        pass
    with pytest.raises(InputFault, match=f"nothing listens at 127.0.0.1:{gone.port}"):
        measured(gone)
    endpoint = parse_endpoint("http://no-such-host.invalid", "m", timeout_s=60)
    with pytest.raises(InputFault, match=r"no-such-host\.invalid:80 cannot be reached"):
        measure_endpoint(endpoint, load_of(), {}, "here")


def test_a_server_without_tls_is_said(stub):
    endpoint = parse_endpoint(stub.url.replace("http:", "https:"), GOOD, timeout_s=1)
    with pytest.raises(InputFault) as fault:
        measure_endpoint(endpoint, load_of(), {}, "here")
    assert "https://127.0.0.1" in fault.value.problem


def test_a_key_opens(monkeypatch):
    monkeypatch.setenv("THE_KEY", KEY)
    with stub_endpoint(needs_key=True) as closed:
        with pytest.raises(InputFault, match=r"answered 401: no such key\. Name the environment variable"):
            measured(closed)
        result = measured(closed, key_env="THE_KEY")
        assert result.figures[0].answered == 8 and KEY not in str(result)
        monkeypatch.setenv("THE_KEY", "wrong")
        # A server may repeat the key that it refuses: the message does not.
        with pytest.raises(InputFault, match=r"answered 401: no such key: … Check the key"):
            measured(closed, key_env="THE_KEY")


def test_tokens_and_times_of_a_load():
    with stub_endpoint(first_s=0.03, gap_s=0.01, tokens_a_word=2, template_tokens=6) as slow:
        result = measured(slow, load=load_of(rate=50, requests=5, prompt=46, output=4))
        asked = slow.asked[2:]
    # Two tokens a word and six around a prompt: twenty words make the 46 that were asked for.
    assert [len(body["prompt"].split()) for body in asked] == [20] * 5
    assert len({body["prompt"] for body in asked}) == 5
    assert {body["max_tokens"] for body in asked} == {4} and {body["path"] for body in asked} == {
        "/v1/completions"
    }
    figures = result.figures[0]
    assert (figures.sent, figures.answered, figures.prompt_tokens, figures.output_tokens) == (5, 5, 46, 4)
    # The stub never sends earlier; this machine may be late.
    assert figures.ttft_ms.mean >= 30 and figures.e2e_ms.mean >= 60
    assert figures.itl_ms == pytest.approx((figures.e2e_ms.mean - figures.ttft_ms.mean) / 3)
    for answer in result.stages[0].answers:
        assert len(answer.token_times_s) == 4 and answer.due_s <= answer.sent_s <= answer.token_times_s[0]
    row = result.rows[0]
    assert (row["question_tokens"], row["output_tokens"], row["rate_rps"], row["basis"]) == (
        "46",
        "4",
        "50",
        "measured",
    )
    assert row["source"] == f"{slow.url}/v1, here"
    assert (row["model"], row["max_model_len"], row["engine"]) == (GOOD, "4096", "stub 1.2")


def test_chats_are_measured_without_their_role(stub):
    result = measured(stub, chat=True)
    assert stub.asked[-1]["path"] == "/v1/chat/completions"
    assert {len(answer.token_times_s) for answer in result.stages[0].answers} == {4}
    assert result.figures[0].prompt_tokens == 20
    assert result.rows[0]["source"] == f"{stub.url}/v1 (chat), here"


def test_an_endpoint_that_has_chats_alone_is_asked_for_them_and_it_is_said():
    with stub_endpoint(only_chat=True) as chats:
        result = measured(chats)
        with pytest.raises(
            InputFault, match=r"answered 404: Not Found\. Check the URL: /v1/completions was asked"
        ):
            measure_endpoint(parse_endpoint(f"{chats.url}/v1/completions", GOOD), load_of(), {}, "here")
    assert result.figures[0].answered == 8 and result.figures[0].prompt_tokens == 20
    assert "the endpoint has no /v1/completions: its /v1/chat/completions was asked" in result.warnings
    assert result.rows[0]["source"] == f"{chats.url}/v1 (chat), here"


def test_without_usage_events_are_counted_and_it_is_said(stub):
    result = measured(stub, "no-usage")
    assert result.figures[0].output_tokens == 4 and result.figures[0].prompt_tokens is None
    said = "the endpoint's stream has no usage: events are counted as output tokens"
    assert said in result.warnings and said in result.rows[0]["note"]
    assert result.rows[0]["question_tokens"] == "20"


def test_an_endpoint_that_knows_no_ignore_eos_is_asked_without(stub):
    result = measured(stub, "refuses-ignore-eos")
    assert result.figures[0].answered == 8 and "ignore_eos" not in stub.asked[-1]
    assert "the endpoint refuses ignore_eos: answers end by themselves" in result.rows[0]["note"]


def test_stages_run_on_and_have_rows_of_their_own(stub):
    stages = tuple(load_stage(DeterministicArrivals(rate), rate, 1.0, 4, 0) for rate in (100.0, 200.0))
    before = len(stub.asked)
    result = measured(stub, load=EndpointLoad(stages, 20, 4))
    assert [row["stage"] for row in result.rows] == ["0", "1"]
    assert [row["rate_rps"] for row in result.rows] == ["100", "200"]
    assert result.stages[1].began_s == pytest.approx(result.stages[0].began_s + stages[0].duration_s)
    # Prompts go on: no stage sees those of the one before.
    assert len({body["prompt"] for body in stub.asked[before + 2 :]}) == 8


def test_connections_are_kept():
    with stub_endpoint() as idle:

        async def ask():
            client = EndpointClient(endpoint_of(idle))
            body = client.endpoint.body("a b", 2)
            answers = [await client.complete(body, 2) for _ in range(5)]
            client.close()
            return answers

        assert [answer.problem for answer in asyncio.run(ask())] == [""] * 5
        assert idle.connections == 1


def test_requests_that_fail_under_load_are_counted_and_in_no_figure():
    with stub_endpoint() as idle:
        good = endpoint_of(idle)

        async def run():
            from torchsplit_core.serving.llm_endpoint.open_loop import run_stages

            client = EndpointClient(good)
            bodies = [good.body("a", 3), endpoint_of(idle, "cut").body("a", 3)]
            stage = load_stage(DeterministicArrivals(500.0), 500.0, 1.0, 6, 0)
            return await run_stages(client, [stage], lambda index: (bodies[index % 2], 3))

        (stage,) = asyncio.run(run())
    assert [bool(answer.problem) for answer in stage.answers] == [False, True] * 3


def test_a_probe_does_not_ask_for_more_than_the_load(stub):
    async def ask():
        client = EndpointClient(endpoint_of(stub))
        facts = await probe(client, 1, 1)
        client.close()
        return facts

    facts = asyncio.run(ask())
    assert facts.words == 1 and {body["max_tokens"] for body in stub.asked[-2:]} == {1}


def test_prompts_are_seeded_and_equally_long():
    texts = [PromptMaker(50, seed).text(index) for seed in (0, 1) for index in (0, 1)]
    assert len(set(texts)) == 4 and PromptMaker(50, 1).text(1) == texts[-1]
    assert {len(text) for text in texts} == {50 * 6 - 1} and set(map(len, WORDS)) == {5}


@pytest.mark.parametrize(("tokens", "counts", "words"), [
    (100, [(25, 25)], 100), (100, [(25, 57), (100, 207)], 46), (4, [(1, 9), (1, 9)], 1), (100, [(25, 150)], 17),
    (60, [(25, 40), (50, 40)], 60),
])  # fmt: skip
def test_words_for_so_many_tokens(tokens, counts, words):
    assert words_for(tokens, counts) == words


def test_an_engine_that_tells_fills_its_columns():
    metrics = (
        '# HELP vllm:cache_config_info x\nvllm:cache_config_info{block_size="16",gpu_memory_utilization="0.9",'
        'num_cpu_blocks="None",num_gpu_blocks="2588"} 1.0\n'
    )
    fault = {"kv_blocks": "2588", "block_tokens": "16", "gpu_memory_utilization": "0.9"}
    assert cache_settings(metrics) == fault and cache_settings("") == {}
    with stub_endpoint(metrics=metrics) as open_hearted:
        row = measured(open_hearted, settings={"kv_blocks": "7", "gpu": "L4-24GB"}).rows[0]
    assert (row["block_tokens"], row["gpu_memory_utilization"]) == ("16", "0.9")
    # What the user says of it counts.
    assert (row["kv_blocks"], row["gpu"]) == ("7", "L4-24GB")


def test_stages_have_requests_or_a_duration():
    counted = load_stage(DeterministicArrivals(4.0), 4.0, 99.0, 8, 0)
    assert counted.times_s == tuple(index / 4 for index in range(1, 9)) and counted.duration_s == 2.0
    timed = load_stage(PoissonArrivals(50.0), 50.0, 2.0, None, 3)
    assert timed == load_stage(PoissonArrivals(50.0), 50.0, 2.0, None, 3)
    assert timed.duration_s == 2.0 and max(timed.times_s) <= 2.0 and 60 < len(timed.times_s) < 140
    replayed = load_stage(TraceArrivals((5.0, 5.5, 9.0)), 1.0, 2.0, None, 0)
    assert replayed.times_s == (0.0, 0.5)
    with pytest.raises(InputFault, match=r"--duration-s: is 0\.001, and no request is due"):
        load_stage(DeterministicArrivals(1.0), 1.0, 0.001, None, 0)
    with pytest.raises(InputFault, match="makes 15,000,100 requests"):
        load_stage(PoissonArrivals(1e6), 1e6, 10.0, None, 0)

"""What an endpoint says before it is loaded: faults in one line, how many tokens its words have, its settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchsplit_core.serving.llm_endpoint.address import LlmEndpoint
from torchsplit_core.serving.llm_endpoint.client import EndpointClient, StreamedAnswer
from torchsplit_core.serving.llm_endpoint.prompts import PromptMaker, words_for
from torchsplit_core.values import InputFault, suggestion
from torchsplit_core.values.errors import quoted

PROBE_TOKENS = 8
"""Output tokens of a request before the load, at most."""
PROBE_SEED = -1
"""Prompts before the load are none of the load."""


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """What the load needs of an endpoint, and what its settings are where it tells (vLLM does).

    `until_length`: it takes requests for exactly so many tokens. `chat`: its chat is asked. `settings`: by column of a
    row. `notes`: for the row.
    """

    words: int
    until_length: bool = True
    chat: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


async def probe(client: EndpointClient, prompt_tokens: int, output_tokens: int) -> EndpointFacts:
    """Ask twice, a short and a whole prompt. Raises InputFault for an endpoint that cannot be measured."""
    asked = min(output_tokens, PROBE_TOKENS)
    counts = list[tuple[int, int]]()
    words = max(1, prompt_tokens // 4)
    asks_chat = client.endpoint.chat
    answer, until_length = await _first_answer(client, words, asked)
    for index in (1, 0):
        if answer.problem:
            raise await _fault(client, answer)
        if answer.prompt_tokens:
            counts.append((words, answer.prompt_tokens))
        words = words_for(prompt_tokens, counts) if counts else prompt_tokens
        if index:
            answer = await _ask(client, index, words, asked, until_length)
    notes = []
    if client.endpoint.chat and not asks_chat:
        notes.append("the endpoint has no /v1/completions: its /v1/chat/completions was asked")
    if answer.prompt_tokens is None:
        notes.append("the endpoint counts no prompt tokens: words are counted as tokens")
    if answer.output_tokens is None:
        notes.append("the endpoint's stream has no usage: events are counted as output tokens")
    if not until_length:
        notes.append("the endpoint refuses ignore_eos: answers end by themselves")
    return EndpointFacts(words, until_length, client.endpoint.chat, await _settings(client), tuple(notes))


async def _first_answer(client: EndpointClient, words: int, tokens: int) -> tuple[StreamedAnswer, bool]:
    """The first answer, and whether it was asked for exactly so many tokens; the client's endpoint becomes a chat's
    where there are no bare completions and the user did not ask for them."""
    answer = await _ask(client, 0, words, tokens, True)
    completions = client.endpoint
    if answer.status in (404, 405, 501) and not completions.fixed:
        names = await served_models(client)
        if not names or completions.model in names:
            client.endpoint = replace(completions, chat=True)
            chat = await _ask(client, 0, words, tokens, True)
            if chat.status in (404, 405, 501):
                client.endpoint = completions
                return answer, True
            answer = chat
    if answer.status in (400, 422):
        plain = await _ask(client, 0, words, tokens, False)
        if not plain.problem:
            return plain, False
    return answer, True


async def _ask(
    client: EndpointClient, index: int, words: int, tokens: int, until_length: bool
) -> StreamedAnswer:
    prompt = PromptMaker(words, PROBE_SEED).text(index)
    return await client.complete(client.endpoint.body(prompt, tokens, until_length=until_length), tokens)


async def _fault(client: EndpointClient, answer: StreamedAnswer) -> InputFault:
    """The fault of an answer that failed before the load."""
    endpoint, problem = client.endpoint, answer.problem
    remedy = "Check that an OpenAI-compatible server is there, and its log."
    if answer.status in (401, 403):
        remedy = (
            "Check the key." if endpoint.key else "Name the environment variable of its key: --key-env NAME."
        )
    elif answer.status in (400, 404, 422):
        names = await served_models(client)
        if names and endpoint.model not in names:
            problem = f"{endpoint.url} has no model {quoted(endpoint.model)}"
            return InputFault("--model", problem, suggestion(endpoint.model, names, "models"))
        other = "/v1/completions" if endpoint.chat else "/v1/chat/completions, or add --chat"
        remedy = f"Check the URL: {endpoint.path} was asked; another is {other}."
        if answer.status != 404:
            remedy = "Check --model, --prompt and --output against what it serves, or ask its chat: --chat."
    elif answer.status == 429:
        remedy = "Ask when nobody else does, or with a key that may ask more."
    elif answer.status == 200:
        remedy = "Name an endpoint that streams completions (stream: true) as OpenAI's does."
    elif "stalled" in problem or "within" in problem:
        remedy = "Check that the server works, or wait longer: --timeout-s."
    elif problem.startswith("TLS"):
        remedy = "Check the certificate, or write http:// where the server has none."
    return InputFault("--endpoint", f"{endpoint.url} {_verb(problem)}", remedy)


def _verb(problem: str) -> str:
    """The problem after a URL, as one clause."""
    return (
        problem
        if problem.startswith(("answered", "took", "stalled", "was"))
        else f"gives no answer: {problem}"
    )


async def served_models(client: EndpointClient) -> list[str]:
    """Names at /v1/models; none where it does not say."""
    return [name for name, _ in await _models(client)]


async def _models(client: EndpointClient) -> list[tuple[str, dict[str, Any]]]:
    content = await _fetch_json(client, f"{client.endpoint.base}/models")
    entries = content.get("data") if isinstance(content, dict) else None
    entries = entries if isinstance(entries, list) else []
    return [
        (entry["id"], entry)
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]


async def _settings(client: EndpointClient) -> dict[str, str]:
    """Settings by column, where the endpoint tells: max_model_len of its models, vLLM's version and metrics."""
    settings = {}
    entry = dict(await _models(client)).get(client.endpoint.model, {})
    if isinstance(length := entry.get("max_model_len"), int) and not isinstance(length, bool):
        settings["max_model_len"] = str(length)
    root = client.endpoint.base.rpartition("/")[0]
    version = await _fetch_json(client, f"{root}/version")
    if isinstance(version, dict) and isinstance(version.get("version"), str):
        owner = entry.get("owned_by")
        name = "vLLM" if owner == "vllm" else owner if isinstance(owner, str) else "engine"
        settings["engine"] = f"{name} {version['version']}"[:100]
    # An engine that TorchSplit serves says its own.
    engine = await _fetch_json(client, f"{root}/torchsplit/engine")
    if isinstance(engine, dict):
        known = ("max_num_seqs", "max_num_batched_tokens", "kv_blocks", "block_tokens")
        settings |= {name: str(engine[name]) for name in known if type(engine.get(name)) is int}
    try:
        status, body = await client.fetch(f"{root}/metrics")
    except OSError:
        return settings
    return settings | (cache_settings(body.decode(errors="replace")) if status == 200 else {})


def cache_settings(metrics: str) -> dict[str, str]:
    """The KV cache's size in vLLM's metrics: the labels of vllm:cache_config_info."""
    line = next((line for line in metrics.splitlines() if line.startswith("vllm:cache_config_info{")), "")
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    columns = {
        "num_gpu_blocks": "kv_blocks",
        "num_cpu_blocks": "cpu_kv_blocks",
        "block_size": "block_tokens",
        "gpu_memory_utilization": "gpu_memory_utilization",
    }
    number = re.compile(r"\d+(\.\d+)?")
    return {
        column: labels[label] for label, column in columns.items() if number.fullmatch(labels.get(label, ""))
    }


async def _fetch_json(client: EndpointClient, path: str) -> Any:
    """The JSON of a GET; None where there is none."""
    try:
        status, body = await client.fetch(path)
        return json.loads(body) if status == 200 else None
    except (OSError, ValueError, RecursionError):
        return None


def endpoint_name(endpoint: LlmEndpoint) -> str:
    """The endpoint as a row names its source."""
    return f"{endpoint.url}{' (chat)' if endpoint.chat else ''}"

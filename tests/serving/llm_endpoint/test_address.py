"""Endpoints by their URLs, keys by the variables that have them, and what is asked of them."""

import json

import pytest

from torchsplit_core.serving.llm_endpoint.address import parse_endpoint
from torchsplit_core.values import InputFault


@pytest.mark.parametrize(("url", "path"), [
    ("http://a:8000", "/v1/completions"), ("http://a:8000/", "/v1/completions"), ("http://a/v1/", "/v1/completions"),
    ("http://a/v1/completions", "/v1/completions"), ("https://a/x/v1", "/x/v1/completions"),
    ("http://a/openai", "/openai/v1/completions"), ("http://a/v1/chat/completions", "/v1/chat/completions"),
    ("http://[::1]:81/v2", "/v2/completions"),
])  # fmt: skip
def test_a_url_may_name_the_server_its_version_or_the_path(url, path):
    endpoint = parse_endpoint(url, "m")
    assert endpoint.path == path


def test_ports_hosts_and_chat():
    endpoint = parse_endpoint("https://example.org", "m", chat=True)
    assert (endpoint.port, endpoint.path, endpoint.url) == (
        443,
        "/v1/chat/completions",
        "https://example.org:443/v1",
    )
    assert endpoint.tls() is not None and parse_endpoint("http://a", "m").tls() is None
    assert b"host: [::1]:81\r\n" in parse_endpoint("http://[::1]:81", "m").head("GET", "/v1/models")


@pytest.mark.parametrize(("url", "words"), [
    ("localhost:8000", "is no http or https URL"), ("ftp://a", "is no http or https URL"), ("http://", "is no http or"),
    ("http://a:99999", "is no URL: Port out of range"), ("http://u:p@a", "a user or a password"),
    ("http://a?x=1", "has a query or a fragment"), ("http://a/b c", "a space"), ("http://ä.de", "beyond ASCII"),
    ("http://a/\nb", "a space, a control"), ("http://[::1", "is no URL"),
])  # fmt: skip
def test_what_is_no_endpoint_is_said(url, words):
    with pytest.raises(InputFault, match="--endpoint") as fault:
        parse_endpoint(url, "m")
    assert words in fault.value.problem


def test_the_key_comes_from_its_variable_and_is_shown_nowhere(monkeypatch):
    monkeypatch.setenv("THE_KEY", "sesame")
    endpoint = parse_endpoint("http://a", "m", key_env="THE_KEY")
    assert b"authorization: Bearer sesame\r\n" in endpoint.head("POST", endpoint.path, 3)
    assert "sesame" not in repr(endpoint)
    assert b"authorization" not in parse_endpoint("http://a", "m").head("GET", "/")


@pytest.mark.parametrize(("value", "words"), [
    (None, "'THE_KEY' is not set"), ("", "'THE_KEY' is empty"), ("a\r\nx: y", "what no key has"),
    ("a b", "what no key"),
])  # fmt: skip
def test_a_key_that_is_none_is_said_without_it(monkeypatch, value, words):
    monkeypatch.delenv("THE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("THE_KEY", value)
    with pytest.raises(InputFault, match="--key-env") as fault:
        parse_endpoint("http://a", "m", key_env="THE_KEY")
    assert words in fault.value.problem and "x: y" not in str(fault.value)


def test_a_body_asks_for_a_stream_with_its_usage_and_for_so_many_tokens():
    body = json.loads(parse_endpoint("http://a", "m").body("say", 7))
    assert body == {
        "model": "m", "prompt": "say", "max_tokens": 7, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True, "min_tokens": 7,
    }  # fmt: skip
    chat = json.loads(parse_endpoint("http://a", "m", chat=True).body("say", 7, until_length=False))
    assert chat["messages"] == [{"role": "user", "content": "say"}]
    assert "ignore_eos" not in chat and "min_tokens" not in chat and "prompt" not in chat
    assert json.loads(parse_endpoint("http://a", "m").body([5, 6], 7))["prompt"] == [5, 6]

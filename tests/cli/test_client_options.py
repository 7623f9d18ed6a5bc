"""The options that say who may ask a server, and how much at most."""

import argparse

import pytest

from torchsplit_core.cli.arguments.clients import TOKEN_VARIABLE, access_of, add_client_options, limits_of
from torchsplit_core.serving.settings import AccessSettings, RequestLimits
from torchsplit_core.values import InputFault


def options(*words: str, host: str = "127.0.0.1") -> argparse.Namespace:
    made = argparse.ArgumentParser()
    add_client_options(made)
    return made.parse_args(words, argparse.Namespace(host=host))


def test_without_an_option_the_defaults_hold(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert limits_of(options()) == RequestLimits()
    assert access_of(options()) == AccessSettings(("127.0.0.1", "localhost", "::1"))
    assert access_of(options(host="0.0.0.0")).hosts == ("*",)


def test_every_limit_has_an_option(monkeypatch, tmp_path):
    words = (
        "--max-connections 5 --max-requests 6 --max-head-kib 7 --max-body-mib 8 --max-json-mib 9 --max-held-mib 10 "
        "--head-timeout-s 1 --body-timeout-s 2 --send-timeout-s 3 --keep-alive-s 4"
    )
    mib = 2**20
    assert limits_of(options(*words.split())) == RequestLimits(
        7 * 2**10, 1, 2, 3, 4, 5, 6, 8 * mib, 9 * mib, 10 * mib
    )
    (tmp_path / "token").write_text("sixteen-letters-or-more\nand a comment\n")
    found = access_of(options("--token-file", str(tmp_path / "token"), "--allowed-host", "Plan.Example.com"))
    assert found.token == "sixteen-letters-or-more" and found.hosts[-1] == "plan.example.com"
    monkeypatch.setenv(TOKEN_VARIABLE, "another-token-of-letters")
    assert access_of(options("--allowed-host", "*")) == AccessSettings(("*",), "another-token-of-letters")


@pytest.mark.parametrize(("words", "where"), [
    (["--max-connections", "0"], "--max-connections"),
    (["--max-head-kib", "-1"], "--max-head-kib"),
    (["--head-timeout-s", "nan"], "--head-timeout-s"),
    (["--keep-alive-s", "0"], "--keep-alive-s"),
])  # fmt: skip
def test_a_limit_out_of_range_is_named(words, where):
    with pytest.raises(InputFault) as caught:
        limits_of(options(*words))
    assert caught.value.where == where


@pytest.mark.parametrize("text", ["", "short", "with a space in the middle", "ümlaut-in-the-middle-of-it"])
def test_a_token_that_is_none_is_refused(text, tmp_path, monkeypatch):
    (tmp_path / "token").write_text(text)
    monkeypatch.setenv(TOKEN_VARIABLE, text)
    for words, where in ((["--token-file", str(tmp_path / "token")], "--token-file"), ([], TOKEN_VARIABLE)):
        with pytest.raises(InputFault) as caught:
            access_of(options(*words))
        assert caught.value.where == where
    with pytest.raises(InputFault, match="no such file"):
        access_of(options("--token-file", str(tmp_path / "none")))
    with pytest.raises(InputFault, match="--allowed-host"):
        access_of(options("--allowed-host", "http://a"))

"""The gate before the pages: who is asked for a login, who is let in, and nobody where the secrets are broken."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import streamlit as st
from streamlit.runtime.secrets import Secrets
from streamlit.testing.v1 import AppTest

from app import login
from tests.support.app.page import said
from tests.support.paths import ROOT
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Store, default_root

pytestmark = pytest.mark.slow

COOKIE_SECRET = "0123456789abcdef0123456789abcdef"
CLIENT_SECRET = "what the provider gave"
AUTH: dict[str, Any] = {
    "redirect_uri": "http://127.0.0.1:8501/oauth2callback",
    "cookie_secret": COOKIE_SECRET,
    "client_id": "torchsplit",
    "client_secret": CLIENT_SECRET,
    "server_metadata_url": "https://login.example.com/.well-known/openid-configuration",
}
ANN = {"is_logged_in": True, "email": "Ann@Example.com", "email_verified": True, "name": "Ann"}
LISTED = {"allowed_emails": ["ann@example.com", "@firm.example"]}

Visit = Callable[..., AppTest]


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch) -> None:
    """A home without secrets, in a process that has not asked for a login."""
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setattr(st, "secrets", Secrets())
    monkeypatch.setattr(login, "_required", threading.Event())


@pytest.fixture
def visit() -> Visit:
    """The dashboard as a visitor with these secrets and claims finds it."""

    def opened(secrets, user=None):
        test = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
        test.secrets = secrets
        test.user = user or {}
        test.run()
        assert not test.exception
        return test

    return opened


def labels(page: AppTest) -> list[str]:
    return [button.label for button in page.button]


def stays_outside(page: AppTest) -> None:
    """Nothing of the app was drawn or done: no page, no workspace, not even the store's folder."""
    assert [title.value for title in page.title] == ["TorchSplit"]
    assert "workspace" not in page.query_params
    assert not default_root().exists()
    shown = said(page)
    assert COOKIE_SECRET not in shown and CLIENT_SECRET not in shown


def is_inside(page: AppTest) -> None:
    assert [title.value for title in page.title] == ["Overview"]
    assert default_root().exists() and not Store().workspaces()  # a visit stores nothing


def test_without_a_section_nobody_is_asked(visit):
    for secrets in ({}, {"other": {"key": "value"}}):
        page = visit(secrets)
        assert [title.value for title in page.title] == ["Overview"]
        assert not {"Log in", "Log out"} & set(labels(page))
    assert login.is_request_admitted({})


def test_who_is_not_logged_in_sees_the_gate_alone(visit):
    for user in ({}, {"is_logged_in": False}, {"is_logged_in": "yes", "email": "ann@example.com"}):
        page = visit({"auth": AUTH}, user)
        stays_outside(page)
        assert labels(page) == ["Log in"]
        assert "log in with your account at login.example.com" in said(page)
        assert not page.error


def test_who_is_logged_in_is_inside_and_may_log_out(visit):
    page = visit({"auth": AUTH}, ANN)
    is_inside(page)
    assert [text.value for text in page.sidebar.text] == ["Ann@Example.com"]
    next(button for button in page.sidebar.button if button.label == "Log out").click().run()
    assert labels(page) == ["Log in"]
    assert [title.value for title in page.title] == ["TorchSplit"]


@pytest.mark.parametrize("claims", [
    {"email": "bob@example.com"},
    {"email": "bob@sub.firm.example"},
    {"email": "bob@firm.example.evil.example"},
    {"email": "firm.example"},
    {"email": "@firm.example"},
    {"email": "bob@evil.example,bob@firm.example"},
    {"email": "ann@example.com@evil.example"},
    {"email": ""},
    {"email": None},
    {"email": ["ann@example.com"]},
    {"email_verified": False},
    {"email_verified": None},
    {"email_verified": "true"},
    {"email_verified": 1},
    {"email": "bob@firm.example", "email_verified": None},
])  # fmt: skip
def test_who_is_not_on_the_list_is_refused(visit, claims):
    page = visit({"auth": AUTH, "torchsplit": LISTED}, ANN | claims)
    stays_outside(page)
    assert labels(page) == ["Log out"]
    assert "dashboard admits" in said(page)


def test_a_claim_that_is_missing_counts_as_not_verified(visit):
    claims = {key: value for key, value in ANN.items() if key != "email_verified"}
    stays_outside(visit({"auth": AUTH, "torchsplit": LISTED}, claims))


@pytest.mark.parametrize(
    "email", ["ann@example.com", "ANN@EXAMPLE.COM", "bob@firm.example", "Bob@Firm.Example"]
)
def test_who_is_on_the_list_is_inside(visit, email):
    is_inside(visit({"auth": AUTH, "torchsplit": LISTED}, ANN | {"email": email}))


def test_letters_that_only_look_alike_when_folded_are_other_letters():
    terms = login.LoginTerms("http://127.0.0.1", "login.example.com", frozenset({"kim@example.com"}))
    kelvin = "\N{KELVIN SIGN}im@example.com"
    assert kelvin.lower() == "kim@example.com"
    assert terms.refusal({"email": kelvin, "email_verified": True})
    assert terms.refusal({"email": "Kim@example.com", "email_verified": True}) is None


BROKEN: list[tuple[dict[str, Any], str]] = [
    *(({"auth": {key: AUTH[key] for key in AUTH if key != gone}}, gone) for gone in AUTH),
    *(({"auth": AUTH | {key: wrong}}, key) for key in AUTH for wrong in ("", " ", 7, ["x"], {})),
    ({"auth": {}}, "client_id"),
    ({"auth": {"google": AUTH}}, "client_id"),
    ({"auth": "yes"}, "section"),
    ({"auth": AUTH | {"cookie_secret": "x" * 31}}, "31 characters"),
    ({"auth": AUTH | {"client_kwargs": "openid"}}, "client_kwargs"),
    ({"auth": AUTH | {"allowed_emails": ["ann@example.com"]}}, "[torchsplit]"),
    ({"auth": AUTH, "allowed_emails": ["ann@example.com"]}, "[torchsplit]"),
    ({"torchsplit": LISTED}, "[auth]"),
    ({"allowed_emails": ["ann@example.com"]}, "[auth]"),
    *(
        ({"auth": AUTH, "torchsplit": own}, "allowed_emails")
        for own in (
            {}, "ann@example.com", {"allowed_email": ["ann@example.com"]}, LISTED | {"more": 1},
            *({"allowed_emails": found} for found in (
                [], "ann@example.com", [7], [""], ["@"], ["ann@"], ["example.com"], ["*@example.com"],
                [" ann@example.com"], ["ann@example.com, bob@example.com"], {"a": "b"},
            )),
        )
    ),
    *(
        ({"auth": AUTH | {"server_metadata_url": url}}, "server_metadata_url")
        for url in ("http://login.example.com/x", "login.example.com/x", "https://", "file:///etc/passwd", "http://[")
    ),
    *(
        ({"auth": AUTH | {"redirect_uri": uri}}, "redirect_uri")
        for uri in (
            "/oauth2callback", "127.0.0.1:8501/oauth2callback", "http://127.0.0.1:8501/", "http:///oauth2callback",
            "http://127.0.0.1:80/oauth2callback", "https://127.0.0.1:443/oauth2callback",
            "http://LOCALHOST/oauth2callback", "http://me@localhost/oauth2callback", "http://[/oauth2callback",
            "http://localhost:99999/oauth2callback", "http://localhost/oauth2callback?a=b",
            "ftp://localhost/oauth2callback",
        )
    ),
    ({"auth": AUTH | {"redirect_uri": "https://plan.example.com/oauth2callback"}}, "--host plan.example.com"),
]  # fmt: skip


@pytest.mark.parametrize(("secrets", "words"), BROKEN)
def test_a_broken_section_is_one_fault_that_names_no_secret(secrets, words, monkeypatch):
    monkeypatch.setattr(st.secrets, "_secrets", secrets)
    with pytest.raises(InputFault) as raised:
        login.login_terms()
    message = str(raised.value)
    assert words in message
    assert COOKIE_SECRET not in message and CLIENT_SECRET not in message and "x" * 31 not in message
    assert not login.is_request_admitted({})


def test_a_broken_section_lets_nobody_in_not_even_who_is_logged_in(visit):
    page = visit({"auth": AUTH | {"cookie_secret": "short"}}, ANN)
    stays_outside(page)
    assert len(page.error) == 1 and "cookie_secret" in said(page)
    assert labels(page) == []


@pytest.mark.parametrize(
    "content",
    [b"[auth\nclient_secret = 'abc'", b"[auth]\ncookie_secret = \"begun\nx", b"\xff\xfe\x00", b"= 1", b"[" * 50_000],
    ids=["header", "text", "encoding", "key", "deep"],
)  # fmt: skip
def test_secrets_that_cannot_be_read_let_nobody_in(visit, tmp_path, content):
    file = tmp_path / "person" / ".streamlit" / "secrets.toml"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    page = visit({}, ANN)
    stays_outside(page)
    assert [error.value.replace("\\", "") for error in page.error] == [
        "secrets.toml: cannot be read as TOML. Mend or remove the file."
    ]
    assert labels(page) == []


def test_a_folder_in_place_of_the_secrets_lets_nobody_in(visit, tmp_path):
    (tmp_path / "person" / ".streamlit" / "secrets.toml").mkdir(parents=True)
    page = visit({}, ANN)
    stays_outside(page)
    assert len(page.error) == 1


@pytest.mark.parametrize("module", ["authlib", "authlib.integrations.starlette_client"])
def test_without_authlib_nobody_gets_in(visit, monkeypatch, module):
    monkeypatch.setitem(sys.modules, "authlib.integrations.starlette_client", None)
    monkeypatch.setitem(sys.modules, module, None)
    page = visit({"auth": AUTH}, ANN)
    stays_outside(page)
    assert len(page.error) == 1 and "pip install Authlib httpx2" in said(page)


def test_secrets_that_vanish_do_not_open_the_door(visit):
    visit({"auth": AUTH})
    for secrets in ({}, {"other": 1}):
        page = visit(secrets)
        stays_outside(page)
        assert len(page.error) == 1 and "[auth]" in said(page)


def test_who_starts_the_server_is_told(capsys, monkeypatch):
    login.announce()
    assert capsys.readouterr().err == ""
    for own, who in ((None, "every account there"), (LISTED, "@firm.example, ann@example.com")):
        monkeypatch.setattr(st.secrets, "_secrets", {"auth": AUTH} | ({"torchsplit": own} if own else {}))
        login.announce()
        assert capsys.readouterr().err == f"A login at login.example.com is required; it admits {who}.\n"
    monkeypatch.setattr(st.secrets, "_secrets", {"auth": {}})
    login.announce()
    assert "nobody gets in" in capsys.readouterr().err


def test_who_came_by_another_address_is_led_to_that_of_the_login(visit):
    test = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
    test.secrets = {"auth": AUTH}
    test.context = {"url": "http://localhost:8501/Plan"}
    test.run()
    stays_outside(test)
    assert labels(test) == []
    assert "log in at its address http://127.0.0.1:8501" in said(test)

"""Who may see the dashboard: Streamlit's login by OpenID Connect, if its secrets have an [auth] section.

A fault in those secrets keeps everyone out; without the section there is no login.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

# Not public, and so pinned with Streamlit: a login must count for files exactly where it counts for pages.
from streamlit.web.server.starlette import starlette_websocket as websocket
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME

from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.serving.hosts import is_loopback

CALLBACK = "/oauth2callback"
"""Where Streamlit waits for the provider's answer."""
COOKIE_SECRET_LENGTH = 32
"""Whoever guesses the secret can forge a login: 32 random hexadecimal digits are 128 bits."""
GUIDE = "docs/guides/shared-server.md has an example."
ALLOWED = "allowed_emails"
OPEN_SECRETS = Path(__file__).resolve().parent.parent / ".streamlit" / "secrets.toml"
"""Isolated code may read the program's folder, for the modules in it."""
OWN_PORT = {"http": 80, "https": 443}

_required = threading.Event()
"""Set once this process has required a login: a secrets file that disappears later does not lift that."""


@dataclass(frozen=True, slots=True)
class LoginTerms:
    """What a visitor needs: `origin` is the dashboard's address, `provider` a host, `emails` the list in lower case."""

    origin: str
    provider: str
    emails: frozenset[str] | None
    """Addresses, and domains as "@example.com"; None: every account of the provider."""

    def refusal(self, user: Mapping[str, Any]) -> str | None:
        """Why an account is refused; None where it is admitted."""
        if self.emails is None:
            return None
        email = user.get("email")
        # An address that the provider did not verify is whatever the owner of the account wrote there.
        if not isinstance(email, str) or user.get("email_verified") is not True:
            return "This dashboard admits by e-mail address, and the login gave none that its provider has verified."
        folded = _normalise(email)
        name, *domain = folded.split("@")
        if not name or len(domain) != 1 or self.emails.isdisjoint((folded, f"@{domain[0]}")):
            return f"{email} is not among those whom this dashboard admits."
        return None


def is_admitted() -> bool:
    """Whether the app may run for this visitor; if not, the page says why and has the button that helps."""
    try:
        terms = login_terms()
    except InputFault as fault:
        st.title("TorchSplit", anchor=False)
        st.error(escape_markdown(str(fault)))
        return False
    if terms is None:
        return True
    if st.user.get("is_logged_in") is not True:
        _render_gate(terms)
        return False
    if refusal := terms.refusal(st.user):
        st.title("TorchSplit", anchor=False)
        st.text(refusal)
        st.button("Log out", on_click=st.logout)
        return False
    with st.sidebar.container(key="account"):
        st.text(_account(st.user))
        st.button("Log out", on_click=st.logout)
    return True


def is_request_admitted(cookies: Mapping[str, str]) -> bool:
    """Whether a request outside the pages' sessions (an upload, a download) comes from an admitted user."""
    try:
        terms = login_terms()
    except InputFault:
        return False
    if terms is None:
        return True
    signed = websocket._get_signed_cookie_with_chunks(dict(cookies), USER_COOKIE_NAME)
    user = websocket._parse_decoded_user_cookie(signed, terms.origin) if signed else {}
    return user.get("is_logged_in") is True and terms.refusal(user) is None


def announce() -> None:
    """Tell the operator who must log in and who is admitted, or why nobody gets in."""
    try:
        terms = login_terms()
    except InputFault as fault:
        print(f"Login: {fault} Until then nobody gets in.", file=sys.stderr)
        return
    if terms is not None:
        who = "every account there" if terms.emails is None else ", ".join(sorted(terms.emails))
        print(f"A login at {terms.provider} is required; it admits {who}.", file=sys.stderr)
        if OPEN_SECRETS.exists():
            closed = "~/.streamlit/secrets.toml is closed to it"
            print(f"note: a model that is executed may read {OPEN_SECRETS}; {closed}", file=sys.stderr)


def login_terms() -> LoginTerms | None:
    """What the secrets demand; None without [auth]. Raises InputFault, without a secret in it, where they are broken.

    They are read on every run, so that a change counts from the next run on.
    """
    secrets = _secrets()
    auth, app_section = secrets.get("auth"), secrets.get("torchsplit")
    if auth is not None:
        _required.set()
    elif ALLOWED in secrets or app_section is not None or _required.is_set():
        raise InputFault("[auth]", "is missing from Streamlit's secrets, though they ask for a login", GUIDE)
    else:
        return None
    if not isinstance(auth, Mapping):
        raise InputFault("auth", f"is of the type {type(auth).__name__}, not the section [auth]", GUIDE)
    if ALLOWED in secrets or ALLOWED in auth:
        raise InputFault(ALLOWED, "stands outside of the section [torchsplit]", "Move it there.")
    _check_library()
    _check_secrets(auth)
    provider = _provider(_text(auth, "server_metadata_url"))
    return LoginTerms(_origin(_text(auth, "redirect_uri")), provider, _emails(app_section))


def _secrets() -> Mapping[str, Any]:
    try:
        values: Mapping[str, Any] = st.secrets.to_dict()
    except (OSError, ValueError, RecursionError) as fault:
        if getattr(fault, "error_id", None) == "no-secrets-found":
            return {}
        # The parser's own words may quote the file.
        raise InputFault("secrets.toml", "cannot be read as TOML", "Mend or remove the file.") from None
    return values


def _text(auth: Mapping[str, Any], key: str) -> str:
    """A text of [auth]. Raises InputFault, which does not show the value."""
    value = auth.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InputFault(f"[auth] {key}", "is missing" if value is None else "is empty or no text", GUIDE)
    return value


def _check_secrets(auth: Mapping[str, Any]) -> None:
    _text(auth, "client_id")
    _text(auth, "client_secret")
    length = len(_text(auth, "cookie_secret"))
    if length < COOKIE_SECRET_LENGTH:
        raise InputFault(
            "[auth] cookie_secret",
            f"has {length} characters, needs at least {COOKIE_SECRET_LENGTH} at random: who guesses it is logged in",
            "Make one with python -c 'import secrets; print(secrets.token_hex(32))'.",
        )
    if not isinstance(auth.get("client_kwargs", {}), Mapping):
        raise InputFault("[auth] client_kwargs", "is not a section", GUIDE)


def _check_library() -> None:
    try:
        import authlib.integrations.starlette_client  # noqa: F401
    except ImportError as missing:
        problem = f"{missing.name or 'Authlib'} is not installed, which a login needs"
        raise InputFault("[auth]", problem, "Run pip install Authlib httpx2.") from None


def _provider(url: str) -> str:
    """The host of the discovery document. It has keys and addresses, so it must not be altered in transit."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = urlsplit(""), ""
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        problem = f"has {parts.scheme or 'no scheme'} and {host or 'no host'}, and is no https address"
        raise InputFault("[auth] server_metadata_url", f"{problem} (http is for this machine alone)", GUIDE)
    return host


def _origin(url: str) -> str:
    """The dashboard's address as a browser writes it, since Streamlit compares the two letter by letter."""
    url = url.replace("{port}", str(st.get_option("server.port")))
    try:
        parts = urlsplit(url)
        own_port = parts.port == OWN_PORT.get(parts.scheme)
    except ValueError:
        parts, own_port = urlsplit(""), False
    if (
        parts.scheme not in OWN_PORT
        or not parts.hostname
        or "@" in parts.netloc
        or not parts.path.endswith(CALLBACK)
        or parts.query
        or parts.fragment
        or own_port
        or parts.netloc != parts.netloc.lower()
    ):
        raise InputFault(
            "[auth] redirect_uri",
            f"is {quoted(url)}, not the dashboard's address as a browser shows it (lower case, without :80 or :443) "
            f"followed by {CALLBACK}",
            f"Write for example https://plan.example.com{CALLBACK}.",
        )
    if not websocket.is_host_allowed(parts.netloc):
        raise InputFault(
            "[auth] redirect_uri",
            f"the dashboard does not answer to its host {quoted(parts.hostname)}",
            f"Start it with torchsplit app --host {parts.hostname}, or correct the address.",
        )
    return f"{parts.scheme}://{parts.netloc}"


def _emails(section: object) -> frozenset[str] | None:
    """The list of [torchsplit]; None without the section. An unknown key may be a misspelt list, so it is a fault."""
    if section is None:
        return None
    entries = section.get(ALLOWED) if isinstance(section, Mapping) and set(section) == {ALLOWED} else None
    if not isinstance(entries, list) or not entries or not all(map(_is_entry, entries)):
        problem = "is missing, empty, no list, or not the only key of its section"
        if isinstance(entries, list) and entries:
            problem = f"is {quoted(entries)}, with an entry that is no address or domain"
        remedy = 'Give a list of addresses ("ann@example.com") and domains ("@example.com").'
        raise InputFault(f"[torchsplit] {ALLOWED}", problem, remedy)
    return frozenset(map(_normalise, entries))


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, str) or entry != entry.strip() or " " in entry:
        return False
    _, at, domain = entry.rpartition("@")
    return bool(at and domain) and "*" not in entry


def _normalise(email: str) -> str:
    """In lower case, unless beyond ASCII, where some letters become others (the Kelvin sign a k)."""
    return email.lower() if email.isascii() else email


def _render_gate(terms: LoginTerms) -> None:
    """The gate. It leads to the address of redirect_uri first: from another one a login returns without its cookie."""
    st.title("TorchSplit", anchor=False)
    visited = urlsplit(st.context.url or terms.origin)
    if f"{visited.scheme}://{visited.netloc}" == terms.origin:
        st.write(escape_markdown(f"To see this dashboard, log in with your account at {terms.provider}."))
        st.button("Log in", type="primary", on_click=st.login)
    else:
        st.write(escape_markdown(f"To see this dashboard, log in at its address {terms.origin}."))
        st.link_button("Log in", terms.origin, type="primary")


def _account(user: Mapping[str, Any]) -> str:
    names = (user.get(key) for key in ("email", "name", "sub"))
    return next((name[:120] for name in names if isinstance(name, str) and name), "logged in")

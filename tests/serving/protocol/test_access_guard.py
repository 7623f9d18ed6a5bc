"""Who may ask: names, web pages, tokens, certificates."""

from typing import Any, cast

import pytest

from torchsplit_core.serving.protocol.access_guard import AccessGuard, load_tls_context
from torchsplit_core.serving.protocol.http_server import Request
from torchsplit_core.serving.protocol.tensors import RequestFault
from torchsplit_core.serving.settings import AccessSettings
from torchsplit_core.values import InputFault
from torchsplit_core.values.serving.hosts import allowed_hosts


def status(guard: AccessGuard, path: str = "/v2", **headers: str) -> int:
    """200, or the status of the refusal."""
    made = {name.encode(): value.encode() for name, value in headers.items()}
    try:
        guard.check(Request(cast(Any, None), "GET", path, made))
    except RequestFault as fault:
        return fault.status
    return 200


@pytest.mark.parametrize(("host", "wanted"), [
    ("localhost", 200), ("localhost:8000", 200), ("127.0.0.1:1", 200), ("[::1]:8000", 200), ("localhost.", 200),
    ("LOCALHOST", 200), ("plan.example.com:443", 200), ("evil.example", 403), ("", 403), ("a@localhost", 403),
    ("localhost.evil.example", 403), ("[::1", 403), ("127.0.0.1.evil.example:8000", 403),
    ("localhost:8er", 403), ("[::1]evil", 403), ("evil[::1]:80", 403), ("localhost:80\x10", 403),
])  # fmt: skip
def test_on_loopback_only_this_machine_s_names_and_those_given_are_answered(host, wanted):
    guard = AccessGuard(AccessSettings(allowed_hosts("127.0.0.1", ["plan.example.com"])))
    # Twice, for what was found is kept.
    assert [status(guard, host=host) for _ in range(2)] == [wanted] * 2
    assert status(AccessGuard(AccessSettings(allowed_hosts("0.0.0.0", []))), host=host) == 200


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [("http://localhost:8000", 200), ("https://localhost:8000", 200), ("http://localhost:9999", 403),
     ("http://evil.example", 403), ("null", 403), ("", 403)],
)  # fmt: skip
def test_a_web_page_of_another_origin_is_refused(origin, wanted):
    assert status(AccessGuard(AccessSettings()), host="localhost:8000", origin=origin) == wanted


def test_a_token_is_asked_for_everywhere_but_by_probes():
    guard = AccessGuard(AccessSettings(token="s3cret-s3cret-s3cret"))
    assert status(guard, "/v2/health/live") == status(guard, "/v2/health/ready") == 200
    for path in ("/v2", "/metrics", "/torchsplit/tallies", "/v2/models/m/infer"):
        assert status(guard, path) == 401
        assert status(guard, path, authorization="Bearer s3cret-s3cret-s3cre") == 401
        assert status(guard, path, authorization="Basic s3cret-s3cret-s3cret") == 401
        assert status(guard, path, authorization="bearer s3cret-s3cret-s3cret") == 200


def test_files_that_are_no_certificate_and_key_are_named(tmp_path):
    (tmp_path / "a.pem").write_text("nothing")
    pem, missing = str(tmp_path / "a.pem"), str(tmp_path / "none.pem")
    assert load_tls_context(AccessSettings()) is None
    for access, words in (
        (AccessSettings(certificate=pem), "--tls-key: is missing"),
        (AccessSettings(key=pem), "--tls-cert: is missing"),
        (AccessSettings(certificate=missing, key=pem), "no such file"),
        (AccessSettings(certificate=pem, key=pem), "are no certificate and key in PEM"),
    ):
        with pytest.raises(InputFault, match=words):
            load_tls_context(access)

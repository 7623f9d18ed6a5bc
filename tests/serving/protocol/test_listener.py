"""Where a server listens: a port that is taken is told from an address that is none of this machine."""

import socket

import pytest

from torchsplit_core.serving.protocol.listener import open_listener, url_of
from torchsplit_core.values import InputFault


def test_a_port_that_is_taken_is_named_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputFault) as caught, open_listener("127.0.0.1", port):
            pass
    assert caught.value.where == "--port" and f"127.0.0.1:{port}" in caught.value.problem
    assert "choose another --port" in caught.value.remedy
    with open_listener("127.0.0.1", 0) as listener:
        assert url_of("127.0.0.1", listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("host", ["203.0.113.9", "no such host", "a..b", "x" * 300])
def test_an_address_of_another_machine_or_of_none_is_the_hosts_fault(host):
    with pytest.raises(InputFault) as caught, open_listener(host, 0):
        pass
    assert caught.value.where == "--host" and host[:50] in caught.value.problem
    assert "another --port" not in caught.value.remedy

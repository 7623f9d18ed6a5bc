"""Values between the stages of a cut model arrive with their bits, strides and alignment."""

import socket
import threading
from io import BufferedReader, BytesIO
from typing import Any

import pytest
import torch

from torchsplit_core.stages.bit_equal import same_bits
from torchsplit_core.stages.tensor_transport import encode_values, receive_values


def transported(values: dict[str, Any]) -> dict[str, Any]:
    """The values as they come out at the other end of a socket."""
    sender, receiver = socket.socketpair()
    with sender, receiver, receiver.makefile("rb") as stream:
        message = b"".join(encode_values(values))
        thread = threading.Thread(target=sender.sendall, args=(message,))
        thread.start()
        received = receive_values(stream)
        thread.join()
    return received


BASE = torch.arange(2 * 3 * 40, dtype=torch.float32).reshape(2, 3, 40)
SHAPES = {
    "dense": BASE,
    "transposed": BASE.transpose(0, 2),
    "a chunk": BASE.chunk(4, dim=2)[1],
    "an offset": BASE.view(-1)[7:50],
    "a step": BASE[:, :, ::3],
    "expanded": BASE[:, :1, :5].expand(2, 6, 5),
    "windows": BASE.view(-1).unfold(0, 8, 2),
    "overlap and gap": torch.arange(9.0).as_strided((2, 2, 2), (5, 1, 1)),
    "no rows": BASE[:0],
    "a number in a tensor": torch.tensor(3.5),
    "NaN and -0.0": torch.tensor([float("nan"), -0.0, float("inf")]),
    "large": torch.randn(300, 1000),
    **{
        str(dtype): torch.ones(5).to(dtype)
        for dtype in (torch.bool, torch.bfloat16, torch.int64, torch.complex64)
    },
    "conjugate": torch.randn(3, 2, dtype=torch.complex64).conj(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_tensor_arrives_with_its_bits_strides_and_place_in_a_cache_line(name):
    sent = SHAPES[name]
    received = transported({"x": sent})["x"]
    assert same_bits(received, sent) and received.stride() == sent.resolve_conj().stride()
    if sent.numel():
        assert (received.data_ptr() - sent.resolve_conj().data_ptr()) % 64 == 0 or sent.is_conj()


def test_numbers_keep_their_type():
    received = transported({"n": 7, "f": 0.1, "b": True, "x": BASE})
    assert [(type(v), v) for v in list(received.values())[:3]] == [(int, 7), (float, 0.1), (bool, True)]


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(TypeError, match="sparse"):
        encode_values({"x": BASE[0].to_sparse()})
    with pytest.raises(TypeError, match="x is a str"):
        encode_values({"x": "text"})


MESSAGE = b"".join(encode_values({"x": BASE}))


@pytest.mark.parametrize("content", [b"", b"\x08\x00", b"\xff" * 8, MESSAGE[:100], MESSAGE[:-1]])
def test_a_message_that_is_cut_off_is_no_message(content):
    with pytest.raises(EOFError):
        receive_values(BufferedReader(BytesIO(content)))

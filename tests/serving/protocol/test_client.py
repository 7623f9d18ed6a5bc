"""What a client sends is what a server reads, and what that answers is what the client gets: bytes and JSON."""

import json
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from torchsplit_core.serving.protocol.client import RawTensor, decode_outputs, encode_request
from torchsplit_core.serving.protocol.http_client import ClientConnection
from torchsplit_core.serving.protocol.tensors import TensorPort, encode_response, parse_request
from torchsplit_core.values.serving.datatypes import OF_NUMPY, OF_TORCH, SIZES

TYPES = sorted(OF_NUMPY)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[RawTensor, np.ndarray[Any, Any]]:
    datatype = draw(st.sampled_from(TYPES))
    plain = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else {}
    dtype = np.dtype(OF_NUMPY[datatype])
    shape = draw(arrays.array_shapes(max_dims=3, max_side=4))
    values = draw(arrays.arrays(dtype, shape, elements=arrays.from_dtype(dtype, **plain)))
    return RawTensor("x", datatype, shape, values.tobytes()), values


@given(tensors(), st.booleans())
def test_bytes_go_to_a_server_and_back(drawn, free):
    tensor, _ = drawn
    port = TensorPort("x", tensor.datatype, tuple(-1 if free else size for size in tensor.shape[1:]))
    asked = parse_request(*encode_request([tensor]), (port,), ["x"])
    assert (asked.rows, asked.shapes, bytes(asked.inputs[0])) == (
        tensor.shape[0], (tensor.shape,), tensor.data,
    )  # fmt: skip
    given_back = TensorPort("x", tensor.datatype, tensor.shape[1:])
    body, length = encode_response(asked, "m", (given_back,), asked.inputs)
    assert decode_outputs(body, str(length)) == (tensor,)


@given(tensors())
def test_numbers_go_to_a_server_and_back(drawn):
    tensor, values = drawn
    port = TensorPort("x", tensor.datatype, tensor.shape[1:])
    entry = {"name": "x", "datatype": tensor.datatype, "shape": list(tensor.shape), "data": values.tolist()}
    asked = parse_request(json.dumps({"inputs": [entry]}).encode(), None, (port,), ["x"])
    assert bytes(asked.inputs[0]) == tensor.data
    body, length = encode_response(asked, "m", (port,), asked.inputs)
    assert length is None and json.loads(body)["outputs"][0]["data"] == values.reshape(-1).tolist()


def test_every_type_has_a_size():
    assert set(SIZES) == set(OF_TORCH.values()) == set(OF_NUMPY) | {"BF16"}
    assert all(np.dtype(name).itemsize == SIZES[datatype] for datatype, name in OF_NUMPY.items())


def answer(**change: Any) -> tuple[bytes, str]:
    entry = {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}} | change
    text = json.dumps({"outputs": [entry]}).encode()
    return text + bytes(8), str(len(text))


def test_an_answer_in_bytes_is_read():
    assert decode_outputs(*answer()) == (RawTensor("y", "FP32", (2,), bytes(8)),)


@pytest.mark.parametrize(("change", "words"), [
    ({"parameters": {"binary_data_size": 3}}, "of 8 at its shape"),
    ({"parameters": {"binary_data_size": "8"}}, "of 8 at its shape"),
    ({"shape": [4], "parameters": {"binary_data_size": 16}}, "8 are there"),
    ({"shape": [1], "parameters": {"binary_data_size": 4}}, "4 bytes behind"),
    ({"shape": [-1, -2]}, "has the shape"), ({"shape": [float("inf")]}, "has the shape"),
    ({"shape": 2}, "TypeError"), ({"datatype": "TEXT"}, "TEXT"), ({"datatype": None}, "None"),
    ({"parameters": {}}, "binary_data_size"), ({"parameters": None}, "TypeError"),
])  # fmt: skip
def test_an_answer_without_its_bytes_is_none(change, words):
    with pytest.raises(ValueError, match=words):
        decode_outputs(*answer(**change))


@pytest.mark.parametrize(("body", "length"), [
    (b"", None), (b"{}", None), (b"[]", "2"), (b'{"outputs": 3}', None), (b'{"outputs": [3]}', None),
    (b"[" * 100_000, None), (b'{"outputs": []}', "x"), (b'{"outputs": []}', "99"), (b"\xff", None),
])  # fmt: skip
def test_what_is_no_answer_is_told_as_such(body, length):
    with pytest.raises(ValueError, match=r"no outputs|behind"):
        decode_outputs(body, length)


@pytest.mark.parametrize(
    ("unsent", "header", "reusable"),
    [(0, b"", True), (5, b"", False), (0, b"connection: close\r\n", False)],
    ids=["request read", "answered before the request was read", "closed by the server"],
)
def test_a_connection_is_used_again_only_where_both_sides_are_done(
    unsent: int, header: bytes, reusable: bool
) -> None:
    connection = ClientConnection()
    connection.connection_made(mock.Mock(get_write_buffer_size=lambda: unsent))
    results: list[Any] = []
    connection.send(b"POST / HTTP/1.1\r\n\r\n", b"12345", on_result=results.append)
    connection.data_received(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n" + header + b"\r\nno")
    assert [(result.status, result.body) for result in results] == [(413, b"no")]
    assert connection.reusable == reusable

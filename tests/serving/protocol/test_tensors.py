"""What clients send, to raw rows and back; whatever does not fit is said in words."""

import json
import struct
from typing import Any

import numpy as np
import pytest

from torchsplit_core.serving.protocol.tensors import (
    RequestFault,
    TensorPort,
    encode_response,
    parse_request,
    split_outputs,
)

IDS = TensorPort("ids", "INT64", (3,))
MASK = TensorPort("mask", "FP32", ())
OUT = TensorPort("output_0", "FP32", (2,))
GIVEN = ["output_0", "output_1"]


def body(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def ids(**change: Any) -> dict[str, Any]:
    return {"name": "ids", "datatype": "INT64", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]} | change


def mask(**change: Any) -> dict[str, Any]:
    return {"name": "mask", "datatype": "FP32", "shape": [2], "data": [0.5, 1]} | change


def test_json_flat_and_nested():
    flat = parse_request(body(mask(), ids()), None, (IDS, MASK), GIVEN)
    nested = parse_request(body(mask(), ids(data=[[1, 2, 3], [4, 5, 6]])), None, (IDS, MASK), GIVEN)
    assert flat.rows == 2 and flat.inputs == nested.inputs
    assert np.frombuffer(flat.inputs[0], np.int64).tolist() == [1, 2, 3, 4, 5, 6]
    assert np.frombuffer(flat.inputs[1], np.float32).tolist() == [0.5, 1.0]


def test_binary_tensors_are_not_touched():
    raw = np.arange(6, dtype=np.int64).tobytes()
    binary = ids(parameters={"binary_data_size": len(raw)})
    del binary["data"]
    head = body(binary, mask(), id="7", parameters={"binary_data_output": True, "timeout": 1500})
    request = parse_request(head + raw, len(head), (IDS, MASK), GIVEN)
    assert bytes(request.inputs[0]) == raw
    assert (request.id, request.binary, request.timeout_s) == ("7", True, 0.0015)


@pytest.mark.parametrize(("change", "words"), [
    ({"name": "what"}, "unknown input 'what'"),
    ({"datatype": "INT32"}, "model takes INT64"),
    ({"datatype": None}, "model takes INT64"),
    ({"shape": [2, 4], "data": [1] * 8}, "has the shape"),
    ({"shape": [2]}, "has the shape"),
    ({"shape": [-1, 3]}, "has -1 rows, outside 1 to 4096"),
    ({"shape": [2, -3]}, "has the shape"),
    ({"shape": [True, 3]}, "has the shape"),
    ({"shape": "2,3"}, "has the shape"),
    ({"shape": [0, 3], "data": []}, "has 0 rows"),
    ({"shape": [5000, 3], "data": [1] * 15000}, "has 5000 rows, outside 1 to 4096"),
    ({"data": [1, 2, 3]}, "as INT64 of the shape [2, 3]: it holds 3 numbers"),
    ({"data": [[1, 2], [3, 4], [5, 6]]}, "it holds 6 numbers in the shape [3, 2]"),
    ({"data": [1.5, 2, 3, 4, 5, 6]}, "as INT64 of the shape [2, 3]: it holds float64"),
    ({"data": ["a"] * 6}, "it holds text"),
    ({"data": [None] * 6}, "it holds other things than numbers"),
    ({"data": [True] * 6}, "it holds bool"),
    ({"data": [[1, 2, 3], [4, 5]]}, "ids"),
    ({"data": [2**70] * 6}, "ids"),
    ({"data": None}, "neither a list of data nor"),
    ({"parameters": {"binary_data_size": 7}}, "is 7, and its shape takes 48 bytes"),
    ({"parameters": {"binary_data_size": 48}}, "0 bytes in the body, and its shape takes 48"),
    ({"parameters": {"shared_memory_region": "x"}}, "shared memory"),
    ({"parameters": 3}, "parameters"),
])  # fmt: skip
def test_what_does_not_fit_is_said(change, words):
    with pytest.raises(RequestFault, match="." if not words else None) as caught:
        parse_request(body(ids(**change), mask()), None, (IDS, MASK), GIVEN)
    assert words in str(caught.value) and caught.value.status == 400


@pytest.mark.parametrize(("text", "length", "words"), [
    (b"{", None, "not JSON"), (b"[]", None, "JSON object"), (b"{}", None, "list of inputs"),
    (b'{"inputs": 3}', None, "list of inputs"), (b'{"inputs": [3]}', None, "unknown input None"),
    (b'{"inputs": [{"name": ["ids"]}]}', None, "unknown input ['ids']"),
    (b'{"inputs": []}', None, "input ids: is missing"), (b"x" * 8, 20, "is 20, and the body has 8 bytes"),
    (b"\xff\xfe", None, "not JSON"), (b"[" * 100_000, None, "not JSON"),
    (body(ids(), ids()), None, "given twice"),
    (body(ids(), mask(shape=[3], data=[1, 2, 3])), None, "(2, 3)"),
    (body(ids(), mask()) + b"more", len(body(ids(), mask())), "4 bytes behind"),
    (body(ids(), mask(), outputs=[{}]), None, "is not an object with a name"),
    (body(ids(), mask(), outputs={}), None, "outputs: are {}, not a list"),
    (body(ids(), mask(), outputs=[{"name": "x", "parameters": {"classification": 3}}]), None, "classification"),
    (body(ids(), mask(), outputs=[{"name": "x"}]), None, "unknown output 'x'. Known outputs: output_0, output_1."),
    (body(ids(), mask(), parameters={"timeout": "soon"}), None, "timeout"),
])  # fmt: skip
def test_bodies_that_are_no_request(text, length, words):
    with pytest.raises(RequestFault) as caught:
        parse_request(text, length, (IDS, MASK), GIVEN)
    assert words in str(caught.value)


def test_small_numbers_and_halves():
    port = TensorPort("x", "BF16", ())
    request = parse_request(
        body({"name": "x", "datatype": "BF16", "shape": [2], "data": [1.0, -2.5]}), None, (port,), ["y"]
    )
    assert struct.unpack("<2H", request.inputs[0]) == (0x3F80, 0xC020)
    answer, length = encode_response(request, "m", (TensorPort("y", "BF16", ()),), [bytes(request.inputs[0])])
    assert length is None and json.loads(answer)["outputs"][0]["data"] == [1.0, -2.5]
    small = TensorPort("x", "INT8", ())
    with pytest.raises(RequestFault, match="it holds 300"):
        parse_request(
            body({"name": "x", "datatype": "INT8", "shape": [1], "data": [300]}), None, (small,), []
        )
    truth = TensorPort("x", "BOOL", ())
    parse_request(body({"name": "x", "datatype": "BOOL", "shape": [1], "data": [True]}), None, (truth,), [])
    with pytest.raises(RequestFault, match="BOOL"):
        parse_request(body({"name": "x", "datatype": "BOOL", "shape": [1], "data": [1]}), None, (truth,), [])


def test_an_answer_in_json_and_bytes():
    raw = np.array([[1, 2], [3, 4]], np.float32).tobytes()
    both = (OUT, TensorPort("output_1", "FP32", (2,)))
    asked = body(
        ids(),
        mask(),
        outputs=[{"name": "output_1", "parameters": {"binary_data": True}}, {"name": "output_0"}],
    )
    answer, length = encode_response(
        parse_request(asked, None, (IDS, MASK), GIVEN), "m", both, [raw, raw[::-1]]
    )
    assert length is not None and answer[length:] == raw[::-1]
    data = json.loads(answer[:length])
    assert data["model_name"] == "m" and "id" not in data
    assert data["outputs"][1] == {
        "name": "output_0", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4],
    }  # fmt: skip


def test_answers_of_another_form_are_found():
    good = np.zeros((3, 2), np.float32).tobytes()
    assert [bytes(block) for block in split_outputs([(3, 2)], ["float32"], good, 3, (OUT,))] == [good]
    for shapes, dtypes, payload, rows in (
        ([(3, 3)], ["float32"], good, 3), ([(3, 2)], ["float64"], good, 3), ([(3, 2)], ["float32"], good[:-1], 3),
        ([(3, 2)], ["float32"], good, 2), ([], [], good, 3),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            split_outputs(shapes, dtypes, payload, rows, (OUT,))
    with pytest.raises(ValueError, match="0 tensors, not 1"):
        split_outputs([], [], b"", 3, (OUT,))

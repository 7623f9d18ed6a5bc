"""Tensors on the wire: what is written is read back, in JSON and in binary."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from torchsplit_core.serving.routing.wire import DTYPES, Tensor, WireFault, read, write

TYPES = sorted(DTYPES)


@given(st.data(), st.sampled_from(TYPES), st.booleans())
def test_what_is_written_is_read_back(data: st.DataObject, datatype: str, as_json: bool) -> None:
    shape = data.draw(arrays.array_shapes(max_dims=3, max_side=4))
    plain = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else {}
    dtype = np.dtype(DTYPES[datatype])
    values = data.draw(arrays.arrays(dtype, shape, elements=arrays.from_dtype(dtype, **plain)))
    tensor = Tensor("x", datatype, shape, values.tobytes())
    body, length = write({}, "inputs", [tensor], frozenset({"x"} if as_json else ()))
    assert (length is None) == as_json
    (back,) = read(body, length, "inputs").tensors
    assert back == tensor


def test_bf16_goes_as_bytes_alone() -> None:
    tensor = Tensor("x", "BF16", (2,), b"\0\x3f\0\x3f")
    body, length = write({}, "inputs", [tensor])
    assert read(body, length, "inputs").tensors == (tensor,)
    with pytest.raises(WireFault, match="binary"):
        write({}, "outputs", [tensor], frozenset({"x"}))
    entry = {"name": "x", "datatype": "BF16", "shape": [1], "data": [1.0]}
    with pytest.raises(WireFault, match="binary"):
        read(json.dumps({"inputs": [entry]}).encode(), None, "inputs")


@pytest.mark.parametrize("size", [3, 9, -1, 1.5, "8"])
def test_bytes_that_do_not_fit_the_shape(size: object) -> None:
    entry = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [entry]}).encode()
    with pytest.raises(WireFault, match="8 bytes"):
        read(text + bytes(8), str(len(text)), "inputs")


def test_bytes_that_no_tensor_has() -> None:
    text = json.dumps({"inputs": []}).encode()
    with pytest.raises(WireFault, match="follow"):
        read(text + b"x", str(len(text)), "inputs")

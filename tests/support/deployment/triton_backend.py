"""A stand-in for Triton with its Python backend: `triton_python_backend_utils` as documented, and ensembles by mapping.

Of https://github.com/triton-inference-server/python_backend: the calls that a model.py may make. A repository is read
as Triton reads it, its configurations by Triton's own protobuf; requests of a batch are given to `execute` together.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import triton_to_np_dtype

Values = Mapping[str, np.ndarray]


class TritonError(Exception):
    def message(self) -> str:
        return str(self.args[0])


class Tensor:
    def __init__(self, name: str, values: np.ndarray) -> None:
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._values

    def to_dlpack(self) -> Any:
        return torch.utils.dlpack.to_dlpack(torch.from_numpy(self._values))

    @staticmethod
    def from_dlpack(name: str, capsule: Any) -> Tensor:
        return Tensor(name, torch.utils.dlpack.from_dlpack(capsule).numpy())


@dataclass
class InferenceRequest:
    """What `execute` gets."""

    tensors: list[Tensor]

    def inputs(self) -> list[Tensor]:
        return self.tensors


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return next((one for one in request.inputs() if one.name() == name), None)


def backend() -> ModuleType:
    """The module that Triton offers to a model.py."""
    module = ModuleType("triton_python_backend_utils")
    for known in (TritonError, Tensor, InferenceRequest, InferenceResponse, get_input_tensor_by_name):
        setattr(module, known.__name__, known)
    return module


class Repository:
    """A model repository; `srv` is what the container has at /srv, `servers` replaces the servers' addresses."""

    def __init__(
        self,
        folder: Path,
        srv: Path,
        monkeypatch: pytest.MonkeyPatch,
        servers: Mapping[str, str] | None = None,
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "triton_python_backend_utils", backend())
        self.configs: dict[str, Any] = {}
        self.models: dict[str, Any] = {}
        for path in sorted(folder.iterdir()):
            text = (path / "config.pbtxt").read_text().replace("/srv/", f"{srv}/")
            for known, other in (servers or {}).items():
                text = text.replace(known, other)
            config = text_format.Parse(text, model_config_pb2.ModelConfig())
            self.configs[path.name] = config
            if config.backend == "python":
                self.models[path.name] = self._started(path, config)

    def _started(self, path: Path, config: Any) -> Any:
        space: dict[str, Any] = {"__name__": "model"}
        exec(compile((path / "1" / "model.py").read_text(), str(path), "exec"), space)
        model = space["TritonPythonModel"]()
        told = json_format.MessageToJson(config, preserving_proto_field_name=True)
        kind = model_config_pb2.ModelInstanceGroup.Kind.Name(config.instance_group[0].kind)
        model.initialize({
            "model_config": told,
            "model_name": path.name,
            "model_instance_kind": kind.removeprefix("KIND_"),
            "model_instance_device_id": "0",
        })  # fmt: skip
        return model

    def batch(self, name: str, requests: Sequence[Values]) -> list[InferenceResponse]:
        """What one call of `execute` answers to these requests."""
        config = self.configs[name]
        assert sum(len(next(iter(request.values()))) for request in requests) <= config.max_batch_size
        asked = [InferenceRequest([Tensor(key, value) for key, value in one.items()]) for one in requests]
        # In a thread, as in Triton's own process: a test's thread may have somebody's event loop running.
        with ThreadPoolExecutor(1) as thread:
            found: list[InferenceResponse] = thread.submit(self.models[name].execute, asked).result()
        assert len(found) == len(requests)
        return found

    def infer(self, name: str, values: Values) -> dict[str, np.ndarray]:
        """One request: of an ensemble step by step, as its maps say. Raises TritonError."""
        config = self.configs[name]
        assert {one.name for one in config.input} == set(values)
        if config.platform != "ensemble":
            (answer,) = self.batch(name, [values])
            error = answer.error()
            if error is not None:
                raise error
            found = {one.name(): one.as_numpy() for one in answer.output_tensors()}
        else:
            pool = dict(values)
            for step in config.ensemble_scheduling.step:
                given = self.infer(step.model_name, {key: pool[of] for key, of in step.input_map.items()})
                pool.update({of: given[key] for key, of in step.output_map.items()})
            found = {one.name: pool[one.name] for one in config.output}
        assert {one.name for one in config.output} == set(found)
        return found


class Served:
    """A repository behind HTTP, as tritonserver answers binary requests; a context manager with its `url`."""

    def __init__(self, repository: Repository) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                name = self.path.split("/")[3]
                try:
                    status, (length, said) = 200, _answer(repository, name, body, self.headers)
                except TritonError as error:
                    said = json.dumps({"error": error.message()}).encode()
                    status, length = 500, len(said)
                self.send_response(status)
                self.send_header("Inference-Header-Content-Length", str(length))
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, format: str, *args: object) -> None:
                """Not to the test's output."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self) -> Served:
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *ended: object) -> None:
        self.http.shutdown()
        self.http.server_close()


def _answer(repository: Repository, name: str, body: bytes, headers: Any) -> tuple[int, bytes]:
    """The length of the answer's JSON, and the answer."""
    at = int(headers["Inference-Header-Content-Length"])
    values = {}
    for one in json.loads(body[:at])["inputs"]:
        size = one["parameters"]["binary_data_size"]
        kind = triton_to_np_dtype(one["datatype"])
        values[one["name"]] = np.frombuffer(body[at : at + size], kind).reshape(one["shape"]).copy()
        at += size
    given = repository.infer(name, values)
    outputs = [
        {
            "name": key,
            "datatype": "FP32",
            "shape": list(value.shape),
            "parameters": {"binary_data_size": value.nbytes},
        }
        for key, value in given.items()
    ]
    text = json.dumps({"model_name": name, "outputs": outputs}).encode()
    return len(text), text + b"".join(value.tobytes() for value in given.values())

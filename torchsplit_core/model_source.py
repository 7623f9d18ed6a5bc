"""Loads the SplitClient of a model source, and checks what the user's code returns.

Sources: `sample:NAME`, `sample:NAME@large`, `FILE.py:NAME` (executed, so only if trusted), `FILE.pt2` (loading it
executes any code hidden in it, so likewise), and `RUN`, `RUN@step-N` or `RUN@best`: the model that a training run
trained, with the weights of a step. `load_client` executes foreign code: call it in a child of
`torchsplit_core.isolation`. torch is imported only to load a .pt2 or weights.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from torchsplit_core import bundle
from torchsplit_core.checkpoints.trained_run import TrainedStep, is_run_source, parse_run_source
from torchsplit_core.isolation import is_out_of_memory, remedy_for, require_execution_allowed
from torchsplit_core.isolation.sandbox.access import readable_beside
from torchsplit_core.values import InputFault, SplitClient, TrainClient, last_cause, quoted, suggestion

FORMS = "sample:NAME, sample:NAME@large, FILE.pt2, FILE.py:NAME, or the folder of a training run"
TRUST = "If you trust the file, add --trust"
LONGEST_MESSAGE = 600
"""Most characters shown of a foreign message: that of a state dict that does not fit has pages."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A parsed source. `path` is absolute, empty for a sample; `size` is for samples only.

    Of a run, `path` is its folder, `step` its step and `base` the source of the model that it trained.
    """

    kind: Literal["sample", "python", "pt2", "run"]
    name: str = ""
    size: str = "small"
    path: str = ""
    base: ModelSource | None = None
    step: TrainedStep | None = None

    @property
    def text(self) -> str:
        """The source as a user writes it, with the absolute path."""
        if self.step is not None:
            return self.step.text
        if self.kind == "sample":
            return f"sample:{self.name}" + (f"@{self.size}" if self.size != "small" else "")
        return f"{self.path}:{self.name}" if self.kind == "python" else self.path

    @property
    def display_name(self) -> str:
        """The source's name in messages: a file without its folder."""
        return source_display_name(self.text)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths that a child must read to load the source; a Python file may import from its folder."""
        if self.base is not None:
            return (self.path, *self.base.files)
        if self.kind == "python":
            return readable_beside(self.path)
        return (self.path,) if self.path else ()


def source_display_name(source: str) -> str:
    """A source's name in messages: a file without its folder."""
    return source if source.startswith("sample:") else Path(source).name


def parse_source(source: str, *, trust: bool = False) -> ModelSource:
    """Parse a source and make its path absolute. Executes nothing.

    Raises InputFault for an unknown form, sample or size, a missing file, or a Python file that is not trusted.
    """
    if source.startswith("sample:"):
        name, _, size = source.removeprefix("sample:").partition("@")
        bundle.sample_models().find(name, size or "small")
        return ModelSource("sample", name, size or "small")
    if source.endswith(".pt2"):
        return ModelSource("pt2", path=_existing_path(source))
    if is_run_source(source):
        step = parse_run_source(source)
        with name_source(step.display_name):
            return ModelSource(
                "run", path=str(step.run), base=parse_source(step.source, trust=trust), step=step
            )
    path, colon, name = source.rpartition(":")
    if not colon or not path.endswith(".py") or not name:
        if source.endswith(".py"):
            raise InputFault(
                source,
                "does not say which of its classes is the client",
                f"Write {source}:NAME with the name of that class.",
            )
        samples = [sample.name for sample in bundle.sample_models().SAMPLES]
        remedy = f"Did you mean sample:{source}?" if source in samples else f"Write {FORMS}."
        raise InputFault("", f"unknown model source {quoted(source)}", remedy)
    parsed = ModelSource("python", name, path=_existing_path(path))
    if not trust:
        raise InputFault(
            parsed.display_name,
            "is Python code that would be executed, and it is not trusted",
            f"{TRUST}; otherwise export the model elsewhere and pass its .pt2.",
        )
    return parsed


def load_client(source: str, trust: bool = False, sequence_length: int | None = None) -> SplitClient:
    """The client of a sample, or of a trusted Python or .pt2 file. Executes that file.

    `sequence_length` sets the length of its example inputs. Raises InputFault if the client does not offer that
    length, and as `_client_of` does.
    """
    client: SplitClient = _client_of(source, trust)
    return client if sequence_length is None else ClientAtLength(client, source, sequence_length)


def load_trainable(source: str, trust: bool) -> Any:
    """The client of a sample or of a trusted file, to train it; a TrainClient needs no example inputs.

    Executes that file. Raises InputFault as `_client_of` does.
    """
    return _client_of(source, trust, (SplitClient, TrainClient))


def _client_of(source: str, trust: bool, kinds: tuple[type, ...] = (SplitClient,)) -> Any:
    """The source's client, of one of the kinds.

    Raises InputFault for every fault of the source or the file, for a file that is not trusted, and for every file if
    this process must not execute uploads.
    """
    parsed = parse_source(source, trust=trust)
    if parsed.base is not None and parsed.step is not None:
        client = _client_of(parsed.base.text, trust, (SplitClient, TrainClient))
        return TrainedClient(client, parsed.step)
    if parsed.kind != "sample":
        require_execution_allowed(Path(parsed.path).name)
    if parsed.kind == "pt2":
        if not trust:
            raise InputFault(
                parsed.display_name,
                "would execute what it holds when it runs, and it is not trusted",
                f"{TRUST}.",
            )
        return ExportedClient(Path(parsed.path))
    if parsed.kind == "sample":
        return bundle.sample_models().load(parsed.name, parsed.size)
    return _as_client(getattr(_import_file(Path(parsed.path)), parsed.name, None), parsed, kinds)


def open_model(client: SplitClient) -> Any:
    """The client's `nn.Module` in eval mode. Raises InputFault if get_model() returns something else or fails."""
    with foreign_code("get_model()"):
        model = client.get_model()
        if not (callable(model) and hasattr(model, "named_parameters") and hasattr(model, "forward")):
            raise not_a_module(model)
        # eval() of an exported module raises NotImplementedError: its mode was fixed at export.
        with suppress(NotImplementedError):
            model.eval()
    return model


def not_a_module(model: object) -> InputFault:
    """The fault for a get_model() that returns `model`, which is not an nn.Module."""
    return InputFault(
        "get_model()",
        f"returns a value of type {type(model).__name__}, not an nn.Module",
        "Return the module, built and in eval mode.",
    )


def example_arguments(client: SplitClient, batch_size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments for the batch size. Raises InputFault if the client returns another form."""
    where = f"get_example_inputs({batch_size})"
    with foreign_code(where):
        given: Any = client.get_example_inputs(batch_size)
    if isinstance(given, tuple):
        if len(given) == 2 and isinstance(given[0], tuple) and isinstance(given[1], dict):
            return given[0], given[1]
        return given, {}
    raise InputFault(
        where,
        f"returns a value of type {type(given).__name__}, not a tuple",
        "Return a tuple of forward's arguments ((x,) for a single tensor x), or (args, kwargs).",
    )


class ClientAtLength:
    """A client with example inputs of one of its `sequence_lengths`.

    Raises InputFault if it offers none, or not this one.
    """

    def __init__(self, client: SplitClient, source: str, length: int) -> None:
        where = f"{source_display_name(source)}.sequence_lengths"
        offered: object = getattr(client, "sequence_lengths", None)
        if offered is None:
            raise InputFault(
                where,
                "is missing, and a sequence length is asked for",
                "Give the client sequence_lengths, for example (128, 512), and let get_example_inputs(batch_size, "
                "sequence_length=N) take one of them; or leave the sequence lengths out.",
            )
        if (
            not isinstance(offered, Sequence)
            or isinstance(offered, str)
            or not all(map(_is_positive_whole, offered))
        ):
            problem = f"is {quoted(offered)}, not a sequence of whole numbers from 1"
            raise InputFault(where, problem, "Write, for example, (128, 512).")
        if length not in offered:
            known = ", ".join(map(str, offered))
            remedy = f"Choose one of {known}." if known else "Add the length."
            raise InputFault(where, f"does not offer the length {length}", remedy)
        self.client, self.length = client, length
        self.batch_sizes = client.batch_sizes

    def get_model(self) -> Any:
        return self.client.get_model()

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]:
        client: Any = self.client
        given: tuple[Any, ...] = client.get_example_inputs(batch_size, sequence_length=self.length)
        return given


def _is_positive_whole(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1


class ExportedClient:
    """The client of a .pt2; repeats or truncates the file's example inputs to the requested batch size.

    Raises InputFault if torch cannot load the file or it has no example inputs.
    """

    batch_sizes: Sequence[int] = (1, 2, 4, 8)

    def __init__(self, path: Path) -> None:
        import torch

        with foreign_code(path.name, "Export the model again with this version of torch."):
            self.program = torch.export.load(path)
        if not self.program.example_inputs:
            raise InputFault(
                path.name,
                "holds no example inputs to run it on",
                "Export the model again, and save what torch.export.export returns unchanged.",
            )

    def get_model(self) -> Any:
        return self.program.module(check_guards=False)

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]:
        import torch
        from torch.utils import _pytree as pytree

        args, kwargs = self.program.example_inputs
        tensors = [
            leaf
            for leaf in pytree.tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor) and leaf.dim()
        ]
        traced = tensors[0].shape[0] if tensors else 0

        def resized(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == traced:
                return leaf[torch.arange(batch_size, device=leaf.device) % traced]
            return leaf

        return pytree.tree_map(resized, tuple(args)), pytree.tree_map(resized, dict(kwargs))


class TrainedClient:
    """A client whose model has the weights of a run's step; everything else is as in `client`.

    A client without batch sizes gets defaults, one without example inputs gets samples of its training data.
    """

    def __init__(self, client: Any, step: TrainedStep) -> None:
        self._client, self._step = client, step
        self.batch_sizes: Sequence[int] = getattr(client, "batch_sizes", ExportedClient.batch_sizes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # before __init__ there is no client
            raise AttributeError(name)
        return getattr(self._client, name)

    def get_model(self) -> Any:
        """The model with the step's weights. Raises InputFault if they are damaged or of another model."""
        from torchsplit_core.checkpoints.weights import load_weights

        model = open_model(self._client)
        load_weights(model, self._step)
        return model

    def get_example_inputs(self, batch_size: int, **of_length: int) -> tuple[Any, ...]:
        """The client's example inputs, or the inputs of its first training samples."""
        if hasattr(self._client, "get_example_inputs"):
            inputs: tuple[Any, ...] = self._client.get_example_inputs(batch_size, **of_length)
            return inputs
        from torch.utils.data import default_collate

        data = self._client.get_dataset()
        inputs, _ = default_collate([data[index % len(data)] for index in range(batch_size)])
        return tuple(inputs)


@contextmanager
def foreign_code(where: str, remedy: str = "Mend the model's code.") -> Iterator[None]:
    """Turn any exception of the user's code into an InputFault with its last cause and the user's line.

    Out of memory passes through, because its meaning depends on the process's limits, not on the code.
    """
    try:
        yield
    except InputFault:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise InputFault(where, describe_exception(error), remedy_for(error) or remedy) from error


@contextmanager
def name_source(source: str) -> Iterator[None]:
    """Prefix every InputFault inside with the name of the model `source`."""
    try:
        yield
    except InputFault as fault:
        raise fault.within(source_display_name(source)) from fault.__cause__


def describe_exception(error: BaseException) -> str:
    """The problem clause for code that raised this: its last cause, on one line, and the user's line that led to it."""
    cause = last_cause(error)
    message = " ".join(f"{type(cause).__name__}: {cause}".split()).removesuffix(":")
    location = user_line(cause) or user_line(error)
    shown = message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"
    return f"raised {shown}" + (f" ({location})" if location else "")


def user_line(error: BaseException) -> str:
    """`file.py:118` of the last traceback frame in the user's code; "" if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return ""


def is_user_file(filename: str) -> bool:
    """Whether the file is the user's (or a library's model), not part of torch, TorchSplit or Python."""
    path = filename.replace("\\", "/")
    if Path(filename).is_relative_to(bundle.root() / "sample_models"):
        return True  # wherever it is installed: samples count as models of the user
    ours = str(bundle.CORE).replace("\\", "/")
    inner = ("/site-packages/torch/", "/dist-packages/torch/", "/lib/python3")
    if path.startswith(("<", ours + "/")):
        return False
    if "/site-packages/" in path or "/dist-packages/" in path:
        return not any(part in path for part in inner[:2])
    return not any(part in path for part in inner)


def _existing_path(path: str) -> str:
    """The absolute path of a file. Raises InputFault if it does not exist or is not a file."""
    try:
        file = Path(path).expanduser()
        problem = (
            "" if file.is_file() else "is not a file" if file.exists() else "cannot be read: no such file"
        )
    except PermissionError:
        problem = "cannot be read: permission denied"
    except ValueError:  # a null byte in ~NAME
        problem = "cannot be the name of a file"
    except RuntimeError:  # ~NAME without such a user
        problem = (
            f"is in the home folder of {quoted(path[1:].partition('/')[0])}, who is no user of this machine"
        )
    if problem:
        raise InputFault(path, problem, "Check the path.")
    # Resolved, because a child may read the file's folder, but not the folders that a path with ".." passes through.
    return str(file.parent.resolve() / file.name)


def _import_file(path: Path) -> ModuleType:
    """Execute a Python file as a module; it may import from its folder."""
    name = f"model_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    # pickle and dataclasses look classes of the file up by their module's name.
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        with foreign_code(path.name):
            spec.loader.exec_module(module)
    except InputFault as fault:
        cause = fault.__cause__
        if isinstance(cause, SyntaxError) and cause.filename == str(path):
            line = f":{cause.lineno}" if cause.lineno else ""
            raise InputFault(
                path.name + line, f"is not valid Python: {cause.msg}", "Mend that line."
            ) from cause
        raise
    return module


def _as_client(value_found: Any, source: ModelSource, kinds: tuple[type, ...]) -> Any:
    """A client of one of the kinds, from a class, an instance, or a callable that returns one."""
    file = Path(source.path).name
    if value_found is None:
        known = suggestion(source.name, dict(_public_names(source)), "names in the file")
        raise InputFault(file, f"does not define {quoted(source.name)}", known)
    members = _TRAINED_MEMBERS if TrainClient in kinds else _MEMBERS
    if _is_module(value_found) and not hasattr(value_found, "get_model"):
        clients = [name for name, value in _public_names(source) if hasattr(value, "get_model")]
        remedy = f"Add a class with {_listed(members)}."
        if clients:
            remedy = suggestion("", [f"{file}:{name}" for name in clients], "clients in the file")
        raise InputFault(file, f"{source.name} is an nn.Module, not a client", remedy)
    if isinstance(value_found, type) or (
        callable(value_found) and not isinstance(value_found, kinds) and not _is_module(value_found)
    ):
        with foreign_code(source.display_name, "It is called without arguments: give each a default."):
            value_found = value_found()
    if isinstance(value_found, SplitClient):
        return _check_batch_sizes(value_found, source.display_name)
    if isinstance(value_found, kinds):
        return value_found
    lacking = [member for member in members if not hasattr(value_found, member.partition("(")[0])]
    problem = f"is a client without {_listed(lacking)}"
    if len(lacking) == len(members):
        problem = f"gives a value of type {type(value_found).__name__}, not a client"
    raise InputFault(source.display_name, problem, f"Name a class with {_listed(members)}.")


_MEMBERS = ("get_model()", "get_example_inputs(batch_size)", "batch_sizes")
_TRAINED_MEMBERS = (
    "get_model()", "get_dataset()", "get_loss(outputs, targets)", "get_optimizer(parameters, kind)",
)  # fmt: skip


def _is_module(value: Any) -> bool:
    """Whether this is an nn.Module or a subclass of it, decided without torch."""
    return hasattr(value, "named_parameters") and hasattr(value, "forward")


def _listed(members: Sequence[str]) -> str:
    *first, last = members
    return f"{', '.join(first)} and {last}" if first else last


def _check_batch_sizes(client: SplitClient, where: str) -> SplitClient:
    """Return the client. Raises InputFault unless its batch sizes are whole numbers from 1."""
    sizes: object = client.batch_sizes
    good = isinstance(sizes, Sequence) and not isinstance(sizes, str) and len(sizes) > 0
    if not good or not all(isinstance(size, int) and size >= 1 for size in client.batch_sizes):
        problem = f"is {quoted(sizes)}, not a sequence of whole numbers from 1"
        raise InputFault(f"{where}.batch_sizes", problem, "Write, for example, (1, 2, 4, 8).")
    return client


def _public_names(source: ModelSource) -> list[tuple[str, object]]:
    """The public names that the file itself defines, for the remedy."""
    module = sys.modules.get(f"model_file_{Path(source.path).stem}")
    module_name = getattr(module, "__name__", "")
    return [
        (name, value)
        for name, value in vars(module or object).items()
        if not name.startswith("_")
        and (getattr(value, "__module__", None) == module_name or isinstance(value, SplitClient))
    ]

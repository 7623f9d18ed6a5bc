"""From the name of a model source to its SplitClient, and the checks on what foreign code hands over.

Sources: `sample:NAME`, `sample:NAME@large`, `FILE.py:NAME` (executed, so only when trusted) and
`FILE.pt2` (loading one executes code hidden in it, so likewise). `load_client` executes foreign code:
call it in a child of `torchsplit_core.isolation`. torch is imported only to load a .pt2.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from torchsplit_core.isolation import is_out_of_memory, refuse_execution, remedy_for
from torchsplit_core.isolation.confinement.access import readable_beside
from torchsplit_core.values import InputFault, SplitClient, TrainClient

FORMS = "sample:NAME, sample:NAME@large, FILE.pt2 or FILE.py:NAME"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A parsed source. `path` is absolute and empty for a sample; `size` counts for a sample alone."""

    kind: Literal["sample", "python", "pt2"]
    name: str = ""
    size: str = "small"
    path: str = ""

    @property
    def text(self) -> str:
        """The source as a user writes it, with the absolute path."""
        if self.kind == "sample":
            return f"sample:{self.name}" + (f"@{self.size}" if self.size != "small" else "")
        return f"{self.path}:{self.name}" if self.kind == "python" else self.path

    @property
    def files(self) -> tuple[str, ...]:
        """What a child must be able to read to load it; a Python file may import from its folder."""
        if self.kind == "python":
            return readable_beside(self.path)
        return (self.path,) if self.path else ()


def parse_source(source: str, *, trust: bool = False) -> ModelSource:
    """What kind of source this is, its path made absolute. Executes nothing.

    Raises InputFault for an unknown form, sample or size, a missing file, or a Python file that is not trusted.
    """
    if source.startswith("sample:"):
        name, _, size = source.removeprefix("sample:").partition("@")
        importlib.import_module("sample_models").find(name, size or "small")
        return ModelSource("sample", name, size or "small")
    if source.endswith(".pt2"):
        return ModelSource("pt2", path=_existing(source))
    path, colon, name = source.rpartition(":")
    if not colon or not path.endswith(".py") or not name:
        remedy = f"Write {FORMS}."
        if source.endswith(".py"):
            remedy = f"Say which name in the file gives the model: {source}:NAME."
        raise InputFault(
            "model source", source, "a source is a sample, a .pt2 or a name in a Python file", remedy
        )
    if not trust:
        raise InputFault(
            "model source",
            source,
            "a Python file is executed, so it must be trusted",
            "If you know the file, add --trust; otherwise export it elsewhere and pass the .pt2.",
        )
    return ModelSource("python", name, path=_existing(path))


def load_client(source: str, trust: bool = False, sequence_length: int | None = None) -> SplitClient:
    """The client of a sample, or of a trusted Python or .pt2 file. Executes that file.

    With a `sequence_length` its example inputs are of that length. Raises InputFault where it does not offer it,
    and as `_client_of` does.
    """
    client: SplitClient = _client_of(source, trust)
    return client if sequence_length is None else ClientAtLength(client, source, sequence_length)


def load_trained(source: str, trust: bool) -> Any:
    """The client of a sample or of a trusted file, for a run: one that is trained alone needs no example inputs.

    Executes that file. Raises InputFault as `_client_of` does.
    """
    return _client_of(source, trust, (SplitClient, TrainClient))


def _client_of(source: str, trust: bool, kinds: tuple[type, ...] = (SplitClient,)) -> Any:
    """The client as the source gives it, of one of the kinds.

    Raises InputFault for every fault of the source or of the file, for a file that is not trusted, and for any
    file where this process was told to execute nothing that was uploaded.
    """
    parsed = parse_source(source, trust=trust)
    if parsed.kind != "sample":
        refuse_execution(Path(parsed.path).name)
    if parsed.kind == "pt2":
        if not trust:
            raise InputFault(
                "model source",
                parsed.path,
                "running a .pt2 executes what it holds, so it must be trusted",
                "If you know the file, add --trust.",
            )
        return ExportedClient(Path(parsed.path))
    if parsed.kind == "sample":
        return importlib.import_module("sample_models").load(parsed.name, parsed.size)
    return _as_client(getattr(_import_file(Path(parsed.path)), parsed.name, None), parsed, kinds)


def open_model(client: SplitClient) -> Any:
    """The client's `nn.Module` in eval mode; InputFault where it gives something else or fails."""
    with foreign_code("get_model()"):
        model = client.get_model()
        if not (callable(model) and hasattr(model, "named_parameters") and hasattr(model, "forward")):
            raise InputFault(
                "get_model()",
                type(model).__name__,
                "it returns an nn.Module",
                "Return the module, built and in eval mode.",
            )
        # An exported module refuses eval(): its mode was fixed when it was exported.
        with suppress(NotImplementedError):
            model.eval()
    return model


def example_arguments(client: SplitClient, batch_size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments for that batch size; InputFault for any other form."""
    where = f"get_example_inputs({batch_size})"
    with foreign_code(where):
        given: Any = client.get_example_inputs(batch_size)
    if isinstance(given, tuple):
        if len(given) == 2 and isinstance(given[0], tuple) and isinstance(given[1], dict):
            return given[0], given[1]
        return given, {}
    raise InputFault(
        where,
        type(given).__name__,
        "it returns a tuple, or (args, kwargs)",
        "A single tensor x is written (x,).",
    )


class ClientAtLength:
    """A client whose example inputs are of one of the sequence lengths that it offers.

    Raises InputFault where it offers none, or not this one.
    """

    def __init__(self, client: SplitClient, source: str, length: int) -> None:
        where = f"{source if source.startswith('sample:') else Path(source).name}.sequence_lengths"
        offered: object = getattr(client, "sequence_lengths", None)
        if offered is None:
            raise InputFault(
                where,
                Told("missing"),
                "a client that is measured at sequence lengths offers sequence_lengths",
                "Give it sequence_lengths, for example (128, 512), and let get_example_inputs(batch_size, "
                "sequence_length=N) take one of them; or leave the sequence lengths out.",
            )
        if not isinstance(offered, Sequence) or isinstance(offered, str) or not all(map(_from_1, offered)):
            rule = "sequence lengths are whole numbers from 1"
            raise InputFault(where, offered, rule, "For example (128, 512).")
        if length not in offered:
            known = ", ".join(map(str, offered)) or "none"
            raise InputFault(where, length, "the length is one that the client offers", f"It offers {known}.")
        self.client, self.length = client, length
        self.batch_sizes = client.batch_sizes

    def get_model(self) -> Any:
        return self.client.get_model()

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]:
        client: Any = self.client
        given: tuple[Any, ...] = client.get_example_inputs(batch_size, sequence_length=self.length)
        return given


def _from_1(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1


class ExportedClient:
    """The client of a .pt2, whose own example inputs are repeated or cut to the batch size asked for.

    Raises InputFault where torch cannot load the file or it has no example inputs.
    """

    batch_sizes: Sequence[int] = (1, 2, 4, 8)

    def __init__(self, path: Path) -> None:
        import torch

        with foreign_code(path.name, "Export the model again with this version of torch."):
            self.program = torch.export.load(path)
        if not self.program.example_inputs:
            raise InputFault(
                path.name,
                None,
                "a .pt2 that runs has example inputs",
                "Save it by torch.export.save as exported.",
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


@contextmanager
def foreign_code(where: str, remedy: str = "Mend the code named.") -> Iterator[None]:
    """Whatever the user's code raises inside becomes an InputFault with its line.

    Out of memory passes through: the process's limits, not the code, decide what that means.
    """
    try:
        yield
    except InputFault:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        place = user_line(error)
        told = f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")
        rule = "the model's code runs without an error"
        raise InputFault(where, Told(told), rule, remedy_for(error) or remedy) from error


class Told(str):
    """A message shown as it is in a fault, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return " ".join(self.split())


def user_line(error: BaseException) -> str:
    """`file.py:118` of the last frame in the user's code that led to the error; "" where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return ""


def is_user_file(filename: str) -> bool:
    """Whether code in this file is the user's (or a library's model), not torch's, ours or Python's own."""
    path = filename.replace("\\", "/")
    ours = str(Path(__file__).parent).replace("\\", "/")
    inner = ("/site-packages/torch/", "/dist-packages/torch/", "/lib/python3")
    if path.startswith(("<", ours + "/")):
        return False
    if "/site-packages/" in path or "/dist-packages/" in path:
        return not any(part in path for part in inner[:2])
    return not any(part in path for part in inner)


def _existing(path: str) -> str:
    """The absolute path of a file that is there."""
    found = Path(path).expanduser().absolute()
    # A confined child cannot walk through folders that it may not open, as "here/../there" would have it.
    found = found.parent.resolve() / found.name
    if not found.is_file():
        rule = "the source is a file" if found.exists() else "the file exists"
        raise InputFault("model source", path, rule, f"Check the path, or write {FORMS}.")
    return str(found)


def _import_file(path: Path) -> ModuleType:
    """Execute a Python file as a module; its folder may be imported from."""
    name = f"model_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputFault("model source", str(path), "the file is a Python module", "Name it FILE.py.")
    module = importlib.util.module_from_spec(spec)
    # Classes of the file must be found again by their module's name (pickle, dataclasses).
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        with foreign_code(path.name):
            spec.loader.exec_module(module)
    except InputFault as fault:
        cause = fault.__cause__
        if isinstance(cause, (SyntaxError, UnicodeDecodeError)):
            line = f":{cause.lineno}" if isinstance(cause, SyntaxError) and cause.lineno else ""
            raise InputFault(
                path.name + line,
                Told(cause.msg if isinstance(cause, SyntaxError) else cause),
                "the file is valid Python",
                "Mend that line.",
            ) from cause
        raise
    return module


def _as_client(found: Any, source: ModelSource, kinds: tuple[type, ...]) -> Any:
    """A client of one of the kinds from a class, an instance or a callable that returns one."""
    where = f"{Path(source.path).name}:{source.name}"
    if found is None:
        names = _offered(source)
        raise InputFault(
            where,
            source.name,
            "the file defines that name",
            f"It defines {names}." if names else "It defines none.",
        )
    model_alone = hasattr(found, "named_parameters") and not isinstance(found, type)
    if isinstance(found, type) or (callable(found) and not isinstance(found, kinds) and not model_alone):
        with foreign_code(where, "It is called without arguments: give them defaults."):
            found = found()
    if isinstance(found, SplitClient):
        return _checked(found, where)
    if isinstance(found, kinds):
        return found
    remedy = "Give it get_model(), get_example_inputs(batch_size) and batch_sizes."
    if TrainClient in kinds:
        remedy = (
            "Give it get_model(), get_dataset(), get_loss(outputs, targets), get_optimizer(parameters, kind)."
        )
    if hasattr(found, "named_parameters"):
        remedy = f"That is a model alone; wrap it in a class. {remedy}"
    wanted = " or a ".join(kind.__name__ for kind in kinds)
    raise InputFault(where, type(found).__name__, f"the name gives a {wanted}", remedy)


def _checked(client: SplitClient, where: str) -> SplitClient:
    """The client, once its batch sizes are whole numbers from 1."""
    sizes: object = client.batch_sizes
    good = isinstance(sizes, Sequence) and not isinstance(sizes, str) and len(sizes) > 0
    if not good or not all(isinstance(size, int) and size >= 1 for size in client.batch_sizes):
        raise InputFault(
            f"{where}.batch_sizes", sizes, "batch sizes are whole numbers from 1", "For example (1, 2, 4, 8)."
        )
    return client


def _offered(source: ModelSource) -> str:
    """The public names the file itself defines, for the remedy."""
    module = sys.modules.get(f"model_file_{Path(source.path).stem}")
    own = getattr(module, "__name__", "")
    names = [
        name
        for name, value in vars(module or object).items()
        if not name.startswith("_")
        and (getattr(value, "__module__", None) == own or isinstance(value, SplitClient))
    ]
    return ", ".join(names[:12])

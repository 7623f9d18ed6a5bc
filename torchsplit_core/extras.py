"""The optional packages (extras of pyproject.toml), and the faults raised if they are not installed."""

from __future__ import annotations

from importlib.util import find_spec

from torchsplit_core.values import InputFault

EXTRA_MODULES = {
    "trace": ("torch",),
    "serve": ("torch", "httptools", "uvloop", "orjson"),
    "telemetry": ("opentelemetry",),
    "deploy": ("torch", "httptools", "uvloop", "orjson", "opentelemetry"),
    "train": ("torch", "safetensors"),
    "app": ("streamlit", "starlette", "uvicorn", "plotly", "pandas", "httptools", "uvloop", "orjson"),
    "llm": ("torch", "httptools", "uvloop", "orjson", "transformers"),
}
"""The modules of each extra. Where several have one, the first is named."""


class MissingPackage(InputFault):
    """A package of an extra is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        self.module = module
        super().__init__("", f"this needs {module}, which is not installed", f"Install torchsplit[{extra}].")

    def of_command(self, command: str) -> str:
        """The same in the words of the command line."""
        return f"torchsplit {command} needs {self.module}. {self.remedy}"


def require_extra(extra: str) -> None:
    """Raises MissingPackage where a module of the extra is not installed. Loads none of them."""
    for module in EXTRA_MODULES[extra]:
        if find_spec(module) is None:
            raise MissingPackage(module, extra)


def missing_package(error: BaseException) -> MissingPackage | None:
    """The fault for the failed import of a module, or the failed look-up of a distribution, of an extra."""
    name = (getattr(error, "name", None) or "") if isinstance(error, ModuleNotFoundError) else ""
    module = name.partition(".")[0]
    extra = next((extra for extra, modules in EXTRA_MODULES.items() if module in modules), None)
    return None if extra is None else MissingPackage(module, extra)

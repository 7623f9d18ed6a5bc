"""What pyproject.toml cannot say: a wheel carries what lies beside the core within it, in torchsplit_core/_bundle."""

import shutil
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

BESIDE = ("app", "pages", "sample_models")
SHOWN = (
    ".streamlit/config.toml",
    "docs/*/*.md",
    "docs/reference/evaluation.json",
    "examples/llm/chat_and_vision.json",
    "examples/llm_serving.csv",
    "examples/placement_request.json",
    "examples/placements/decode_70b.json",
    "examples/placements/thirty_gpus.json",
)
"""What the pages read: settings, guides, examples."""


class BuildPy(build_py):
    """A wheel's modules; an editable installation takes them where they are."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        bundle = Path(self.build_lib) / "torchsplit_core" / "_bundle"
        shutil.rmtree(bundle, ignore_errors=True)  # of an earlier build
        for name in BESIDE:
            shutil.copytree(name, bundle / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (found for pattern in SHOWN for found in sorted(Path().glob(pattern))):
            (bundle / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, bundle / file)


class EditableWheel(editable_wheel):
    """An editable installation names the packages beside the core too, for whoever imports them from a checkout."""

    def run(self) -> None:
        self.distribution.packages += find_namespace_packages(
            include=[f"{name}{end}" for name in BESIDE for end in ("", ".*")]
        )
        super().run()


setup(cmdclass={"build_py": BuildPy, "editable_wheel": EditableWheel})

"""The wheel as a stranger has it: built of what the image is built of, in environments that hold what it asks for."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.paths import ROOT


def build_wheel(folder: Path) -> Path:
    """The wheel of the source distribution of the files that .dockerignore lets through."""
    context, unpacked = folder / "context", folder / "unpacked"
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        for found in ROOT.glob(line[1:]) if line.startswith("!") else ():
            target = context / found.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                shutil.copytree(found, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(found, target)
    build = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"
    _run([sys.executable, "-c", build.format("sdist"), str(folder)], context)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(unpacked, filter="data")
    _run([sys.executable, "-c", build.format("wheel"), str(folder)], next(unpacked.iterdir()))
    return next(folder.glob("*.whl"))


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and the requirements of it and some of its extras, nothing else."""

    folder: Path
    store: Path
    linked: str
    """The folders to which its packages are links, which a confined child would not read by itself."""

    @property
    def environment(self) -> dict[str, str]:
        """Of a process there: nothing of it leads to the checkout."""
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return kept | {"TORCHSPLIT_HOME": str(self.store), "TORCHSPLIT_READABLE": self.linked}

    def command(self, *arguments: str | Path) -> list[str]:
        """`torchsplit` of this environment."""
        return [str(self.folder / "bin" / "torchsplit"), *map(str, arguments)]

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """`torchsplit` in a folder that has nothing to do with it."""
        return self._run(self.command(*arguments))

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        """A program of Python."""
        return self._run([str(self.folder / "bin" / "python"), "-c", program])

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        self.store.mkdir(exist_ok=True)
        return subprocess.run(
            command, cwd=self.store, env=self.environment, capture_output=True, text=True, check=False
        )


def install(wheel: Path, folder: Path, extras: Iterable[str] = ()) -> Installed:
    """A fresh environment with the wheel; its requirements are links to what this environment has."""
    venv.create(folder, symlinks=True)
    place = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", vars=place))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    _run([*pip, "--no-deps", "--no-index", str(wheel)], folder)
    own = next(iter(Distribution.discover(name="torchsplit", path=[str(packages)])))
    for found in _required(own, tuple(extras), {}).values():
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(found.locate_file(name))).absolute())
    linked = {str(path.readlink().parent) for path in packages.iterdir() if path.is_symlink()}
    return Installed(folder, folder.with_name(f"{folder.name}-store"), os.pathsep.join(sorted(linked)))


def _required(
    of: Distribution, extras: tuple[str, ...], known: dict[tuple[str, tuple[str, ...]], Distribution]
) -> Mapping[tuple[str, tuple[str, ...]], Distribution]:
    """What a distribution with these extras requires, and what that requires: by name and extras."""
    for one in map(Requirement, of.requires or ()):
        wanted = tuple(sorted(one.extras))
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        if (one.name, wanted) not in known:
            found = of if one.name == of.name else distribution(one.name)
            known[one.name, wanted] = found
            _required(found, wanted, known)
    return known


def _run(command: list[str], folder: Path) -> None:
    # A checkout on this path would count as installed already.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]

"""What compose, systemd and Slurm start on a host, started here by the very lines of the written files.

Stand-ins are what a host has and this one may not: a container is its entry point with its paths bound, a unit its
ExecStart, `srun` a script that gives each step cores of its own. Ports are moved to free ones, and the plan's cores to
those that this process has.
"""

import configparser
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.ports import free_port

READY_S = 240.0
ADDRESS = 8000
"""Where all models are, in every format."""
NODE = 2
"""Cores of the host that is planned."""

SRUN = """\
#!/bin/bash
# An --exact step gets cores of its own of the node's and waits where none is free; an --overlap step takes none.
need=1 overlap=
while [[ $1 == --* ]]; do
  case $1 in
    --cpus-per-task=*) need=${1#*=} ;;
    --overlap) overlap=1 ;;
    --exact | --nodes=1 | --ntasks=1 | --gres=none | --cpu-bind=*) ;;
    *) echo "srun: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
if [[ -n $overlap ]]; then exec "$@"; fi
cores=()
while (( ${#cores[@]} < need )); do
  for core in $NODE_CORES; do
    if (( ${#cores[@]} < need )) && mkdir "$NODE/$core" 2> /dev/null; then cores+=("$core"); fi
  done
  (( ${#cores[@]} == need )) || sleep 0.2
done
exec taskset -c "$(IFS=,; echo "${cores[*]}")" "$@"
"""


class Host:
    """A host with the folder that `deploy` wrote. `folder` is for what stands in for its programs."""

    def __init__(self, deployed: Path, folder: Path) -> None:
        self.deployed, self.image, self.folder = deployed, deployed / "image", folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.cores = sorted(os.sched_getaffinity(0))
        self.ports: dict[int | str, int] = {}
        programs = folder / "bin"
        programs.mkdir(parents=True)
        # The virtual environment or the image's own Python.
        _program(programs / "python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        _program(programs / "srun", SRUN)
        self.path = f"{programs}{os.pathsep}{os.environ['PATH']}"

    def start(self, format_name: str) -> None:
        """Start all that the format does on this host."""
        {"compose": self._compose, "systemd": self._systemd, "slurm": self._slurm}[format_name]()

    def port(self, written: int | str) -> int:
        """A free port in place of the written one."""
        if written not in self.ports:
            self.ports[written] = free_port()
        return self.ports[written]

    @property
    def url(self) -> str:
        """Where all models are."""
        return f"http://127.0.0.1:{self.port(ADDRESS)}"

    def _run(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], cores: str = ""
    ) -> None:
        if cores:
            first, _, last = cores.partition("-")
            own = [str(self.cores[core]) for core in range(int(first), int(last) + 1)]
            words = ["taskset", "-c", ",".join(own), *words]
        told = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TORCHSPLIT_"))
        }
        self.processes.append(
            subprocess.Popen(words, cwd=folder, env=told | {"PATH": self.path} | dict(environment))
        )

    def _compose(self) -> None:
        """Every service: the image's entry point, the image at /srv, its volumes, its port of the host."""
        folder = self.deployed / "compose"
        services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
        entry = re.search(r"(?m)^ENTRYPOINT (\[.+\])$", (self.image / "Dockerfile").read_text())
        assert entry is not None
        words = [word.replace("/srv", str(self.image)) for word in json.loads(entry[1])]
        inner = {name: str(told["ports"][0]).split(":") for name, told in services.items()}
        routes = (folder / "routes.json").read_text()
        for name, (outer, port) in inner.items():
            routes = routes.replace(f'"http://{name}:{port}"', f'"http://127.0.0.1:{self.port(int(outer))}"')
        (self.folder / "routes.json").write_text(routes)
        for name, told in services.items():
            assert told.get("build", {"context": "../image"})["context"] == "../image"
            assert told.get("volumes", ["./routes.json:/srv/routes.json:ro"]) == [
                "./routes.json:/srv/routes.json:ro"
            ]
            environment = {key: str(value) for key, value in told["environment"].items()}
            assert environment["TORCHSPLIT_PORT"] == inner[name][1]
            environment["TORCHSPLIT_PORT"] = str(self.port(int(inner[name][0])))
            if "TORCHSPLIT_ROUTES" in environment:
                assert environment["TORCHSPLIT_ROUTES"] == "/srv/routes.json"
                environment["TORCHSPLIT_ROUTES"] = str(self.folder / "routes.json")
            self._run(words, self.image, environment, told.get("cpuset", ""))

    def _systemd(self) -> None:
        """Every unit that the target wants, by its ExecStart and environment."""
        self._move_ports("systemd")
        folder = self.deployed / "systemd"
        (self.image / "venv").mkdir()
        (self.image / "venv" / "bin").symlink_to(self.folder / "bin")
        target = _unit(folder / "units" / "torchsplit.target", self)
        for name in target["Unit", "Wants"]:
            base, at, instance = name.removesuffix(".service").partition("@")
            unit = _unit(folder / "units" / f"{base}{at}.service", self, instance)
            dropped = folder / "units" / f"{name}.d" / "cores.conf"
            cores = _unit(dropped, self)["Service", "CPUAffinity"][0] if dropped.exists() else ""
            environment: dict[str, str] = {}
            for line in unit["Service", "Environment"]:
                environment |= dict(pair.split("=", 1) for pair in shlex.split(line))
            for file in unit.get(("Service", "EnvironmentFile"), []):
                if not file.startswith("-") or Path(file[1:]).exists():
                    environment |= dict(line.split("=", 1) for line in Path(file).read_text().split())
            (command,) = unit["Service", "ExecStart"]
            (working,) = unit["Service", "WorkingDirectory"]
            self._run(shlex.split(command), Path(working), environment, cores)

    def _slurm(self) -> None:
        """The job, as sbatch starts it on a node whose cores are those that the plan has."""
        self._move_ports("slurm")
        node = self.folder / "node"
        node.mkdir()
        job = self.deployed / "slurm" / "serve.sbatch"
        tasks = re.search(r"(?m)^#SBATCH --ntasks=(\d+)$", job.read_text())
        assert tasks is not None and int(tasks[1]) <= NODE, (
            "sbatch refuses more tasks than the node has cores"
        )
        environment = {
            "TORCHSPLIT_ROOT": str(self.image),
            "SLURM_SUBMIT_DIR": str(job.parent),
            "NODE": str(node),
            "NODE_CORES": " ".join(map(str, self.cores[:NODE])),
        }
        self._run(["bash", job.name], job.parent, environment)

    def _move_ports(self, format_name: str) -> None:
        """The host's ports of the format's files to free ones."""
        for path in (self.deployed / format_name).rglob("*"):
            if path.is_file():
                text = path.read_text()
                path.write_text(re.sub(r"\b80\d\d\b", lambda found: str(self.port(int(found[0]))), text))

    def wait(self) -> None:
        """Until all models are ready."""
        deadline = time.monotonic() + READY_S
        while True:
            ended = [process.args for process in self.processes if process.poll() is not None]
            assert not ended and time.monotonic() < deadline, ended
            try:
                with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=10):
                    return
            except OSError:
                time.sleep(0.2)

    def end(self) -> list[int]:
        """Tell all to end; their exit codes."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        return [process.wait(60) for process in self.processes]


@contextmanager
def started(deployed: Path, format_name: str, folder: Path) -> Iterator[Host]:
    """A host that serves as this format has it; nothing of it is left."""
    host = Host(deployed, folder)
    try:
        host.start(format_name)
        host.wait()
        yield host
    finally:
        for process in host.processes:
            if process.poll() is None:
                process.terminate()
        for process in host.processes:
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


class _Many(dict[str, Any]):
    """Options of a section; a key that stands several times keeps all of its values."""

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, list) and key in self:
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


def _unit(path: Path, host: Host, instance: str = "") -> dict[tuple[str, str], list[str]]:
    """Values of each option of a unit by section and name, with its paths bound and its instance put in."""
    parser = configparser.RawConfigParser(dict_type=_Many, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    text = path.read_text().replace("/opt/torchsplit", str(host.image)).replace("%i", instance)
    parser.read_string(text.replace("/etc/torchsplit", str(host.deployed / "systemd")))
    return {
        (section, key): value.split("\n")
        for section in parser.sections()
        for key, value in parser.items(section)
    }

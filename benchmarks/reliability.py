"""Tries to lose, damage, overload or break into things, counted: what was tried how often, and what failed.

    python -m benchmarks.reliability [--share 1.0] [--only STORE …]

Every family has seeds of its own; a failure prints its seed and what happened. `--share` scales the numbers of tries.
Ends with 1 where anything failed. A family that cannot run here (no right to mount a file system) says so and does
not count.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import pytest

from benchmarks import standing_job
from benchmarks.nasty_numbers import EXAMPLES, faults
from tests.support.workspace import io_faults
from tests.support.workspace.disk_scenarios import may_mount
from tests.support.workspace.job_child import own_jobs
from tests.support.workspace.storage_writer import request
from tests.support.workspace.store_damage import try_damaged
from torchsplit_core import jobs
from torchsplit_core.deployment import deploy
from torchsplit_core.files import read_text
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import PLAN
from torchsplit_core.values import InputFault, PlanOutcome
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.store import Store, Workspace

ROOT = Path(__file__).resolve().parent.parent

NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*")
"""Node name by RFC 1123, as Kubernetes requires it."""
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Parent of the tries' folders: in memory, because a disk would be synced tens of thousands of times."""
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Family:
    """A kind of try that is repeated `runs` times; `run` gets a fresh folder and a seed, and raises if the try fails.

    `run` returns its number of tries if that is not one.
    """

    name: str
    about: str
    runs: int
    run: Callable[[Path, int], int | None]


class CannotRun(Exception):
    """This machine lacks something that a family needs."""


def filled(folder: Path, count: int = 8) -> Workspace:
    """A workspace with some results, a setting and a job."""
    workspace = Store(folder).create("review")
    for number in range(count):
        workspace.put("plan_request", f"r{number}", request(number + 1))
    workspace.set_setting("scenario", "r1")
    workspace.add_job("Plan", PLAN, {"request": "r1"})
    return workspace


# Acknowledged data is never lost


def _write_for_ever(root: Path, identity: str, pipe: int, seed: int) -> None:
    rng, workspace = random.Random(seed), Store(root).open(identity)
    number = 0
    while True:
        content = rng.randbytes(rng.choice([10, 3000, 200_000]))
        workspace.put_bytes("upload", f"u{number % 7}", content)
        os.write(pipe, json.dumps([number, content.hex()[:64]]).encode() + b"\n")
        number += 1


def kill_while_storing(folder: Path, seed: int) -> None:
    """kill -9 of a process that stores: whatever it reported as stored is there, whole."""
    rng = random.Random(seed)
    workspace = Store(folder / "home").create("w")
    reading, writing = os.pipe()
    writer = FORK.Process(target=_write_for_ever, args=(workspace.store.root, workspace.id, writing, seed))
    writer.start()
    os.close(writing)
    time.sleep(rng.random() * 0.15)
    writer.kill()
    writer.join()
    with os.fdopen(reading) as told:
        lines = [json.loads(line) for line in told.read().splitlines(keepends=True) if line.endswith("\n")]
    for number, start in lines[-7:]:
        found = workspace.get_bytes("upload", f"u{number % 7}").hex()[:64]
        later = lines[-1][0] + 1  # one more may have been stored but not yet reported
        assert found == start or later % 7 == number % 7, (number, len(lines))
    workspace.store.check()


def _import_for_ever(root: Path, data: bytes) -> None:
    while True:
        import_workspace(Store(root), data)


def kill_while_importing(folder: Path, seed: int) -> None:
    """kill -9 of an import: the workspace is there whole, or not at all."""
    data = export_workspace(filled(folder / "from", 20))
    Store(folder / "home")
    writer = FORK.Process(target=_import_for_ever, args=(folder / "home", data))
    writer.start()
    time.sleep(random.Random(seed).random() * 0.25)
    writer.kill()
    writer.join()
    store = Store(folder / "home")
    for info in store.workspaces():
        opened = store.open(info.id)
        assert len(opened.artifacts()) == 20
        opened.get("plan_request", "r19")


def kill_a_job(folder: Path, seed: int) -> None:
    """kill -9 of a job at any moment of its start: it counts as stopped at once, whatever it was about to report."""
    workspace = Store(folder / "home").create("w")
    with pytest.MonkeyPatch.context() as patch:
        own_jobs(patch, standing_job)
        job = jobs.start(workspace, "Stand", "stand", standing_job.Stand())
    time.sleep(random.Random(seed).random() * 0.6)
    pid = runner._read(workspace.store, job)["pid"]
    os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while jobs.status(workspace, job).state == "running":
        assert time.monotonic() < deadline, jobs.status(workspace, job)
        time.sleep(0.02)
    assert jobs.status(workspace, job).fault == runner.STOPPED_TEXT


def power_cut(folder: Path, seed: int) -> None:
    """Start from a disk image taken when a write was acknowledged: nothing is missing."""
    del seed
    _scenario(folder, "power_cut", loop=True)


def full_disk(folder: Path, seed: int) -> None:
    """0 bytes free, or read-only: everything can be read, and on the full disk also deleted."""
    _scenario(folder, "full" if seed % 2 else "read_only", loop=False)


def _scenario(folder: Path, name: str, *, loop: bool) -> None:
    prefix = may_mount(loop)
    if prefix is None:
        raise CannotRun("no file system can be mounted here")
    script = ROOT / "tests" / "support" / "workspace" / "disk_scenarios.py"
    found = subprocess.run(
        [*prefix, sys.executable, str(script), name, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert found.returncode == 0, found.stderr[-2000:]


def disk_errors(folder: Path, seed: int) -> int:
    """One operation of the store; each of its disk calls fails with each error that it may return."""
    return _io_faults(folder, "errors", seed)


def kill_at_every_call(folder: Path, seed: int) -> int:
    """One operation of the store; kill -9 before, in and after each of its calls that write."""
    return _io_faults(folder, "kills", seed)


def _io_faults(folder: Path, tries: io_faults.Tries, seed: int) -> int:
    found = io_faults.run(folder, tries, io_faults.OPERATIONS[seed].name)
    if found is None:
        raise CannotRun("no C compiler here")
    (row,) = found
    assert not row["failures"], "\n".join(row["failures"][:3])
    return sum(row["tries"].values())


# Damaged or hostile input yields one message


def damaged_database(folder: Path, seed: int) -> None:
    """Change bytes anywhere in the database: each query of a page succeeds or is refused with one message."""
    workspace = filled(folder / "home")
    try_damaged(workspace.store, workspace.id, folder, [seed])


def damaged_content(folder: Path, seed: int) -> None:
    """Change or cut off bytes of a stored result: reading it reports the damage, storing it again repairs it."""
    rng = random.Random(seed)
    workspace = Store(folder / "home").create("w")
    item = workspace.put("plan_request", "mix", request(3))
    path = workspace.store.blobs.path(item.sha256)
    data = bytearray(path.read_bytes())
    if rng.random() < 0.3:
        del data[rng.randrange(len(data)) :]
    else:
        at = rng.randrange(len(data))
        data[at] ^= rng.randrange(1, 256)
    path.write_bytes(data)
    try:
        workspace.get("plan_request", "mix")
    except InputFault as fault:
        assert "as it was stored" in str(fault)
    else:
        raise AssertionError("it was read as if nothing had happened")
    workspace.put("plan_request", "mix", request(3))
    assert workspace.get("plan_request", "mix") == request(3)


def hostile_archive(folder: Path, seed: int) -> None:
    """An archive with changed bytes, renamed or duplicate entries, or its end cut off: refused, or imported whole."""
    rng = random.Random(seed)
    source = filled(folder / "from", 3)
    data = bytearray(export_workspace(source))
    kind = rng.randrange(3)
    if kind == 0:
        for _ in range(rng.choice([1, 4, 40])):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 1:
        del data[rng.randrange(len(data)) :]
    else:
        data = bytearray(_renamed(bytes(data), rng))
    store = Store(folder / "home")
    before = store.workspaces()
    try:
        made = import_workspace(store, bytes(data))
    except InputFault:
        assert store.workspaces() == before
    else:
        for item in made.artifacts():
            made.get_bytes(item.kind, item.name)
    assert {path.name for path in folder.iterdir()} == {"from", "home"}, "a file outside the store"


def _renamed(data: bytes, rng: random.Random) -> bytes:
    nasty = [
        "../../evil",
        "/etc/evil",
        "a\0b",
        "..\\evil",
        "\ud800",
        "x" * 300,
        "",
        "manifest.json",
        "results/0001",
    ]
    made = BytesIO()
    with zipfile.ZipFile(BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            name = rng.choice(nasty) if rng.random() < 0.3 else entry.filename
            if entry.filename == "manifest.json" and rng.random() < 0.7:
                text = content.decode()
                content = text.replace(rng.choice(["r0", "r1", "results/0000"]), rng.choice(nasty)).encode(
                    errors="surrogatepass"
                )
            try:
                new.writestr(name, content)
            except (ValueError, UnicodeError, IndexError):  # zipfile cannot write this name
                new.writestr("plain", content)
    return made.getvalue()


def nasty_numbers(folder: Path, seed: int) -> int:
    """Replace numbers of an example file by values that break arithmetic."""
    del folder
    files = sorted(EXAMPLES.glob("*.json"))
    found = list(faults(files[seed % len(files)], every_leaf=seed < len(files)))
    assert not any(found), [fault for fault in found if fault][:3]
    return len(found)


def hostile_host(folder: Path, seed: int) -> None:
    """A plan for a GPU whose id names a host: refused, or the host is a valid node name (Kubernetes and scripts)."""
    rng = random.Random(seed)
    letters = "abz09-._ \"'`$();&|<>\\\n\0\x1b=,:*?~#%é\u202e"
    host = "".join(rng.choice(letters) for _ in range(rng.randint(1, 12)))
    if rng.random() < 0.5:
        host = (
            rng.choice(["--all", "-l=x", "--server=https://x", "$(x)", "a;b", "node-1", "a.b", "x" * 254])
            + host
        )
    outcome = planned(f"{host}/gpu0")
    try:
        files = deploy(outcome, ["kubernetes"])
    except InputFault:
        return
    assert NODE_NAME.fullmatch(host) and len(host) <= 253, host
    script = next(file.text for file in files if file.name.endswith("label-nodes.sh"))
    assert f"label {host} " in script


def planned(gpu: str) -> PlanOutcome:
    """An outcome with one GPU in use, under this id."""
    outcome: PlanOutcome = read_text((EXAMPLES / "plan.json").read_text())[1]
    used = next(one for one in outcome.gpus if one.slices)
    return replace(outcome, gpus=(replace(used, id=gpu),))


def tests_of(*paths: str) -> Callable[[Path, int], int]:
    """A family that runs the tests in these files; each test counts as a try."""

    def run(folder: Path, seed: int) -> int:
        del folder, seed
        found = subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-rA", *paths],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert found.returncode == 0, found.stdout[-3000:]
        return sum(line.startswith("PASSED ") for line in found.stdout.splitlines())

    return run


FAMILIES = (
    Family("kill: storing", "kill -9 of a process that stores results", 400, kill_while_storing),
    Family("kill: import", "kill -9 of the import of an archive", 150, kill_while_importing),
    Family("kill: job", "kill -9 of a job's group at any moment of its start", 60, kill_a_job),
    Family(
        "kill: every call",
        "kill -9 around each call to the disk that writes",
        len(io_faults.OPERATIONS),
        kill_at_every_call,
    ),
    Family(
        "disk errors",
        "each call to the disk with each error, once and from there on",
        len(io_faults.OPERATIONS),
        disk_errors,
    ),
    Family("power cut", "a disk image after each of five acknowledgements", 25, power_cut),
    Family("full or read-only disk", "0 bytes free; read-only", 20, full_disk),
    Family("damaged database", "twelve calls each on a store with bytes changed", 2000, damaged_database),
    Family("damaged result", "a stored file with bytes changed or cut off", 2000, damaged_content),
    Family(
        "hostile archive", "an archive with bytes changed, cut off, entries renamed", 2000, hostile_archive
    ),
    Family(
        "nasty numbers", "each number of the example files as one that breaks arithmetic", 20, nasty_numbers
    ),
    Family("hostile hosts", "GPU ids whose host is an option, a command or no name", 2000, hostile_host),
    Family(
        "isolation",
        "escapes and daemons at each level",
        3,
        tests_of("tests/isolation/test_held.py", "tests/isolation/test_ends.py"),
    ),
    Family("execution", "trusted jobs started again", 3, tests_of("tests/jobs/test_trust.py")),
    Family(
        "costly files",
        "files made to cost memory or time",
        2,
        tests_of("tests/workspace/test_untrusted_files.py"),
    ),
)


def try_all(families: tuple[Family, ...], share: float) -> int:
    """Run the families and print a row for each; return how many tries failed."""
    print("| what | tries | failures | s |\n|---|---|---|---|")
    total = failures = 0
    for family in families:
        begun, failed, tries = time.perf_counter(), 0, 0
        for seed in range(max(1, round(family.runs * share))):
            folder = Path(tempfile.mkdtemp(prefix="torchsplit-reliability-", dir=MEMORY))
            try:
                made = family.run(folder, seed)
                tries += 1 if made is None else made
            except CannotRun as error:
                print(f"{family.name}: {error}", file=sys.stderr)
                break
            except Exception:  # noqa: BLE001 - any exception counts as a failure
                tries, failed = tries + 1, failed + 1
                print(f"{family.name}, seed {seed}:", file=sys.stderr)
                traceback.print_exc()
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        seconds = time.perf_counter() - begun
        print(f"| {family.name}: {family.about} | {tries:,} | {failed} | {seconds:.0f} |", flush=True)
        total, failures = total + tries, failures + failed
    print(f"\n{total:,} tries, {failures} failures.")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the numbers of runs")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="families whose name begins so")
    options = parser.parse_args()
    chosen = tuple(
        family
        for family in FAMILIES
        if not options.only or any(family.name.startswith(name) for name in options.only)
    )
    return 1 if try_all(chosen, options.share) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Fuzzing of everything that reads a file, a request or an option of somebody else's, guided by coverage (atheris).

    python -m benchmarks.fuzz [--seconds 600] [--only TARGET …] [--corpus FOLDER]
    python -m benchmarks.fuzz --only TARGET --input BASE64     one input again, with its traceback

Each target runs in a process of its own for its share of the time, from seeds in `benchmarks/data/fuzz` and
`examples`. A finding is any exception but the reader's refusal (InputFault), a refusal that a terminal or a log
cannot show, a result that breaks what is promised of it, more than SLOW_S processor seconds for an input, or more
than MEMORY_MIB. Ends with 1 where there was a finding.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks import fuzz_readers
from torchsplit_core.values import InputFault

ROOT = Path(__file__).resolve().parent.parent
SEEDS = ROOT / "benchmarks" / "data" / "fuzz"
LARGEST_INPUT = 64 * 2**10
SLOW_S = 10.0
"""Processor seconds for one input of at most LARGEST_INPUT bytes; instrumented code takes a few times as long."""
STUCK_S = 60
MEMORY_MIB = 2048
"""Limits that end a target's process and count as a finding: STUCK_S of wall time for one input, MEMORY_MIB in all."""
NICE = 10
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, -0.0, 0.5, 1e-320, 1e308, float("inf"), float("nan"),
    "", " ", "x", "é", "\x1b[2J", "\u202e", "\ud800", "\0", "x" * 300, "../../x", "__class__", [], {}, [[]], [0, 0],
    {"": 0},
)  # fmt: skip

Read = Callable[[bytes], None]
Mutate = Callable[[bytes, int], bytes]


@dataclass(frozen=True)
class Target:
    """A reader under test. `load` imports it and returns a function of one input that raises InputFault to refuse it.

    `shape` says how inputs are mutated: as bytes, as JSON ("json"; "lined": after a first line), or inside a zip.
    """

    name: str
    about: str
    load: Callable[[], Read]
    shape: str = "bytes"
    examples: tuple[str, ...] = ()

    @property
    def seeds(self) -> dict[str, bytes]:
        """The initial inputs, by name."""
        found = [path for pattern in self.examples for path in sorted(ROOT.glob(pattern))]
        found += sorted((SEEDS / self.name).glob("*"))
        small = {path.name: path.read_bytes() for path in found if path.stat().st_size <= LARGEST_INPUT}
        return fuzz_readers.zips(small) if self.shape == "zip" else small


TARGETS = (
    Target("contract", "contract files of every format, written and read again", fuzz_readers.contract, "json",
           ("examples/*.json", "examples/fleets/*.json")),
    Target("table", "profiles from CSV, written and read again", fuzz_readers.table, "bytes",
           ("examples/profiles/*.csv",)),
    Target("cells", "arrivals, training rows, job histories, demand, prices and a matrix from CSV", fuzz_readers.cells),
    Target("pt2", "the graph of a .pt2", fuzz_readers.pt2, "zip"),
    Target("archive", "a workspace's archive", fuzz_readers.archive, "zip"),
    Target("config", "a config.json as a decoder and as sizes", fuzz_readers.config, "json"),
    Target("host", "a replayed host, a journal of MIG, DCGM's table, spans", fuzz_readers.host, "lined",),
    Target("listing", "a host's texts of nvidia-smi and mig-parted", fuzz_readers.listing),
    Target("options", "values of the command line", fuzz_readers.options),
    Target("http", "a connection's bytes, in any pieces", fuzz_readers.http),
    Target("infer", "a request's body: packed, JSON, tensors as bytes", fuzz_readers.infer, "lined"),
    Target("answer", "an answer's tensors, for who asked", fuzz_readers.answer, "lined"),
    Target("stream", "an LLM's streamed answer, in any pieces", fuzz_readers.stream),
    Target("guard", "who may ask: host, origin, token", fuzz_readers.guard),
)  # fmt: skip


class Findings:
    """The shortest input of each kind of finding: the exception and the last line of this project in its trace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes: dict[str, int] = {}

    def note(self, error: BaseException, data: bytes) -> None:
        """Store the input, unless a shorter one of its kind is stored."""
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if str(ROOT) in frame.filename]
        last = f"{Path(own[-1].filename).relative_to(ROOT)}:{own[-1].lineno}" if own else ""
        kind = f"{type(error).__name__} at {last}"
        key = hashlib.sha256(kind.encode(errors="replace")).hexdigest()[:16]
        if len(data) >= self.sizes.get(key, 1 << 60):
            return
        self.sizes[key] = len(data)
        told = {"kind": kind, "said": str(error)[:300], "input": base64.b64encode(data).decode()}
        (self.folder / key).write_text(json.dumps(told))


def checked(read: Read, data: bytes) -> bool:
    """Whether the reader accepts the input. Raises whatever counts as a finding."""
    begun = time.process_time()
    try:
        read(data)
    except InputFault as fault:
        said = str(fault)
        said.encode()
        steering = sorted(
            letter for letter in set(said) - {"\n"} if unicodedata.category(letter) in ("Cc", "Cf")
        )
        assert not steering, f"a message with {steering[0]!r}: {said[:200]!r}"
        assert fault.problem and fault.remedy, "a message without a problem or a remedy"
        return False
    finally:
        taken = time.process_time() - begun
        assert taken < SLOW_S, f"{taken:.1f} s for one input"
    return True


# Mutations


def mutated_json(data: bytes, rng: random.Random, plain: Callable[[bytes], bytes]) -> bytes:
    """Replace, drop, double or move a few parts of a JSON value; mutate anything else as bytes."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return plain(data)
    if rng.random() < 0.15:
        return plain(data)
    places = list(_places(value))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not places:
            value = rng.choice(NASTY)
            break
        box, key = rng.choice(places)
        try:
            _change(box, key, rng, places)
        except (KeyError, IndexError):  # another change has removed it
            continue
    try:
        return json.dumps(value).encode()
    except (ValueError, RecursionError):
        return plain(data)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _change(box: Any, key: Any, rng: random.Random, places: list[tuple[Any, Any]]) -> None:
    kind, old = rng.randrange(7), box[key]
    if kind == 0:
        del box[key]
    elif kind == 1:
        other, there = rng.choice(places)
        box[key] = json.loads(json.dumps(other[there]))
    elif kind == 2 and isinstance(box, list):
        box.insert(key, json.loads(json.dumps(old)))
    elif kind == 3 and isinstance(box, dict):
        del box[key]
        box[rng.choice(("", "x", "é", f"{key}_", "format", "name"))] = old
    elif kind == 4 and isinstance(old, int | float):
        box[key] = rng.choice((old + 1, old - 1, -old, old * 1000, str(old), [old]))
    elif kind == 4 and isinstance(old, str) and old:
        at = rng.randrange(len(old))
        box[key] = old[:at] + rng.choice(("", ".", "/", "-", "0", "\n", "\ud83d", old)) + old[at + 1 :]
    else:
        box[key] = rng.choice(NASTY)


def mutator(shape: str, plain: Mutate) -> Callable[[bytes, int, int], bytes]:
    """The custom mutator for libFuzzer: (data, largest size, seed) -> new input."""

    def made(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if shape == "zip":
            found = _mutated_zip(data, rng, lambda one: plain(one, most))
        elif shape == "lined":
            head, _, rest = data.partition(b"\n")
            if rng.random() < 0.2:
                head = plain(head, 64).replace(b"\n", b"")
            else:
                # Keep what follows the JSON (tensors).
                end = rest.rfind(b"}") + 1 or len(rest)
                rest = mutated_json(rest[:end], rng, lambda one: plain(one, most)) + rest[end:]
            found = head + b"\n" + rest
        else:
            found = mutated_json(data, rng, lambda one: plain(one, most))
        return found if len(found) <= most else data[:most]

    return made


def _mutated_zip(data: bytes, rng: random.Random, plain: Callable[[bytes], bytes]) -> bytes:
    """Change one entry's content or name, or drop one entry; now and then mutate the zip's bytes instead."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as old:
            entries = [(entry.filename, old.read(entry)) for entry in old.infolist()]
    except Exception:  # noqa: BLE001 - zipfile raises a dozen kinds for damaged files
        return plain(data)
    if not entries or rng.random() < 0.1:
        return plain(data)
    at = rng.randrange(len(entries))
    name, content = entries[at]
    kind = rng.random()
    if kind < 0.85:
        entries[at] = name, mutated_json(content, rng, plain)
    elif kind < 0.92:
        entries[at] = rng.choice(("", "x", "../x", "é", entries[rng.randrange(len(entries))][0])), content
    else:
        del entries[at]
    return fuzz_readers.zipped(entries, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))


# One target per process


def fuzz(target: Target, seconds: float, corpus: Path, found: Path) -> None:
    """Fuzz the target in this process, which libFuzzer ends."""
    import atheris

    os.nice(NICE)
    with atheris.instrument_imports(include=["torchsplit_core"]):
        read = target.load()
        for data in target.seeds.values():  # so that first-use imports are instrumented
            try:
                checked(read, data)
            except Exception:  # noqa: BLE001 - fuzzing will raise it again
                continue
    findings = Findings(found)

    def once(data: bytes) -> None:
        try:
            checked(read, data)
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            findings.note(error, data)

    arguments = [
        sys.argv[0], str(corpus), f"-max_total_time={max(1, round(seconds))}", f"-max_len={LARGEST_INPUT}",
        f"-timeout={STUCK_S}", f"-rss_limit_mb={MEMORY_MIB}", f"-artifact_prefix={found}/ended-",
        "-print_final_stats=1",
    ]  # fmt: skip
    shaped = (
        {}
        if target.shape == "bytes"
        else {"custom_mutator": mutator(target.shape, lambda data, most: atheris.Mutate(data, most))}
    )
    atheris.Setup(arguments, once, **shaped)
    atheris.Fuzz()


def run(target: Target, seconds: float, corpora: Path, folder: Path) -> int:
    """Fuzz the target in a child, print its row and its findings; return the number of kinds of faults."""
    corpus, found = corpora / target.name, folder / f"{target.name}.found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    for name, data in target.seeds.items():
        (corpus / name).write_bytes(data)
    begun = time.perf_counter()
    log = found.with_suffix(".log")
    with log.open("wb") as told:
        ended = subprocess.run(
            [
                sys.executable, "-m", "benchmarks.fuzz", "--child", target.name, "--seconds", str(seconds),
                "--corpus", str(corpus), "--found", str(found),
            ],
            cwd=ROOT, stdout=told, stderr=told, check=False, env=os.environ | {"TMPDIR": str(folder)},
        )  # fmt: skip
    text, taken = log.read_text(errors="replace"), time.perf_counter() - begun
    edges = [int(number) for number in re.findall(r"cov: (\d+) ft:", text)]
    count = max((int(number) for number in re.findall(r"^#(\d+)", text, re.M)), default=0)
    kept = [json.loads(path.read_text()) for path in sorted(found.glob("*")) if "-" not in path.name]
    kept += [
        {"kind": path.name, "said": "memory or time", "input": base64.b64encode(path.read_bytes()).decode()}
        for path in sorted(found.glob("ended-*"))
    ]
    if ended.returncode and not kept:
        kept.append({"kind": f"its process ended with {ended.returncode}", "said": text[-1000:], "input": ""})
    print(
        f"| {target.name}: {target.about} | {count:,} | {count / taken:,.0f} | {edges[0] if edges else 'n/a'} "
        f"| {edges[-1] if edges else 'n/a'} | {len(kept)} |",
        flush=True,
    )
    for one in kept:
        print(
            f"{target.name}: {one['kind']}: {one['said']!r}\n"
            f"    python -m benchmarks.fuzz --only {target.name} --input {one['input'] or '(none)'}",
            file=sys.stderr,
            flush=True,
        )
    return len(kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="for all targets together")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in TARGETS], metavar="TARGET")
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="where inputs that reach more are kept")
    parser.add_argument("--input", metavar="BASE64", help="read this once by the one target named")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    named = {one.name: one for one in TARGETS}
    if options.child:
        fuzz(named[options.child], options.seconds, options.corpus, options.found)
        return 0
    chosen = [named[name] for name in options.only or named]
    if options.input is not None:
        for target in chosen:
            print(
                target.name,
                "takes it" if checked(target.load(), base64.b64decode(options.input)) else "refuses it",
            )
        return 0
    print(
        "| reader | inputs | a second | edges of the seeds | edges at the end | faults |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory(prefix="torchsplit-fuzz-") as temporary:
        folder, share = Path(temporary), options.seconds / len(chosen)
        found = sum(run(target, share, options.corpus or folder, folder) for target in chosen)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Clients that mean harm, against a served plan: what was tried how often, what failed, and what others felt of it.

    python -m benchmarks.front_attacks [--share 1.0] [--only NAME …]

The command line serves an empty model with time limits of two seconds. Meanwhile another process sends health checks
and inference requests, as harmless clients do. They wait longer than they would alone partly because cores and model
work for somebody else: each family is therefore compared with a *control*, harmless clients that ask as much, or a
process that computes as hard as the attacker. A try fails if the server ends, answers in anything but HTTP and JSON,
or holds a connection for longer than its limits; a family fails if the server's memory grows by more than
MOST_GROWTH. Ends with 1 where anything failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.front_capacity import serving

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 2.0
LIMITS = (
    f"--head-timeout-s {LIMIT_S} --body-timeout-s {LIMIT_S} --send-timeout-s {LIMIT_S} --max-connections 1000 "
    "--max-held-mib 64 --queue-limit 1000"
).split()
PATIENCE_S = 30.0
MOST_GROWTH = 400 * 2**20
"""Bytes: the bodies held at once, plus what two body readers may take."""
HEAD = "POST /v2/models/empty/infer HTTP/1.1\r\nhost: localhost\r\n"
ALIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
ENTRY = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
VALUES = (
    "NaN",
    "Infinity",
    "1e400",
    "1" + "0" * 400,
    "-1",
    "[]",
    "{}",
    '"x"',
    "null",
    "true",
    "1e-320",
    "[[[[]]]]",
)


class Failed(Exception):
    """A try failed."""


@dataclass
class Server:
    """The server under attack."""

    pid: int
    port: int

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def answers(self, *pieces: bytes, pause_s: float = 0.0, many: int = 1) -> list[int]:
        """Statuses of the responses to these bytes, until the server closes or has sent `many`. Raises Failed."""
        reader, writer = await self.open()
        try:
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(pause_s)
            return await statuses(reader, many)
        finally:
            writer.close()

    @property
    def memory(self) -> int:
        """Resident bytes of the front end and its body readers."""
        found = 0
        for pid in (self.pid, *children(self.pid)):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if pid == self.pid or b"protocol.body_readers" in command:
                    found += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf(
                        "SC_PAGE_SIZE"
                    )
        return found


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


async def statuses(reader: asyncio.StreamReader, many: int) -> list[int]:
    """Statuses of the responses until the server closes or has sent `many`; each must have JSON. Raises Failed for any
    other bytes, and on timeout."""
    found: list[int] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.IncompleteReadError as end:
                    if end.partial:
                        raise Failed(f"half an answer: {end.partial[:80]!r}") from None
                    return found
                except ConnectionError:
                    return found
                lines = head.decode("latin-1").split("\r\n")
                headers = dict(line.split(": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers["content-length"]))
                json.loads(body)
                found.append(int(lines[0].split()[1]))
                if headers.get("connection") != "close" and len(found) >= many:
                    return found
    except (TimeoutError, ValueError, KeyError, asyncio.IncompleteReadError) as error:
        raise Failed(f"{type(error).__name__}: {error}") from error


def infer(body: bytes, *headers: str) -> bytes:
    """A complete inference request."""
    return (
        HEAD + "".join(f"{one}\r\n" for one in headers) + f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


def told(**entry: object) -> bytes:
    """A request body: the usual input with these fields replaced."""
    return json.dumps({"inputs": [ENTRY | entry]}).encode()


async def half_heads(server: Server, rng: random.Random) -> None:
    text = infer(told())[: rng.randrange(1, 60)]
    if (found := await server.answers(text)) not in ([408], []):
        raise Failed(f"half a head got {found}")


async def half_bodies(server: Server, rng: random.Random) -> None:
    text = infer(told())
    if (found := await server.answers(text[: -rng.randrange(1, 60)])) not in ([408], [503], []):
        raise Failed(f"half a body got {found}")


async def dripping(server: Server, rng: random.Random) -> None:
    await server.answers(*(b"GET /v2 HTTP/1.1\r\nx: " + b"a" * 20)[:].split(b"a"), pause_s=0.3)


async def endless_headers(server: Server, rng: random.Random) -> None:
    lines = b"".join(b"x-%d: %s\r\n" % (number, b"b" * rng.choice((1, 1000))) for number in range(500))
    found = await server.answers(HEAD.encode(), *[lines] * 40)
    if found not in ([431], []):
        raise Failed(f"headers without end got {found}")


async def packed_bombs(server: Server, rng: random.Random) -> None:
    body = rng.choice(bombs())
    found = await server.answers(infer(body, "content-encoding: deflate", "connection: close"))
    if found not in ([413], [400], [503]):
        raise Failed(f"a packed bomb got {found}")


async def dear_json(server: Server, rng: random.Random) -> None:
    mark = rng.choice((b"[", b"{", b"{},", b'{"a":', b'"",', b"0,"))
    body = b'{"inputs":[' + mark * (rng.choice((1_000, 100_000, 500_000)) // len(mark))
    if (found := await server.answers(infer(body, "connection: close"))) not in ([400], [413], [503]):
        raise Failed(f"JSON made to cost got {found}")


async def odd_timeouts(server: Server, rng: random.Random) -> None:
    value = rng.choice(VALUES)
    body = told()[:-1] + f', "parameters": {{"timeout": {value}}}}}'.encode()
    if (found := await server.answers(infer(body, "connection: close"))) not in ([200], [400]):
        raise Failed(f"the timeout {value} got {found}")


async def odd_fields(server: Server, rng: random.Random) -> None:
    field = rng.choice(("name", "datatype", "shape", "data", "parameters"))
    body = told(**{field: "@"}).replace(b'"@"', rng.choice(VALUES).encode())
    if (found := await server.answers(infer(body, "connection: close"))) not in ([200], [400]):
        raise Failed(f"{body!r} got {found}")


async def mutated(server: Server, rng: random.Random) -> None:
    text = bytearray(infer(told()))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(text))
        text[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    await server.answers(bytes(text))


async def deaf_clients(server: Server, rng: random.Random) -> None:
    """Send large requests, read no response, and wait to be cut off."""
    entry = ENTRY | {"shape": [900, 4], "data": [0.5] * 3600}
    _reader, writer = await server.open()
    with contextlib.suppress(ConnectionError):
        writer.write(infer(json.dumps({"inputs": [entry]}).encode()) * 20)
        await asyncio.sleep(0.5)
    writer.close()


async def much_at_once(server: Server, rng: random.Random) -> None:
    """Send the requests of `deaf_clients`, but read the responses."""
    entry = ENTRY | {"shape": [900, 4], "data": [0.5] * 3600}
    text = infer(json.dumps({"inputs": [entry]}).encode())
    if len(found := await server.answers(text * 20, many=20)) < 20:
        raise Failed(f"20 large requests got {found}")


async def usual(server: Server, rng: random.Random) -> None:
    if (found := await server.answers(infer(told(), "connection: close"))) not in ([200], [429]):
        raise Failed(f"a usual request got {found}")


async def computing(server: Server, rng: random.Random) -> None:
    """Ask the server nothing; keep the attacking process's core busy."""
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass


async def crowding(server: Server, rng: random.Random) -> None:
    """Open a connection and stay silent for a while."""
    _, writer = await server.open()
    await asyncio.sleep(rng.random())
    writer.close()


@cache
def bombs() -> tuple[bytes, ...]:
    """Bodies that are small when compressed and large when unpacked."""
    return (
        zlib.compress(b'{"inputs":[' + b"{}," * 20_000_000 + b"{}]}", 9),
        zlib.compress(bytes(200 * 2**20), 9),
        zlib.compress(b"[" * 50_000_000, 9),
    )


@dataclass(frozen=True)
class Family:
    """Tries of one kind, `at_once` at a time; `beside` names the control for its effect on other clients."""

    name: str
    tries: int
    at_once: int
    run: Callable[[Server, random.Random], Awaitable[None]]
    beside: str = ""


CORE, FEW, MANY, LARGE = (
    "a core at work",
    "8 usual clients",
    "100 usual clients",
    "20 clients of large requests",
)
CONTROLS = (
    Family(CORE, 100, 1, computing),
    Family(FEW, 1500, 8, usual),
    Family(MANY, 1500, 100, usual),
    Family(LARGE, 200, 20, much_at_once),
)
FAMILIES = (
    Family("half heads, held", 1500, 750, half_heads, MANY),
    Family("half bodies, held", 1500, 750, half_bodies, MANY),
    Family("heads a few bytes at a time", 500, 250, dripping, MANY),
    Family("headers without end", 500, 8, endless_headers, CORE),
    Family("packed bombs", 300, 6, packed_bombs, CORE),
    Family("JSON made to cost", 700, 6, dear_json, CORE),
    Family("timeouts that are none", 1500, 8, odd_timeouts, FEW),
    Family("odd values in each field", 1500, 8, odd_fields, FEW),
    Family("mutated requests", 1500, 100, mutated, MANY),
    Family("clients that take no answer", 200, 20, deaf_clients, LARGE),
    Family("more connections than there may be", 2000, 1200, crowding, MANY),
)


async def attack(server: Server, family: Family, tries: int) -> tuple[list[str], int]:
    """The failures, and the largest memory that the server held, bytes."""
    turn, faults, most = asyncio.Semaphore(family.at_once), list[str](), 0

    async def one(seed: int) -> None:
        async with turn:
            try:
                await family.run(server, random.Random(seed))
            except (Failed, OSError) as error:
                faults.append(f"{family.name}, seed {seed}: {error}")

    work = asyncio.gather(*(one(seed) for seed in range(tries)))
    while not work.done():
        most = max(most, server.memory)
        await asyncio.wait((work,), timeout=0.1)
    await work
    try:
        if (found := await server.answers(ALIVE)) != [200]:
            faults.append(f"{family.name}: the server is not alive afterwards ({found})")
    except (Failed, OSError) as error:
        faults.append(f"{family.name}: the server is not alive afterwards ({error})")
    return faults, most


def watch(port: int) -> None:
    """Send health checks and inference requests until SIGTERM; then print the times of both, in ms, as JSON."""
    times: dict[str, list[float]] = {"health": [], "infer": []}
    body, stop = told(), []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    print("begun", flush=True)
    while not stop:
        for name, method, path, content in (
            ("health", "GET", "/v2/health/live", None), ("infer", "POST", "/v2/models/empty/infer", body),
        ):  # fmt: skip
            begin = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            status = 0
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request(method, path, content)
                status = connection.getresponse().status
            connection.close()
            # At the connection limit the server refuses a new client at once (503).
            times[name].append((time.perf_counter() - begin) * 1e3 if status in (200, 503) else 60_000.0)
        time.sleep(0.01)
    print(json.dumps(times))


@contextmanager
def watched(port: int) -> Iterator[dict[str, list[float]]]:
    """Other clients' times while the block runs; the dict is filled when the block has ended."""
    command = [sys.executable, "-m", "benchmarks.front_attacks", "--watch", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        found: dict[str, list[float]] = {}
        yield found
        process.terminate()
        found |= json.loads(process.communicate()[0])


def percentile(times: list[float], q: float) -> float:
    return sorted(times)[min(len(times) - 1, int(q * len(times)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", type=float, default=1.0, help="scales the tries")
    parser.add_argument("--only", nargs="*", default=[], help="families by the start of their names")
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        watch(options.watch)
        return 0
    chosen = [one for one in FAMILIES if not options.only or one.name.startswith(tuple(options.only))]
    chosen = [*(one for one in CONTROLS if one.name in {family.beside for family in chosen}), *chosen]
    faults: list[str] = []
    total = 0
    bombs()
    with serving(ROOT, 4, 32, LIMITS) as front:
        server = Server(front.pid, front.port)
        with watched(server.port) as quiet:
            time.sleep(5.0)
        at_rest = server.memory
        print(
            "| clients | tries | failures | memory grew by, MiB | slowest health, ms | p99 of others, ms | "
            "beside a control: its p99, ms |"
        )
        print("|---" * 7 + "|")
        row = "| {} | {} | {} | {:.0f} | {:.0f} | {:.0f} | {} |"
        alone = percentile(quiet["infer"], 0.99)
        print(row.format("nobody", 0, 0, 0, max(quiet["health"]), alone, ""))
        felt: dict[str, float] = {}
        for family in chosen:
            tries = max(1, round(family.tries * options.share))
            with watched(server.port) as times:
                found, most = asyncio.run(attack(server, family, tries))
            grown = max(0, most - at_rest)
            if grown > MOST_GROWTH:
                found.append(f"{family.name}: memory grew by {grown} bytes")
            total += tries if family.beside else 0
            faults += found
            felt[family.name] = percentile(times["infer"], 0.99)
            beside = f"{family.beside}: {felt[family.beside]:.0f}" if family.beside else "a control"
            print(
                row.format(
                    family.name, tries, len(found), grown / 2**20, max(times["health"]), felt[family.name], beside
                ),
                flush=True,
            )  # fmt: skip
    print(f"\n{total} tries, {len(faults)} failures. The front at rest: {at_rest / 2**20:.0f} MiB.")
    for fault in faults[:40]:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

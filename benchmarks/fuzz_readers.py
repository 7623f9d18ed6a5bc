"""The readers that `benchmarks.fuzz` tests: each function imports one and returns a check that reads one input.

The reader raises InputFault for what it refuses; any other exception is a finding.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import astuple
from io import BytesIO
from pathlib import Path
from typing import Any

Read = Callable[[bytes], None]
LARGEST_UNPACKED = 2**20
"""A larger archive would take as long as many small ones."""
ROOT = Path(__file__).resolve().parent.parent


def zipped(entries: list[tuple[str, bytes]], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file with these entries."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w", packing) as archive:
        for name, content in entries:
            # ZipInfo fixes the date, so that equal entries give equal bytes.
            archive.writestr(zipfile.ZipInfo(name or "x"), content, packing)
    return made.getvalue()


def zips(seeds: Mapping[str, bytes]) -> dict[str, bytes]:
    """Turn the repository's JSON seeds (entry → text or value) into zip files."""
    found = {}
    for name, data in seeds.items():
        if not name.endswith(".json"):
            found[name] = data
            continue
        parts = {
            inside: content if isinstance(content, str) else json.dumps(content)
            for inside, content in json.loads(data).items()
        }
        found[name] = zipped([(inside, text.encode()) for inside, text in parts.items()])
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def _file() -> Path:
    """A file for readers that take a path; it is deleted when the process ends."""
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="torchsplit-fuzz-file-"))
    return Path(_FOLDERS[-1].name) / "input"


# Files


def contract() -> Read:
    """Contract files: an accepted file, written and read again, gives the same value."""
    from torchsplit_core.files import read_text, write_text
    from torchsplit_core.workspace.untrusted_files import read_contract

    def read(data: bytes) -> None:
        _, value = read_contract(data, "the file")
        assert read_text(write_text(value))[1] == value, "another value when written and read again"

    return read


def table() -> Read:
    """Profiles from CSV: an accepted table is written as one that reads and writes as itself."""
    from torchsplit_core.tables import decode, read_any, write_profile_csv

    def read(data: bytes) -> None:
        profiles = read_any(decode(data)).profiles
        text = write_profile_csv(profiles)
        again = write_profile_csv(read_any(text, mapping={}).profiles)
        assert again == text, "another table when written and read again"

    return read


def cells() -> Read:
    """Other tables; the first line says which."""
    from torchsplit_core.placement.request.fleets import matrix_of_csv
    from torchsplit_core.planning.prices.price_table import check_prices, today
    from torchsplit_core.strategy.estimated_table import estimate_table
    from torchsplit_core.tables.arrival_times import arrival_times
    from torchsplit_core.tables.demand_trace.joint_moments import joint_moments
    from torchsplit_core.tables.demand_trace.trace_csv import read_demand_trace
    from torchsplit_core.tables.demand_trace.window_cut import cut_day, slots_of_day
    from torchsplit_core.tables.job_history.hourly_figures import hour_rows, hours_csv
    from torchsplit_core.tables.job_history.job_classes import jobs_by_class
    from torchsplit_core.tables.job_history.observed_hours import observed_hours
    from torchsplit_core.tables.job_history.read_files import read_history
    from torchsplit_core.tables.prices.price_csv import read_price_csv, write_price_csv

    def training(data: bytes) -> None:
        found = estimate_table(_text(data))
        json.loads(found.json_text(), parse_constant=_no_number)
        assert len(found.csv_text().encode()) > 0 and found.summary

    def arrivals(data: bytes) -> None:
        for times in arrival_times(data, "the file").values():
            assert all(map(math.isfinite, times)) and list(times) == sorted(times), "times that fall"

    def jobs(data: bytes) -> None:
        files = [("the file", text) for text in _text(data).split("\n---\n")]
        history = read_history(files, skip_bad=True)
        observed = observed_hours(history)
        rows = hour_rows(jobs_by_class(history.jobs, "job-name"), history.samples, observed, "job-name")
        assert hours_csv(rows).count("\n") >= 49, "not every hour of a class and of all"
        for row in rows:
            figures = [value for value in astuple(row) if isinstance(value, float)]
            assert all(math.isfinite(value) and value >= 0 for value in figures), row

    def demand(data: bytes) -> None:
        trace = read_demand_trace(_text(data))
        for rates in trace.rates.values():
            assert len(rates) == trace.moments, "a column of another length"
            assert all(rate is None or (math.isfinite(rate) and rate >= 0) for rate in rates), "no rate"
        moments = joint_moments(trace, list(trace.rates))
        assert len({len(rates) for rates in moments.rates.values()}) == 1, "moments of another number"
        slots = slots_of_day(trace, max(3600, trace.step_s))
        cut = cut_day(slots, 3, "p95")
        assert sum(length for _, length in cut.windows) == slots.slots and math.isfinite(cut.cost), cut

    def prices(data: bytes) -> None:
        table = read_price_csv(_text(data))
        check_prices(table, today())
        if table.prices:
            assert read_price_csv(write_price_csv(table)) == table, "another table"
        assert all(math.isfinite(price.per_hour) and price.per_hour >= 0 for price in table.prices), table

    readers: dict[bytes, Read] = {
        b"arrivals": arrivals,
        b"demand": demand,
        b"jobs": jobs,
        b"prices": prices,
        b"training": training,
        b"matrix": lambda data: _taken(matrix_of_csv(_text(data), "the file")),
    }
    return _by_first_line(readers)


def _no_number(name: str) -> float:
    raise AssertionError(f"{name} in JSON")


def _taken(value: object) -> None:
    del value


def _by_first_line(readers: Mapping[bytes, Read]) -> Read:
    def read(data: bytes) -> None:
        name, _, rest = data.partition(b"\n")
        if name in readers:
            readers[name](rest)

    return read


def pt2() -> Read:
    """A .pt2: the child's reading and the assembly of its parts."""
    from torchsplit_core.files import read_text, write_text
    from torchsplit_core.graph.serialization import GraphParts
    from torchsplit_core.tracing.pt2 import read_pt2

    path = _file()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        parts = GraphParts()
        for part in read_pt2(path):
            parts.add(json.loads(json.dumps(part)))
        graph = parts.graph()
        assert read_text(write_text(graph))[1] == graph, "another graph when written and read again"

    return read


def archive() -> Read:
    """The checks on an archive before it is stored, without the child that checks larger ones."""
    from torchsplit_core.workspace.archive_reader import open_archive, unpacked_bytes

    def read(data: bytes) -> None:
        if unpacked_bytes(data) > LARGEST_UNPACKED:
            return
        with open_archive(data) as opened:
            for result in opened.results:
                opened.check(result)
            opened.sweeps(verify=True)

    return read


def config() -> Read:
    """A config.json, as placements and as trainings read it."""
    from torchsplit_core.placement.request import decoders
    from torchsplit_core.strategy import presets
    from torchsplit_core.values import InputFault

    def read(data: bytes) -> None:
        faults = []
        for reader in (
            lambda text: decoders.read_config(text, "the file", sequence_length=128, batch_size=2),
            lambda text: presets.read_config(text, "the file", 128),
        ):
            try:
                reader(_text(data))
            except InputFault as fault:
                faults.append(fault)
        if faults:
            raise faults[0]

    return read


def host() -> Read:
    """What tools and runs report about a host; the first line says which."""
    from torchsplit_core.hardware.current_state.dcgm import parse_dmon
    from torchsplit_core.hardware.discovery import discover_host
    from torchsplit_core.hardware.mig_journal import take_journal
    from torchsplit_core.hardware.replay import ReplayNvml
    from torchsplit_core.telemetry.span_reader import read_spans, read_trace, summary
    from torchsplit_core.telemetry.span_times import span_tree

    path = _file()

    def written(data: bytes) -> Path:
        path.write_bytes(data)
        return path

    def journal(data: bytes) -> None:
        with take_journal(written(data)):
            pass

    return _by_first_line(
        {
            b"replay": lambda data: _taken(discover_host(ReplayNvml(written(data)))),
            b"journal": journal,
            b"spans": lambda data: _taken(summary(read_spans(written(data)))),
            b"trace": lambda data: _taken(
                [node.label for node in span_tree(*read_trace(written(data))).nodes]
            ),
            b"dcgm": lambda data: _taken(parse_dmon(_text(data))),
        }
    )


def listing() -> Read:
    """Texts of nvidia-smi and mig-parted, divided by lines of "---": an accepted state is written and read again."""
    from torchsplit_core.files import read_text, write_text
    from torchsplit_core.hardware.catalogue import gpu_type
    from torchsplit_core.hardware.host_state.from_texts import HostText, state_of_texts
    from torchsplit_core.hardware.layouts import layout_fault
    from torchsplit_core.values import PlacedProfile

    def read(data: bytes) -> None:
        parts = [*_text(data).split("---\n"), "", ""]
        smi, lgi, mig_parted = (HostText(text, "text") if text else None for text in parts[:3])
        types = None if smi else ["A100-40GB", "A30-24GB"]
        state = state_of_texts(smi, lgi, mig_parted, types=types, host="node0")
        assert read_text(write_text(state))[1] == state, "another state when written and read again"
        for gpu in state.gpus:
            placed = [PlacedProfile(item.profile, item.start) for item in gpu.instances]
            assert layout_fault(gpu_type(gpu.type), placed) is None, placed

    return read


def options() -> Read:
    """Command-line values; the first line names the option."""
    from torchsplit_core.cli.sweep import parse_vary
    from torchsplit_core.hardware.devices import choose_devices
    from torchsplit_core.hardware.discovery import discover_host
    from torchsplit_core.hardware.replay import ReplayNvml
    from torchsplit_core.model_source import parse_source
    from torchsplit_core.placement.request.fleets import parse_nodes
    from torchsplit_core.planning.request.fleet_text import parse_fleet, parse_layouts
    from torchsplit_core.values.serving.hosts import host_name
    from torchsplit_core.values.simulation.arrivals_text import parse_arrivals

    known = discover_host(ReplayNvml(ROOT / "tests/hardware/data/a30_three_slices.json"))
    parsers: dict[bytes, Callable[[str], object]] = {
        b"gpus": parse_fleet,
        b"layouts": lambda text: parse_layouts(text, "--layouts"),
        b"fleet": parse_nodes,
        b"vary": parse_vary,
        b"arrivals": lambda text: parse_arrivals(text, 10.0, "--arrivals"),
        b"devices": lambda text: choose_devices(text, known),
        b"host": host_name,
        b"source": lambda text: parse_source(text, trust=False),
    }
    return _by_first_line({name: _of_text(parse) for name, parse in parsers.items()})


def _of_text(parse: Callable[[str], object]) -> Read:
    return lambda data: _taken(parse(_text(data).rstrip("\n")))


# Requests


class _Wire:
    """A transport without a socket."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closed = self.ended = False

    def write(self, data: bytes) -> None:
        assert not self.closed and not self.ended, "written after the end"
        self.sent += data

    def writelines(self, blocks: list[bytes]) -> None:
        for block in blocks:
            self.write(block)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    abort = close


class _Application:
    """Records each request and responds at once, or at the end if the path is /held."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, bytes, tuple[tuple[bytes, bytes], ...]]] = []
        self.held: list[Any] = []

    def admit(self, request: Any) -> int:
        from torchsplit_core.serving.protocol.tensors import RequestFault

        if request.path == "/closed":
            raise RequestFault("the request", "is not wanted", "Go.", 403, "host")
        return 4096

    def handle(self, request: Any) -> None:
        from torchsplit_core.serving.protocol.http_server import json_response

        told = request.method, request.path, bytes(request.body), tuple(sorted(request.headers.items()))
        self.got.append(told)
        if request.path == "/held":
            self.held.append(request)
        else:
            request.reply(json_response({}))

    def refused(self, request: Any, fault: Any) -> None:
        str(fault).encode()
        del request


ANSWERS = re.compile(
    rb"(HTTP/1\.1 100 Continue\r\n\r\n|HTTP/1\.1 [1-5]\d\d [ -~]+\r\n([!-~]+: [ -~]*\r\n)+\r\n(\{[^\r\n]*\})?)*"
)


def http() -> Read:
    """A connection: the same requests in any pieces, responses in HTTP, a timely end, and nothing left over."""
    from torchsplit_core.serving.protocol.http_server import HttpServer, ServerConnection
    from torchsplit_core.serving.settings import RequestLimits

    limits = RequestLimits(head_bytes=2000, body_bytes=4096, held_bytes=2**20)

    async def made() -> HttpServer:
        return HttpServer(_Application(), limits)

    server = asyncio.run(made())
    server._update_date()

    def spoken(pieces: list[bytes]) -> _Application:
        application, wire, clock = _Application(), _Wire(), [0.0]
        server.connections, server.active_requests, server.held_bytes = set(), 0, 0
        server.application, server.now = application, lambda: clock[0]
        connection = ServerConnection(server)
        connection.connection_made(wire)
        for piece in pieces:
            if wire.closed:
                break
            connection.data_received(piece)
            clock[0] += 0.001
        while application.held and not wire.closed:
            from torchsplit_core.serving.protocol.http_server import json_response

            application.held.pop(0).reply(json_response({}))
        for _ in range(4):
            clock[0] += 1000
            if not wire.closed:
                connection.expire(clock[0])
        assert wire.closed, "a connection without an end"
        connection.connection_lost(None)
        kept = server.connections, server.active_requests, server.held_bytes
        assert kept == (set(), 0, 0), f"kept after the end: {kept}"
        assert ANSWERS.fullmatch(bytes(wire.sent)), f"no answers: {bytes(wire.sent)[:300]!r}"
        assert b" 500 " not in wire.sent, f"an internal fault: {bytes(wire.sent)[:300]!r}"
        return application

    def read(data: bytes) -> None:
        if not data:
            return
        rng, stream = random.Random(data[0]), data[1:]
        pieces = []
        while stream:
            size = rng.choice((1, 2, 7, 40, 500, 5000))
            pieces.append(stream[:size])
            stream = stream[size:]
        whole, cut = spoken([data[1:]]), spoken(pieces)
        # A refusal leaves the earlier requests the same; a head's limit is only checked between pieces.
        least = min(len(whole.got), len(cut.got))
        assert whole.got[:least] == cut.got[:least], f"other requests in pieces: {whole.got} {cut.got}"

    return read


def _ports() -> tuple[Any, ...]:
    from torchsplit_core.serving.protocol.tensors import TensorPort

    return (
        TensorPort("a", "FP32", (3,)),
        TensorPort("b", "INT64", (-1,)),
        TensorPort("c", "BOOL", ()),
        TensorPort("d", "FP16", (2, 2)),
    )


def infer() -> Read:
    """A request's body; the first line has its ports ("one" or all), its encoding, and the length of its JSON or -."""
    from torchsplit_core.serving.protocol.body_readers import read_body
    from torchsplit_core.serving.protocol.http_body import parse_json_length
    from torchsplit_core.serving.protocol.tensors import MOST_ROWS
    from torchsplit_core.serving.settings import RequestLimits
    from torchsplit_core.values.serving.datatypes import SIZES

    ports = _ports()
    # `a` alone has fixed sizes, so its byte counts are checked more tightly.
    ways = {"one": ports[:1], "all": ports}
    limits = RequestLimits(body_bytes=2**20, json_bytes=2**19)

    def read(data: bytes) -> None:
        head, _, body = data.partition(b"\n")
        words = [*head.decode("latin-1").split(" "), "", "", ""]
        inputs = ways.get(words[0], ports)
        length = parse_json_length(None if words[2] in ("-", "") else words[2])
        found = read_body(body, words[1].replace("-", ""), length, inputs, ("x", "y"), limits)
        assert 1 <= found.rows <= MOST_ROWS, found.rows
        assert len(found.inputs) == len(found.shapes) == len(inputs)
        for port, shape, raw in zip(inputs, found.shapes, found.inputs, strict=True):
            assert shape[0] == found.rows and len(shape) == 1 + len(port.shape), shape
            assert all(told in (-1, size) for size, told in zip(shape[1:], port.shape, strict=True)), shape
            assert raw.nbytes == math.prod(shape) * SIZES[port.datatype], (shape, raw.nbytes)
        assert all(
            name in ("x", "y") and isinstance(binary, bool) for name, binary in found.requested_outputs
        )
        found.id.encode()
        assert found.timeout_s is None or 0 < found.timeout_s < math.inf

    return read


def answer() -> Read:
    """A response; the first line has the length of its JSON or -. `decode_outputs` refuses with ValueError."""
    from torchsplit_core.serving.protocol.client import decode_outputs
    from torchsplit_core.values import InputFault
    from torchsplit_core.values.serving.datatypes import SIZES

    def read(data: bytes) -> None:
        head, _, body = data.partition(b"\n")
        try:
            found = decode_outputs(body, None if head in (b"-", b"") else head.decode("latin-1"))
        except ValueError as error:
            raise InputFault("the answer", repr(str(error)), "Ask again.") from error
        for tensor in found:
            assert len(tensor.data) == math.prod(tensor.shape) * SIZES[tensor.datatype]

    return read


def stream() -> Read:
    """A completion's stream of events: the same answer or the same problem in any pieces."""
    from torchsplit_core.serving.llm_endpoint.event_stream import AnswerReader
    from torchsplit_core.values import InputFault

    def answered(data: bytes, size: int) -> AnswerReader:
        reader = AnswerReader(lambda: 0.0, 4, lambda: None)
        for at in range(0, len(data), size):
            reader.feed(data[at : at + size])
        reader.end()
        return reader

    def read(data: bytes) -> None:
        whole, pieces = answered(data, max(1, len(data))), answered(data, 7)
        for name in ("problem", "token_times_s", "prompt_tokens", "output_tokens", "finished", "done"):
            assert getattr(whole, name) == getattr(pieces, name), f"another {name} in pieces"
        if whole.problem:
            raise InputFault("the stream", whole.problem, "Ask again.")

    return read


TAKEN = re.compile(rb"(localhost|127\.0\.0\.1|plan\.example\.com)\.*(:\d*)?|\[::1\]\.*(:\d*)?", re.I)
TOKEN = "a-token-of-32-letters-0123456789"


def guard() -> Read:
    """A request's head: path, host, origin and authorization, one a line."""
    from torchsplit_core.serving.protocol.access_guard import HEALTH, AccessGuard
    from torchsplit_core.serving.settings import AccessSettings

    names = ("localhost", "127.0.0.1", "::1", "plan.example.com")

    class Head:
        def __init__(self, path: str, headers: dict[bytes, bytes]) -> None:
            self.path, self.headers = path, headers

    def read(data: bytes) -> None:
        lines = [*data.split(b"\n"), b"", b"", b""]
        given = zip((b"host", b"origin", b"authorization"), lines[1:], strict=False)
        headers = {name: value for name, value in given if value}
        head: Any = Head(lines[0].decode("latin-1"), headers)
        AccessGuard(AccessSettings(names, TOKEN)).check(head)
        host = headers.get(b"host", b"")
        assert TAKEN.fullmatch(host), f"a host that is not served: {host!r}"
        assert headers.get(b"origin", b"x://" + host).partition(b"://")[2] == host, headers
        shown = headers.get(b"authorization", b"").strip()
        assert head.path in HEALTH or shown.endswith(TOKEN.encode()), f"without a token: {headers}"

    return read

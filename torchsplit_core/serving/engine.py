"""Requests to batches to workers and back: the queues of a plan, served.

One queue a stage for all its workers, as the plan's simulation has it: a free worker takes up to its batch size as
soon as so many rows wait, or the first has waited `max_wait_ms`; of several that may start, the first in the
simulation's order. Everything here runs in the event loop's one thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torchsplit_core.serving.crew import Crew
from torchsplit_core.serving.link import Message
from torchsplit_core.serving.meters import Meters
from torchsplit_core.serving.process import Answer, Assignment, WorkerDied
from torchsplit_core.serving.roster import Roster
from torchsplit_core.serving.seats import Seat, Station, warm_up
from torchsplit_core.serving.settings import ServeSettings
from torchsplit_core.serving.waiting import Batch, Item, Turns
from torchsplit_core.serving.wire.tensors import RequestFault, TensorPort, check_rows, port_of
from torchsplit_core.values import Progress

SERVER = "the server"
STUCK = 2.0
"""So many of the longest deadline after which a batch's worker is taken to stand still, and ended."""


class Engine:
    """The workers of a roster, started; `submit` is what a client asks for."""

    def __init__(self, roster: Roster, settings: ServeSettings, meters: Meters) -> None:
        self.roster, self.settings, self.meters = roster, settings, meters
        models = {model.name: model for model in roster.models}
        places = {place.id: place for place in roster.slices}
        self.seats = [
            Seat(Assignment(spec, models[spec.model], places[spec.slice], settings.trust))
            for spec in roster.workers
        ]
        self.stations = {
            model.name: [
                Station(
                    model,
                    position,
                    [s for s in self.seats if s.spec.model == model.name and s.spec.position == position],
                )
                for position in range(len(model.stages))
            ]
            for model in roster.models
        }
        self.turns = {
            name: Turns({seat.tenant: seat.spec.share for seat in self.seats if seat.spec.slice == name})
            for name in roster.turns
        }
        self.inputs: dict[str, tuple[TensorPort, ...]] = {}
        self.outputs: dict[str, tuple[TensorPort, ...]] = {}
        self.draining = False
        self._inside: set[Item] = set()
        self.crew = Crew(self.seats, meters, self._freed, self._given_up)
        self._rows: dict[str, int] = {
            name: min(seat.spec.max_batch for seat in stations[0].seats)
            for name, stations in self.stations.items()
        }

    # --- start and end ---

    async def start(self, folders: Mapping[str, str], progress: Progress) -> None:
        """Start every worker and wait until all are warm; `folders` have the parts of cut models.

        Raises the InputFault of the first that cannot be.
        """
        await self.crew.start(folders, progress)
        for name, stations in self.stations.items():
            if len(stations) > 1:
                await warm_up(stations)
            self.inputs[name] = tuple(map(port_of, stations[0].seats[0].ports["inputs"]))
            self.outputs[name] = tuple(map(port_of, stations[-1].seats[0].ports["outputs"]))

    async def stop(self) -> None:
        """End every process. Nobody waits for an answer any more: `drain` came before."""
        self.draining = True
        for stations in self.stations.values():
            for station in stations:
                if station.timer is not None:
                    station.timer.cancel()
        await self.crew.stop()

    def _freed(self, seat: Seat) -> None:
        """A worker can take a batch again."""
        self._next_on(seat.spec.slice, self._station(seat))

    def _given_up(self, seat: Seat) -> None:
        """A worker cannot be started any more."""
        station = self._station(seat)
        if station.lost:
            self._refuse(station.queue.empty(), _lost(station))

    async def drain(self) -> None:
        """Take nothing new, and wait for what was taken, as long as the settings allow; then refuse what is left."""
        self.draining = True
        until = time.monotonic() + self.settings.drain_s
        while self._inside and time.monotonic() < until:
            await asyncio.sleep(0.02)
        stopped = RequestFault(SERVER, "stopped before this request was served", "Ask another server.", 503)
        self._refuse(tuple(self._inside), stopped)

    # --- what clients ask ---

    def ready(self, model: str) -> bool:
        """Whether every stage of the model has a worker that is warm."""
        return not self.draining and model in self.inputs and all(s.warm for s in self.stations[model])

    def check_open(self, model: str) -> None:
        """Raises RequestFault where the server takes no request for the model now."""
        if self.draining:
            raise RequestFault(SERVER, "is draining and takes no more requests", "Ask another server.", 503)
        if model not in self.inputs:
            raise RequestFault(model, "is not ready yet", "Ask again later.", 503)

    def check_room(self, model: str, rows: int = 1) -> None:
        """Raises RequestFault where the server takes no request of so many rows for the model now."""
        self.check_open(model)
        waiting = 0
        for station in self.stations[model]:
            if station.lost:
                raise _lost(station)
            waiting += station.queue.rows
        if waiting + rows > self.settings.queue_limit:
            problem = f"has {waiting} rows waiting, and at most {self.settings.queue_limit} may wait"
            raise RequestFault(model, problem, "Ask again later.", 429)

    def submit(
        self, model: str, rows: int, inputs: Sequence[memoryview], timeout_s: float | None = None
    ) -> asyncio.Future[Sequence[bytes | memoryview]]:
        """The bytes of each output, once they are there; cancelled, it is not computed any more.

        Raises RequestFault at once, or in the future, with the status that says why there are none.
        """
        self.check_room(model, rows)
        stations = self.stations[model]
        items = self._items(model, rows, inputs)
        limit_s = min(timeout_s or self.settings.deadline_s, self.settings.deadline_s)
        deadline = asyncio.get_running_loop().call_later(limit_s, self._expire, stations, items, limit_s)
        self._inside.update(items)

        def over(_: Any) -> None:
            self._inside.difference_update(items)
            deadline.cancel()
            self._abandon(items)

        if len(items) == 1:
            answer: asyncio.Future[Any] = items[0].answer
        else:
            answer = asyncio.ensure_future(_joined(items))
        answer.add_done_callback(over)
        for item in items:
            stations[0].queue.join(item)
        self._dispatch(stations[0])
        return answer

    def _items(self, model: str, rows: int, inputs: Sequence[memoryview]) -> list[Item]:
        """The request in pieces that fit into a batch of any of its workers."""
        loop, now = asyncio.get_running_loop(), time.perf_counter()
        most = self._rows[model]
        if rows <= most:
            return [Item(rows, tuple(inputs), loop.create_future(), now)]
        sizes = [port.row_bytes for port in self.inputs[model]]
        found = []
        for start in range(0, rows, most):
            count = min(most, rows - start)
            piece = tuple(
                block[start * size : (start + count) * size]
                for block, size in zip(inputs, sizes, strict=True)
            )
            found.append(Item(count, piece, loop.create_future(), now))
        return found

    def _expire(self, stations: Sequence[Station], items: Sequence[Item], limit_s: float) -> None:
        problem = f"gave no answer within {limit_s:g} s"
        late = RequestFault(stations[0].model.name, problem, "Ask again later, or allow more time.", 504)
        self._refuse(items, late)
        for station in stations:
            station.queue.head()

    @staticmethod
    def _refuse(items: Sequence[Item], error: RequestFault) -> None:
        for item in items:
            if not item.gone:
                item.answer.set_exception(error)
                # One piece of a request tells of it; nobody asks the others.
                item.answer.exception()

    @staticmethod
    def _abandon(items: Sequence[Item]) -> None:
        for item in items:
            item.answer.cancel()

    # --- batches ---

    def _dispatch(self, station: Station) -> None:
        """Start every batch of a stage that may start now, and wake up when the next may."""
        if station.timer is not None:
            station.timer.cancel()
            station.timer = None
        now = time.perf_counter()
        while station.queue.head() is not None:
            seat = next((seat for seat in station.seats if self._may_start(station, seat, now)), None)
            if seat is None:
                break
            self._start(station, seat)
        wakes = station.queue.wakes()
        if wakes is not None and wakes > now:
            loop = asyncio.get_running_loop()
            station.timer = loop.call_later(wakes - now, self._dispatch, station)

    def _may_start(self, station: Station, seat: Seat, now: float) -> bool:
        if seat.state == "free" and seat.process.gone:
            self.crew.bury(seat)
        if seat.state != "free" or not station.queue.due(now, seat.spec.max_batch):
            return False
        turns = self.turns.get(seat.spec.slice)
        return turns is None or turns.free_for(seat.tenant, others_wait=self._others_wait(seat))

    def _others_wait(self, seat: Seat) -> bool:
        """Whether another tenant of the slice has a batch that could start."""
        now = time.perf_counter()
        return any(
            other.tenant != seat.tenant
            and other.spec.slice == seat.spec.slice
            and other.state == "free"
            and self._station(other).queue.due(now, other.spec.max_batch)
            for other in self.seats
        )

    def _station(self, seat: Seat) -> Station:
        return self.stations[seat.spec.model][seat.spec.position]

    def _start(self, station: Station, seat: Seat) -> None:
        batch = station.queue.take(seat.spec.max_batch)
        seat.state = "busy"
        if seat.spec.slice in self.turns:
            self.turns[seat.spec.slice].start(seat.tenant)
        begin = time.perf_counter()
        # Before a later stage all of a batch have waited alike.
        waited = sum(
            (begin - (batch.joined if station.position else item.joined)) * item.rows for item in batch.items
        )
        blocks: list[bytes | memoryview] = [batch.payload]
        sizes: list[int] | None = None
        if not station.position:
            inputs = list(zip(*(item.inputs for item in batch.items), strict=True))
            blocks = [block for one in inputs for block in one]
            sizes = [sum(len(block) for block in one) for one in inputs]
        process, limit_s = seat.process, STUCK * self.settings.deadline_s
        words = f" A batch took more than {limit_s:g} s."
        timer = asyncio.get_running_loop().call_later(limit_s, process.give_up, words)
        ended = process.ask(batch.rows, blocks, sizes)
        ended.add_done_callback(partial(self._ended, station, seat, batch, begin, waited, timer))

    def _ended(
        self,
        station: Station,
        seat: Seat,
        batch: Batch,
        begin: float,
        waited: float,
        timer: asyncio.TimerHandle,
        ended: asyncio.Future[Message],
    ) -> None:
        """A batch has ended on the worker that it had since `begin`; its rows have waited `waited` s in all."""
        timer.cancel()
        if ended.cancelled():
            return
        answer: Answer | None = None
        try:
            answer = seat.process.answer(ended)
        except WorkerDied as error:
            self._died(seat, batch, str(error))
        if seat.spec.slice in self.turns:
            self.turns[seat.spec.slice].end(seat.tenant, time.perf_counter() - begin)
        if answer is not None:
            seat.state = "free"
            self._take(station, batch, answer)
        # Sharing its answers out is of a batch's time: no other begins on this worker meanwhile.
        spent = time.perf_counter() - begin
        self.meters.batch(
            seat.spec, batch.rows, waited, begin, spent, answer.ms if answer and not answer.fault else None
        )
        self._next_on(seat.spec.slice, station)

    def _take(self, station: Station, batch: Batch, answer: Answer) -> None:
        """An answer to who waits for it, or on to the next stage; what the model raised to whose rows it was."""
        if answer.fault:
            if len(batch.items) == 1:
                problem = f"failed on this request: {answer.fault}"
                remedy = "Send other values, or mend the model's code."
                self._refuse(batch.items, RequestFault(station.model.name, problem, remedy, 500))
            else:
                # Whose rows it was shows when each runs by itself.
                self._again(station.model.name, batch.items)
            return
        stations = self.stations[station.model.name]
        if station.position + 1 < len(stations):
            following = stations[station.position + 1]
            following.queue.join(Batch(batch.items, time.perf_counter(), answer.payload))
            self._dispatch(following)
            return
        try:
            ports = self.outputs[station.model.name]
            outputs = check_rows(answer.shapes, answer.dtypes, answer.payload, batch.rows, ports)
        except ValueError as error:
            problem = f"gave another result than its metadata says: {error}"
            remedy = "Return the same datatypes and shapes for every batch."
            self._refuse(batch.items, RequestFault(station.model.name, problem, remedy, 500))
            return
        at = 0
        for item in batch.items:
            if not item.gone:
                item.answer.set_result(
                    tuple(
                        block[at * port.row_bytes : (at + item.rows) * port.row_bytes]
                        for block, port in zip(outputs, ports, strict=True)
                    )
                )
            at += item.rows

    def _again(self, model: str, items: Sequence[Item]) -> None:
        """Items back to the front of their model's first queue, each for a batch of its own."""
        first = self.stations[model][0]
        for item in reversed(items):
            item.alone = True
            first.queue.join(item, first=True)
        self._dispatch(first)

    def _next_on(self, slice_: str, station: Station) -> None:
        """A worker is free: its slice's tenants in turn, else its own stage."""
        turns = self.turns.get(slice_)
        if turns is None:
            self._dispatch(station)
            return
        tenants = {seat.tenant: self._station(seat) for seat in self.seats if seat.spec.slice == slice_}
        for tenant in turns.order():
            self._dispatch(tenants[tenant])

    # --- deaths ---

    def _died(self, seat: Seat, batch: Batch, words: str) -> None:
        """Its batch is retried once, each request by itself; the worker starts again."""
        self.crew.bury(seat)
        again = []
        for item in batch.items:
            item.lost += 1
            if item.lost > 1:
                problem, remedy = "lost two workers to this request", f"Send other values.{words}"
                self._refuse([item], RequestFault(seat.spec.model, problem, remedy, 503))
            elif not item.gone:
                again.append(item)
        if again:
            self._again(seat.spec.model, again)

    def state(self) -> dict[str, Any]:
        """Queues and workers now, for a look at it."""
        return {
            "draining": self.draining,
            "models": {
                name: {"ready": self.ready(name), "waiting": [station.queue.rows for station in stations]}
                for name, stations in self.stations.items()
            },
            "workers": {seat.spec.id: {"state": seat.state, "pid": seat.process.pid} for seat in self.seats},
        }


async def _joined(items: Sequence[Item]) -> Sequence[bytes]:
    """The outputs of a request that is worked on in pieces."""
    found = [await item.answer for item in items]
    return [b"".join(blocks) for blocks in zip(*found, strict=True)]


def _lost(station: Station) -> RequestFault:
    stage = station.model.stages[station.position]
    problem = f"has no worker left of stage {stage}: each was started again and ended again"
    return RequestFault(station.model.name, problem, "Serve the plan again.", 503)

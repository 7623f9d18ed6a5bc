"""The rendezvous of several nodes' agents: torch's elastic rendezvous over a store at one address.

The first agent on the machine that has the address serves the store. Each attempt is a round with its own token, so
that no agent waits for a node that was lost in the round before.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as handlers
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.strategy.run import ElasticNodes

BACKEND = "torchsplit"
STORE_TIMEOUT_S = 10
"""A store answers at once; whatever has not answered within this time is no store."""
JOIN_TIMEOUT_S = 600
"""Seconds to wait for the machine that has the address, at first and when it is lost."""
LAST_CALL_S = 3
"""Seconds to wait for more nodes once the minimum is present. A node that comes later makes the others restart."""
SIOCGIFADDR = 0x8915  # linux/sockios.h
ROUND = "torchsplit.round"


@dataclass(frozen=True, slots=True)
class RendezvousRound:
    """One attempt of all nodes. `settings`: for torch's launcher."""

    token: str
    settings: dict[str, Any]


class LocalRendezvous:
    """The rendezvous of one machine's processes on its loopback."""

    def next_round(self, last_token: str) -> RendezvousRound:
        """A new round; no other node knows it."""
        settings = {
            "min_nodes": 1,
            "max_nodes": 1,
            "rdzv_backend": "c10d",
            "rdzv_endpoint": "127.0.0.1:0",
            "local_addr": "127.0.0.1",
        }
        return RendezvousRound(_token(), settings)

    def environment(self) -> dict[str, str]:
        """The loopback, since the host's name may not resolve."""
        return {"GLOO_SOCKET_IFNAME": "lo"}


class StoreRendezvous:
    """A node's rendezvous with the others over the shared store."""

    def __init__(self, nodes: ElasticNodes) -> None:
        host, port = nodes.address
        self.nodes, self.host, self.port = nodes, host, port
        self._store: dist.TCPStore | None = None

    def next_round(self, last_token: str) -> RendezvousRound:
        """The round of the others, or a new one if theirs is still `last_token`; waits for the store.

        Raises InputFault if the store cannot be reached.
        """
        while True:
            if self._store is None:
                self._store = self._connect()
            try:
                fresh = _token()
                token = self._store.compare_set(ROUND, last_token, fresh).decode()
                if not token or token == last_token:
                    # A store that was created anew has no round yet.
                    token = self._store.compare_set(ROUND, "", fresh).decode()
            except (dist.DistError, RuntimeError):
                self._store = None
                continue
            return RendezvousRound(token, self._settings())

    def _settings(self) -> dict[str, Any]:
        return {
            "min_nodes": self.nodes.least,
            "max_nodes": self.nodes.most,
            "rdzv_backend": BACKEND,
            "rdzv_endpoint": f"{self.host}:{self.port}",
            "rdzv_configs": {
                "store": self._store,
                "last_call_timeout": LAST_CALL_S,
                "join_timeout": JOIN_TIMEOUT_S,
            },
            "local_addr": self.local_address(),
        }

    def local_address(self) -> str:
        """The address at which the other nodes reach this one: that of its route to the store."""
        family, _, _, _, address = _resolved(self.host, self.port)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Connecting a datagram socket sends nothing.
            probe.connect(address)
            return str(probe.getsockname()[0])

    def environment(self) -> dict[str, str]:
        """The network interface for traffic between nodes, since a host's name may resolve to the loopback."""
        name = _interface_of(self.local_address())
        return {"GLOO_SOCKET_IFNAME": name} if name else {}

    def _connect(self) -> dist.TCPStore:
        """The store; this process serves it if it has the address and no other process does. Raises InputFault."""
        end = time.monotonic() + JOIN_TIMEOUT_S
        while True:
            if _is_local(self.host) and (store := self._open_store(serve=True)):
                return store
            with (
                contextlib.suppress(OSError),
                socket.create_connection((self.host, self.port), STORE_TIMEOUT_S),
            ):
                if store := self._connect_running():
                    return store
                raise InputFault(
                    "--rendezvous",
                    f"is {self.host}:{self.port}, where something else answers than the run's own store",
                    "Choose another port, the same for all nodes.",
                )
            if time.monotonic() > end:
                raise InputFault(
                    "--rendezvous",
                    f"is {self.host}:{self.port}, where no node of the run answered within {JOIN_TIMEOUT_S} s",
                    "Start the node that has this address; --resume goes on from the last complete checkpoint.",
                )
            time.sleep(0.5)

    def _connect_running(self) -> dist.TCPStore | None:
        """The store that another agent serves; None if something else listens there."""
        stores: list[dist.TCPStore | None] = []
        # A peer that accepts but never answers blocks forever, whatever the store's timeout: the thread is abandoned to
        # it, since the command ends.
        thread = threading.Thread(target=lambda: stores.append(self._open_store(serve=False)), daemon=True)
        thread.start()
        thread.join(STORE_TIMEOUT_S + 1.0)
        return stores[0] if stores else None

    def _open_store(self, *, serve: bool) -> dist.TCPStore | None:
        """The store; None if it cannot be served here or does not answer."""
        try:
            return dist.TCPStore(
                self.host, self.port, is_master=serve, multi_tenant=True, wait_for_workers=False,
                timeout=timedelta(seconds=STORE_TIMEOUT_S),
            )  # fmt: skip
        except (dist.DistError, RuntimeError, ValueError):
            return None


def _token() -> str:
    return uuid.uuid4().hex[:12]


class _Backend(C10dRendezvousBackend):  # type: ignore[misc]
    """torch's backend under the name that is requested."""

    @property
    def name(self) -> str:
        return BACKEND


def _handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """torch's elastic rendezvous over an existing store."""
    store = parameters.config["store"]
    return create_handler(store, _Backend(store, parameters.run_id), parameters)


handlers.register(BACKEND, _handler)


def _resolved(host: str, port: int) -> tuple[Any, ...]:
    """The first result of getaddrinfo. Raises InputFault for a name that does not resolve."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputFault(
            "--rendezvous",
            f"names the host {quoted(host)}, which has no address",
            "Correct the name, or give the address.",
        ) from error


def _is_local(host: str) -> bool:
    """Whether the address is one of this machine. Raises InputFault for a name that does not resolve."""
    family, _, _, _, address = _resolved(host, 0)
    with socket.socket(family) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _interface_of(address: str) -> str | None:
    """The network interface that has the address, None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                ifreq = struct.pack("256s", name.encode())
                if socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, ifreq)[20:24]) == address:
                    return name
    return "lo" if address.startswith("127.") else None

"""`torchsplit app`: configures access to the dashboard's server, and runs it in this process."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable, Sequence

from torchsplit_core import bundle, extras, isolation, telemetry
from torchsplit_core.values import InputFault
from torchsplit_core.values.serving.hosts import allowed_hosts, host_name, is_loopback

FIRST_PORT, PORTS = 8501, 100


def add_app_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add app to the command line through its `command(name, run)`."""
    parser = command("app", _app)
    parser.add_argument(
        "--address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where it listens (default: this machine alone)",
    )
    parser.add_argument("--port", type=int, metavar="N", help="default: the first free one from 8501 on")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name or address by which browsers ask for it, e.g. behind a reverse proxy; others are refused",
    )
    parser.add_argument(
        "--allow-execution",
        action="store_true",
        help="execute trusted uploads where other machines reach it too",
    )


def _app(options: argparse.Namespace) -> int:
    """Replace this process by the server, so that a signal to the command ends it. Returns only if that fails."""
    from torchsplit_core.workflow.profiling import restore_slices
    from torchsplit_core.workspace.faults import quota_bytes
    from torchsplit_core.workspace.store import Store

    extras.require_extra("app")
    host_names = tuple(host_name(name) for name in options.host)
    hosts = allowed_hosts(options.address, host_names)
    private = is_loopback(options.address) and all(map(is_loopback, host_names))
    print(f"Isolation: {isolation.isolation_level().text}", file=sys.stderr)
    store = Store()
    store.check()
    quota_bytes()  # report a bad value here, not to a visitor
    if restored := restore_slices(store):
        print(f"note: {restored}", file=sys.stderr)
    port = _free_port(options.address, options.port)
    _print_exposure(options.address, host_names, private=private, allowed=options.allow_execution)
    print(f"TorchSplit: http://{_url_host(options.address)}:{port}  (Ctrl-C ends it)", file=sys.stderr)
    environment = os.environ | {
        "TORCHSPLIT_EXECUTION": "allowed" if private or options.allow_execution else "refused",
        "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
        "PYTHONPATH": bundle.python_path(),
    }
    command = [sys.executable, "-m", "app.server", options.address, str(port), *hosts]
    telemetry.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(bundle.root())  # where .streamlit/config.toml is
    os.execve(sys.executable, command, environment)


def _print_exposure(address: str, host_names: Sequence[str], *, private: bool, allowed: bool) -> None:
    """Print what other machines can do on this server."""
    if private:
        return
    word = "are executed when trusted" if allowed else "are read, never executed"
    where = f"{address}, for {', '.join(host_names)}" if host_names else address
    print(
        f"Serving on {where}: uploaded files {word}. Who reaches it sees every workspace, unless a login is required.",
        file=sys.stderr,
    )
    if not host_names:
        print(
            "note: any host name is answered; name those that are meant with --host NAME "
            "(docs/guides/shared-server.md)",
            file=sys.stderr,
        )


def _url_host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _free_port(address: str, wanted: int | None) -> int:
    """The `wanted` port; if None, the first free one from 8501 on."""
    reason = ""
    for port in [wanted] if wanted is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
            return port
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        except OverflowError:
            reason = "ports are 0 to 65535"
    problem = f"port {wanted} cannot"
    if wanted is None:
        problem = f"no port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} can"
    raise InputFault(
        "--port", f"{problem} be opened on {address}: {reason}", "Choose another --port or --address."
    )

"""A server as a child of a load test: reads its command as a line of JSON and ends when standard input does.

Lines on standard output: `{"progress": [share, text]}`, `{"ready": {url, models, warnings}}`,
`{"fault": [where, problem, remedy]}`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchsplit_core.files import read_text
from torchsplit_core.serving.frontend.server import serve
from torchsplit_core.serving.protocol.child_lines import run_child, send_line
from torchsplit_core.serving.settings import settings_from_dict


def serve_plan(command: dict[str, Any]) -> None:
    """Serve until SIGTERM. Raises InputFault."""
    _, outcome = read_text(command["plan"], expected="torchsplit.plan")
    _, request = read_text(command["request"], expected="torchsplit.plan_request")
    serve(
        outcome,
        request,
        settings_from_dict(command["settings"]),
        progress=lambda share, text: send_line({"progress": [share, text]}),
        announce=lambda serving: send_line({"ready": asdict(serving)}),
    )


if __name__ == "__main__":
    run_child(serve_plan)

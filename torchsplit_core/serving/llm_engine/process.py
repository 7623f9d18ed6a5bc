"""An engine as a child process: started, waited for, stopped."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from torchsplit_core import extras
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings, check_engine_settings
from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.serving.protocol.child_process import LLM_ENGINE, run_child
from torchsplit_core.values import InputFault


@dataclass(frozen=True, slots=True)
class LlmEngineProcess:
    """An engine that takes requests at `url`."""

    url: str
    pid: int

    def take_steps(self) -> list[LoggedStep]:
        """The steps since they were last taken. Raises InputFault where the engine does not answer."""
        return [LoggedStep(**step) for step in self._fetch("/torchsplit/steps")["steps"]]

    def engine(self) -> dict[str, int]:
        """Its limits: max_num_seqs, max_num_batched_tokens, kv_blocks, block_tokens, max_model_len."""
        content: dict[str, int] = self._fetch("/torchsplit/engine")
        return content

    def _fetch(self, path: str) -> Any:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = f"gives no answer to {path}: {error or type(error).__name__}"
            raise InputFault("the engine", problem, "Start it again.") from error
        finally:
            connection.close()


@contextmanager
def llm_engine(settings: LlmEngineSettings) -> Iterator[LlmEngineProcess]:
    """Serve a decoder in a child process, which ends with the block or this process. Raises InputFault."""
    extras.require_extra("llm")
    check_engine_settings(settings)
    with run_child(LLM_ENGINE, asdict(settings)) as (pid, lines):
        for message in lines:
            if "fault" in message:
                raise InputFault(*message["fault"])
            yield LlmEngineProcess(message["ready"], pid)
            return
        raise InputFault("the engine", "ended before it was ready", "Run it by itself to see why.")

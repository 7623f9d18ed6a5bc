"""The process of an engine: its settings as a line of JSON on standard input, at whose end it ends.

Lines on standard output: `{"ready": url}`, `{"fault": [where, problem, remedy]}`.
"""

from __future__ import annotations

import asyncio
import gc
import sys

import transformers
import uvloop

from torchsplit_core.serving.llm_engine.app import LlmApp, ServedText
from torchsplit_core.serving.llm_engine.batching import ContinuousBatch, prepare_torch
from torchsplit_core.serving.llm_engine.decoder import context_length, load_decoder
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings, check_engine_settings
from torchsplit_core.serving.pinning import pin_process
from torchsplit_core.serving.protocol.child_lines import run_child, send_line
from torchsplit_core.serving.protocol.http_server import HttpServer
from torchsplit_core.serving.protocol.listener import open_listener, stop_on_signal, url_of
from torchsplit_core.serving.settings import RequestLimits

GRACE_S = 2.0
SWITCH_S = 0.0005
"""How long the engine's thread may hold Python while tokens wait to be sent: a tenth of Python's own, of the order of
what writing an event takes."""


def run_engine(settings: LlmEngineSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises InputFault."""
    check_engine_settings(settings)
    pin_process(settings.cores)
    prepare_torch(settings.threads)
    model, tokens = load_decoder(settings)
    vocabulary = int(model.config.get_text_config().vocab_size)
    text = ServedText(tokens.encode, tokens.writer, vocabulary, context_length(model, settings))
    engine = ContinuousBatch(model, settings)
    sys.setswitchinterval(SWITCH_S)

    async def serve_until_stopped() -> None:
        stop = stop_on_signal()
        app = LlmApp(engine, text, settings, transformers.__version__)
        async with HttpServer(app, RequestLimits()).run(listener, GRACE_S):
            # What is loaded lives on: looking for garbage in it would delay tokens.
            gc.collect()
            gc.freeze()
            send_line({"ready": url_of(settings.host, listener)})
            await stop.wait()

    with open_listener(settings.host, settings.port) as listener:
        engine.start()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve_until_stopped())
        finally:
            engine.stop()


if __name__ == "__main__":
    run_child(lambda command: run_engine(LlmEngineSettings(**command)))

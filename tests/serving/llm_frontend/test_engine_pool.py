"""Engines started side by side, and ended together, whatever became of them."""

import asyncio
from contextlib import contextmanager
from dataclasses import replace

import pytest

from torchsplit_core.serving.frontend import server
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.serving.llm_frontend import engine_pool
from torchsplit_core.serving.llm_frontend.app import EngineLink
from torchsplit_core.serving.llm_frontend.engine_pool import EnginePool
from torchsplit_core.serving.plan import ServedEngine
from torchsplit_core.values import InputFault, ignore_progress


class Process:
    url = "http://127.0.0.1:9"

    def engine(self):
        return {"max_model_len": 512}


@pytest.fixture
def ended(monkeypatch):
    """Names of engines that were ended; one named bad does not start."""
    names = []

    @contextmanager
    def llm_engine(settings):
        if settings.name == "bad":
            raise InputFault("config.json", "cannot be read", "Name a file.")
        try:
            yield Process()
        finally:
            names.append(settings.name)

    monkeypatch.setattr(engine_pool, "llm_engine", llm_engine)
    return names


def served(*names):
    return [
        ServedEngine(f"cpu0/1c@{n}", "slice", LlmEngineSettings("c", name)) for n, name in enumerate(names)
    ]


def test_all_that_started_are_ended(ended):
    async def run():
        pool = EnginePool(served("a", "b"))
        started = await pool.start(ignore_progress)
        assert [(engine.served.model, engine.max_model_len) for engine in started] == [("a", 512), ("b", 512)]
        assert ended == []
        await pool.stop()

    asyncio.run(run())
    assert sorted(ended) == ["a", "b"]


def test_where_one_does_not_start_its_fault_is_raised_and_the_others_end(ended):
    async def run():
        pool = EnginePool(served("a", "bad", "b"))
        with pytest.raises(InputFault, match=r"config\.json: cannot be read"):
            await pool.start(ignore_progress)
        await pool.stop()

    asyncio.run(run())
    assert sorted(ended) == ["a", "b"]


def test_without_engines_nothing_starts():
    async def run():
        pool = EnginePool([])
        assert await pool.start(ignore_progress) == ()
        await pool.stop()

    asyncio.run(run())


def test_an_engine_that_died_is_started_anew_and_ended_with_the_others(ended, capsys):
    async def run():
        pool = EnginePool(served("a"))
        link = EngineLink((await pool.start(ignore_progress))[0])
        link.lost, first = True, link.engine
        await server._restart(pool, link)
        assert not link.lost and link.engine is not first and ended == ["a"]
        await pool.stop()

    asyncio.run(run())
    assert ended == ["a", "a"] and "the engine of a on slice is back" in capsys.readouterr().err


def test_an_engine_that_does_not_start_again_is_given_up(ended, capsys):
    async def run():
        pool = EnginePool(served("a"))
        link = EngineLink((await pool.start(ignore_progress))[0])
        link.lost = True
        link.engine = replace(link.engine, served=served("bad")[0])
        await server._restart(pool, link)
        assert link.lost
        await pool.stop()

    asyncio.run(run())
    assert capsys.readouterr().err.count("config.json: cannot be read") == server.RESTARTS

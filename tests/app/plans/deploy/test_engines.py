"""The tab Deploy of a plan with engines of LLMs."""

from dataclasses import replace

from tests.support.app.page import put_plan, said
from tests.support.deployment.engines import with_engines
from torchsplit_core.planning.request.hash import request_hash


def test_the_page_shows_how_each_format_starts_the_engines(page, filled):
    engines = with_engines()
    models = tuple(
        replace(model, source=None) if model.name == "bert" else model for model in engines.request.models
    )
    request = replace(engines.request, models=models)
    put_plan(filled, request, replace(engines.plan, request_sha256=request_hash(request)))
    opened = page("deploy", filled)
    assert not opened.exception
    shown = "".join(code.value for code in opened.code)
    assert "vllm/vllm-openai:" in shown and "--tensor-parallel-size" in shown
    assert "meta-llama/Llama-3.1-8B-Instruct" in shown and "untested on hardware" in said(opened)

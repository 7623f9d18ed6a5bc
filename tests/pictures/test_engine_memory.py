"""An engine's slice shows what its weights hold and where its KV cache ends, to scale, where that is known."""

import re
from dataclasses import replace

import pytest

from tests.support.deployment.engines import SIZES, with_engines
from torchsplit_core.hardware import gpu_type
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.pictures.slice_values import kv_cache_gib
from torchsplit_core.values import tenants_on

COLOURS = {"chat": "#3f66cc", "bert": "#e2a11c"}
LEGEND = "weights and its own, then KV cache up to the line"


def test_weights_and_cache_are_to_scale_and_the_title_has_the_cache():
    asked = with_engines()
    drawn = fleet_svg(asked.plan, COLOURS, asked.request)
    tenants = re.findall(r'<svg class="tenant" data-model="chat"[^>]* width="([\d.]+)".*?</svg>', drawn)
    held = re.findall(r'class="held"[^>]* width="([\d.]+)"', drawn)
    ends = re.findall(r'class="kv-end" d="M([\d.]+) ', drawn)
    engines = [(gpu, item, who) for gpu, item, who in tenants_on(asked.plan.gpus) if who.engine is not None]
    assert len(tenants) == len(held) == len(ends) == 2 and len(engines) == 3 and LEGEND in drawn
    for width, dark, end, (gpu, item, tenant) in zip(tenants, held, ends, engines[:2], strict=True):
        size_gib = gpu_type(gpu.type).profile(item.profile).memory_gib
        # 32 layers, keys and values of 8 heads of 128 dimensions in two bytes, on so many GPUs.
        kv_gib = 9000 * 16 * 32 * 2 * 8 * 128 * 2 / tenant.engine.tensor_parallel / 2**30
        assert kv_cache_gib(tenant, SIZES) == pytest.approx(kv_gib)
        assert float(dark) == pytest.approx(float(width) * (36.0 - kv_gib) / size_gib - 1, abs=0.02)
        assert float(end) == pytest.approx(float(width) * 36.0 / size_gib, abs=0.02)
    assert "36 GiB a GPU, of which the KV cache has 17.6 GiB" in drawn.replace("\u202f", " ")


def test_without_sizes_nothing_is_drawn_of_the_cache():
    asked = with_engines()
    unknown = tuple(
        replace(model, llm=replace(model.llm, config=None)) if model.llm else model
        for model in asked.request.models
    )
    for request in (None, replace(asked.request, models=unknown)):
        drawn = fleet_svg(asked.plan, COLOURS, request)
        assert "held" not in drawn and LEGEND not in drawn and "of which the KV cache" not in drawn

"""Measured peaks by hand on small modules, and the estimate of `memory` against them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sample_models
from tests.support.profiling.export import export, sample
from tests.support.seeds import repeated
from torchsplit_core.profiling import transients
from torchsplit_core.profiling.measuring.peak_memory import PeakMemory, measure_peak
from torchsplit_core.profiling.memory import estimate_memory
from torchsplit_core.tracing.program_graph import convert_program

KIB = 1024


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        return self.function(*args, **kwargs)


def numbers(kib: int) -> Tensor:
    return torch.ones(kib * KIB // 4)


def test_values_that_die_are_not_counted():
    """Input 4, then at most two of the three values of 4 KiB beside it."""
    peak = measure_peak(Lambda(lambda x: x.relu().exp().tanh()), (numbers(4),), {})
    assert peak == PeakMemory(12 * KIB, 0, 12 * KIB, 0)


def test_what_an_operation_gives_back_before_it_ends_is_transient():
    """Pooling returns 4 KiB of maxima and drops 8 KiB of their places (64-bit)."""
    image = torch.randn(1, 1, 64, 64)
    peak = measure_peak(nn.MaxPool2d(2), (image,), {})
    assert peak == PeakMemory((16 + 4 + 8) * KIB, 0, (16 + 4) * KIB, 8 * KIB)


def test_weights_and_inputs_count_once_each_storage():
    layer = nn.Linear(64, 64)
    layer.tied = layer.weight
    layer.register_buffer("seen", layer.weight.detach()[:8])
    x = torch.randn(4, 64)
    peak = measure_peak(Lambda(lambda x, y: layer(x) + y), (x,), {"y": x[:, :]})
    assert peak.weight_bytes == 0, "the function hides its layer"
    peak = measure_peak(layer, (x,), {})
    assert peak == PeakMemory(65 * 256 + 2 * 1024, 65 * 256, 2 * 1024, 0)


def test_memory_of_before_the_run_that_goes_in_it_is_no_gain():
    held = [numbers(64)]

    def forget(x):
        held.clear()
        return x.relu()

    assert measure_peak(Lambda(forget), (numbers(4),), {}).peak_bytes == 8 * KIB


def test_an_error_of_the_model_comes_through_and_the_next_run_is_measured():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        measure_peak(nn.Linear(3, 3), (torch.ones(2, 4),), {})
    assert measure_peak(nn.Identity(), (numbers(4),), {}).peak_bytes == 4 * KIB


@pytest.fixture
def one_cpu_like_another(monkeypatch) -> Iterator[None]:
    """Two threads, for fused attention has buffers for each, and the width of oneDNN's blocks here."""
    if "AVX512" in torch.backends.cpu.get_cpu_capability():
        monkeypatch.setattr(transients, "CHANNEL_BLOCK", 16)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


TRANSFORMERS = {"clip", "bert", "llama"}


@pytest.mark.usefixtures("one_cpu_like_another")
@repeated("name", [one.name for one in sample_models.SAMPLES], kept=1)
def test_the_estimate_of_every_sample_is_near_its_measured_peak(name):
    """Within 10 % for transformers, 25 % for convolutions (1-D ones included) and the toys."""
    client, model, program = sample(name)
    graph = convert_program(program, 2)
    margin = 0.10 if name in TRANSFORMERS else 0.25
    for batch in (1, 4, 16):
        args = client.get_example_inputs(batch)
        with torch.inference_mode():
            model(*args)
        measured = measure_peak(model, args, {})
        estimate = estimate_memory(graph, batch)
        assert estimate.weight_bytes == pytest.approx(measured.weight_bytes, abs=1000)
        assert estimate.peak_bytes == pytest.approx(measured.peak_bytes, rel=margin)


class Transposed(nn.Module):
    """A layer of an input that does not lie in order."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(torch.relu(x).mT)
        return result


class Unfused(nn.Module):
    """Attention over three dimensions, which no fused kernel takes."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class Recurrent(nn.Module):
    """The outputs of an LSTM, without its state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(64, 64, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)[0]
        return result


OPERATIONS = {
    "convolution": (nn.Conv2d(16, 32, 3), (2, 16, 32, 32)),
    "pointwise convolution": (nn.Conv2d(16, 32, 1), (2, 16, 32, 32)),
    "convolution of an image": (nn.Conv2d(3, 32, 3), (2, 3, 32, 32)),
    "convolution of one small image": (nn.Conv2d(16, 32, 3), (1, 16, 16, 16)),
    "depthwise convolution": (nn.Conv2d(32, 32, 3, groups=32), (2, 32, 32, 32)),
    "grouped convolution": (nn.Conv2d(64, 64, 3, groups=4), (2, 64, 32, 32)),
    "convolution in three dimensions": (nn.Conv3d(16, 16, 3), (2, 16, 16, 16, 16)),
    "convolution of a transposed input": (Transposed(nn.Conv1d(32, 64, 3)), (2, 128, 32)),
    "transposed convolution": (nn.ConvTranspose2d(16, 32, 2, stride=2), (2, 16, 16, 16)),
    "pooling": (nn.MaxPool2d(2), (2, 16, 32, 32)),
    "upsampling": (nn.Upsample(scale_factor=2), (2, 32, 16, 16)),
    "bilinear upsampling": (nn.Upsample(scale_factor=2, mode="bilinear"), (2, 32, 16, 16)),
    "RMS norm": (nn.RMSNorm(256), (2, 64, 256)),
    "layer norm": (nn.LayerNorm(256), (2, 64, 256)),
    "layer norm of a transposed input": (Transposed(nn.LayerNorm(64)), (2, 64, 256)),
    "linear of a transposed input": (Transposed(nn.Linear(64, 256)), (2, 64, 256)),
    "relu in place": (nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Tanh()), (64, 64)),
    "unfused attention": (Unfused(), (4, 128, 32)),
    "recurrent": (Recurrent(), (2, 40, 64)),
}


@pytest.mark.usefixtures("one_cpu_like_another")
@repeated("operation", OPERATIONS, kept=len(OPERATIONS) - 1)
def test_the_estimate_of_an_operation_is_near_its_measured_peak(operation):
    """Within 15 % of what is not weights."""
    model, shape = OPERATIONS[operation]
    args = (torch.randn(shape),)
    graph = convert_program(export(model, args), shape[0])
    with torch.inference_mode():
        model.eval()(*args)
    measured, estimate = measure_peak(model, args, {}), estimate_memory(graph, shape[0])
    moved = measured.peak_bytes - measured.weight_bytes
    assert estimate.peak_bytes - estimate.weight_bytes == pytest.approx(moved, rel=0.15)

"""Every sample is a client whose model runs, repeats itself and exports with a free batch."""

import subprocess
import sys

import pytest
import torch

import sample_models
from sample_models import SAMPLES
from tests.support.seeds import repeated
from torchsplit_core.values import InputFault, SplitClient, TrainClient

NAMES = [sample.name for sample in SAMPLES]


def run(client: SplitClient, batch_size: int) -> list[torch.Tensor]:
    with torch.no_grad():
        outcome = client.get_model()(*client.get_example_inputs(batch_size))
    return list(outcome) if isinstance(outcome, tuple) else [outcome]


def test_the_registry_names_the_promised_samples():
    assert NAMES == [
        "clip",
        "bert",
        "fastpitch",
        "ocr",
        "resnet50",
        "llama",
        "moe",
        "diamond",
        "cond",
        "digits",
    ]
    assert all(sample.title and sample.sentence.endswith(".") and sample.large for sample in SAMPLES)


def test_listing_the_samples_does_not_load_torch():
    code = "import sys, sample_models; assert sample_models.SAMPLES; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_a_client_in_eval_mode_with_the_batch_first(name):
    client = sample_models.load(name)
    assert isinstance(client, SplitClient)
    assert not any(module.training for module in client.get_model().modules())
    for batch_size in (1, 3):
        assert all(value.shape[0] == batch_size for value in client.get_example_inputs(batch_size))
        assert all(value.shape[0] == batch_size for value in run(client, batch_size))


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_results_and_leave_the_global_generator_alone(name):
    before = torch.random.get_rng_state()
    first, second = run(sample_models.load(name), 2), run(sample_models.load(name), 2)
    other = run(sample_models.load(name, seed=7), 2)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.isfinite(value).all() for value in first)


@repeated("name", NAMES, kept=1)
def test_a_sample_exports_with_a_free_batch_and_gives_the_same_numbers(name):
    client = sample_models.load(name)
    model, example = client.get_model(), client.get_example_inputs(2)
    free = tuple({0: torch.export.Dim.AUTO} for _ in example)
    exported = torch.export.export(model, example, dynamic_shapes=free, strict=False)
    inputs = client.get_example_inputs(5)
    with torch.no_grad():
        outcome = exported.module(check_guards=False)(*inputs)
    outcome = list(outcome) if isinstance(outcome, tuple) else [outcome]
    for ours, theirs in zip(outcome, run(client, 5), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_large_samples_have_the_real_numbers_of_weights():
    """Published sizes: CLIP ViT-B/32 151.3 M, BERT-large 335.1 M, ResNet-50 25.6 M, TinyLlama 1.10 B."""
    published = {"clip": 151.28e6, "bert": 335.14e6, "resnet50": 25.557e6, "llama": 1.10e9}
    for name, expected in published.items():
        with torch.device("meta"):
            model = sample_models.load(name, "large").build()  # type: ignore[attr-defined]
        assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("name", "size"), [("brt", "small"), ("bert", "huge")])
def test_an_unknown_name_or_size_names_what_there_is(name, size):
    with pytest.raises(InputFault, match=r"bert|small, large"):
        sample_models.load(name, size)


@pytest.mark.parametrize("name", ["bert", "llama", "moe"])
def test_samples_of_tokens_take_other_lengths(name):
    client = sample_models.load(name)
    model = client.get_model()
    for length in client.sequence_lengths:
        example = client.get_example_inputs(2, sequence_length=length)
        assert all(value.shape == (2, length) for value in example)
        with torch.no_grad():
            outcome = model(*example)
        assert all(torch.isfinite(value).all() for value in (outcome if name == "bert" else (outcome,)))
    # A table that is made on the way is the one that is kept.
    if name != "bert":
        kept = model(client.get_example_inputs(1)[0])
        model.cos, model.sin = model.cos[:0], model.sin[:0]
        assert torch.equal(model(client.get_example_inputs(1)[0]), kept)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_can_be_trained_on_data_that_stays_the_same(name):
    client = sample_models.load(name)
    assert isinstance(client, TrainClient)
    data = client.get_dataset()
    before = torch.random.get_rng_state()
    batch = [data[number] for number in range(4)]
    assert torch.equal(before, torch.random.get_rng_state())
    inputs, targets = torch.utils.data.default_collate(batch)
    for one, other in zip(inputs, torch.utils.data.default_collate([data[0], data[1]])[0], strict=True):
        assert torch.equal(one[:2], other)
    model = client.get_model().train()
    assert isinstance(client.get_optimizer(model.parameters(), "sgd"), torch.optim.SGD)
    optimizer = client.get_optimizer(model.parameters(), "adamw")
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        losses.append(client.get_loss(model(*inputs), targets))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] and torch.isfinite(losses[-1])
    assert all(weight.grad is not None for weight in model.parameters())


def test_large_samples_have_samples_too():
    """Their shapes fit the model's: the batch of one is what the model's examples are."""
    for name in NAMES:
        client = sample_models.load(name, "large")
        inputs, _ = client.get_dataset()[3]
        assert [one.shape for one in inputs] == [one.shape[1:] for one in client.get_example_inputs(1)]

"""A profile of several sequence lengths: a run for each, told apart wherever points are."""

from dataclasses import replace

import pytest

from torchsplit_core.files import read_file, write_file
from torchsplit_core.hardware import choose_devices, gpu_type
from torchsplit_core.profiling import MeasurementSettings
from torchsplit_core.profiling.interpolation import slice_samples
from torchsplit_core.profiling.merge import update_profile
from torchsplit_core.values import InputFault, Profile, ProfileFailure, ProfileRow, at_sequence_length
from torchsplit_core.workflow import profile, profile_lengths
from torchsplit_core.workspace.measured_points import place_of
from torchsplit_core.workspace.store import Store

MODEL = """
import torch
from torch import nn

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def forward(self, ids):
        return torch.relu(self.words(ids)).sum(1)

class Plain:
    batch_sizes = (1, 2)
    def get_model(self):
        return Tokens()
    def get_example_inputs(self, batch_size):
        return (torch.zeros(batch_size, 4, dtype=torch.int64),)

class Client(Plain):
    sequence_lengths = (8, 600)
    def get_example_inputs(self, batch_size, sequence_length=4):
        return (torch.zeros(batch_size, sequence_length, dtype=torch.int64),)
"""
QUICK = MeasurementSettings(point_budget_s=0.01)
ROW = ProfileRow("whole", "A30-24GB", "2g.12gb", 4, 1, 100.0, 30.0, 80.0, 150.0, 3.0, "measured")
LONG = replace(ROW, sequence_length=512, throughput_rps=25.0)
SHORT = replace(ROW, sequence_length=128)
FULL = ProfileFailure("whole", "A30-24GB", "2g.12gb", 8, 1, "out_of_memory", "", sequence_length=512)


@pytest.fixture
def source(tmp_path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return str(tmp_path / "model.py")


@pytest.mark.torch
def test_the_grid_is_measured_at_every_length(source, tmp_path):
    store = Store(tmp_path / "store")
    graph, found = profile_lengths(
        f"{source}:Client", (600, 8), device="cpu", batch_sizes=(1, 2), gpu_types=("A30-24GB",), trust=True,
        settings=QUICK, store=store,
    )  # fmt: skip
    measured = [(row.sequence_length, row.batch_size) for row in found.rows if row.basis == "measured"]
    assert measured == [(600, 1), (600, 2), (8, 1), (8, 2)]
    assert {row.sequence_length for row in found.rows if row.basis == "estimated"} == {600}
    assert found.environment["sequence_lengths"] == [600, 8]
    assert found.environment["nodes_sequence_length"] == 600
    assert found.architecture_hash == graph.architecture_hash
    # More tokens take more memory: each run had inputs of its own length.
    activations = {
        row.sequence_length: row.memory_parts_gib.activations
        for row in found.rows
        if row.batch_size == 2 and row.basis == "measured" and row.memory_parts_gib
    }
    assert activations[600] > activations[8]
    write_file(found, tmp_path / "p.json")
    assert read_file(tmp_path / "p.json")[1] == found


@pytest.mark.torch
@pytest.mark.parametrize(("name", "length", "said"), [
    ("Plain", 8, "Give the client sequence_lengths, for example"),
    ("Client", 16, "Choose one of 8, 600."),
    ("Client", 0, "0 is no whole number from 1"),
])  # fmt: skip
def test_a_length_that_the_client_does_not_offer_is_refused(source, name, length, said):
    with pytest.raises(InputFault, match=said):
        profile_lengths(f"{source}:{name}", (length,), device="cpu", trust=True, settings=QUICK)


def test_a_pt2_has_one_length():
    with pytest.raises(InputFault, match="has only the length it was exported with"):
        profile("model.pt2", settings=replace(QUICK, sequence_length=8))


def test_points_of_a_length_have_a_place_of_their_own_and_others_keep_theirs():
    (device,) = choose_devices("cpu")
    lengths = (None, 128, 512)
    assert len({place_of(device, MeasurementSettings(sequence_length=length)) for length in lengths}) == len(
        lengths
    )
    assert place_of(device, MeasurementSettings()) == place_of(
        device, MeasurementSettings(sequence_length=None)
    )


def test_profiles_of_two_lengths_are_joined_and_the_newer_one_stays_first():
    estimate = replace(LONG, batch_size=8, basis="estimated")
    older = Profile("m", "h", rows=(SHORT, replace(SHORT, batch_size=8)))
    newer = Profile("m", "h", rows=(LONG, estimate), failures=(FULL,))
    found = update_profile(older, newer)
    # What was out of memory at one length rules out the estimate of that length alone.
    assert found.rows == (LONG, SHORT, replace(SHORT, batch_size=8))
    assert found.failures == (FULL,)
    assert at_sequence_length(found, 128).rows == older.rows
    assert at_sequence_length(found, 128).failures == ()


def test_curves_rest_on_the_first_length():
    samples = slice_samples(
        Profile("m", "h", rows=(LONG, SHORT, replace(SHORT, batch_size=8))), gpu_type("A30-24GB")
    )
    assert [(sample.batch_size, sample.throughput_rps) for sample in samples] == [(4, 25.0)]


def test_files_without_a_length_do_not_name_it(tmp_path):
    write_file(Profile("m", "h", rows=(ROW,)), tmp_path / "p.json")
    assert "sequence_length" not in (tmp_path / "p.json").read_text()

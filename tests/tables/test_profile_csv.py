"""Anybody's table as profiles: columns and their spellings, slices, defaults, notes."""

from dataclasses import replace
from importlib import resources

import pytest

from torchsplit_core.hardware import catalogue
from torchsplit_core.profiling.library import library_profiles
from torchsplit_core.tables import guess_mapping, read_profile_csv
from torchsplit_core.tables.slice_parsing import choose_slice, parse_slice_size
from torchsplit_core.values import InputFault, ProfileFailure, ProfileRow

HEADER = "model,compute_slices,batch_size,processes,throughput_rps,latency_ms"


def row_of(text: str, **options: str) -> ProfileRow:
    imported = read_profile_csv(text, **options)  # type: ignore[arg-type]
    assert len(imported.profiles) == 1
    return imported.profiles[0].rows[0]


def test_the_shipped_library_read_as_a_table_is_the_library():
    text = (
        resources.files("torchsplit_core.profiling") / "data" / "measured_profiles_a100_80gb.csv"
    ).read_text(encoding="utf-8")
    imported = read_profile_csv(text, origin="library.csv")
    by_name = {profile.source.removeprefix("import:"): profile for profile in imported.profiles}
    assert len(by_name) == 11
    for shipped in library_profiles():
        # What is estimated of the library is not in the table of what was measured.
        measured = tuple(replace(row, memory_gib=None, memory_parts_gib=None) for row in shipped.rows)
        assert by_name[shipped.source.removeprefix("library:")].rows == measured
    assert imported.profiles[0].environment["origin"] == "library.csv"
    assert "imported_at" in imported.profiles[0].environment
    assert imported.refused == ()
    # Only the double-memory 1g shares its compute slices with another plain profile.
    assert any("1g.10gb, not 1g.20gb" in note for note in imported.notes)


def test_a_missing_latency_is_derived_and_said():
    imported = read_profile_csv(
        "model,compute_slices,batch_size,processes,throughput_rps\nm,7,8,2,400\nm,7,4,1,\n", skip_bad=True
    )
    assert imported.profiles[0].rows[0].latency_ms == pytest.approx(40.0)
    assert any("1 of 1 rows have no latency" in note for note in imported.notes)
    mixed = read_profile_csv(f"{HEADER}\nm,7,8,1,100,90\nm,7,4,1,100,\n")
    assert [row.latency_ms for row in mixed.profiles[0].rows] == [90.0, 40.0]


def test_zero_throughput_is_out_of_memory_and_no_row():
    imported = read_profile_csv(f"{HEADER}\nm,1,64,1,0,0\nm,1,128,1,0,\nm,1,32,1,100,320\n")
    profile = imported.profiles[0]
    assert [row.batch_size for row in profile.rows] == [32]
    assert [(item.batch_size, item.reason, item.profile) for item in profile.failures] == [
        (64, "out_of_memory", "1g.10gb"),
        (128, "out_of_memory", "1g.10gb"),
    ]
    assert all(isinstance(item, ProfileFailure) and item.message for item in profile.failures)


def test_other_spellings_are_guessed_and_said():
    text = "Model Name;MIG;BS;Instances;QPS;p95 (ms)\nm;3g.40gb;8;2;100,5;12,25\n"
    imported = read_profile_csv(text)
    row = imported.profiles[0].rows[0]
    assert (row.profile, row.batch_size, row.processes) == ("3g.40gb", 8, 2)
    assert (row.throughput_rps, row.latency_ms) == (100.5, 12.25)
    assert "'QPS' as throughput_rps" in imported.notes[0]


def test_a_guess_uses_no_column_twice_and_no_unit_that_is_not_ours():
    assert guess_mapping(("model", "batch", "bs", "rps")) == {
        "model": "model", "batch_size": "batch", "throughput_rps": "rps",
    }  # fmt: skip
    assert "latency_ms" not in guess_mapping(("model", "latency_us", "latency (s)"))
    assert "memory_gib" not in guess_mapping(("model", "memory_mb"))
    assert guess_mapping(("p95_ms", "latency_ms")) == {"latency_ms": "latency_ms"}


def test_a_mapping_goes_before_the_guess_and_can_leave_a_column_out():
    text = "model,compute_slices,batch_size,qps,mine,latency_ms\nm,7,8,1,200,5\n"
    assert row_of(text, mapping={"throughput_rps": "mine"}).throughput_rps == 200  # type: ignore[arg-type]
    left_out = read_profile_csv(text, mapping={"latency_ms": ""})
    assert left_out.profiles[0].rows[0].latency_ms == 8000


@pytest.mark.parametrize(("mapping", "word"), [
    ({"batchsize": "bs"}, "batch_size"),
    ({"batch_size": "size"}, "has no column 'size'. Known columns: model, compute_slices, bs"),
    ({"model": "bs"}, "batch_size"),
])  # fmt: skip
def test_a_mapping_that_names_nothing_says_what_there_is(mapping, word):
    with pytest.raises(InputFault) as caught:
        read_profile_csv("model,compute_slices,bs,rps\nm,7,8,1\n", mapping=mapping)
    assert word in str(caught.value)


def test_a_needed_column_that_is_nowhere_is_named():
    with pytest.raises(InputFault, match="columns batch_size, throughput_rps"):
        read_profile_csv("model,compute_slices,size,rate\nm,7,8,1\n")
    with pytest.raises(InputFault, match="names 'batch_size', the column of batch_size, 2 times"):
        read_profile_csv("model,batch_size,batch_size,throughput_rps\nm,7,8,1\n")
    with pytest.raises(InputFault, match="has a header but no rows"):
        read_profile_csv(HEADER + "\n")


def test_what_the_file_lacks_can_be_given():
    row = row_of(
        "throughput_rps,latency_ms\n100,5\n",
        model="mine",
        batch_size=4,  # type: ignore[arg-type]
        slice_name="1g.6gb",
        gpu_type="A30-24GB",
    )
    assert (row.gpu_type, row.profile, row.batch_size, row.processes) == ("A30-24GB", "1g.6gb", 4, 1)


def test_a_given_slice_does_not_move_rows_of_the_whole_gpu():
    text = "model,profile,batch_size,throughput_rps\nm,,1,10\nm,1g.10gb,1,5\n"
    imported = read_profile_csv(text, slice_name="7g.80gb")
    assert [row.profile for row in imported.profiles[0].rows] == [None, "1g.10gb"]
    assert any("7g.80gb is not used" in note for note in imported.notes)


def test_a_gpu_column_and_rows_without_a_slice():
    text = (
        "model,gpu_type,profile,batch_size,throughput_rps\n"
        "m,CPU,,1,10\nm,A30-24GB,2g.12gb,1,20\nm,Some GPU,,1,30\n"
    )
    imported = read_profile_csv(text)
    assert [(row.gpu_type, row.profile) for row in imported.profiles[0].rows] == [
        ("CPU", None), ("A30-24GB", "2g.12gb"), ("Some GPU", None),
    ]  # fmt: skip
    assert any("Some GPU" in note for note in imported.notes)
    with pytest.raises(InputFault, match=r"^unknown GPU type 'A100-80'\. Did you mean A100-80GB"):
        read_profile_csv(text, gpu_type="A100-80")


def test_every_profile_of_the_catalogue_is_known_by_its_name():
    for gpu in catalogue().values():
        for item in gpu.profiles:
            chosen = choose_slice(gpu.name, f"MIG {item.name.upper()}", str(item.compute_slices))
            assert chosen is not None and chosen.name == item.name


@pytest.mark.parametrize("text", ["3", "3g", "3.0", "3G", "3g.40gb", "MIG 3g.40gb", "mig-3g.40gb"])
def test_slices_as_people_write_them(text):
    chosen = choose_slice("A100-80GB", text, "")
    assert chosen is not None and chosen.name == "3g.40gb"
    assert parse_slice_size(text) == 3.0


def test_rows_that_repeat_are_kept_once_and_latencies_in_seconds_are_suspected():
    imported = read_profile_csv(f"{HEADER}\nm,7,8,1,100,0.08\nm,7,8,1,100,0.08\n")
    assert len(imported.profiles[0].rows) == 1
    assert any("1 row repeats an earlier one and was left out" in note for note in imported.notes)
    assert any("check that they are in ms" in note for note in imported.notes)


def test_intervals_bases_and_memory_are_read():
    row = row_of(
        "model,compute_slices,batch_size,throughput_rps,low_rps,high_rps,memory_gib,basis\n"
        "m,7,8,100,90,110,3.5,emulated\n"
    )
    assert (row.low_rps, row.high_rps, row.memory_gib, row.basis) == (90, 110, 3.5, "emulated")

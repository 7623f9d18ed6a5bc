"""What a workspace may hold: refused before it is written, and whatever is there can be read and deleted."""

import io
import json
import subprocess
import sys
import zipfile

import pytest

from tests.support.paths import ROOT
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.archive_reader import ArchiveReader
from torchsplit_core.workspace.blobs import BlobStore
from torchsplit_core.workspace.faults import QUOTA_VARIABLE, quota_bytes
from torchsplit_core.workspace.store import Store, Workspace

MIB = 2**20


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    """Of workspaces of 3 MiB."""
    monkeypatch.setenv(QUOTA_VARIABLE, str(3 / 1024))
    return Store(tmp_path / "home")


@pytest.fixture
def full(store) -> Workspace:
    workspace = store.create("w")
    workspace.put_bytes("upload", "a", b"a" * 2 * MIB)
    return workspace


def in_store(store: Store) -> int:
    return sum(path.stat().st_size for path in store.blobs.folder.rglob("*") if path.is_file())


def test_more_than_it_may_hold_is_refused_before_it_is_written(full, monkeypatch):
    def written(*_):
        raise AssertionError("it is written")

    monkeypatch.setattr(BlobStore, "put", written)
    with pytest.raises(InputFault) as raised:
        full.put_all("upload", [("b", b"b" * MIB), ("c", b"c" * MIB)])
    assert "holds 2.0 MiB and would hold 4.0 MiB, above its quota of 3.0 MiB" in raised.value.problem
    assert "Remove results or uploads" in raised.value.remedy and QUOTA_VARIABLE in raised.value.remedy
    assert [item.name for item in full.artifacts()] == ["a"]


def test_up_to_the_quota_equal_contents_count_once_and_what_is_replaced_goes(full):
    full.put_bytes("upload", "again", b"a" * 2 * MIB)
    full.put_bytes("upload", "b", b"b" * MIB)
    assert full.bytes_of(full.artifacts()) == 3 * MIB
    with pytest.raises(InputFault, match="quota"):
        full.put_bytes("upload", "c", b"c")
    full.put_bytes("upload", "b", b"c" * MIB)
    with pytest.raises(InputFault, match="quota"):
        full.put_bytes("upload", "a", b"d" * MIB)  # its content stays under another name
    full.remove("upload", "again")
    full.put_bytes("upload", "a", b"d" * MIB)
    assert full.bytes_of(full.artifacts()) == 2 * MIB


def test_whoever_is_above_it_can_read_lessen_and_delete(full, monkeypatch):
    full.put_bytes("upload", "b", b"b" * MIB)
    monkeypatch.setenv(QUOTA_VARIABLE, str(1 / 1024))
    assert full.get_bytes("upload", "b") == b"b" * MIB
    full.put_bytes("upload", "b", b"b")
    with pytest.raises(
        InputFault, match=r"holds 2\.0 MiB and would hold 2\.0 MiB, above its quota of 1\.0 MiB"
    ):
        full.put_bytes("upload", "c", b"c")
    copied = full.store.copy(full.id, "copy")
    full.remove("upload", "b")
    full.store.soft_delete(full.id)
    full.store.undelete(full.id)
    for one in (full, copied):
        full.store.delete(one.id)
    full.store.remove_unused_blobs()
    assert in_store(full.store) == 0


def test_two_that_store_at_once_do_not_pass_it_together(full, monkeypatch):
    """The other one stores between this one's look and its row."""
    put = BlobStore.put

    def beside(blobs, data):
        monkeypatch.setattr(BlobStore, "put", put)
        Workspace(full.store, full.id).put_bytes("upload", "other", b"o" * MIB)
        return put(blobs, data)

    monkeypatch.setattr(BlobStore, "put", beside)
    with pytest.raises(InputFault, match="quota"):
        full.put_bytes("upload", "mine", b"m" * MIB)
    assert {item.name for item in full.artifacts()} == {"a", "other"}
    full.store.remove_unused_blobs()
    assert in_store(full.store) == 3 * MIB


def test_an_archive_of_more_is_refused_before_it_is_unpacked(full, monkeypatch):
    data = export_workspace(full)
    monkeypatch.setenv(QUOTA_VARIABLE, str(1 / 1024))
    unpacked = ArchiveReader._unpacked

    def only_the_manifest(archive, entry):
        assert entry.filename == "manifest.json"
        return unpacked(archive, entry)

    monkeypatch.setattr(ArchiveReader, "_unpacked", only_the_manifest)
    before = in_store(full.store)
    with pytest.raises(InputFault, match=r"workspace: would hold 2\.0 MiB, above its quota of 1\.0 MiB"):
        import_workspace(full.store, data)
    assert in_store(full.store) == before and len(full.store.workspaces()) == 1


def test_a_new_workspace_of_many_results_is_held_to_it_while_it_is_written(store):
    results = [("upload", f"u{number}", [bytes([number]) * MIB]) for number in range(5)]
    with pytest.raises(InputFault, match=r"would hold 4\.0 MiB"):
        store.add("n", results)
    assert store.workspaces() == ()
    store.remove_unused_blobs()
    assert in_store(store) == 0


@pytest.mark.parametrize("said", ["0", "-1", "nan", "inf", "many", "1e99"])
def test_a_quota_that_is_none_is_one_message(said, monkeypatch):
    monkeypatch.setenv(QUOTA_VARIABLE, said)
    with pytest.raises(InputFault, match="not a number of GiB above 0"):
        quota_bytes()


def test_without_a_word_it_is_four_gib(monkeypatch):
    monkeypatch.delenv(QUOTA_VARIABLE, raising=False)
    assert quota_bytes() == 4 * 2**30


IMPORT = """
import sys
from pathlib import Path
from torchsplit_core.workspace.archive import import_workspace
from torchsplit_core.workspace.store import Store

workspace = import_workspace(Store(Path(sys.argv[1])), Path(sys.argv[2]).read_bytes())
(item,) = workspace.artifacts()
assert workspace.bytes_of([item]) == int(sys.argv[3])
print(int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) // 1024)
"""


@pytest.mark.repeated
def test_an_import_holds_a_block_of_a_file_at_a_time(tmp_path):
    """Of 400 MiB in a small archive; the process that imports serves the pages."""
    size, stream = 400 * MIB, io.BytesIO()
    results = [{"kind": "upload", "name": "zeros.pt2", "file": "results/0000"}]
    manifest = {"format": "torchsplit.workspace", "version": 1, "name": "n", "results": results}
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("results/0000", "w") as inside:
            for _ in range(400):
                inside.write(bytes(MIB))
        archive.writestr("manifest.json", json.dumps(manifest))
    (tmp_path / "small.zip").write_bytes(stream.getvalue())
    told = subprocess.run(
        [sys.executable, "-c", IMPORT, str(tmp_path / "home"), str(tmp_path / "small.zip"), str(size)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(told.stdout) < 250

"""The workspace store: nothing lost, nothing mixed, bad input refused."""

import io
import json
import multiprocessing
import sqlite3
import zipfile
from pathlib import Path

import pytest

from tests.support.workspace.storage_writer import request, write_many
from torchsplit_core.values import InputFault
from torchsplit_core.workspace import SCHEMA
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.store import MOST_DELETED, Store, Workspace


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "home")


def test_a_value_survives_a_restart(store):
    workspace = store.create("review")
    workspace.put("plan_request", "mix", request(3))
    workspace.set_setting("scenario", "mix")
    again = Store(store.root).open(workspace.id)
    assert again.name == "review"
    assert again.get("plan_request", "mix") == request(3)
    assert again.setting("scenario") == "mix"


def test_several_contents_are_stored_together_or_not_at_all(store):
    workspace = store.create("w")
    with pytest.raises(InputFault, match="name"):
        workspace.put_all("upload", [("net.py", b"x = 1\n"), ("", b"y = 1\n")])
    assert not workspace.artifacts()
    workspace.put_all("upload", [("net.py", b"x = 1\n"), ("other.py", b"y = 1\n")])
    assert {artifact.name for artifact in workspace.artifacts("upload")} == {"net.py", "other.py"}
    assert workspace.get_bytes("upload", "other.py") == b"y = 1\n"


def test_putting_again_replaces_and_moves_to_the_front(store):
    workspace = store.create("w")
    workspace.put("plan_request", "a", request(1))
    workspace.put("plan_request", "b", request(1))
    workspace.put("plan_request", "a", request(2))
    assert [artifact.name for artifact in workspace.artifacts("plan_request")] == ["a", "b"]
    assert workspace.get("plan_request", "a") == request(2)


def test_workspaces_do_not_mix_and_a_copy_is_its_own(store):
    one = store.create("one")
    one.put("plan_request", "mix", request(1))
    two = store.copy(one.id, "two")
    two.put("plan_request", "mix", request(9))
    assert one.get("plan_request", "mix") == request(1)
    store.delete(one.id)
    assert two.get("plan_request", "mix") == request(9)
    assert [workspace.name for workspace in store.workspaces()] == ["two"]
    with pytest.raises(InputFault, match="there is no workspace"):
        store.open(one.id)


def test_a_discarded_workspace_is_out_of_sight_and_comes_back_whole(store):
    workspace = store.create("one")
    workspace.put("plan_request", "mix", request(1))
    store.soft_delete(workspace.id)
    assert store.workspaces() == () and store.deleted_name(workspace.id) == "one"
    with pytest.raises(InputFault):
        store.open(workspace.id)
    store.create("one")
    back = store.undelete(workspace.id)
    assert (back.id, back.name, back.get("plan_request", "mix")) == (workspace.id, "one 2", request(1))
    assert store.deleted_name(workspace.id) is None
    with pytest.raises(InputFault, match="deleted for good"):
        store.undelete(workspace.id)


def test_so_many_discarded_workspaces_are_kept_and_older_ones_go_for_good(store):
    ids = [store.create(f"w{number}").id for number in range(MOST_DELETED + 1)]
    for number, identity in enumerate(ids):
        Workspace(store, identity).put("plan_request", "mix", request(number + 1))
        store.soft_delete(identity)
    assert [store.deleted_name(identity) for identity in ids] == [None, "w1", "w2", "w3"]
    assert len(list(store.blobs.folder.glob("*/*"))) == MOST_DELETED


@pytest.mark.parametrize("name", ["", "  ", "x" * 121, "a\nb"])
def test_bad_names_are_refused(store, name):
    with pytest.raises(InputFault, match=r"^name: (is empty|has 121 characters|.* cannot be printed)"):
        store.create(name)


def test_a_taken_name_is_refused_and_a_free_one_found(store):
    store.create("mix")
    with pytest.raises(InputFault, match="there is already a workspace"):
        store.create("mix")
    assert store.free_name("mix") == "mix 2"


@pytest.mark.parametrize("damage", [b"", b"{", None])
def test_a_damaged_file_is_named_and_replaced_by_storing_again(store, damage):
    workspace = store.create("w")
    path = store.blobs.path(workspace.put("plan_request", "mix", request()).sha256)
    if damage is None:
        content = path.read_bytes()
        path.write_bytes(content.replace(b"120.0", b"130.0"))  # still a valid request, but another
    else:
        path.write_bytes(damage)
    with pytest.raises(InputFault, match=r"plan request: the file of 'mix' is .*Make the result again"):
        workspace.get("plan_request", "mix")
    workspace.put("plan_request", "mix", request())
    assert workspace.get("plan_request", "mix") == request()
    path.unlink()
    with pytest.raises(InputFault, match="workspace folder"):
        workspace.get("plan_request", "mix")


def test_a_newer_store_is_refused(store):
    with sqlite3.connect(store.root / "workspaces.sqlite") as database:
        database.execute(f"PRAGMA user_version = {len(SCHEMA) + 1}")
    with pytest.raises(InputFault, match="Update TorchSplit"):
        Store(store.root)


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputFault, match="TORCHSPLIT_HOME"):
        Store(tmp_path / "file")


@pytest.mark.slow
def test_two_processes_write_at_once(store):
    workspace = store.create("w")
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=write_many, args=(str(store.root), workspace.id, n)) for n in (0, 100)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert len(workspace.artifacts("plan_request")) == 40


def test_a_folder_that_another_process_makes_first_is_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see that it is missing, one makes it, the other must not fail."""
    digest = store.blobs.put(b"first")
    seen = iter([False])
    monkeypatch.setattr(Path, "is_dir", lambda path: next(seen, True))
    store.blobs.prepare()
    assert store.blobs.path(digest).read_bytes() == b"first"


def test_export_and_import(store):
    workspace = store.create("review")
    workspace.put("plan_request", "mix", request(3))
    workspace.put_bytes("upload", "net.py", b"x = 1\n")
    copy = import_workspace(store, export_workspace(workspace))
    assert copy.name == "review 2"
    assert copy.get("plan_request", "mix") == request(3)
    assert copy.get_bytes("upload", "net.py") == b"x = 1\n"


def archive(manifest: object, **files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("manifest.json", json.dumps(manifest))
        for name, text in files.items():
            made.writestr(name, text)
    return buffer.getvalue()


def test_a_zip_file_of_something_else_is_said_to_be_no_workspace(store):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("photo.png", b"")
    with pytest.raises(InputFault, match=r"archive: is no exported workspace: it has no manifest\.json"):
        import_workspace(store, buffer.getvalue())


HEAD = {"format": "torchsplit.workspace", "version": 1, "name": "w"}


@pytest.mark.parametrize("data", [
    b"",
    b"noise" * 1000,
    archive([]),
    archive(HEAD),
    archive(HEAD | {"results": [{"kind": "secret", "name": "a", "file": "x"}]}, x="{}"),
    archive(HEAD | {"results": [{"kind": "plan", "name": "a", "file": "missing"}]}),
    archive(
        HEAD | {"results": [{"kind": "plan", "name": "a", "file": "x"}]},
        x='{"format": "torchsplit.plan"}',
    ),
    archive(HEAD | {"version": 2, "results": []}),
])  # fmt: skip
def test_a_bad_archive_is_refused_and_leaves_nothing(store, data):
    with pytest.raises(InputFault):
        import_workspace(store, data)
    assert store.workspaces() == ()

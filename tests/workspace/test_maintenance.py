"""A store that was damaged, killed half-way or made by an earlier version: one message, nothing else lost."""

import datetime
import multiprocessing
import random
import sqlite3
import subprocess
import threading
import time
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.support.workspace.storage_writer import request
from tests.support.workspace.store_damage import damage, try_damaged
from torchsplit_core.jobs.job_kinds import PLAN
from torchsplit_core.values import InputFault
from torchsplit_core.workspace import SCHEMA, StoreFault
from torchsplit_core.workspace import store as workspace_store
from torchsplit_core.workspace.archive import export_workspace, import_workspace
from torchsplit_core.workspace.store import Store, Workspace


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "home")


def filled(store: Store, count: int = 3) -> Workspace:
    workspace = store.create("review")
    for number in range(count):
        workspace.put("plan_request", f"r{number}", request(number + 1))
    workspace.set_setting("scenario", "r1")
    workspace.add_job("Plan", PLAN, {"request": "r1"})
    return workspace


def test_a_store_of_an_earlier_version_keeps_everything_in_its_order(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    database = sqlite3.connect(home / "workspaces.sqlite")
    database.execute("PRAGMA journal_mode = WAL")
    for script in SCHEMA[:3]:
        database.executescript(script)
    database.execute("PRAGMA user_version = 3")
    database.execute("INSERT INTO workspaces VALUES ('w', 'old', 1.0)")
    database.execute("INSERT INTO settings VALUES ('w', 'scenario', '\"b\"')")
    # "a" was stored first and replaced last.
    for identity, name, changed in ((1, "a", 30.0), (2, "b", 20.0), (3, "c", 25.0)):
        row = (identity, "w", "plan", name, "0" * 64, changed)
        database.execute("INSERT INTO artifacts VALUES (?, ?, ?, ?, ?, ?)", row)
    for name, created in (("j2", 9.0), ("j1", 5.0)):
        database.execute("INSERT INTO jobs VALUES (?, 'w', 't', 'm:f', '{}', ?)", (name, created))
    database.execute("INSERT INTO sweeps VALUES ('w', 'b', 'asked', 'request')")
    database.execute("INSERT INTO sweep_plans VALUES ('w', 'b', 'sha', 1.0, 'plan')")
    database.commit()
    database.close()

    workspace = Store(home).open("w")
    assert [item.name for item in workspace.artifacts()] == ["a", "c", "b"]
    assert [record.id for record in workspace.job_records()] == ["j2", "j1"]
    assert workspace.setting("scenario") == "b"
    with workspace.store.connect() as opened:
        assert opened.execute("SELECT count(*) FROM sweep_plans").fetchone() == (1,)
        assert opened.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
        assert opened.execute("PRAGMA foreign_key_check").fetchall() == []
    workspace.store.delete("w")
    with workspace.store.connect() as opened:
        for table in ("artifacts", "jobs", "settings", "sweeps", "sweep_plans"):
            assert opened.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_the_newest_is_the_one_stored_last_whatever_the_clock(store, monkeypatch):
    workspace = store.create("w")
    clock = iter(range(1000, 0, -1))
    monkeypatch.setattr(workspace_store.time, "time", lambda: float(next(clock)))
    for name in ("a", "b", "c", "a"):
        workspace.put("plan_request", name, request(len(name)))
    assert [item.name for item in workspace.artifacts()] == ["a", "c", "b"]
    records = [workspace.add_job(title, PLAN, {}).id for title in "xyz"]
    assert [record.id for record in workspace.job_records()] == records[::-1]
    made = [store.create(name).id for name in ("second", "third")]
    assert [info.id for info in store.workspaces()] == [*made[::-1], workspace.id]


def test_a_deletion_takes_no_content_that_is_about_to_be_named(store):
    workspace, other = store.create("w"), store.create("other")
    other.put_bytes("upload", "there", b"already there")
    with store.blobs.write_lock():
        digest = store.blobs.put(b"about to be named")
        deletion = threading.Thread(target=store.delete, args=(other.id,))
        deletion.start()
        deletion.join(0.5)
        assert deletion.is_alive()
        with store.connect() as database:
            row = (workspace.id, "upload", "new", digest, 0.0)
            database.execute(
                "INSERT INTO artifacts (workspace, kind, name, sha256, changed) VALUES (?, ?, ?, ?, ?)", row
            )
    deletion.join()
    assert workspace.get_bytes("upload", "new") == b"about to be named"
    assert [path.name for path in store.blobs.folder.glob("*/*")] == [digest]


def test_what_a_workspace_leaves_behind_goes_with_it(store):
    workspace = filled(store)
    record = workspace.job_records()[0]
    for suffix in (".json", ".log", ".cancel"):
        (store.root / "jobs" / f"{record.id}{suffix}").write_text("{}")
    orphan = store.root / "jobs" / "0123456789abcdef.log"
    orphan.write_text("of a workspace deleted by an earlier version")
    store.maintain()
    assert not orphan.exists() and len(list((store.root / "jobs").iterdir())) == 3
    store.delete(workspace.id)
    assert list((store.root / "jobs").iterdir()) == []
    assert list(store.blobs.folder.glob("*/*")) == []


def test_a_job_of_a_workspace_that_was_deleted_is_told(store):
    workspace = filled(store)
    store.delete(workspace.id)
    for work in (
        lambda: workspace.put("plan_request", "late", request()),
        lambda: workspace.set_setting("x", 1),
        lambda: workspace.add_job("t", PLAN, {}),
    ):
        with pytest.raises(InputFault, match="it was deleted"):
            work()


def test_there_is_a_copy_a_day_and_three_are_kept(store, monkeypatch):
    filled(store)

    class Calendar(datetime.date):
        today_is = datetime.date(2026, 11, 1)

        @classmethod
        def today(cls) -> datetime.date:  # type: ignore[override]
            return cls.today_is

    monkeypatch.setattr(workspace_store.datetime, "date", Calendar)
    for day in (1, 1, 2, 3, 4):
        Calendar.today_is = datetime.date(2026, 11, day)
        store.maintain()
    kept = [path.name for path in store.database.copies()]
    assert kept == [f"workspaces.2026-11-0{day}.sqlite" for day in (2, 3, 4)]


def test_a_damaged_database_is_told_with_the_way_back_which_works(store):
    workspace = filled(store)
    with pytest.raises(StoreFault, match="There is no copy of it yet"):
        raise store.database.damaged_fault("test")
    store.maintain()
    path = store.database.path
    path.write_bytes(b"noise" * 5000)
    with pytest.raises(StoreFault, match=r"put the copy of .* in its place") as caught:
        Store(store.root)
    command = caught.value.remedy.partition("in its place: ")[2].partition(" (and remove")[0]
    subprocess.run(command, shell=True, check=True)
    again = Store(store.root)
    again.check()
    assert again.open(workspace.id).get("plan_request", "r1") == request(2)


def test_a_damaged_database_never_pushes_out_a_good_copy(store):
    filled(store, 200)
    store.maintain()
    damage(store.database.path, random.Random(3), 400)
    with pytest.raises(StoreFault, match="is damaged"):
        store.check()
    day = datetime.date(2099, 1, 1)
    with pytest.raises(StoreFault):
        workspace_store.make_daily_copy(store.database, day)
    assert len(store.database.copies()) == 1


def test_whatever_is_damaged_is_one_message(store, tmp_path):
    told = try_damaged(store, filled(store, 8).id, tmp_path, range(60))
    assert told > 60  # the damage was felt


@pytest.mark.slow
def test_an_import_that_is_killed_leaves_a_whole_workspace_or_none(store, tmp_path):
    data = export_workspace(filled(store, 40))
    home = tmp_path / "killed"
    Store(home)
    rng = random.Random(7)
    for _ in range(12):
        writer = multiprocessing.get_context("fork").Process(target=import_for_ever, args=(home, data))
        writer.start()
        time.sleep(rng.random() * 0.3)
        writer.kill()
        writer.join()
    reopened = Store(home)
    for info in reopened.workspaces():
        opened = reopened.open(info.id)
        assert len(opened.artifacts()) == 40
        assert opened.get("plan_request", "r39") == request(40)
    reopened.check()
    import_workspace(reopened, data)


def import_for_ever(home: Path, data: bytes) -> None:
    while True:
        import_workspace(Store(home), data)


def test_an_export_leaves_out_what_is_damaged_and_says_so(store):
    workspace = filled(store)
    digest = next(item.sha256 for item in workspace.artifacts() if item.name == "r1")
    store.blobs.path(digest).write_bytes(b"")
    data = export_workspace(workspace)
    with zipfile.ZipFile(BytesIO(data)) as archive:
        assert "plan_request r1" in archive.read("LEFT_OUT.txt").decode()
    copy = import_workspace(store, data)
    assert [item.name for item in copy.artifacts()] == ["r2", "r0"]
